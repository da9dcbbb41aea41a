//! Names of client programs in the audit log.

/// Longest name, in characters.
const LENGTH_MAX: usize = 128;

/// Name and version of a client program as it states them, such as `claude-code/2.1`: up to
/// 128 printable ASCII characters. They are not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientName(String);

impl ClientName {
    /// Returns the begin of the text, with `?` for characters that a name cannot have. Returns
    /// `None` for blank text.
    pub fn new(text: &str) -> Option<Self> {
        let is_printable = |c: char| c.is_ascii_graphic() || c == ' ';
        let characters = text.trim().chars().take(LENGTH_MAX);
        let name: String = characters
            .map(|c| if is_printable(c) { c } else { '?' })
            .collect();
        (!name.is_empty()).then_some(Self(name))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        let name = |text: &str| ClientName::new(text).map(|name| name.as_str().to_owned());
        assert_eq!(
            name(" claude-code/2.1 ").as_deref(),
            Some("claude-code/2.1")
        );
        assert_eq!(name("a\n\u{202e}b\0é").as_deref(), Some("a??b??"));
        assert_eq!(name(&"x".repeat(4 << 20)), Some("x".repeat(LENGTH_MAX)));
        assert_eq!(name(" \t"), None);
    }
}
