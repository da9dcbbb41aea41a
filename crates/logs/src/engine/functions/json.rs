//! Values in JSON texts. A text that is not JSON has none.
//!
//! A place in a document is a list of literals: `k` and the key of an object, or `i` and the
//! one-based index of an item, which counts from the end if negative.

use std::{fmt, sync::Arc};

use datafusion::{
    arrow::{
        array::{
            Array as _, ArrayRef, BooleanArray, Float64Array, Int64Array, ListBuilder,
            StringBuilder, StringViewArray,
        },
        datatypes::Field,
    },
    common::Result,
    logical_expr::ColumnarValue,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::{SerializeMap as _, SerializeSeq as _},
};
use serde_json::Number;

use super::{
    super::render, OUTPUT_BYTES_MAX, OUTPUT_ITEMS_MAX, OutputBudget, array, build_texts, literal,
    output_too_large, texts,
};

/// A JSON value. Objects keep the order and the repetition of their keys.
#[derive(Debug, Clone)]
enum JsonNode {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    List(Vec<JsonNode>),
    Object(Vec<(String, JsonNode)>),
}

impl JsonNode {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn member(&self, segment: &str) -> Option<&Self> {
        let (kind, rest) = segment.split_at_checked(1)?;
        match (kind, self) {
            ("k", Self::Object(members)) => {
                let member = members.iter().find(|(key, _)| key == rest);
                member.map(|(_, value)| value)
            }
            ("i", Self::Object(members)) => {
                let member = members.get(position(rest, members.len())?);
                member.map(|(_, value)| value)
            }
            ("i", Self::List(items)) => items.get(position(rest, items.len())?),
            _ => None,
        }
    }

    fn into_member(self, segments: &[&str]) -> Option<Self> {
        let mut node = &self;
        for segment in segments {
            node = node.member(segment)?;
        }
        Some(node.clone())
    }

    fn raw(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn text(&self, form: &str) -> Option<String> {
        match (self, form) {
            (Self::Null, "raw" | "value") => Some("null".into()),
            (Self::Null, _) | (Self::List(_) | Self::Object(_), "scalar" | "value") => None,
            (node, "raw" | "query") => Some(node.raw()),
            (Self::Text(text), _) => Some(text.clone()),
            (node, _) => Some(node.raw()),
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Self::Number(number) => number.as_f64(),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "fractions are cut, and numbers outside of the range are rejected"
    )]
    fn integer(&self) -> Option<i64> {
        const BOUND: f64 = 9_223_372_036_854_775_808.0;
        match self {
            Self::Number(number) => number.as_i64().or_else(|| {
                let float = number.as_f64()?;
                (-BOUND..BOUND).contains(&float).then_some(float as i64)
            }),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn boolean(&self) -> Option<bool> {
        match self {
            Self::Boolean(value) => Some(*value),
            Self::Number(number) if number.is_f64() => None,
            Self::Number(number) => Some(number.as_i64() != Some(0)),
            _ => None,
        }
    }
}

/// Returns the zero-based position of a one-based index.
fn position(index: &str, length: usize) -> Option<usize> {
    let index: i64 = index.parse().ok()?;
    let distance = usize::try_from(index.unsigned_abs()).ok()?;
    match index {
        0 => None,
        1.. => Some(distance - 1),
        _ => length.checked_sub(distance),
    }
}

impl Serialize for JsonNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Object(members) => {
                let mut object = serializer.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    object.serialize_entry(key, value)?;
                }
                object.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for JsonNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = JsonNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<JsonNode, E> {
        Ok(JsonNode::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<JsonNode, E> {
        Ok(JsonNode::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<JsonNode, E> {
        Ok(JsonNode::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<JsonNode, E> {
        Ok(JsonNode::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<JsonNode, E> {
        match Number::from_f64(value) {
            Some(number) => Ok(JsonNode::Number(number)),
            None => Err(E::custom("not a JSON number")),
        }
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<JsonNode, E> {
        Ok(JsonNode::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut sequence: A,
    ) -> std::result::Result<JsonNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(JsonNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<JsonNode, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
            if members.len() > OUTPUT_ITEMS_MAX {
                return Err(A::Error::custom("too many members"));
            }
        }
        Ok(JsonNode::Object(members))
    }
}

/// The texts of a column with the value at a place of each.
struct JsonPlaces<'a> {
    texts: StringViewArray,
    segments: Vec<&'a str>,
}

impl<'a> JsonPlaces<'a> {
    fn new(args: &'a [ColumnarValue], first: usize, rows: usize) -> Result<Self> {
        let mut segments = Vec::with_capacity(args.len());
        for at in first..args.len() {
            segments.push(literal(args, at)?);
        }
        Ok(Self {
            texts: texts(args, 0, rows)?,
            segments,
        })
    }

    fn node(&self, row: usize) -> Option<JsonNode> {
        if self.texts.is_null(row) {
            return None;
        }
        JsonNode::parse(self.texts.value(row))?.into_member(&self.segments)
    }
}

/// `json_text(text, form, segment…)`: the value at a place as text.
///
/// The form `string` is the content of a string and the JSON of other values, `scalar` is null for
/// lists and objects, `value` is `scalar` with `null` as text, `raw` is JSON, and `query` is JSON
/// or null.
pub(super) fn json_text(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let form = literal(args, 1)?;
    let places = JsonPlaces::new(args, 2, rows)?;
    build_texts(rows, |row| {
        Ok(places.node(row).and_then(|node| node.text(form)))
    })
}

/// `json_integer(text, segment…)`: the number at a place, without its fraction.
pub(super) fn json_integer(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let numbers: Int64Array = (0..rows).map(|row| places.node(row)?.integer()).collect();
    Ok(Arc::new(numbers))
}

pub(super) fn json_float(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let numbers: Float64Array = (0..rows).map(|row| places.node(row)?.float()).collect();
    Ok(Arc::new(numbers))
}

pub(super) fn json_boolean(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let values: BooleanArray = (0..rows).map(|row| places.node(row)?.boolean()).collect();
    Ok(Arc::new(values))
}

/// `json_exists(text, segment…)`: whether a place exists, also with the value null.
pub(super) fn json_exists(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let values: BooleanArray = (0..rows)
        .map(|row| Some(places.node(row).is_some()))
        .collect();
    Ok(Arc::new(values))
}

/// `json_length(text, segment…)`: the number of items of a list or an object, otherwise 0.
pub(super) fn json_length(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let lengths: Int64Array = (0..rows)
        .map(|row| {
            let length = match places.node(row) {
                Some(JsonNode::List(items)) => items.len(),
                Some(JsonNode::Object(members)) => members.len(),
                _ => 0,
            };
            i64::try_from(length).ok()
        })
        .collect();
    Ok(Arc::new(lengths))
}

/// `json_keys(text, segment…)`: the keys of an object in their order.
pub(super) fn json_keys(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut items = OutputBudget(OUTPUT_ITEMS_MAX);
    let mut bytes = OutputBudget(OUTPUT_BYTES_MAX);
    for row in 0..rows {
        if let Some(JsonNode::Object(members)) = places.node(row) {
            for (key, _) in members {
                items.take(1)?;
                bytes.take(key.len())?;
                lists.values().append_value(key);
            }
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

pub(super) fn json_valid(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let places = JsonPlaces::new(args, 1, rows)?;
    let valid: BooleanArray = (0..rows)
        .map(|row| Some(places.node(row).is_some()))
        .collect();
    Ok(Arc::new(valid))
}

/// `to_json(value)`: the value as JSON text.
pub(super) fn to_json(args: &[ColumnarValue], rows: usize) -> Result<ArrayRef> {
    let values = array(args, 0, rows)?;
    let field = Field::new("value", values.data_type().clone(), true);
    build_texts(rows, |row| {
        let value = render::json_of(&field, &values, row)?;
        serde_json::to_string(&value)
            .map(Some)
            .map_err(|_| output_too_large())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str, form: &str, segments: &[&str]) -> Option<String> {
        JsonNode::parse(json)?.into_member(segments)?.text(form)
    }

    #[test]
    fn places_are_keys_and_indices_from_both_ends() {
        let json = r#"{"z":{"b":["x",5,null,true,{"d":1,"c":2}]},"a":1}"#;
        for (segments, expected) in [
            (&["kz", "kb", "i1"][..], Some("x")),
            (&["kz", "kb", "i2"], Some("5")),
            (&["kz", "kb", "i3"], None),
            (&["kz", "kb", "i-2"], Some("true")),
            (&["kz", "kb", "i-1"], Some(r#"{"d":1,"c":2}"#)),
            (&["i2"], Some("1")),
            (&["kz", "kb", "i0"], None),
            (&["kz", "kb", "i9"], None),
            (&["kz", "kz"], None),
        ] {
            assert_eq!(text(json, "string", segments).as_deref(), expected);
        }
        assert_eq!(text("x", "string", &[]), None);
    }
}
