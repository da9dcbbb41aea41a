//! Parsing of query parameters.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use crate::platform::error::Error;

/// Parses query parameters. The error names the invalid parameter.
pub(super) fn parse<T: DeserializeOwned>(query: &str) -> Result<T, Error> {
    let reader = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize::<_, T>(reader).map_err(
        |error: serde_path_to_error::Error<serde::de::value::Error>| {
            let path = error.path().to_string();
            let problem = error.inner().to_string();
            let quoted = problem.split('`').nth(1).unwrap_or_default().to_owned();
            if problem.starts_with("missing field") {
                Error::invalid(quoted, "Required")
            } else {
                Error::invalid(
                    if path == "." {
                        "query".to_owned()
                    } else {
                        path
                    },
                    format!("Invalid input: {problem}"),
                )
            }
        },
    )
}

/// Returns a query with each parameter once, its values joined by commas.
pub(super) fn joined(query: &str) -> String {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let name = name.strip_suffix("[]").unwrap_or(&name).to_owned();
        let joined = values.entry(name).or_default();
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(&value);
    }
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(values)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_bracketed_parameters_are_joined() {
        for (query, joins) in [
            ("a=1,2&b=3", "a=1%2C2&b=3"),
            ("a=1&b=3&a=2", "a=1%2C2&b=3"),
            ("b=3&a[]=1&a%5B%5D=2", "a=1%2C2&b=3"),
            ("a=&a=2", "a=2"),
            ("", ""),
        ] {
            assert_eq!(joined(query), joins, "{query}");
        }
    }
}
