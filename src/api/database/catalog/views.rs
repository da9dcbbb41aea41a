//! What views show: which column of which table each of their columns is, and so which foreign keys reach through them.
//!
//! PostgreSQL keeps a view as the tree of its query. In it, each column of the answer names the column it is taken from as it
//! is, if it is one; that may be another view's. `read.sql` leaves of the tree only what is read here.

use std::collections::HashMap;

use serde::Deserialize;

use super::{Catalog, ForeignKey, Oid};

/// Views over views: no chain is deeper than this in earnest.
const DEPTH_MAX: u8 = 32;
/// A view can show a column more than once, and several columns of a key: so many ways to take them are told.
const WAYS_MAX: usize = 16;
/// Foreign keys that one relation has, with those through views.
const RELATIONSHIPS_MAX: usize = 1000;

/// A view of any schema, materialized or not.
#[derive(Debug, Clone, Deserialize)]
pub struct CatalogView {
    /// Its identifier.
    pub id: Oid,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in their order.
    columns: Vec<String>,
    /// What is left of the tree of its query.
    rule: String,
}

/// A way from one relation to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Relationship<'a> {
    /// Name of the foreign key.
    pub key: &'a str,
    /// The relation referred to, which is in the same schema.
    pub referenced: &'a str,
    /// Columns that refer.
    pub columns: Vec<&'a str>,
    /// Columns referred to.
    pub referenced_columns: Vec<&'a str>,
    /// Whether the columns that refer are unique together, in their table.
    pub one_to_one: bool,
}

/// A table, or a view that shows the columns of a key.
struct RelationshipEnd<'a> {
    relation: Oid,
    schema: &'a str,
    name: &'a str,
    columns: Vec<&'a str>,
}

/// A column of a table.
type ColumnOrigin = (Oid, i16);

/// Of each view, under which names it shows a column.
struct ViewColumns<'a> {
    view: &'a CatalogView,
    columns: HashMap<ColumnOrigin, Vec<&'a str>>,
}

impl Catalog {
    /// Of each relation, the ways from it to others of its schema, in order: foreign keys of tables, and the same from and to
    /// views that show all of the key's columns.
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

/// The table, and every view that shows these columns of it.
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

/// One name of each list, in every combination. None if a list is empty.
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

/// The column of a table behind one that may be a view's.
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

/// Of each of a view's columns, what it is taken from. The rule is `{` and `}` of every node and, in order, of every column of
/// an answer its number, table and column, as `:resno 1 :resorigtbl 16389 :resorigcol 2`; those of the view itself are two
/// nodes deep: an entry in the list of the query.
fn origins(rule: &str, columns: usize) -> Vec<Option<ColumnOrigin>> {
    const OWN: usize = 2;
    let mut origins = vec![None; columns];
    let (mut depth, mut number, mut table): (usize, usize, Oid) = (0, 0, 0);
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
    fn a_rule_tells_where_its_own_columns_come_from() {
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
    fn a_view_of_itself_leads_nowhere() {
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
    fn ways_are_every_combination_up_to_a_bound() {
        let lists: [&[&str]; 2] = [&["a", "b"], &["x", "y"]];
        assert_eq!(
            ways(lists.into_iter()),
            [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]]
        );
        assert_eq!(ways([lists[0], &[]].into_iter()), Vec::<Vec<&str>>::new());
        assert_eq!(ways(std::iter::repeat_n(lists[0], 10)).len(), WAYS_MAX);
    }
}
