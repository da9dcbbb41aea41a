//! Identifiers, validated when they are parsed.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::clock::Entropy;

/// A text is not a well-formed identifier. Contains the expected form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct Malformed(pub &'static str);

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $form:literal, $pattern:literal, $min:literal ..= $max:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String")]
        pub struct $name(#[schemars(length(min = $min, max = $max), regex(pattern = $pattern), with = "String")] SmolStr);

        impl $name {
            /// Returns the identifier as it appears in paths.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Malformed;

            fn from_str(text: &str) -> Result<Self, Malformed> {
                let valid: fn(&u8) -> bool = $valid;
                if ($min..=$max).contains(&text.len()) && text.as_bytes().iter().all(valid) {
                    Ok(Self(text.into()))
                } else {
                    Err(Malformed($form))
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Malformed;

            fn try_from(text: String) -> Result<Self, Malformed> {
                text.parse()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A project's reference: 20 lowercase letters, never reused.
    ProjectRef, "20 lowercase letters", "^[a-z]+$", 20 ..= 20, u8::is_ascii_lowercase
);
text_id!(
    /// An organization's slug: letters, digits, `_` and `-`. Generated slugs have 20 lowercase
    /// letters; an operator can choose others.
    OrgSlug, "letters, digits, _ or -", r"^[\w-]+$", 1 ..= 64, |b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
);

impl ProjectRef {
    /// Returns a new random reference (94 bits).
    pub fn generate(entropy: &Entropy) -> Self {
        Self(entropy.letters(20).into())
    }
}

impl OrgSlug {
    /// Returns a new random slug.
    pub fn generate(entropy: &Entropy) -> Self {
        Self(entropy.letters(20).into())
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// Row of `users`.
    UserId
);
number_id!(
    /// Row of `organizations`.
    OrganizationId
);
number_id!(
    /// Row of `projects`; also the integer `id` in some responses.
    ProjectId
);
number_id!(
    /// Row of `tokens`.
    TokenId
);

number_id!(
    /// Row of `oauth_applications`.
    ApplicationId
);
number_id!(
    /// Row of `oauth_grants`: the approval of an application by a member.
    ApprovalId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_ref_has_twenty_lowercase_letters() {
        assert!("abcdefghijklmnopqrst".parse::<ProjectRef>().is_ok());
        for bad in [
            "",
            "abcdefghijklmnopqrs",
            "abcdefghijklmnopqrstu",
            "abcdefghijklmnopqrsT",
            "abcdefghijklmnopqrs1",
            "../../../../etc/passw",
        ] {
            assert!(bad.parse::<ProjectRef>().is_err(), "{bad}");
        }
        assert_eq!(ProjectRef::generate(&Entropy::seeded(1)).as_str().len(), 20);
    }

    #[test]
    fn slug_has_no_path_characters() {
        assert!("acme_corp-2".parse::<OrgSlug>().is_ok());
        for bad in ["", "a/b", "a.b", "a b", "é", "%2e"] {
            assert!(bad.parse::<OrgSlug>().is_err(), "{bad}");
        }
    }
}
