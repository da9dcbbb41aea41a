//! Generator of the `Database` type for typed clients, in the format of the hosted service.

mod print;

use std::{collections::HashMap, fmt::Write as _};

use print::{IndentedWriter, key, text};

use super::catalog::{
    Catalog, Function, FunctionArgument, Oid, PgType, Relation, RelationColumn, RelationKind,
    Relationship,
};

/// `Json` and the beginning of the file.
const HEAD: &str = include_str!("head.ts");
/// `Tables`, `TablesInsert`, `TablesUpdate`, `Enums` and `CompositeTypes`.
const TAIL: &str = include_str!("tail.ts");
/// Maximum depth of arrays of arrays and domains over domains.
const DEPTH_MAX: u8 = 16;

/// Returns a file with a `Database` type of the catalog's schemas, shorthands, and constants of the
/// enums. Clients use what `PostgREST` of version `data_api` can do.
pub fn generate(catalog: &Catalog, data_api: &str) -> String {
    let generator = TypescriptGenerator {
        catalog,
        relationships: catalog.relationships(),
    };
    let mut out = IndentedWriter::new();
    out.open("export type Database = {");
    out.line("// Tells `createClient` which data API it speaks to.");
    out.open("__InternalSupabase: {");
    out.line(&format!("PostgrestVersion: {}", text(data_api)));
    out.close("}");
    for schema in &catalog.schemas {
        generator.schema(&mut out, schema);
    }
    out.close("}");
    let mut file = format!("{HEAD}\n{}\n{TAIL}\n", out.finish());
    generator.constants(&mut file);
    file
}

struct TypescriptGenerator<'a> {
    catalog: &'a Catalog,
    relationships: HashMap<Oid, Vec<Relationship<'a>>>,
}

/// Usage of a row type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowUse {
    Read,
    Insert,
    Update,
}

impl<'a> TypescriptGenerator<'a> {
    fn schema(&self, out: &mut IndentedWriter, schema: &str) {
        let of = |kinds| self.catalog.relations_of(schema, kinds).collect::<Vec<_>>();
        out.open(&format!("{}: {{", key(schema)));
        out.list("Tables", &of(&[RelationKind::Table]), |out, table| {
            self.relation(out, table);
        });
        out.list(
            "Views",
            &of(&[RelationKind::View, RelationKind::Materialized]),
            |out, view| self.relation(out, view),
        );
        out.list("Functions", &self.functions(schema), |out, overloads| {
            self.overloads(out, overloads);
        });
        out.list("Enums", &self.enums(schema), |out, (name, labels)| {
            out.line(&format!("{}: {}", key(name), union(labels)));
        });
        out.list(
            "CompositeTypes",
            &of(&[RelationKind::Composite]),
            |out, composite| {
                out.open(&format!("{}: {{", key(&composite.name)));
                for column in &composite.columns {
                    out.line(&format!(
                        "{}: {} | null",
                        key(&column.name),
                        self.type_of(column.kind)
                    ));
                }
                out.close("}");
            },
        );
        out.close("}");
    }

    fn relation(&self, out: &mut IndentedWriter, relation: &Relation) {
        out.open(&format!("{}: {{", key(&relation.name)));
        out.open("Row: {");
        self.columns(out, relation, RowUse::Read);
        for function in self.computed(relation) {
            out.line(&format!(
                "{}: {} | null",
                key(&function.name),
                self.returns(function)
            ));
        }
        out.close("}");
        let table = relation.kind == RelationKind::Table;
        for (name, purpose, possible) in [
            ("Insert", RowUse::Insert, relation.insertable),
            ("Update", RowUse::Update, relation.updatable),
        ] {
            if table || possible {
                out.open(&format!("{name}: {{"));
                self.columns(out, relation, purpose);
                out.close("}");
            }
        }
        self.relationships(out, relation);
        out.close("}");
    }

    fn columns(&self, out: &mut IndentedWriter, relation: &Relation, purpose: RowUse) {
        for column in &relation.columns {
            out.line(&self.column(column, relation.kind != RelationKind::Table, purpose));
        }
    }

    fn column(&self, column: &RelationColumn, of_view: bool, purpose: RowUse) -> String {
        let name = key(&column.name);
        let null = if column.nullable { " | null" } else { "" };
        if purpose != RowUse::Read && column.always_generated {
            return format!("{name}?: never");
        }
        let optional = match purpose {
            RowUse::Read => "",
            RowUse::Insert if !(column.nullable || column.has_default || of_view) => "",
            RowUse::Insert | RowUse::Update => "?",
        };
        format!("{name}{optional}: {}{null}", self.type_of(column.kind))
    }

    fn relationships(&self, out: &mut IndentedWriter, relation: &Relation) {
        let Some(ways) = self
            .relationships
            .get(&relation.id)
            .filter(|ways| !ways.is_empty())
        else {
            return out.line("Relationships: []");
        };
        let list = |names: &[&str]| {
            names
                .iter()
                .map(|name| text(name))
                .collect::<Vec<_>>()
                .join(", ")
        };
        out.open("Relationships: [");
        for way in ways {
            out.open("{");
            out.line(&format!("foreignKeyName: {}", text(way.key)));
            out.line(&format!("columns: [{}]", list(&way.columns)));
            out.line(&format!("isOneToOne: {}", way.one_to_one));
            out.line(&format!("referencedRelation: {}", text(way.referenced)));
            out.line(&format!(
                "referencedColumns: [{}]",
                list(&way.referenced_columns)
            ));
            out.close("},");
        }
        out.close("]");
    }

    /// Returns the functions that the data API can call, grouped by name.
    fn functions(&self, schema: &str) -> Vec<Vec<&'a Function>> {
        let mut named: Vec<Vec<&Function>> = Vec::new();
        for function in self
            .catalog
            .functions
            .iter()
            .filter(|function| function.schema == schema && self.callable(function))
        {
            match named.last_mut() {
                Some(overloads) if overloads[0].name == function.name => overloads.push(function),
                _ => named.push(vec![function]),
            }
        }
        named
    }

    /// Returns whether the data API can call a function: by argument names, or with one unnamed
    /// argument whose type can be a request body or a row.
    fn callable(&self, function: &Function) -> bool {
        match function.arguments.as_slice() {
            [only] if only.name.is_empty() => {
                let kind = self.catalog.types.get(&only.kind);
                kind.is_some_and(|kind| {
                    ["json", "jsonb", "text", "bytea", "xml"].contains(&kind.name.as_str())
                        || self.row_of(kind).is_some()
                })
            }
            arguments => arguments.iter().all(|argument| !argument.name.is_empty()),
        }
    }

    fn overloads(&self, out: &mut IndentedWriter, overloads: &[&Function]) {
        let [only] = overloads else {
            out.open(&format!("{}:", key(&overloads[0].name)));
            for function in overloads {
                out.open("| {");
                self.function(out, function);
                out.close("}");
            }
            return out.dedent();
        };
        out.open(&format!("{}: {{", key(&only.name)));
        self.function(out, only);
        out.close("}");
    }

    fn function(&self, out: &mut IndentedWriter, function: &Function) {
        let argument = |argument: &FunctionArgument| {
            let optional = if argument.has_default { "?" } else { "" };
            format!(
                "{}{optional}: {}",
                key(&argument.name),
                self.type_of(argument.kind)
            )
        };
        let mut arguments: Vec<_> = function.arguments.iter().collect();
        arguments.sort_by(|a, b| a.name.cmp(&b.name));
        match arguments.as_slice() {
            [] => out.line("Args: never"),
            arguments => out.line(&format!(
                "Args: {{ {} }}",
                arguments
                    .iter()
                    .map(|a| argument(a))
                    .collect::<Vec<_>>()
                    .join("; ")
            )),
        }
        out.line(&format!("Returns: {}", self.returns(function)));
        let Some(to) = self
            .catalog
            .types
            .get(&function.returns)
            .and_then(|kind| self.row_of(kind))
        else {
            return;
        };
        let from = match function.arguments.as_slice() {
            [only] => self
                .catalog
                .types
                .get(&only.kind)
                .and_then(|kind| self.row_of(kind)),
            _ => None,
        };
        out.open("SetofOptions: {");
        out.line(&format!(
            "from: {}",
            from.map_or("\"*\"".to_owned(), |relation| text(&relation.name))
        ));
        out.line(&format!("to: {}", text(&to.name)));
        out.line(&format!("isOneToOne: {}", !function.set));
        out.line(&format!("isSetofReturn: {}", function.set));
        out.close("}");
    }

    /// Returns the functions of one row of `relation`, which the data API displays as columns.
    fn computed(&self, relation: &Relation) -> Vec<&'a Function> {
        let of_row = |function: &&Function| match function.arguments.as_slice() {
            [only] => self
                .catalog
                .types
                .get(&only.kind)
                .is_some_and(|kind| kind.relation == Some(relation.id)),
            _ => false,
        };
        let mut computed: Vec<_> = self
            .catalog
            .functions
            .iter()
            .filter(|f| f.schema == relation.schema && !f.set)
            .filter(of_row)
            .collect();
        computed.dedup_by(|a, b| a.name == b.name);
        computed.retain(|function| {
            relation
                .columns
                .iter()
                .all(|column| column.name != function.name)
        });
        computed
    }

    fn returns(&self, function: &Function) -> String {
        let one = match function.columns.as_slice() {
            [] => match self
                .catalog
                .types
                .get(&function.returns)
                .and_then(|kind| self.row_of(kind))
            {
                Some(relation) => braced(
                    relation
                        .columns
                        .iter()
                        .map(|column| self.column(column, false, RowUse::Read)),
                ),
                None => self.type_of(function.returns),
            },
            columns => braced(
                columns
                    .iter()
                    .map(|column| format!("{}: {}", key(&column.name), self.type_of(column.kind))),
            ),
        };
        if function.set {
            format!("{one}[]")
        } else {
            one
        }
    }

    fn row_of(&self, kind: &PgType) -> Option<&'a Relation> {
        self.catalog
            .relation(kind.relation?)
            .filter(|relation| relation.kind != RelationKind::Composite)
    }

    fn enums(&self, schema: &str) -> Vec<(&'a str, &'a [String])> {
        let of_schema = self
            .catalog
            .types
            .values()
            .filter(|kind| kind.schema == schema);
        let mut enums: Vec<_> = of_schema
            .filter_map(|kind| Some((kind.name.as_str(), kind.labels.as_deref()?)))
            .collect();
        enums.sort_unstable();
        enums
    }

    fn type_of(&self, id: Oid) -> String {
        self.type_within(id, 0)
    }

    fn type_within(&self, id: Oid, depth: u8) -> String {
        let Some(kind) = self.catalog.types.get(&id).filter(|_| depth < DEPTH_MAX) else {
            return "unknown".to_owned();
        };
        if let Some(element) = kind.element {
            let element = self.type_within(element, depth + 1);
            return if element.contains(" | ") {
                format!("({element})[]")
            } else {
                format!("{element}[]")
            };
        }
        if let Some(base) = kind.base {
            return self.type_within(base, depth + 1);
        }
        let shown = self.catalog.schemas.contains(&kind.schema);
        let within = |list: &str, name: &str| {
            format!(
                "Database[{}][\"{list}\"][{}]",
                text(&kind.schema),
                text(name)
            )
        };
        match (&kind.labels, kind.relation) {
            (Some(_), _) if shown => within("Enums", &kind.name),
            (Some(labels), _) => union(labels),
            (None, Some(id)) => match self.catalog.relation(id) {
                Some(relation) if relation.kind == RelationKind::Composite => {
                    within("CompositeTypes", &relation.name)
                }
                Some(relation) if relation.kind == RelationKind::Table => {
                    within("Tables", &relation.name) + "[\"Row\"]"
                }
                Some(relation) => within("Views", &relation.name) + "[\"Row\"]",
                None => "unknown".to_owned(),
            },
            (None, None) => builtin(&kind.name).to_owned(),
        }
    }

    /// Writes the values of enums as constants.
    fn constants(&self, file: &mut String) {
        let mut out = IndentedWriter::new();
        out.open("export const Constants = {");
        for schema in &self.catalog.schemas {
            out.open(&format!("{}: {{", key(schema)));
            out.open("Enums: {");
            for (name, labels) in self.enums(schema) {
                let labels: Vec<_> = labels.iter().map(|label| text(label)).collect();
                out.line(&format!("{}: [{}],", key(name), labels.join(", ")));
            }
            out.close("},");
            out.close("},");
        }
        out.close("} as const");
        let _ = writeln!(file, "{}", out.finish().trim_end());
    }
}

fn braced(fields: impl Iterator<Item = String>) -> String {
    format!("{{ {} }}", fields.collect::<Vec<_>>().join("; "))
}

fn union(labels: &[String]) -> String {
    if labels.is_empty() {
        "never".to_owned()
    } else {
        labels
            .iter()
            .map(|label| text(label))
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

/// Returns the TypeScript type of values in the data API's JSON.
fn builtin(name: &str) -> &'static str {
    match name {
        "bool" => "boolean",
        "int2" | "int4" | "int8" | "float4" | "float8" | "numeric" | "oid" => "number",
        "json" | "jsonb" => "Json",
        "void" => "undefined",
        "record" => "Record<string, unknown>",
        "bytea" | "bpchar" | "varchar" | "text" | "citext" | "name" | "char" | "date" | "time"
        | "timetz" | "timestamp" | "timestamptz" | "uuid" | "vector" | "halfvec" => "string",
        _ => "unknown",
    }
}
