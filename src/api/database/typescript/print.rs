//! Indented lines of TypeScript.

/// A writer of indented lines.
pub(super) struct IndentedWriter {
    text: String,
    depth: usize,
}

impl IndentedWriter {
    pub(super) fn new() -> Self {
        Self {
            text: String::new(),
            depth: 0,
        }
    }

    pub(super) fn line(&mut self, line: &str) {
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(super) fn open(&mut self, line: &str) {
        self.line(line);
        self.depth += 1;
    }

    pub(super) fn close(&mut self, line: &str) {
        self.dedent();
        self.line(line);
    }

    pub(super) fn dedent(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Writes a field with an entry per item, or `[_ in never]: never` for an empty list.
    pub(super) fn list<T>(&mut self, name: &str, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.open(&format!("{name}: {{"));
        if items.is_empty() {
            self.line("[_ in never]: never");
        }
        for item in items {
            each(self, item);
        }
        self.close("}");
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// Returns a name as an object key.
pub(super) fn key(name: &str) -> String {
    let mut letters = name.chars();
    let plain = letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if plain { name.to_owned() } else { text(name) }
}

/// Returns a string literal.
pub(super) fn text(value: &str) -> String {
    // JSON strings are valid TypeScript strings.
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_quoted_if_necessary() {
        for (name, shown) in [
            ("a_1", "a_1"),
            ("A", "A"),
            ("1a", "\"1a\""),
            ("user-id", "\"user-id\""),
            ("", "\"\""),
            ("é", "\"é\""),
            ("a\"b\n", "\"a\\\"b\\n\""),
        ] {
            assert_eq!(key(name), shown);
        }
    }
}
