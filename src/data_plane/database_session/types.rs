//! How a type prints as JSON.

use std::collections::HashMap;

use postgres_protocol::Oid;

use crate::data_plane::database_session::session::DatabaseSession;

/// Types asked about in one request. A result has at most 1664 columns.
const UNKNOWN_MAX: usize = 2_000;

/// How a value prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueFormat {
    /// One value.
    Scalar(ScalarFormat),
    /// An array, of any number of dimensions.
    Array {
        /// How an element prints.
        element: ScalarFormat,
        /// What stands between elements: `;` for `box`, else `,`.
        delimiter: u8,
    },
}

/// How a value that is no array prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalarFormat {
    /// `true`, `false`.
    Bool,
    /// A number with every digit, or `"NaN"`, `"Infinity"`, `"-Infinity"`.
    Number,
    /// `timestamp` and `timestamptz`: ISO 8601 with a `T`.
    Timestamp,
    /// As stored.
    Json,
    /// A string.
    Text,
}

/// The types of PostgreSQL itself that are worth no question. The object identifiers are fixed (`pg_type.dat`).
///
/// They print as PostgreSQL's own `to_json` prints them, but for `oid`, which clients check to be a number.
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

/// How values of `kinds` print, in the same order.
///
/// Types we do not know are looked up in the session that used them, as they may exist in its open transaction only.
/// What cannot be found out prints as text: the customer's statement has run, so its answer must not fail over this.
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

/// Those of `unknown` that are arrays. Everything else — enums, ranges, composites, types of extensions — is text.
async fn look_up(session: &mut DatabaseSession, unknown: &[Oid]) -> HashMap<Oid, ValueFormat> {
    let list = unknown
        .iter()
        .map(Oid::to_string)
        .collect::<Vec<_>>()
        .join(",");
    // An element may be a domain over a domain; no chain is deeper than this in earnest.
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
            tracing::debug!(%error, "looking up types failed; they print as text");
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
