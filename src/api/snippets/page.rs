//! Snippets a page at a time. A cursor names the last one of a page, so pages neither repeat nor skip while others add.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Snippet, reach, read, visible};
use crate::{
    api::context::ApiContext,
    base::{
        error::{Context, Error},
        ids::ProjectRef,
    },
    platform::access::User,
};

/// By what snippets are put in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SortKey {
    /// What they are called.
    Name,
    /// When they were added.
    #[default]
    InsertedAt,
}

/// In which direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SortDirection {
    /// First the least.
    Asc,
    /// First the greatest.
    #[default]
    Desc,
}

/// ListOrder of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOrder {
    /// By what.
    pub by: SortKey,
    /// In which direction.
    pub direction: SortDirection,
}

/// A part of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnippetList")]
pub struct Page {
    data: Vec<Snippet>,
    /// Of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Where a page ended: the order, and what its last snippet is in it.
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
            // PostgreSQL takes no zero in a text.
            Some(cursor) if cursor.order == order && !cursor.key.contains('\0') => Ok(cursor),
            Some(_) => Err(Error::invalid("cursor", "is of a list in another order")),
            None => Err(Error::invalid("cursor", "expected the cursor of a list")),
        }
    }
}

/// In the order of bytes, which does not depend on the machine, with the id to tell equal ones apart.
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

/// A page of the snippets that the user sees, `limit` long at most.
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
    // One more tells whether there is another page.
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
    let shown = usize::try_from(limit).map_or(rows.len(), |limit| rows.len().min(limit));
    let more = rows.len() > shown;
    let last = rows[..shown].last().filter(|_| more);
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
        data: rows[..shown].iter().map(read).collect(),
        cursor,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_in_its_order_only() {
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
