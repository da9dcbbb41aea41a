//! Grants on the tables that the owner of a project creates.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;

/// Grants to the roles of the Data API on objects that the project's owner creates in `public`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NewTableGrants {
    /// None: each table is opened by its own GRANT.
    #[default]
    None,
    /// All privileges; row level security alone decides.
    Api,
}

impl NewTableGrants {
    /// Name on the wire and in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Api => "api",
        }
    }
}
