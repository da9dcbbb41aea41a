//! Circles of imports: files that import each other, directly or by others.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Source, no_breach, sources};

/// Largest number of files that may import each other.
const CIRCLE_FILES_MAX: usize = 5;

/// The path of a module in its package.
type Module = Vec<String>;
/// The modules that each module imports.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Collects the paths in a file that begin with `crate`, `super` or `self`, without test modules.
struct Paths {
    /// The module of the visited items.
    module: Module,
    found: Vec<Module>,
}

impl Paths {
    fn of(module: &Module, text: &str) -> Vec<Module> {
        let mut paths = Self {
            module: module.clone(),
            found: Vec::new(),
        };
        paths.visit_file(&syn::parse_file(text).unwrap());
        paths.found
    }

    /// Adds a path as one from the root of the package. Paths to other packages are left out.
    fn add(&mut self, path: &[String]) {
        let above = path.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match path.first().map(String::as_str) {
            Some("crate") => (&[][..], &path[1..]),
            Some("self") => (&self.module[..], &path[1..]),
            Some("super") => {
                let depth = self.module.len().saturating_sub(above);
                (&self.module[..depth], &path[above..])
            }
            _ => return,
        };
        self.found.push([base, rest].concat());
    }

    fn add_use(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(before, tree);
                }
            }
            syn::UseTree::Name(name) => self.add(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.add(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.add(before),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|one| one.path().is_ident("cfg"));
        if !is_test {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Module = path
            .segments
            .iter()
            .map(|one| one.ident.to_string())
            .collect();
        self.add(&names);
        visit::visit_path(self, path);
    }

    // `pub(in path)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// The module of a file below the folder of a package's source.
fn module_of(name: &str) -> Module {
    let name = name.strip_suffix(".rs").unwrap();
    let mut module: Module = name.split('/').map(str::to_owned).collect();
    module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    module
}

/// The imports between the files of a package.
fn imports(files: &[(&str, &str)]) -> Imports {
    let modules: BTreeSet<Module> = files.iter().map(|(name, _)| module_of(name)).collect();
    let mut imports = Imports::new();
    for (name, text) in files {
        let module = module_of(name);
        let paths = Paths::of(&module, text);
        // The longest beginning of a path that is a module.
        let targets = paths.iter().filter_map(|path| {
            let lengths = (0..=path.len()).rev();
            lengths
                .map(|length| &path[..length])
                .find(|part| modules.contains(*part))
        });
        let others = targets
            .filter(|target| *target != module)
            .map(<[String]>::to_vec);
        imports.entry(module.clone()).or_default().extend(others);
    }
    imports
}

/// Returns all modules that a module imports, directly or by others.
fn reached<'a>(imports: &'a Imports, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(module) = pending.pop() {
        for target in imports.get(module).into_iter().flatten() {
            if found.insert(target) {
                pending.push(target);
            }
        }
    }
    found
}

/// Returns the groups of modules that import each other.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = imports
        .keys()
        .map(|module| (module, reached(imports, module)))
        .collect();
    let circle = |module: &&Module| -> Vec<String> {
        let others = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module));
        others.map(|other| other.join("::")).collect()
    };
    reached
        .keys()
        .map(circle)
        .filter(|circle| circle.len() > 1)
        .collect()
}

fn breaches(package: &str, files: &[Source]) -> Vec<String> {
    let files: Vec<(&str, &str)> = files
        .iter()
        .filter_map(|file| Some((file.name.strip_prefix(package)?, file.text.as_str())))
        .collect();
    assert!(!files.is_empty(), "{package} has no files");
    let circles = circles(&imports(&files)).into_iter();
    let large = circles.filter(|circle| circle.len() > CIRCLE_FILES_MAX);
    large
        .map(|circle| {
            format!(
                "{package}: {} files import each other: {}",
                circle.len(),
                circle.join(", ")
            )
        })
        .collect()
}

#[test]
fn at_most_five_files_import_each_other() {
    let files = sources(&["src", "crates"], ".rs");
    let packages = [
        "src/",
        "crates/base/src/",
        "crates/logs/src/",
        "crates/node/src/",
    ];
    let all: Vec<String> = packages
        .iter()
        .flat_map(|package| breaches(package, &files))
        .collect();
    no_breach(&all);
}

#[test]
fn circles_are_found_in_groups_and_paths() {
    let files = [
        ("lib.rs", "pub mod a; pub mod b; pub mod c; pub mod d;"),
        (
            "a/mod.rs",
            "mod inner; use crate::b::{self, B}; pub(in crate::d) struct A;",
        ),
        (
            "a/inner.rs",
            "#[cfg(test)] mod tests { use crate::d::D; } use super::super::c::C as See;",
        ),
        ("b.rs", "fn f() { crate::c::g(); }"),
        ("c.rs", "use super::a::inner::X; #[test] fn h() {}"),
        (
            "d.rs",
            "use crate::a::A; mod own { use super::super::b::B; }",
        ),
    ];
    let found = circles(&imports(&files));
    let expected = ["a::inner".to_owned(), "c".to_owned()];
    assert_eq!(found, [expected.to_vec()].into());
    let imports = imports(&files);
    let of = |name: &str| -> Vec<String> {
        let targets = imports[&vec![name.to_owned()]].iter();
        targets.map(|target| target.join("::")).collect()
    };
    assert_eq!(of("a"), ["b"]);
    assert_eq!(of("b"), ["c"]);
    assert_eq!(of("d"), ["a", "b"]);
}
