//! The documents: links resolve, options exist, and quoted messages are in the source.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// Words of the README at most.
const README_WORDS_MAX: usize = 700;
/// Shorter texts of a heading are not searched for: they are status codes and names.
const FRAGMENT_CHARS_MIN: usize = 8;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below `folder` with one of these extensions.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extensions, found);
        } else if path
            .extension()
            .and_then(OsStr::to_str)
            .is_some_and(|extension| extensions.contains(&extension))
        {
            found.push(path);
        }
    }
}

/// The documents of the project: those in its root, and those below `docs` and `tests`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["docs", "tests"] {
        files(&root().join(folder), &["md"], &mut found);
    }
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ] {
        found.push(root().join(name));
    }
    found
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// The lines of a document, each with whether it is in a code block.
fn lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut code = false;
    text.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        if fence {
            code = !code;
        }
        (code || fence, line)
    })
}

/// The targets of inline links, without those in code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, line) in lines(text).filter(|(code, _)| !code) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else {
                break;
            };
            found.push(target.to_owned());
            rest = after;
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub forms them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).filter(|(code, line)| !code && line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn broken(document: &Path, target: &str) -> bool {
    if target.starts_with("http://") || target.starts_with("https://") {
        return false;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        document.to_owned()
    } else {
        document.parent().unwrap().join(path)
    };
    if anchor.is_empty() || file.is_dir() {
        return !file.exists();
    }
    !file.exists() || !anchors(&read(&file)).contains(anchor)
}

/// Links of the answers resolve by [`links_of_documents_resolve`].
#[test]
fn architecture_answers_questions_of_newcomers_with_files() {
    let text = read(&root().join("docs/contributing/architecture.md"));
    let (_, section) = text.split_once("## Where is it").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let answers: Vec<&str> = section
        .lines()
        .filter(|line| line.contains("? |"))
        .collect();
    assert!(answers.len() >= 10, "{answers:?}");
    for answer in answers {
        assert!(answer.contains("](../../"), "{answer}");
    }
}

#[test]
fn links_of_documents_resolve() {
    let mut breaches = Vec::new();
    for document in documents() {
        for target in links(&read(&document)) {
            if broken(&document, &target) {
                breaches.push(format!("{}: {target}", name(&document)));
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// The long options of a command and all below it.
fn options(command: &clap::Command, found: &mut BTreeSet<String>) {
    let long = command.get_arguments().filter_map(clap::Arg::get_long);
    found.extend(long.map(|option| format!("--{option}")));
    for below in command.get_subcommands() {
        options(below, found);
    }
}

/// The options of Gantry that a text mentions: in code spans that begin with one, and in commands.
fn mentioned(text: &str) -> BTreeSet<String> {
    let joined = text.replace("\\\n", " ");
    let mut found = BTreeSet::new();
    for (code, line) in lines(&joined) {
        let commands: Vec<&str> = if code {
            let ours = line.starts_with("gantry ") || line.starts_with("./bin/dev");
            vec![if ours { line } else { "" }]
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            spans
                .filter(|span| span.starts_with("--") || span.starts_with("gantry "))
                .collect()
        };
        for word in commands.into_iter().flat_map(str::split_whitespace) {
            let option = word.split_once('=').map_or(word, |(option, _)| option);
            if option.len() > 2 && option.starts_with("--") {
                found.insert(option.to_owned());
            }
        }
    }
    found
}

#[test]
fn options_in_guides_exist() {
    let mut known = BTreeSet::from(["--help".to_owned()]);
    options(&gantry::cli::definition(), &mut known);
    let mut texts = vec![root().join("README.md"), root().join("SECURITY.md")];
    for folder in ["docs/guides", "docs/operating"] {
        files(&root().join(folder), &["md"], &mut texts);
    }
    let mut breaches = Vec::new();
    for document in texts {
        for option in mentioned(&read(&document)) {
            let group = option.trim_end_matches('…');
            if !known.contains(&option)
                && !known
                    .iter()
                    .any(|known| group != option && known.starts_with(group))
            {
                breaches.push(format!("{}: {option}", name(&document)));
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// All source text, with strings that are continued on the next line joined.
fn source() -> String {
    let mut found = Vec::new();
    for folder in ["src", "crates", "templates"] {
        files(&root().join(folder), &["rs", "html"], &mut found);
    }
    let mut joined = String::new();
    for path in found {
        let text = read(&path);
        let mut pieces = text.split("\\\n");
        joined.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            joined.push_str(piece.trim_start());
        }
    }
    joined
}

#[test]
fn messages_in_troubleshooting_exist() {
    let source = source();
    let path = root().join("docs/operating/troubleshooting.md");
    let mut breaches = Vec::new();
    for line in read(&path).lines().filter(|line| line.starts_with("### ")) {
        for span in line.split('`').skip(1).step_by(2) {
            let fragments = span
                .split('…')
                .map(|fragment| fragment.trim_matches([' ', '.', ';']));
            breaches.extend(
                fragments
                    .filter(|fragment| fragment.chars().count() >= FRAGMENT_CHARS_MIN)
                    .filter(|fragment| !source.contains(fragment))
                    .map(ToOwned::to_owned),
            );
        }
    }
    assert!(
        breaches.is_empty(),
        "not in the source:\n{}",
        breaches.join("\n")
    );
}

#[test]
fn readme_is_short_and_names_both_commands() {
    let text = read(&root().join("README.md"));
    let words = text.split_whitespace().count();
    assert!(words <= README_WORDS_MAX, "{words} words");
    for command in ["\n./bin/dev\n", "\n./bin/test\n"] {
        assert!(text.contains(command), "{command:?}");
    }
}
