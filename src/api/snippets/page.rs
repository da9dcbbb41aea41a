//! Keyset pagination of snippets. A cursor identifies the last item of a page, so that concurrent
//! inserts cause no repeats or gaps.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{SnippetSummary, reach, read, visible};
use crate::{
    api::context::ApiContext,
    platform::{
        access::User,
        error::{Context, Error},
    },
};

/// Sort key of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SortKey {
    /// By name.
    Name,
    /// By time of creation.
    #[default]
    InsertedAt,
}

/// Sort direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SortDirection {
    /// Ascending.
    Asc,
    /// Descending.
    #[default]
    Desc,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOrder {
    /// Sort key.
    pub by: SortKey,
    /// Direction.
    pub direction: SortDirection,
}

/// A page of snippets.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnippetList")]
pub struct Page {
    data: Vec<SnippetSummary>,
    /// Cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// The position of the last item of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnippetCursor {
    order: ListOrder,
    key: String,
    id: Uuid,
}

impl SnippetCursor {
    fn write(&self) -> Result<String, Error> {
        Ok(URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).context("writing a cursor")?))
    }

    fn read(text: &str, order: ListOrder) -> Result<Self, Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let cursor: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match cursor {
            // PostgreSQL text cannot contain U+0000.
            Some(cursor) if cursor.order == order && !cursor.key.contains('\0') => Ok(cursor),
            Some(_) => Err(Error::invalid("cursor", "is of a list in another order")),
            None => Err(Error::invalid("cursor", "expected the cursor of a list")),
        }
    }
}

/// Orders by bytes, independent of the locale, and then by id.
macro_rules! page {
    ($after:literal, $direction:literal) => {
        concat!(
            "with seen as (",
            visible!(
                "case $4 when 'name' then s.name else to_char(s.inserted_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') end \
                 collate \"C\" as key, ",
                "and ($5::text is null or p.ref = $5)"
            ),
            ") select * from seen where $6::text is null or (key, id) ",
            $after,
            " ($6, $7::uuid) order by key ",
            $direction,
            ", id ",
            $direction,
            " limit $8"
        )
    };
}

/// Returns a page of the snippets visible to the user, with at most `limit` items.
pub async fn list(
    context: &ApiContext,
    user: &User,
    project: Option<&ProjectRef>,
    order: ListOrder,
    (cursor, limit): (Option<&str>, u32),
) -> Result<Page, Error> {
    let after = cursor
        .map(|text| SnippetCursor::read(text, order))
        .transpose()?;
    let (key, id) = after.map(|cursor| (cursor.key, cursor.id)).unzip();
    let sql = match order.direction {
        SortDirection::Asc => page!(">", "asc"),
        SortDirection::Desc => page!("<", "desc"),
    };
    let by = match order.by {
        SortKey::Name => "name",
        SortKey::InsertedAt => "inserted_at",
    };
    let (organizations, projects) = reach(user);
    let project = project.map(ProjectRef::as_str);
    // Reads one row more than the page, to detect another page.
    let rows = context
        .db
        .query(
            sql,
            &[
                &user.id.0,
                &organizations,
                &projects,
                &by,
                &project,
                &key,
                &id,
                &(i64::from(limit) + 1),
            ],
        )
        .await;
    let rows = rows.context("listing snippets")?;
    let page_len = usize::try_from(limit).map_or(rows.len(), |limit| rows.len().min(limit));
    let more = rows.len() > page_len;
    let last = rows[..page_len].last().filter(|_| more);
    let cursor = last
        .map(|row| {
            SnippetCursor {
                order,
                key: row.get(0),
                id: row.get(1),
            }
            .write()
        })
        .transpose()?;
    Ok(Page {
        data: rows[..page_len].iter().map(read).collect(),
        cursor,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_in_its_order_only() {
        let order = ListOrder {
            by: SortKey::Name,
            direction: SortDirection::Asc,
        };
        let cursor = SnippetCursor {
            order,
            key: "a 'quoted' größe".to_owned(),
            id: Uuid::from_u128(7),
        };
        let text = cursor.write().unwrap();
        assert_eq!(SnippetCursor::read(&text, order).unwrap(), cursor);
        assert!(SnippetCursor::read(&text, ListOrder::default()).is_err());
        let zero = SnippetCursor {
            key: "\0".to_owned(),
            ..cursor
        };
        for bad in [
            "",
            "x",
            "e30",
            &text[1..],
            &format!("{text}="),
            &zero.write().unwrap(),
        ] {
            assert!(SnippetCursor::read(bad, order).is_err(), "{bad}");
        }
    }
}
