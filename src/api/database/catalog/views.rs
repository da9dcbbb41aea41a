//! Origins of view columns, from which foreign keys of views are derived.
//!
//! PostgreSQL stores a view as a query tree, in which each output column names the column that it
//! copies, if any; that column may belong to another view. `read.sql` reduces the tree to the parts
//! that are read here.

use std::collections::HashMap;

use serde::Deserialize;

use super::{Catalog, ForeignKey, Oid};

/// Maximum depth of views over views.
const DEPTH_MAX: u8 = 32;
/// Maximum number of column combinations per key, because a view may contain a column repeatedly.
const WAYS_MAX: usize = 16;
/// Maximum number of relationships of a relation, including those through views.
const RELATIONSHIPS_MAX: usize = 1000;

/// A view of any schema, including materialized views.
#[derive(Debug, Clone, Deserialize)]
pub struct CatalogView {
    /// Object id.
    pub id: Oid,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Columns, in their order.
    columns: Vec<String>,
    /// Reduced query tree.
    rule: String,
}

/// A foreign key between relations, direct or through views.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Relationship<'a> {
    /// Name of the foreign key.
    pub key: &'a str,
    /// Referenced relation, in the same schema.
    pub referenced: &'a str,
    /// Referencing columns.
    pub columns: Vec<&'a str>,
    /// Referenced columns.
    pub referenced_columns: Vec<&'a str>,
    /// Whether the referencing columns are unique in their table.
    pub one_to_one: bool,
}

/// A table, or a view that contains the columns of a key.
struct RelationshipEnd<'a> {
    relation: Oid,
    schema: &'a str,
    name: &'a str,
    columns: Vec<&'a str>,
}

/// Table and number of a column.
type ColumnOrigin = (Oid, i16);

/// Names under which a view contains columns of tables.
struct ViewColumns<'a> {
    view: &'a CatalogView,
    columns: HashMap<ColumnOrigin, Vec<&'a str>>,
}

impl Catalog {
    /// Returns for each relation its relationships to others of its schema, in order: foreign keys
    /// of tables, and those from and to views that contain all columns of the key.
    pub fn relationships(&self) -> HashMap<Oid, Vec<Relationship<'_>>> {
        let shown = self.shown();
        let mut relationships: HashMap<Oid, Vec<Relationship<'_>>> = HashMap::new();
        for key in &self.foreign_keys {
            let from = sides(
                &shown,
                key.table,
                &key.schema,
                &key.table_name,
                &key.columns,
                &key.column_numbers,
            );
            let to = sides(
                &shown,
                key.referenced,
                &key.referenced_schema,
                &key.referenced_table,
                &key.referenced_columns,
                &key.referenced_numbers,
            );
            for from in &from {
                let of_relation = relationships.entry(from.relation).or_default();
                let to = to.iter().filter(|to| to.schema == from.schema);
                let room = RELATIONSHIPS_MAX.saturating_sub(of_relation.len());
                of_relation.extend(to.take(room).map(|to| relationship(key, from, to)));
            }
        }
        for of_relation in relationships.values_mut() {
            of_relation.sort_unstable();
        }
        relationships
    }

    fn shown(&self) -> Vec<ViewColumns<'_>> {
        let taken: HashMap<Oid, Vec<Option<ColumnOrigin>>> = self
            .views
            .iter()
            .map(|view| (view.id, origins(&view.rule, view.columns.len())))
            .collect();
        let shown = self.views.iter().map(|view| {
            let mut columns: HashMap<ColumnOrigin, Vec<&str>> = HashMap::new();
            for (name, origin) in
                std::iter::zip(&view.columns, taken.get(&view.id).into_iter().flatten())
            {
                if let Some(origin) = origin.and_then(|origin| follow(&taken, origin)) {
                    columns.entry(origin).or_default().push(name);
                }
            }
            ViewColumns { view, columns }
        });
        shown.collect()
    }
}

fn relationship<'a>(
    key: &'a ForeignKey,
    from: &RelationshipEnd<'a>,
    to: &RelationshipEnd<'a>,
) -> Relationship<'a> {
    Relationship {
        key: &key.name,
        referenced: to.name,
        columns: from.columns.clone(),
        referenced_columns: to.columns.clone(),
        one_to_one: key.one_to_one,
    }
}

/// Returns the table, and every view that contains these columns of it.
fn sides<'a>(
    shown: &[ViewColumns<'a>],
    table: Oid,
    schema: &'a str,
    name: &'a str,
    columns: &'a [String],
    numbers: &[i16],
) -> Vec<RelationshipEnd<'a>> {
    let itself = RelationshipEnd {
        relation: table,
        schema,
        name,
        columns: columns.iter().map(String::as_str).collect(),
    };
    let through = shown.iter().flat_map(|ViewColumns { view, columns }| {
        let ways = ways(numbers.iter().map(|number| {
            columns
                .get(&(table, *number))
                .map(Vec::as_slice)
                .unwrap_or_default()
        }));
        ways.into_iter().map(|columns| RelationshipEnd {
            relation: view.id,
            schema: &view.schema,
            name: &view.name,
            columns,
        })
    });
    std::iter::once(itself).chain(through).collect()
}

/// Returns combinations of one name per list, or no combination if a list is empty.
fn ways<'a, 'b>(lists: impl Iterator<Item = &'b [&'a str]>) -> Vec<Vec<&'a str>>
where
    'a: 'b,
{
    lists.fold(vec![Vec::new()], |ways, names| {
        let longer = ways
            .iter()
            .flat_map(|way| names.iter().map(|name| [way.as_slice(), &[*name]].concat()));
        longer.take(WAYS_MAX).collect()
    })
}

/// Returns the table column from which a column, possibly of a view, is copied.
fn follow(
    taken: &HashMap<Oid, Vec<Option<ColumnOrigin>>>,
    mut origin: ColumnOrigin,
) -> Option<ColumnOrigin> {
    for _ in 0..DEPTH_MAX {
        let Some(columns) = taken.get(&origin.0) else {
            return Some(origin);
        };
        origin = (*columns.get(usize::try_from(origin.1).ok()?.checked_sub(1)?)?)?;
    }
    None
}

/// Returns the origin of each column of a view. The rule consists of `{` and `}` of every node and,
/// in order, number, table and column of each output column, as `:resno 1 :resorigtbl 16389
/// :resorigcol 2`. Columns of the view itself are two nodes deep.
fn origins(rule: &str, columns: usize) -> Vec<Option<ColumnOrigin>> {
    const OWN: usize = 2;
    let mut origins = vec![None; columns];
    let mut depth = 0_usize;
    let mut number = 0_usize;
    let mut table: Oid = 0;
    let mut words = rule.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            field => {
                let Some(value) = words.next().and_then(|value| value.parse::<u32>().ok()) else {
                    continue;
                };
                match field {
                    _ if depth != OWN => {}
                    ":resno" => number = usize::try_from(value).unwrap_or_default(),
                    ":resorigtbl" => table = value,
                    _ => {
                        let place = number
                            .checked_sub(1)
                            .and_then(|index| origins.get_mut(index));
                        if let (Some(place), Ok(column), true) =
                            (place, i16::try_from(value), table != 0)
                        {
                            *place = Some((table, column));
                        }
                    }
                }
            }
        }
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_the_outer_query() {
        let rule = "{ { { { { } :resno 1 :resorigtbl 7 :resorigcol 7 } } } { { } :resno 1 :resorigtbl 10 :resorigcol 3 } \
                    { { } :resno 2 :resorigtbl 0 :resorigcol 0 } { :resno 3 :resorigtbl 11 :resorigcol 1 } { :resno 4 :resorigtbl 11 :resorigcol 2 } }";
        assert_eq!(
            origins(rule, 3),
            [Some((10, 3)), None, Some((11, 1))],
            "neither a subquery's nor one that only sorts"
        );
        for junk in [
            "",
            "}",
            "} } {",
            "{ { :resno",
            "{ { :resno x :resorigcol 1 } }",
            "{ { :resno 0 :resorigtbl 1 :resorigcol 1 } }",
        ] {
            assert_eq!(origins(junk, 1), [None], "{junk:?}");
        }
    }

    #[test]
    fn recursive_view_has_no_origin() {
        let taken = HashMap::from([
            (1, vec![Some((2, 1))]),
            (2, vec![Some((1, 1)), Some((9, 4)), None]),
        ]);
        assert_eq!(follow(&taken, (1, 1)), None);
        assert_eq!(follow(&taken, (2, 2)), Some((9, 4)));
        assert_eq!(
            (
                follow(&taken, (2, 3)),
                follow(&taken, (2, 4)),
                follow(&taken, (2, 0)),
                follow(&taken, (2, -1))
            ),
            (None, None, None, None)
        );
    }

    #[test]
    fn combinations_are_bounded() {
        let lists: [&[&str]; 2] = [&["a", "b"], &["x", "y"]];
        assert_eq!(
            ways(lists.into_iter()),
            [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]]
        );
        assert_eq!(ways([lists[0], &[]].into_iter()), Vec::<Vec<&str>>::new());
        assert_eq!(ways(std::iter::repeat_n(lists[0], 10)).len(), WAYS_MAX);
    }
}
