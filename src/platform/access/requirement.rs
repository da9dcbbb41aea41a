//! What an operation requires of its caller, and the cases in which a request requires something else.

use serde::de::DeserializeOwned;

use super::{AnyOf, OauthScope, Permission};

/// Query and body of a request, as the cases of an operation look at them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// The query, as sent.
    pub query: &'a str,
    /// The body, as sent; empty where it was not read.
    pub body: &'a [u8],
}

impl Asked<'_> {
    /// Whether the query has `name` with any value but `false`. Of several, one is enough: the handler may read another
    /// of them than we do, and must not be given more than was asked for here.
    pub fn switched_on(&self, name: &str) -> bool {
        form_urlencoded::parse(self.query.as_bytes())
            .any(|(key, value)| key == name && value != "false")
    }

    /// The part of the body that a case looks at. `None` if the handler could not read the body either.
    pub fn body<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(self.body).ok()
    }
}

/// What some requests of an operation need, where not all need the same.
#[derive(Clone, Copy)]
pub struct Case {
    /// Which requests, for a reader.
    pub when: &'static str,
    /// Whether the request is one of them. In doubt it answers so that more is needed.
    pub applies: fn(&Asked<'_>) -> bool,
    /// What they need, instead of what the operation names for all.
    pub permissions: AnyOf,
}

impl Case {
    /// What is needed by requests to which no case before applied.
    pub const fn otherwise(permissions: AnyOf) -> Self {
        Self {
            when: "otherwise",
            applies: |_| true,
            permissions,
        }
    }
}

impl PartialEq for Case {
    /// Functions have no identity to compare; the text says which it is.
    fn eq(&self, other: &Self) -> bool {
        (self.when, self.permissions) == (other.when, other.permissions)
    }
}

impl Eq for Case {}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.when, self.permissions)
    }
}

/// What a caller needs before the handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Public,
    /// A live token of any kind.
    Caller,
    /// A live token that is not bound to projects or organizations.
    User,
    /// A live classic token: as good as its owner, so it may make tokens and tell what they can do.
    Unscoped,
    /// Permissions on the subject; through OAuth also a scope, and without one OAuth tokens are refused.
    Needs {
        /// Groups of permissions, one of which must be complete: as the contract names them, for every request.
        permissions: AnyOf,
        /// What a request needs instead: of the cases that apply to it the first.
        cases: &'static [Case],
        /// Scope an OAuth application must hold.
        oauth: Option<OauthScope>,
    },
}

impl Access {
    /// The permissions it names, if any.
    pub const fn permissions(&self) -> AnyOf {
        match self {
            Self::Needs { permissions, .. } => *permissions,
            Self::Public | Self::Caller | Self::User | Self::Unscoped => AnyOf(&[]),
        }
    }

    /// The permissions this request needs.
    pub fn required(&self, asked: &Asked<'_>) -> AnyOf {
        self.case(asked)
            .map_or(self.permissions(), |case| case.permissions)
    }

    /// The case this request is in, if the operation tells any apart.
    pub fn case(&self, asked: &Asked<'_>) -> Option<&'static Case> {
        self.cases().get(self.case_number(asked)?)
    }

    /// Its place among the cases.
    pub fn case_number(&self, asked: &Asked<'_>) -> Option<usize> {
        self.cases().iter().position(|case| (case.applies)(asked))
    }

    /// The cases it tells apart, if any.
    pub const fn cases(&self) -> &'static [Case] {
        match self {
            Self::Needs { cases, .. } => cases,
            Self::Public | Self::Caller | Self::User | Self::Unscoped => &[],
        }
    }

    /// The same, with cases that need something else than what is named for all.
    #[must_use]
    pub const fn by_case(self, cases: &'static [Case]) -> Self {
        match self {
            Self::Needs {
                permissions, oauth, ..
            } => Self::Needs {
                permissions,
                cases,
                oauth,
            },
            other => other,
        }
    }

    /// The OAuth scope it names, if any.
    pub const fn oauth(&self) -> Option<OauthScope> {
        match self {
            Self::Needs { oauth, .. } => *oauth,
            Self::Public | Self::Caller | Self::User | Self::Unscoped => None,
        }
    }
}

/// One permission group and a scope.
pub const fn needs(group: &'static [&'static [Permission]], scope: OauthScope) -> Access {
    Access::Needs {
        permissions: AnyOf(group),
        cases: &[],
        oauth: Some(scope),
    }
}

/// Permissions, and not reachable through OAuth.
pub const fn pat_only(group: &'static [&'static [Permission]]) -> Access {
    Access::Needs {
        permissions: AnyOf(group),
        cases: &[],
        oauth: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Flag {
        read_only: bool,
    }

    #[test]
    fn a_switch_is_on_when_anybody_could_read_it_so() {
        let asked = |query| Asked { query, body: b"" };
        for query in [
            "reveal=true",
            "a=b&reveal=true",
            "reveal=false&reveal=true",
            "reveal",
            "reveal=1",
            "%72eveal=true",
        ] {
            assert!(asked(query).switched_on("reveal"), "{query}");
        }
        for query in ["", "reveal=false", "unreveal=true", "a=reveal=true"] {
            assert!(!asked(query).switched_on("reveal"), "{query}");
        }
    }

    #[test]
    fn a_field_is_read_as_the_handler_reads_it_or_not_at_all() {
        let flag = |body: &str| {
            Asked {
                query: "",
                body: body.as_bytes(),
            }
            .body::<Flag>()
            .is_some_and(|flag| flag.read_only)
        };
        assert!(flag(r#"{"read_only":true}"#) && flag(r#"{"query":"select 1","read_only":true}"#));
        for body in [
            "",
            "{}",
            r#"{"read_only":false}"#,
            r#"{"read_only":"true"}"#,
            r#"{"read_only":true}x"#,
        ] {
            assert!(!flag(body), "{body}");
        }
        assert!(
            !flag(r#"{"read_only":true,"read_only":false}"#),
            "of two fields the handler takes neither"
        );
    }
}
