//! Imports of types only, which are not fetched (decision 0171).
//!
//! A declaration file has no code, but Deno fetches it if a module imports it for its side effects,
//! as the template of the command line tool does. Such names are mapped to an empty module in a
//! copy of the function's configuration, which lies beside the original.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

/// Prefix of the name of the copied configuration. It is not a source file of the function.
pub(super) const GENERATED: &str = ".gantry-";
/// The module that a declaration file is mapped to.
const EMPTY: &str = "data:text/javascript,";
/// Endings of declaration files.
const DECLARATIONS: [&str; 3] = [".d.ts", ".d.mts", ".d.cts"];
/// Endings of modules that are searched for imports.
const MODULES: [&str; 6] = ["ts", "tsx", "mts", "js", "jsx", "mjs"];
/// Names of configurations, which Deno finds beside a module or in a folder above.
const CONFIGURATIONS: [&str; 2] = ["deno.json", "deno.jsonc"];

/// Returns whether a file name is that of a configuration of Deno, and not of an import map.
pub(super) fn is_configuration(name: &str) -> bool {
    CONFIGURATIONS.contains(&name.strip_prefix(GENERATED).unwrap_or(name))
}

/// Returns the path of the copied configuration that a version runs with, if it has one.
pub(super) fn generated(source: &Path, entrypoint: &str, map: Option<&str>) -> Option<PathBuf> {
    let path = copy_of(&base(source, entrypoint, map));
    source.join(&path).is_file().then_some(path)
}

/// Writes a copy of the configuration of a version if its modules import declaration files.
///
/// A configuration that cannot be read is left to Deno, which reports the error.
pub(super) fn generate(source: &Path, entrypoint: &str, map: Option<&str>) -> io::Result<()> {
    let mut names = BTreeSet::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|ending| MODULES.iter().any(|known| ending == *known))
            {
                let text = fs::read(&path)?;
                names.extend(declarations(&String::from_utf8_lossy(&text)));
            }
        }
    }
    let base = base(source, entrypoint, map);
    let text = match fs::read_to_string(source.join(&base)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "{}".to_owned(),
        read => read?,
    };
    let Some(text) = with_empty_modules(&text, &names) else {
        return Ok(());
    };
    let target = source.join(copy_of(&base));
    let unfinished = target.with_extension("new");
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(unfinished, target)
}

/// Returns the path of the configuration: the one that the deployment names, or the nearest one
/// above the first module. It need not exist.
fn base(source: &Path, entrypoint: &str, map: Option<&str>) -> PathBuf {
    if let Some(map) = map {
        return map.into();
    }
    for folder in Path::new(entrypoint).ancestors().skip(1) {
        let mut candidates = CONFIGURATIONS.iter().map(|name| folder.join(name));
        if let Some(found) = candidates.find(|path| source.join(path).is_file()) {
            return found;
        }
    }
    CONFIGURATIONS[0].into()
}

fn copy_of(base: &Path) -> PathBuf {
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    base.with_file_name(format!("{GENERATED}{name}"))
}

/// Returns the names of declaration files that a module imports from elsewhere.
fn declarations(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for ending in DECLARATIONS {
        for quote in ['"', '\''] {
            for (at, _) in text.match_indices(&format!("{ending}{quote}")) {
                let end = at + ending.len();
                let Some(start) = text[..end].rfind(quote) else {
                    continue;
                };
                let name = &text[start + 1..end];
                let is_local = name.starts_with(['.', '/']) || name.starts_with("file:");
                if !is_local && !name.contains('\n') && follows_import(&text[..start]) {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    found
}

/// Returns whether a text ends with the word `import` or `from`.
fn follows_import(text: &str) -> bool {
    let text = text.trim_end();
    ["import", "from"].iter().any(|word| {
        text.strip_suffix(word).is_some_and(|before| {
            let last = before.chars().next_back();
            last.is_none_or(|last| !last.is_alphanumeric() && !matches!(last, '_' | '$' | '.'))
        })
    })
}

/// Adds names to the imports of a configuration. `None`: there are none, or it has no imports of
/// its own to add them to.
fn with_empty_modules(text: &str, names: &BTreeSet<String>) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let mut all: Map<String, Value> = serde_json::from_str(&without_comments(text)).ok()?;
    if all.contains_key("importMap") {
        return None;
    }
    let imports = all.entry("imports").or_insert_with(|| json!({}));
    let imports = imports.as_object_mut()?;
    for name in names {
        imports.entry(name).or_insert_with(|| EMPTY.into());
    }
    serde_json::to_string(&all).ok()
}

/// Replaces comments and trailing commas of JSON by spaces.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(next) = rest.next() {
        match (next, rest.peek()) {
            ('"', _) => {
                kept.push('"');
                while let Some(inner) = rest.next() {
                    kept.push(inner);
                    match inner {
                        '\\' => kept.extend(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => {
                let _ = rest.by_ref().find(|inner| *inner == '\n');
                kept.push('\n');
            }
            ('/', Some('*')) => {
                rest.next();
                let mut before = ' ';
                for inner in rest.by_ref() {
                    if (before, inner) == ('*', '/') {
                        break;
                    }
                    before = inner;
                }
                kept.push(' ');
            }
            ('}' | ']', _) => {
                // A trailing comma.
                if let Some(comma) = kept.trim_end().strip_suffix(',') {
                    kept.truncate(comma.len());
                }
                kept.push(next);
            }
            _ => kept.push(next),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_imported_declaration_files_are_found() {
        let text = r#"
            import "jsr:@supabase/functions-js/edge-runtime.d.ts";
            import type { A } from 'npm:a/types.d.mts';
            export * from "https://x.test/b.d.cts"
            import x from "jsr:@a/b"; import "./local.d.ts"; import("c/d.d.ts");
            const text = "e.d.ts"; myimport "f.d.ts"; import.from "g.d.ts";
            import "h.d.ts"
        "#;
        let found: Vec<String> = declarations(text).into_iter().collect();
        assert_eq!(
            found,
            [
                "h.d.ts",
                "https://x.test/b.d.cts",
                "jsr:@supabase/functions-js/edge-runtime.d.ts",
                "npm:a/types.d.mts",
            ]
        );
        assert!(declarations("\".d.ts\"").is_empty());
    }

    #[test]
    fn configuration_keeps_its_content() {
        let names = BTreeSet::from(["a.d.ts".to_owned(), "kept.d.ts".to_owned()]);
        let text = r#"{
            // A "comment".
            "imports": { "x": "jsr:@x/y@1", "kept.d.ts": "./own.d.ts", /* , */ },
            "compilerOptions": {"lib": ["a//b", "c\"/*",],},
        }"#;
        let found = with_empty_modules(text, &names).unwrap();
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(
            found,
            json!({
                "imports": {"x": "jsr:@x/y@1", "kept.d.ts": "./own.d.ts", "a.d.ts": EMPTY},
                "compilerOptions": {"lib": ["a//b", "c\"/*"]},
            })
        );
        assert!(with_empty_modules("{", &names).is_none());
        assert!(with_empty_modules(r#"{"importMap": "x"}"#, &names).is_none());
        assert!(with_empty_modules("{}", &BTreeSet::new()).is_none());
    }

    #[test]
    fn copy_lies_beside_the_nearest_configuration() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path();
        fs::create_dir_all(source.join("f/a")).unwrap();
        let module = "import 'jsr:@x/y/z.d.ts';";
        fs::write(source.join("f/a/index.ts"), module).unwrap();
        let of = |map| {
            generate(source, "f/a/index.ts", map).unwrap();
            generated(source, "f/a/index.ts", map)
        };
        assert_eq!(of(None).as_deref(), Some(Path::new(".gantry-deno.json")));
        fs::write(source.join("f/deno.jsonc"), "{}").unwrap();
        let found = of(None).unwrap();
        assert_eq!(found, Path::new("f/.gantry-deno.jsonc"));
        assert!(is_configuration(
            &found.file_name().unwrap().to_string_lossy()
        ));
        fs::write(source.join("f/map.json"), "{}").unwrap();
        let found = of(Some("f/map.json")).unwrap();
        assert_eq!(found, Path::new("f/.gantry-map.json"));
        assert!(!is_configuration(".gantry-map.json"));
    }
}
