//! Requirements of operations, and cases in which requests have other requirements.

use serde::de::DeserializeOwned;

use super::permission::{AnyOf, OauthScope, Permission};

/// The query and the body of a request, for the cases of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestView<'a> {
    /// The query string, undecoded.
    pub query: &'a str,
    /// The body; empty if it was not read.
    pub body: &'a [u8],
}

impl RequestView<'_> {
    /// Returns whether the query sets `name` to any value but `false`. One of several values is
    /// enough: the handler may read another of them, and must not be given more than was checked
    /// here.
    pub fn switched_on(&self, name: &str) -> bool {
        form_urlencoded::parse(self.query.as_bytes())
            .any(|(key, value)| key == name && value != "false")
    }

    /// Parses a part of the body. `None` if the handler cannot parse it either.
    pub fn body<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(self.body).ok()
    }
}

/// A case of an operation in which other permissions are required.
#[derive(Clone, Copy)]
pub struct Case {
    /// Description of the requests, for documentation.
    pub when: &'static str,
    /// Returns whether the case applies to the request. When unsure, it selects the stricter case.
    pub applies: fn(&RequestView<'_>) -> bool,
    /// Permissions required instead of those of the operation.
    pub permissions: AnyOf,
}

impl Case {
    /// Returns the case of all requests that no earlier case applies to.
    pub const fn otherwise(permissions: AnyOf) -> Self {
        Self {
            when: "otherwise",
            applies: |_| true,
            permissions,
        }
    }
}

impl PartialEq for Case {
    /// Compares the descriptions, because function pointers have no stable identity.
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

/// The requirement that a caller must meet before the handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No requirement.
    Public,
    /// A live token of any kind, but not that of an OAuth application.
    Caller,
    /// A live credential of any kind, also that of an OAuth application. The operation calls others
    /// that decide.
    Credential,
    /// A live token that is not limited to projects or organizations.
    User,
    /// A live classic token or a session. Scoped tokens must not create tokens or read their
    /// rights.
    Unscoped,
    /// Permissions on the subject. OAuth tokens need the scope in addition, and are rejected if
    /// there is none.
    Needs {
        /// Groups of permissions from the contract, one of which must be complete.
        permissions: AnyOf,
        /// Cases with other permissions. The first one that applies counts.
        cases: &'static [Case],
        /// The scope that an OAuth application must have.
        oauth: Option<OauthScope>,
    },
}

impl Access {
    /// Returns the permissions required by default.
    pub const fn permissions(&self) -> AnyOf {
        match self {
            Self::Needs { permissions, .. } => *permissions,
            Self::Public | Self::Caller | Self::Credential | Self::User | Self::Unscoped => {
                AnyOf(&[])
            }
        }
    }

    /// Returns the permissions that this request requires.
    pub fn required(&self, request: &RequestView<'_>) -> AnyOf {
        self.case(request)
            .map_or(self.permissions(), |case| case.permissions)
    }

    /// Returns the first case that applies to the request.
    pub fn case(&self, request: &RequestView<'_>) -> Option<&'static Case> {
        self.cases().get(self.case_number(request)?)
    }

    /// Returns the index of the first case that applies to the request.
    pub fn case_number(&self, request: &RequestView<'_>) -> Option<usize> {
        self.cases().iter().position(|case| (case.applies)(request))
    }

    /// Returns the cases of the operation.
    pub const fn cases(&self) -> &'static [Case] {
        match self {
            Self::Needs { cases, .. } => cases,
            Self::Public | Self::Caller | Self::Credential | Self::User | Self::Unscoped => &[],
        }
    }

    /// Returns the requirement with these cases.
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

    /// Returns the required OAuth scope.
    pub const fn oauth(&self) -> Option<OauthScope> {
        match self {
            Self::Needs { oauth, .. } => *oauth,
            Self::Public | Self::Caller | Self::Credential | Self::User | Self::Unscoped => None,
        }
    }
}

/// Returns the requirement of these permission groups and an OAuth scope.
pub const fn needs(group: &'static [&'static [Permission]], scope: OauthScope) -> Access {
    Access::Needs {
        permissions: AnyOf(group),
        cases: &[],
        oauth: Some(scope),
    }
}

/// Returns the requirement of these permission groups, without access through OAuth.
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
    fn switched_on_accepts_any_value_but_false() {
        let request = |query| RequestView { query, body: b"" };
        for query in [
            "reveal=true",
            "a=b&reveal=true",
            "reveal=false&reveal=true",
            "reveal",
            "reveal=1",
            "%72eveal=true",
        ] {
            assert!(request(query).switched_on("reveal"), "{query}");
        }
        for query in ["", "reveal=false", "unreveal=true", "a=reveal=true"] {
            assert!(!request(query).switched_on("reveal"), "{query}");
        }
    }

    #[test]
    fn body_parses_strictly() {
        let flag = |body: &str| {
            RequestView {
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
