//! Display form of internationalized names, and detection of look-alikes.

use unicode_security::{MixedScript, skeleton};

use super::Host;

/// Display form of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// Name with U-labels.
    pub(crate) unicode: String,
    /// Suspicious properties.
    pub(crate) doubts: Vec<String>,
}

/// Returns the display form of a name, if it differs from the DNS form.
pub(crate) fn spelling(host: &Host) -> Option<Spelling> {
    // Undecodable names are rejected at parsing.
    let unicode = idna::domain_to_unicode(host.as_str()).0;
    let doubts = unicode.split('.').filter_map(doubt).collect();
    (unicode != host.as_str()).then_some(Spelling { unicode, doubts })
}

fn doubt(label: &str) -> Option<String> {
    if label.is_ascii() {
        return None;
    }
    let looks: String = skeleton(label).collect();
    match (looks.is_ascii(), label.is_single_script()) {
        (true, _) => Some(format!("{label} looks like {looks}")),
        (false, false) => Some(format!("{label} mixes letters of several scripts")),
        (false, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Vec<String>)> {
        let spelling = spelling(&Host::parse(text, "projects.test").unwrap())?;
        Some((spelling.unicode, spelling.doubts))
    }

    #[test]
    fn deceptive_names_are_detected() {
        assert_eq!(read("api.customer.com"), None);
        assert_eq!(
            read("api.xn--mller-kva.de"),
            Some(("api.müller.de".into(), vec![]))
        );
        assert_eq!(
            read("東京タワー.customer.jp"),
            Some(("東京タワー.customer.jp".into(), vec![])),
            "scripts that belong together"
        );
        assert_eq!(
            read("почта.customer.ru"),
            Some(("почта.customer.ru".into(), vec![]))
        );
        for (text, doubt) in [
            (
                "p\u{430}ypal.customer.com",
                "p\u{430}ypal looks like paypal",
            ),
            (
                "\u{440}\u{430}\u{443}.customer.com",
                "\u{440}\u{430}\u{443} looks like pay",
            ),
            (
                "b\u{fc}ch\u{436}.customer.com",
                "b\u{fc}ch\u{436} mixes letters of several scripts",
            ),
        ] {
            assert_eq!(read(text).unwrap().1, [doubt]);
        }
    }
}
