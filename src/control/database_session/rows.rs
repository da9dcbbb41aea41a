//! Rows of a result within the limits of a request.

use std::time::Duration;

use postgres_protocol::{Oid, message::backend::DataRowBody};

use crate::platform::error::Error;

/// Limits of one request.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// Time from connecting to the last byte. A statement that exceeds it is cancelled, and
    /// terminated a second later.
    pub time: Duration,
    /// Maximum rows of a result.
    pub rows_max: usize,
    /// Maximum bytes of a result, in the server's format and as JSON.
    pub bytes_max: usize,
}

impl Default for SessionLimits {
    /// Returns 60 s, 100 000 rows, 32 MiB.
    fn default() -> Self {
        Self {
            time: Duration::from_mins(1),
            rows_max: 100_000,
            bytes_max: 32 << 20,
        }
    }
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultColumn {
    /// Name. Not unique.
    pub name: String,
    /// Type. For a domain, the base type.
    pub kind: Oid,
}

/// Rows in the server's format: for each cell its length (-1 for null) and its text.
#[derive(Debug, Default)]
pub struct ResultRows {
    /// Columns of the rows.
    pub columns: Vec<ResultColumn>,
    count: usize,
    // One buffer for all rows. Slices of the read buffer would keep its pages alive, including
    // notices in between.
    cells: Vec<u8>,
}

impl ResultRows {
    /// Returns an empty list of rows with these columns.
    pub(super) fn new(columns: Vec<ResultColumn>) -> Self {
        Self {
            columns,
            ..Self::default()
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the size of all rows.
    pub fn bytes(&self) -> usize {
        self.cells.len()
    }

    /// Returns all cells row by row, `columns.len()` per row.
    pub fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.cells.as_slice();
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk()?;
            let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
                rest = after;
                return Some(None);
            };
            let (cell, after) = after.split_at_checked(length)?;
            rest = after;
            Some(Some(cell))
        })
    }

    /// Returns the rows as text, for small internal queries. Invalid UTF-8 is replaced.
    pub(crate) fn texts(&self) -> Vec<Vec<Option<String>>> {
        let cells: Vec<_> = self
            .cells()
            .map(|cell| cell.map(|text| String::from_utf8_lossy(text).into_owned()))
            .collect();
        cells
            .chunks(self.columns.len().max(1))
            .map(<[_]>::to_vec)
            .collect()
    }

    /// Returns the rows with `N` columns as text.
    pub(crate) fn records<const N: usize>(&self) -> impl Iterator<Item = [Option<String>; N]> {
        let rows = self.texts().into_iter();
        rows.filter_map(|row| row.try_into().ok())
    }

    /// Returns the values that are not null as text, row by row.
    pub(crate) fn values(&self) -> impl Iterator<Item = String> {
        let values = self.cells().flatten();
        values.map(|text| String::from_utf8_lossy(text).into_owned())
    }

    pub(super) fn push(&mut self, row: &DataRowBody, limits: &SessionLimits) -> Result<(), Error> {
        if self.count == limits.rows_max {
            return Err(Error::invalid(
                "query",
                format!(
                    "the result has more than {} rows; add a limit",
                    limits.rows_max
                ),
            ));
        }
        if self.cells.len() + row.buffer().len() > limits.bytes_max {
            return Err(too_large(limits));
        }
        self.cells.extend_from_slice(row.buffer());
        self.count += 1;
        Ok(())
    }
}

/// Returns the error for a result over [`SessionLimits::bytes_max`].
pub(crate) fn too_large(limits: &SessionLimits) -> Error {
    Error::invalid(
        "query",
        format!("the result is over {} bytes; select less", limits.bytes_max),
    )
}
