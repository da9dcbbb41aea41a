//! JSON formats of PostgreSQL types.

use std::collections::HashMap;

use postgres_protocol::Oid;

use crate::control::database_session::session::DatabaseSession;

/// Maximum number of types looked up per request. A result has at most 1664 columns.
const UNKNOWN_MAX: usize = 2_000;

/// JSON format of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueFormat {
    /// A single value.
    Scalar(ScalarFormat),
    /// An array with any number of dimensions.
    Array {
        /// Format of an element.
        element: ScalarFormat,
        /// Delimiter between elements: `;` for `box`, otherwise `,`.
        delimiter: u8,
    },
}

/// JSON format of a type other than an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalarFormat {
    /// `true` or `false`.
    Bool,
    /// A number with all digits, or `"NaN"`, `"Infinity"`, `"-Infinity"`.
    Number,
    /// `timestamp` and `timestamptz`: ISO 8601 with a `T`.
    Timestamp,
    /// JSON, unchanged.
    Json,
    /// A string.
    Text,
}

/// Returns the format of a built-in type. The object ids are fixed (`pg_type.dat`).
///
/// The formats are those of PostgreSQL's `to_json`, except for `oid`, which clients expect as a
/// number.
fn builtin(kind: Oid) -> Option<ValueFormat> {
    let scalar = match kind {
        16 => ScalarFormat::Bool,
        20 | 21 | 23 | 26 | 700 | 701 | 1700 => ScalarFormat::Number,
        1114 | 1184 => ScalarFormat::Timestamp,
        114 | 3802 => ScalarFormat::Json,
        17..=19
        | 22
        | 24
        | 25
        | 30
        | 650
        | 705
        | 829
        | 869
        | 1042
        | 1043
        | 1082
        | 1083
        | 1186
        | 1266
        | 2205
        | 2206
        | 2249
        | 2275
        | 2278
        | 2950
        | 3614 => ScalarFormat::Text,
        _ => return builtin_array(kind),
    };
    Some(ValueFormat::Scalar(scalar))
}

fn builtin_array(kind: Oid) -> Option<ValueFormat> {
    let element = match kind {
        1000 => ScalarFormat::Bool,
        1005 | 1007 | 1016 | 1021 | 1022 | 1028 | 1231 => ScalarFormat::Number,
        199 | 3807 => ScalarFormat::Json,
        1115 | 1185 => ScalarFormat::Timestamp,
        1002 | 1003 | 1009 | 1014 | 1015 | 1182 | 1187 | 2951 => ScalarFormat::Text,
        _ => return None,
    };
    Some(ValueFormat::Array {
        element,
        delimiter: b',',
    })
}

/// Returns the formats of `kinds`, in the same order.
///
/// Other types are looked up in the same session, because they may exist only in its open
/// transaction. A type that cannot be looked up is printed as text, because the customer's
/// statement has already run.
pub(crate) async fn resolve(
    session: &mut DatabaseSession,
    kinds: impl Iterator<Item = Oid>,
) -> Vec<ValueFormat> {
    let kinds: Vec<_> = kinds.collect();
    let mut unknown: Vec<_> = kinds
        .iter()
        .copied()
        .filter(|kind| builtin(*kind).is_none())
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    unknown.truncate(UNKNOWN_MAX);
    let arrays = if unknown.is_empty() {
        HashMap::new()
    } else {
        look_up(session, &unknown).await
    };
    let text = ValueFormat::Scalar(ScalarFormat::Text);
    kinds
        .into_iter()
        .map(|kind| {
            builtin(kind)
                .or_else(|| arrays.get(&kind).copied())
                .unwrap_or(text)
        })
        .collect()
}

/// Returns the arrays among `unknown`. All other types (enums, ranges, composites, types of
/// extensions) are text.
async fn look_up(session: &mut DatabaseSession, unknown: &[Oid]) -> HashMap<Oid, ValueFormat> {
    let list = unknown
        .iter()
        .map(Oid::to_string)
        .collect::<Vec<_>>()
        .join(",");
    // A domain may have another domain as its base type. The depth is bounded.
    let sql = format!(
        "with recursive step(id, element, delimiter, depth) as (
             select a.oid, a.typelem, e.typdelim, 0 from pg_catalog.pg_type a join pg_catalog.pg_type e on e.oid = a.typelem
             where a.oid in ({list}) and a.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc
             union all
             select step.id, d.typbasetype, step.delimiter, step.depth + 1
             from step join pg_catalog.pg_type d on d.oid = step.element where d.typtype = 'd' and step.depth < 16
         ) select distinct on (id) id, element, delimiter from step order by id, depth desc"
    );
    let answer = match session.simple_query(&sql).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, "failed to look up types; printing them as text");
            return HashMap::new();
        }
    };
    answer
        .rows
        .texts()
        .iter()
        .filter_map(|row| array(row))
        .collect()
}

fn array(row: &[Option<String>]) -> Option<(Oid, ValueFormat)> {
    let [Some(id), Some(element), Some(delimiter)] = row else {
        return None;
    };
    let element = match builtin(element.parse().ok()?) {
        Some(ValueFormat::Scalar(scalar)) => scalar,
        _ => ScalarFormat::Text,
    };
    Some((
        id.parse().ok()?,
        ValueFormat::Array {
            element,
            delimiter: *delimiter.as_bytes().first()?,
        },
    ))
}
