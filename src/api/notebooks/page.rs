//! Order and cursors of lists. A cursor contains the sort key and id of a notebook, so that
//! concurrent changes of other ones cause no repeats or gaps.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::platform::error::{Context, Error, NotebookProblem};

/// Order of a list. Notebooks with one key are ordered by id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum NotebookSort {
    /// By name, in the order of its bytes.
    #[serde(rename = "name")]
    Name,
    /// By name, descending.
    #[serde(rename = "-name")]
    NameDescending,
    /// By time of creation, oldest first.
    #[default]
    #[serde(rename = "inserted_at")]
    InsertedAt,
    /// By time of creation, newest first.
    #[serde(rename = "-inserted_at")]
    InsertedAtDescending,
}

impl NotebookSort {
    /// Every order.
    const ALL: [Self; 4] = [
        Self::Name,
        Self::NameDescending,
        Self::InsertedAt,
        Self::InsertedAtDescending,
    ];

    /// Returns the parameter `sort`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::NameDescending => "-name",
            Self::InsertedAt => "inserted_at",
            Self::InsertedAtDescending => "-inserted_at",
        }
    }

    /// Parses the parameter `sort`. Without it, the oldest notebook is first.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, Error> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let known = Self::ALL.into_iter().find(|sort| sort.name() == text);
        known.ok_or(Error::Notebook(NotebookProblem::InvalidSort))
    }

    pub(super) const fn is_by_name(self) -> bool {
        matches!(self, Self::Name | Self::NameDescending)
    }

    pub(super) const fn is_descending(self) -> bool {
        matches!(self, Self::NameDescending | Self::InsertedAtDescending)
    }
}

/// The position of a notebook in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NotebookCursor {
    pub(super) sort: NotebookSort,
    /// Name, or time of creation as text.
    pub(super) key: String,
    pub(super) id: Uuid,
}

impl NotebookCursor {
    pub(super) fn write(&self) -> Result<String, Error> {
        let json = serde_json::to_vec(self).context("writing a cursor")?;
        Ok(URL_SAFE_NO_PAD.encode(json))
    }

    /// Parses a cursor. Returns `None` for another text, or the cursor of a list in another order.
    pub(super) fn parse(text: &str, sort: NotebookSort) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let cursor: Self = serde_json::from_slice(&bytes).ok()?;
        // PostgreSQL text cannot contain U+0000.
        (cursor.sort == sort && !cursor.key.contains('\0')).then_some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_in_its_order_only() {
        let cursor = NotebookCursor {
            sort: NotebookSort::NameDescending,
            key: "a 'quoted' größe".to_owned(),
            id: Uuid::from_u128(7),
        };
        let text = cursor.write().unwrap();
        let parse = |text: &str| NotebookCursor::parse(text, NotebookSort::NameDescending);
        assert_eq!(parse(&text), Some(cursor.clone()));
        assert_eq!(NotebookCursor::parse(&text, NotebookSort::Name), None);
        let zero = NotebookCursor {
            key: "\0".to_owned(),
            ..cursor
        };
        for bad in ["", "x", "e30", &text[1..], &zero.write().unwrap()] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sort_is_parsed_by_the_names_of_the_document() {
        for sort in NotebookSort::ALL {
            let name = serde_json::to_value(sort).unwrap();
            assert_eq!(NotebookSort::parse(name.as_str()).unwrap(), sort);
        }
        let default = NotebookSort::parse(None).unwrap();
        assert_eq!(default, NotebookSort::InsertedAt);
        for bad in ["", "size", "--name", "NAME"] {
            let error = NotebookSort::parse(Some(bad)).unwrap_err();
            assert_eq!(error.code().name, "notebook_sort_invalid", "{bad}");
        }
    }
}
