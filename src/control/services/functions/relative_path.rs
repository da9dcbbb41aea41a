//! Paths of a function's files, as clients send them.

use std::{borrow::Borrow, fmt};

/// Longest path, in bytes.
const PATH_BYTES_MAX: usize = 1024;
/// Longest name of a file or folder, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Largest number of nested percent-encodings that are looked through. A name with more is
/// rejected.
const DECODINGS_MAX: usize = 4;
/// Beginning of the URLs in which responses have the files of a version (see
/// [`public_root`](super::public_root)).
const REPORTED: &str = "file:///tmp/user_fn_";
/// End of the folder in such a URL.
const REPORTED_ROOT: &str = "/source/";

/// A path below the folder of a function's files, without empty, `.` and `..` segments.
///
/// No segment becomes another one when its percent signs are decoded: a name never leaves its
/// folder, however often a program decodes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelativePath(String);

/// Why a text is not a [`RelativePath`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It has no segment, or ends with a slash.
    #[error("must name a file")]
    NoFile,
    /// It begins with a slash, a drive or the scheme of a URL.
    #[error("must be a relative path, such as functions/hello/index.ts")]
    Absolute,
    /// A `..` leaves the folder, or is encoded.
    #[error("must not leave the folder of the function's files")]
    Outside,
    /// It has a backslash, a control character, or an encoded slash.
    #[error("must not contain backslashes, control characters or encoded slashes")]
    Characters,
    /// It is too long.
    #[error("must have at most {PATH_BYTES_MAX} bytes, and each name {NAME_BYTES_MAX}")]
    TooLong,
}

impl RelativePath {
    /// Parses a path, with slashes between names (RFC 3986 §4.2). Resolves `.`, `..` and empty
    /// segments.
    pub fn parse(text: &str) -> Result<Self, PathProblem> {
        if text.len() > PATH_BYTES_MAX {
            return Err(PathProblem::TooLong);
        }
        if has_forbidden_character(text) {
            return Err(PathProblem::Characters);
        }
        if text.starts_with('/') {
            return Err(PathProblem::Absolute);
        }
        let mut names: Vec<&str> = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(names.pop().ok_or(PathProblem::Outside)?),
                name => names.push(name),
            }
        }
        for (index, name) in names.iter().enumerate() {
            let decoded = fully_decoded(name)?;
            if index == 0 && begins_with_scheme(&decoded) {
                return Err(PathProblem::Absolute);
            }
        }
        if names.is_empty() || text.ends_with('/') {
            return Err(PathProblem::NoFile);
        }
        Ok(Self(names.join("/")))
    }

    /// Parses a path, or the URL of a file in a response. Clients that deploy a function again send
    /// such a URL.
    pub fn parse_reported(text: &str) -> Result<Self, PathProblem> {
        let below = text
            .strip_prefix(REPORTED)
            .and_then(|rest| rest.split_once(REPORTED_ROOT))
            .filter(|(version, _)| !version.contains('/'));
        Self::parse(below.map_or(text, |(_, path)| path))
    }

    /// The path, with slashes between names.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

impl Borrow<str> for RelativePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn has_forbidden_character(text: &str) -> bool {
    text.chars().any(|c| c.is_control() || c == '\\')
}

/// Returns whether a name begins with the scheme of a URL or a drive: a letter, then letters,
/// digits, `+`, `-` and `.` up to a colon. Such a name cannot begin a relative reference (RFC 3986
/// §4.2).
fn begins_with_scheme(name: &str) -> bool {
    let Some((scheme, _)) = name.split_once(':') else {
        return false;
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(fits)
}

/// Decodes the percent signs of a name until none is left to decode.
///
/// Errors: the name is too long, or becomes another one than that of a file in the same folder.
fn fully_decoded(name: &str) -> Result<String, PathProblem> {
    if name.len() > NAME_BYTES_MAX {
        return Err(PathProblem::TooLong);
    }
    let mut seen = name.to_owned();
    for _ in 0..DECODINGS_MAX {
        let decoded = decode(&seen);
        if decoded == seen {
            return Ok(seen);
        }
        if has_forbidden_character(&decoded) || decoded.contains('/') {
            return Err(PathProblem::Characters);
        }
        if matches!(decoded.as_str(), "." | "..") {
            return Err(PathProblem::Outside);
        }
        seen = decoded;
    }
    Err(PathProblem::Characters)
}

/// Decodes the percent signs of a URL's path. Signs without two hexadecimal digits remain.
pub(super) fn decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, more @ ..] = rest {
        let mut byte = [0];
        rest = match more {
            [a, b, after @ ..]
                if *first == b'%' && hex::decode_to_slice([*a, *b], &mut byte).is_ok() =>
            {
                after
            }
            _ => {
                byte = [*first];
                more
            }
        };
        bytes.push(byte[0]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn relative_paths_are_normalized() {
        for (text, path) in [
            ("index.ts", "index.ts"),
            ("./index.ts", "index.ts"),
            ("a/./b//c.ts", "a/b/c.ts"),
            ("a/../b.ts", "b.ts"),
            (
                "supabase/functions/hello/index.ts",
                "supabase/functions/hello/index.ts",
            ),
            (
                "supabase/functions/hello/*.html",
                "supabase/functions/hello/*.html",
            ),
            ("a/**/[x].txt", "a/**/[x].txt"),
            ("100%.txt", "100%.txt"),
            ("b%20c.ts", "b%20c.ts"),
            ("b c.ts", "b c.ts"),
            ("größe.ts", "größe.ts"),
            ("...", "..."),
            ("..a/b", "..a/b"),
            ("a/x:y.ts", "a/x:y.ts"),
            ("1:2", "1:2"),
        ] {
            assert_eq!(
                RelativePath::parse(text).unwrap().as_str(),
                path,
                "{text:?}"
            );
        }
    }

    #[test]
    fn other_paths_are_rejected() {
        use PathProblem::{Absolute, Characters, NoFile, Outside, TooLong};
        for (text, problem) in [
            ("", NoFile),
            (".", NoFile),
            ("a/..", NoFile),
            ("a/", NoFile),
            ("/etc/passwd", Absolute),
            ("//host/x", Absolute),
            ("C:/x.ts", Absolute),
            ("c:x.ts", Absolute),
            ("./C:/x.ts", Absolute),
            ("C%3a/x.ts", Absolute),
            ("file:///etc/passwd", Absolute),
            ("https://example.com/x.ts", Absolute),
            ("data:application/json,x", Absolute),
            ("../b.ts", Outside),
            ("../../../etc/passwd", Outside),
            ("a/../../b.ts", Outside),
            ("%2e%2e/x.ts", Outside),
            ("%2E./x.ts", Outside),
            ("a/.%2e/x.ts", Outside),
            ("a/%2e/x.ts", Outside),
            ("%252e%252e/x.ts", Outside),
            ("%25252e%25252e/x.ts", Outside),
            ("%2fetc/passwd", Characters),
            ("a%2fb", Characters),
            ("a%252fb", Characters),
            ("%5c..%5cx", Characters),
            ("a\\b", Characters),
            ("..\\x", Characters),
            ("a\u{0}b", Characters),
            ("a%00b", Characters),
            ("a\nb", Characters),
            ("a%0ab", Characters),
            ("a\u{7f}b", Characters),
            ("%2525252525252e", Characters),
        ] {
            assert_eq!(RelativePath::parse(text), Err(problem), "{text:?}");
        }
        let (long, deep) = ("x".repeat(256), "x/".repeat(600));
        assert_eq!(RelativePath::parse(&long), Err(TooLong));
        assert_eq!(RelativePath::parse(&deep), Err(TooLong));
        assert!(RelativePath::parse(&long[1..]).is_ok());
    }

    #[test]
    fn url_of_a_response_is_the_path_in_it() {
        let parse = |text: &str| RelativePath::parse_reported(text);
        let reported = "file:///tmp/user_fn_ref_id_1/source/a/deno.json";
        assert_eq!(parse(reported).unwrap().as_str(), "a/deno.json");
        assert_eq!(parse("a/deno.json").unwrap().as_str(), "a/deno.json");
        for text in [
            "file:///tmp/user_fn_ref_id_1/source/../../../etc/passwd",
            "file:///tmp/user_fn_ref_id_1/source//etc/%2e%2e",
            "file:///tmp/user_fn_/../source/x",
            "file:///tmp/user_fn_ref_id_1/etc/source/x",
            "file:///etc/passwd",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Texts of pieces that matter to the rule.
    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("."),
            Just("/"),
            Just("%2e"),
            Just("%2E"),
            Just("%252e"),
            Just("%2f"),
            Just("%5c"),
            Just("\\"),
            Just("a"),
            Just("C:"),
            Just("%"),
            Just("25"),
            Just("\u{0}"),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn accepted_paths_stay_below_their_folder_however_often_decoded(text in hostile()) {
            let Ok(path) = RelativePath::parse(&text) else { return Ok(()) };
            prop_assert_eq!(RelativePath::parse(path.as_str()), Ok(path.clone()));
            let mut text = path.as_str().to_owned();
            let names = text.split('/').count();
            for _ in 0..8 {
                prop_assert_eq!(text.split('/').count(), names);
                prop_assert!(text.split('/').all(|name| !matches!(name, "" | "." | "..")));
                prop_assert!(!text.contains(['\\', '\0']));
                text = decode(&text);
            }
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,40}") {
            let _ = RelativePath::parse(&text);
            let _ = RelativePath::parse_reported(&text);
        }
    }
}
