//! Cells, and the rules by which a request replaces those of a notebook.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::platform::error::{Context, Error, NotebookProblem};

/// Maximum number of cells of a notebook.
const CELLS_MAX: usize = 200;
/// Maximum size of the cells of a notebook as JSON, in bytes.
const CONTENT_BYTES_MAX: usize = 512 << 10;
/// Maximum length of the id of a cell, in bytes.
const CELL_ID_BYTES_MAX: usize = 128;
/// Maximum number of series of a chart.
const SERIES_MAX: usize = 3;
/// Rows that a database cell shows, unless it names a number.
const ROW_LIMIT: u32 = 100;

fn default_row_limit() -> u32 {
    ROW_LIMIT
}

/// A cell of a notebook. `I` is the type of its id: optional in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum NotebookCell<I> {
    /// Text.
    Markdown {
        id: I,
        /// Markdown.
        text: String,
    },
    /// A query of a database of the project.
    Database {
        id: I,
        /// The query. It is not validated.
        sql: String,
        /// Maximum number of rows to show.
        #[serde(default = "default_row_limit")]
        #[schemars(range(min = 1))]
        row_limit: u32,
        /// The database: the ref of the project for the primary one.
        #[serde(skip_serializing_if = "Option::is_none")]
        database_identifier: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        view: Option<CellView>,
        #[serde(skip_serializing_if = "Option::is_none")]
        chart: Option<CellChart>,
    },
    /// A query of the logs of the project.
    Log {
        id: I,
        /// The query. It is not validated.
        sql: String,
        time_range: LogTimeRange,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        view: Option<CellView>,
        #[serde(skip_serializing_if = "Option::is_none")]
        chart: Option<CellChart>,
    },
}

/// Presentation of the result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum CellView {
    Table,
    Chart,
}

/// Chart of the result of a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "NotebookChart")]
pub(super) struct CellChart {
    r#type: ChartType,
    /// Column of the horizontal axis.
    x_column: String,
    #[schemars(length(max = 3))]
    y_series: Vec<ChartSeries>,
    scale: ChartScale,
    /// Whether each value includes the earlier ones.
    cumulative: bool,
    show_labels: bool,
}

/// Type of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChartType {
    Bar,
    Line,
}

/// A series of a chart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChartSeries {
    /// Column of the values.
    column: String,
}

/// Scale of the vertical axis of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChartScale {
    Linear,
    Log,
}

/// Time range of a query of logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schemars(rename = "NotebookTimeRange")]
pub(super) enum LogTimeRange {
    /// Between two times. They are not validated.
    Absolute { start: String, end: String },
    /// The last units of time.
    Relative {
        unit: RelativeUnit,
        #[schemars(range(min = 1))]
        amount: u32,
    },
}

/// Unit of a relative time range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum RelativeUnit {
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl<I> NotebookCell<I> {
    const fn id(&self) -> &I {
        match self {
            Self::Markdown { id, .. } | Self::Database { id, .. } | Self::Log { id, .. } => id,
        }
    }

    const fn chart(&self) -> Option<&CellChart> {
        match self {
            Self::Markdown { .. } => None,
            Self::Database { chart, .. } | Self::Log { chart, .. } => chart.as_ref(),
        }
    }

    /// Returns the cell with another id.
    fn with_id<J>(self, id: J) -> NotebookCell<J> {
        match self {
            Self::Markdown { text, .. } => NotebookCell::Markdown { id, text },
            Self::Database {
                sql,
                row_limit,
                database_identifier,
                title,
                view,
                chart,
                ..
            } => NotebookCell::Database {
                id,
                sql,
                row_limit,
                database_identifier,
                title,
                view,
                chart,
            },
            Self::Log {
                sql,
                time_range,
                title,
                view,
                chart,
                ..
            } => NotebookCell::Log {
                id,
                sql,
                time_range,
                title,
                view,
                chart,
            },
        }
    }

    /// Checks the bounds of numbers and lists. `index` is that of the cell in the request.
    fn check(&self, index: usize) -> Result<(), Error> {
        let too_small = |field| Err(invalid(index, field, "Too small: expected number to be >0"));
        match self {
            Self::Database { row_limit: 0, .. } => too_small("row_limit"),
            Self::Log {
                time_range: LogTimeRange::Relative { amount: 0, .. },
                ..
            } => too_small("time_range.amount"),
            _ if self
                .chart()
                .is_some_and(|it| it.y_series.len() > SERIES_MAX) =>
            {
                let problem = format!("Too big: expected array to have <={SERIES_MAX} items");
                Err(invalid(index, "chart.y_series", problem))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the error of an invalid field of a cell.
fn invalid(index: usize, field: &str, problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    let field = format!("data.attributes.content.cells.{index}.{field}");
    Error::invalid(field, problem)
}

/// Returns the ids of cells.
pub(super) fn ids(cells: &[NotebookCell<String>]) -> BTreeSet<&str> {
    cells.iter().map(|cell| cell.id().as_str()).collect()
}

/// Checks the cells of a request, and gives new ids to those without one. Their order stays.
///
/// `known` has the ids of the notebook's cells, which are the only ones that an update may name; a
/// new notebook has none, and takes over the ids that the request names.
///
/// Errors: [`NotebookProblem::DuplicateCell`], [`NotebookProblem::UnknownCell`], or
/// [`Error::Invalid`] for a cell or a list of cells that exceeds a bound.
pub(super) fn identify(
    cells: Vec<NotebookCell<Option<String>>>,
    known: Option<&BTreeSet<&str>>,
    mut new_id: impl FnMut() -> String,
) -> Result<Vec<NotebookCell<String>>, Error> {
    if cells.len() > CELLS_MAX {
        let problem = format!("Too big: expected array to have <={CELLS_MAX} items");
        return Err(Error::invalid("data.attributes.content.cells", problem));
    }
    let mut named = BTreeSet::new();
    let mut identified = Vec::with_capacity(cells.len());
    for (index, cell) in cells.into_iter().enumerate() {
        cell.check(index)?;
        let id = match cell.id() {
            None => new_id(),
            Some(id) => {
                check_id(index, id)?;
                if !named.insert(id.clone()) {
                    return Err(Error::Notebook(NotebookProblem::DuplicateCell(index)));
                }
                if known.is_some_and(|known| !known.contains(id.as_str())) {
                    return Err(Error::Notebook(NotebookProblem::UnknownCell(index)));
                }
                id.clone()
            }
        };
        identified.push(cell.with_id(id));
    }
    Ok(identified)
}

fn check_id(index: usize, id: &str) -> Result<(), Error> {
    if (1..=CELL_ID_BYTES_MAX).contains(&id.len()) && !id.chars().any(char::is_control) {
        return Ok(());
    }
    let problem = format!("expected 1 to {CELL_ID_BYTES_MAX} bytes, without control characters");
    Err(invalid(index, "id", problem))
}

/// Returns cells as they are stored.
///
/// Errors: [`Error::Invalid`] if they have more than [`CONTENT_BYTES_MAX`].
pub(super) fn write(cells: &[NotebookCell<String>]) -> Result<String, Error> {
    let text = serde_json::to_string(cells).context("writing the cells of a notebook")?;
    if text.len() > CONTENT_BYTES_MAX {
        let problem = format!("Too big: expected at most {CONTENT_BYTES_MAX} bytes as JSON");
        return Err(Error::invalid("data.attributes.content", problem));
    }
    Ok(text)
}

/// Reads stored cells.
pub(super) fn read(text: &str) -> Result<Vec<NotebookCell<String>>, Error> {
    serde_json::from_str(text).context("reading the cells of a notebook")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn drafts(cells: Value) -> Vec<NotebookCell<Option<String>>> {
        serde_json::from_value(cells).unwrap()
    }

    fn markdown(id: Option<&str>, text: &str) -> Value {
        let mut cell = json!({"type": "markdown", "text": text});
        if let Some(id) = id {
            cell["id"] = id.into();
        }
        cell
    }

    /// Identifies cells with the new ids `new1`, `new2` and so on.
    fn identified(
        cells: Value,
        known: Option<&[&str]>,
    ) -> Result<Vec<NotebookCell<String>>, Error> {
        let known = known.map(|ids| ids.iter().copied().collect::<BTreeSet<&str>>());
        let mut count = 0;
        identify(drafts(cells), known.as_ref(), || {
            count += 1;
            format!("new{count}")
        })
    }

    fn code(result: Result<Vec<NotebookCell<String>>, Error>) -> &'static str {
        result.unwrap_err().code().name
    }

    #[test]
    fn cells_without_id_get_new_ids_and_others_keep_theirs_in_the_order_of_the_request() {
        let cells = json!([
            markdown(None, "first"),
            markdown(Some("b"), "moved"),
            markdown(None, "third"),
            markdown(Some("a"), "changed"),
        ]);
        let cells = identified(cells, Some(&["a", "b", "c"])).unwrap();
        let found: Vec<&str> = cells.iter().map(|cell| cell.id().as_str()).collect();
        assert_eq!(found, ["new1", "b", "new2", "a"]);
        assert_eq!(ids(&cells).len(), 4);
    }

    #[test]
    fn repeated_and_unknown_ids_are_rejected() {
        let twice = json!([markdown(Some("a"), "1"), markdown(Some("a"), "2")]);
        let unknown = json!([markdown(Some("a"), "1"), markdown(Some("x"), "2")]);
        assert_eq!(
            code(identified(twice.clone(), Some(&["a"]))),
            "notebook_cell_duplicate"
        );
        assert_eq!(code(identified(twice, None)), "notebook_cell_duplicate");
        assert_eq!(
            code(identified(unknown.clone(), Some(&["a"]))),
            "notebook_cell_unknown"
        );
        // A new notebook takes them over.
        assert_eq!(identified(unknown, None).unwrap().len(), 2);
        let error = identified(json!([markdown(Some("x"), "1")]), Some(&[])).unwrap_err();
        let start = "data.attributes.content.cells.0.id: ";
        assert!(error.message().starts_with(start), "{error}");
    }

    #[test]
    fn cells_beyond_a_bound_are_rejected() {
        let series = json!([{"column": "a"}, {"column": "b"}, {"column": "c"}, {"column": "d"}]);
        let chart = json!({
            "type": "bar", "x_column": "x", "y_series": series, "scale": "log",
            "cumulative": false, "show_labels": true,
        });
        let never = json!({"type": "relative", "unit": "day", "amount": 0});
        let long = "x".repeat(CELL_ID_BYTES_MAX + 1);
        for (cell, field) in [
            (
                json!({"type": "database", "sql": "", "row_limit": 0}),
                "row_limit",
            ),
            (
                json!({"type": "database", "sql": "", "chart": chart}),
                "chart.y_series",
            ),
            (
                json!({"type": "log", "sql": "", "time_range": never}),
                "time_range.amount",
            ),
            (markdown(Some(""), ""), "id"),
            (markdown(Some("a\n"), ""), "id"),
            (markdown(Some(&long), ""), "id"),
        ] {
            let error = identified(json!([cell]), None).unwrap_err();
            let start = format!("data.attributes.content.cells.0.{field}: ");
            assert!(error.message().starts_with(&start), "{error}");
        }
        let cells = vec![markdown(None, ""); CELLS_MAX + 1];
        assert_eq!(code(identified(cells.into(), None)), "validation_failed");
        let large = json!([markdown(None, &"x".repeat(CONTENT_BYTES_MAX))]);
        let large = identified(large, None).unwrap();
        assert_eq!(write(&large).unwrap_err().code().name, "validation_failed");
    }

    #[test]
    fn stored_cells_are_read_unchanged_with_the_default_row_limit() {
        let cells = json!([
            {"type": "database", "sql": "select 1"},
            {
                "type": "log", "sql": "select 2", "title": "Errors", "view": "chart",
                "time_range": {"type": "absolute", "start": "2026-11-01", "end": "2026-11-02"},
            },
        ]);
        let cells = identified(cells, None).unwrap();
        let text = write(&cells).unwrap();
        assert_eq!(read(&text).unwrap(), cells);
        let stored: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            stored[0],
            json!({"type": "database", "id": "new1", "sql": "select 1", "row_limit": 100})
        );
        assert_eq!(stored[1]["time_range"]["type"], "absolute");
    }
}
