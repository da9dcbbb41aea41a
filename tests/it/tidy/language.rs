//! The checkable rules of `docs/contributing/style.md`: width, openings and words of comments,
//! unique type names.
//!
//! `tests/it/tidy.allow` lists the exceptions as `<rule> <file> <count>`. It may only shrink: a
//! count that is too high fails as well. `GANTRY_TIDY_WRITE=1` writes the counts of today, which is
//! for moving files; a reviewer rejects a count that grew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::{Source, no_breach, root, rust};

/// Longest line, string literals aside.
const WIDTH_MAX: usize = 100;
/// Openings of doc comments that describe by circumlocution.
const OPENINGS: &[&str] = &[
    "What ",
    "Who ",
    "Whose ",
    "Whom ",
    "Whoever ",
    "Whatever ",
    "The same",
    "Nobody",
    "None.",
    "All of it",
    "Until then",
];
/// Words for persons where a noun belongs: caller, client, operator, tenant, thread.
const WORDS: &[&str] = &[
    "who",
    "whose",
    "whom",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "whatever",
    "whichever",
];
/// Type names that several modules may use.
const SHARED_NAMES: &[&str] = &[
    "Error", "Config", "State", "Row", "Page", "Request", "Response", "Options", "Builder", "Kind",
];

/// The text of a comment line.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))
        .or_else(|| line.strip_prefix("//"))
        .map(str::trim_start)
}

/// First lines of doc comments.
fn openings(text: &str) -> impl Iterator<Item = &str> {
    let mut before = "";
    text.lines().filter_map(move |line| {
        let trimmed = line.trim_start();
        let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
        let first = is_doc(trimmed) && !is_doc(before);
        before = trimmed;
        first.then(|| trimmed[3..].trim_start())
    })
}

fn has_banned_word(text: &str) -> bool {
    text.split(|c: char| !c.is_alphabetic())
        .any(|word| WORDS.iter().any(|banned| word.eq_ignore_ascii_case(banned)))
}

/// Returns whether a line is too long and not because of a string literal, which cannot be wrapped.
fn is_wide(line: &str) -> bool {
    line.chars().count() > WIDTH_MAX && (comment(line).is_some() || !line.contains('"'))
}

fn counts(file: &Source) -> [(&'static str, usize); 3] {
    // Lines of raw strings, such as SQL, are treated as code.
    let wide = file
        .text
        .lines()
        .filter(|line| is_wide(line) && !line.contains("http"));
    let opening = openings(&file.text)
        .filter(|text| OPENINGS.iter().any(|opening| text.starts_with(opening)));
    let words = file
        .text
        .lines()
        .filter(|line| comment(line).is_some_and(has_banned_word));
    [
        ("width", wide.count()),
        ("opening", opening.count()),
        ("word", words.count()),
    ]
}

/// Names of types that at least three modules of the sources declare, tests aside.
fn shared_names(files: &[Source]) -> BTreeMap<String, usize> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        if !file.under(&["src/", "crates/"]) {
            continue;
        }
        for (_, line) in file.code() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let declares = words
                .iter()
                .position(|word| ["struct", "enum", "trait"].contains(word));
            let public = words.first().is_some_and(|word| {
                word.starts_with("pub") || ["struct", "enum", "trait"].contains(word)
            });
            if let Some(at) = declares.filter(|at| public && *at <= 2)
                && let Some(name) = words.get(at + 1)
            {
                let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
                // Empty for the variable of a macro.
                if !name.is_empty() {
                    found.entry(name).or_default().insert(&file.name);
                }
            }
        }
    }
    found
        .into_iter()
        .filter(|(name, places)| places.len() >= 3 && !SHARED_NAMES.contains(&&**name))
        .map(|(name, places)| (name, places.len()))
        .collect()
}

fn today() -> BTreeMap<(String, String), usize> {
    let files = rust();
    let mut all = BTreeMap::new();
    for file in &files {
        // This file contains the forbidden words as literals.
        if file.name == "tests/it/tidy/language.rs" {
            continue;
        }
        for (rule, count) in counts(file) {
            if count > 0 {
                all.insert((rule.to_owned(), file.name.clone()), count);
            }
        }
    }
    for (name, count) in shared_names(&files) {
        all.insert(("name".to_owned(), name), count);
    }
    all
}

#[test]
fn language_follows_the_style_guide() {
    let path = root().join("tests/it/tidy.allow");
    let today = today();
    if std::env::var_os("GANTRY_TIDY_WRITE").is_some() {
        let head = "# Exceptions to tests/it/tidy/language.rs: `<rule> <file or name> <count>`. May only shrink.\n";
        let mut text = head.to_owned();
        for ((rule, place), count) in &today {
            text.extend([rule, " ", place, " ", &count.to_string(), "\n"]);
        }
        fs::write(&path, text).unwrap();
        return;
    }
    let mut allowed = BTreeMap::new();
    for line in fs::read_to_string(&path).unwrap().lines() {
        if line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [rule, place, count] = words[..] else {
            panic!("{line}: not `<rule> <file> <count>`")
        };
        allowed.insert(
            (rule.to_owned(), place.to_owned()),
            count.parse::<usize>().unwrap(),
        );
    }
    let mut breaches = Vec::new();
    let places: BTreeSet<_> = today.keys().chain(allowed.keys()).collect();
    for place in places {
        let found = today.get(place).copied().unwrap_or_default();
        let most = allowed.get(place).copied().unwrap_or_default();
        if found > most {
            breaches.push(format!("{} {}: {found}, {most} allowed", place.0, place.1));
        } else if found < most {
            breaches.push(format!(
                "{} {}: only {found} left, lower the {most} in tests/it/tidy.allow",
                place.0, place.1
            ));
        }
    }
    no_breach(&breaches);
}

#[test]
fn riddles_are_found() {
    let text = "/// What it is.\n/// Who asked.\nfn a() {}\n\n    /// A plain noun.\n    // nobody knows\n";
    let file = Source {
        name: "x.rs".into(),
        text: text.into(),
    };
    assert_eq!(counts(&file), [("width", 0), ("opening", 1), ("word", 2)]);
    assert!(is_wide(&format!("// {}", "a".repeat(WIDTH_MAX))));
    assert!(!is_wide(&format!("\"{}\"", "a".repeat(WIDTH_MAX))));
}
