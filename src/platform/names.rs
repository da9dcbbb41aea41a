//! Validation of names that users choose: hidden characters, and imitations of reserved names.

use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};
use unicode_security::skeleton;

use crate::platform::error::Error;

/// Code points with the property `Default_Ignorable_Code_Point`, which are not displayed: joiners,
/// bidirectional marks, variation selectors, Hangul fillers and tag characters among others.
/// Source: Unicode 17.0, `DerivedCoreProperties.txt`.
const IGNORABLE: [(char, char); 17] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fff8}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Returns whether a character is not allowed in names: a control character, a line or paragraph
/// separator, an invisible character, or the blank braille pattern.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{2800}')
        || IGNORABLE
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&c))
}

/// Checks a name: 1 to `chars_max` characters, none hidden and at least one that is not white
/// space.
pub fn check(field: &'static str, name: &str, chars_max: usize) -> Result<(), Error> {
    if !(1..=chars_max).contains(&name.chars().count()) {
        return Err(Error::invalid(
            field,
            format!("expected 1 to {chars_max} characters"),
        ));
    }
    if name.trim().is_empty() || name.chars().any(is_hidden) {
        return Err(Error::invalid(
            field,
            format!(
                "expected 1 to {chars_max} visible characters, without control characters or invisible ones"
            ),
        ));
    }
    Ok(())
}

/// Returns whether a name contains one of these words, also in full-width or accented letters, or
/// in confusable letters of other scripts (UTS 39 §4).
pub fn imitates(name: &str, words: &[&str]) -> bool {
    // Some letters are confusable only in upper case, others only in lower case.
    let seen = [appearance(name), appearance(&name.to_lowercase())];
    words
        .iter()
        .any(|word| seen.iter().any(|seen| seen.contains(&appearance(word))))
}

/// Returns a normal form shared by all texts that look alike. For comparison only.
fn appearance(text: &str) -> String {
    let compatible: String = text.nfkc().filter(|c| !is_hidden(*c)).collect();
    let skeleton: String = skeleton(&compatible).collect();
    // An upper-case I is confusable with l, so i and l are mapped to one letter.
    let lower = skeleton.to_lowercase().replace('i', "l");
    lower.nfd().filter(|c| !is_combining_mark(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_rejects_hidden_characters() {
        for fine in [
            "Acme",
            "Açme 2.0",
            "日本",
            "<b>",
            " padded ",
            "a\u{a0}b",
            "o'clock",
            "🦀",
            "한국",
            &"x".repeat(100),
        ] {
            check("name", fine, 100).unwrap_or_else(|error| panic!("{fine:?}: {error}"));
        }
        for wrong in [
            "",
            " ",
            "\u{a0}\u{3000}",
            "a\0b",
            "a\u{1b}[31mb",
            "a\nb",
            "a\tb",
            "a\u{7f}b",
            "a\u{9b}b",
            "a\u{202e}b",
            "a\u{2066}b",
            "a\u{200d}b",
            "a\u{34f}b",
            "a\u{3164}b",
            "a\u{ffa0}b",
            "a\u{e0041}b",
            "a\u{fe0f}b",
            "a\u{2028}b",
            "\u{2800}",
            "\u{feff}a",
            &"x".repeat(101),
        ] {
            assert!(check("name", wrong, 100).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn imitates_finds_confusable_names() {
        let words = ["gantry", "supabase", "official"];
        for imitation in [
            "Gantry",
            "My GANTRY console",
            "ｇａｎｔｒｙ",
            "Ｓｕｐａｂａｓｅ",
            "g\u{34f}antry",
            "g\u{301}antry",
            "ga\u{e0061}ntry",
            "gan\u{3164}try",
            "gаntry",
            "SUPАBАSЕ",
            "ѕuраbаѕе",
            "𝐠𝐚𝐧𝐭𝐫𝐲",
            "ⓢⓤⓟⓐⓑⓐⓢⓔ",
            "supábase",
            "0fficial",
            "offIcial",
            "offlcial",
            "OFFICIAL",
            "Unofficial",
        ] {
            assert!(imitates(imitation, &words), "{imitation}");
        }
        for other in [
            "Acme",
            "Gallery",
            "Garnet",
            "Супербаза",
            "日本",
            "Pantry",
            "supper base",
        ] {
            assert!(!imitates(other, &words), "{other}");
        }
    }
}
