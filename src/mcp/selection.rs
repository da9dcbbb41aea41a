//! The parameters of the server's address, as the hosted server takes them.

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    api::endpoints,
    platform::{error::Error, http::Tag},
};

/// The query of the address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct McpQuery {
    /// Limits the tools to this project.
    project_ref: Option<String>,
    /// Hides tools that may change something, and runs SQL in read-only transactions.
    #[serde(default)]
    read_only: bool,
    /// Groups of tools, separated by commas: `account`, `database`, `debugging`, `development`,
    /// `functions`, `branching`, `storage`, `operations` for a tool of each operation, or
    /// `operations/TAG` for those of one tag, such as `operations/domains`. Default: the first six.
    features: Option<String>,
}

/// A group of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// Organizations and projects.
    Account,
    /// Tables, SQL and migrations.
    Database,
    /// Logs and advisors.
    Debugging,
    /// Address, keys and types of a project.
    Development,
    /// Edge Functions.
    Functions,
    /// Branches.
    Branching,
    /// Buckets and settings of Storage.
    Storage,
    /// The operations of a tag.
    Operations(Tag),
}

/// Groups with a name of their own.
const NAMED: [(&str, Feature); 7] = [
    ("account", Feature::Account),
    ("database", Feature::Database),
    ("debugging", Feature::Debugging),
    ("development", Feature::Development),
    ("functions", Feature::Functions),
    ("branching", Feature::Branching),
    ("storage", Feature::Storage),
];
/// Number of [`NAMED`] groups that are selected by default.
const DEFAULT: usize = 6;
/// Name of the groups of operations.
const OPERATIONS: &str = "operations";

/// The tools that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    /// The only project of the tools, if they are limited to one.
    pub(super) project: Option<ProjectRef>,
    /// Whether no tool may change something.
    pub(super) read_only: bool,
    features: Vec<Feature>,
}

impl Selection {
    /// Errors: [`Error::Invalid`] for a malformed ref, and for groups that do not exist.
    pub(super) fn new(query: &McpQuery) -> Result<Self, Error> {
        let project = query.project_ref.as_deref().map(str::parse).transpose();
        let malformed = |_| Error::invalid("project_ref", "expected 20 lowercase letters");
        let features = match &query.features {
            None => NAMED[..DEFAULT]
                .iter()
                .map(|(_, feature)| *feature)
                .collect(),
            Some(names) => parse_features(names)?,
        };
        Ok(Self {
            project: project.map_err(malformed)?,
            read_only: query.read_only,
            features,
        })
    }

    /// Returns whether the group is selected.
    pub(super) fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
}

fn parse_features(names: &str) -> Result<Vec<Feature>, Error> {
    let mut features = Vec::new();
    let names = names.split(',').map(str::trim);
    for name in names.filter(|name| !name.is_empty()) {
        // The hosted server's group of its documentation has no tools here.
        if name == "docs" {
            continue;
        }
        if let Some((_, feature)) = NAMED.iter().find(|(known, _)| *known == name) {
            features.push(*feature);
            continue;
        }
        let tag = name
            .strip_prefix(OPERATIONS)
            .map(|tag| tag.strip_prefix('/').unwrap_or(tag));
        let tags = endpoints::all().iter().map(|endpoint| endpoint.tag);
        let before = features.len();
        if let Some(wanted) = tag {
            let wanted_tags = tags.filter(|tag| wanted.is_empty() || slug(*tag) == wanted);
            features.extend(wanted_tags.map(Feature::Operations));
        }
        if features.len() == before {
            return Err(Error::invalid("features", unknown(name)));
        }
    }
    Ok(features)
}

fn unknown(name: &str) -> String {
    let known: Vec<_> = NAMED.iter().map(|(known, _)| *known).collect();
    format!(
        "there is no group {name}; known are {}, {OPERATIONS} and {OPERATIONS}/TAG",
        known.join(", ")
    )
}

/// Returns the name of a tag in a group: `edge-functions`.
fn slug(tag: Tag) -> String {
    tag.title().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(features: &str) -> Result<Selection, Error> {
        Selection::new(&McpQuery {
            features: Some(features.to_owned()),
            ..McpQuery::default()
        })
    }

    #[test]
    fn groups_are_those_of_the_hosted_server_and_tags() {
        let default = Selection::new(&McpQuery::default()).unwrap();
        assert!(default.has(Feature::Account) && default.has(Feature::Branching));
        assert!(!default.has(Feature::Storage));
        assert!(!default.has(Feature::Operations(Tag::Domains)));
        let selection = of("docs, storage,operations/edge-functions").unwrap();
        assert!(selection.has(Feature::Storage) && !selection.has(Feature::Account));
        assert!(selection.has(Feature::Operations(Tag::EdgeFunctions)));
        assert!(!selection.has(Feature::Operations(Tag::Domains)));
        assert!(
            of("operations")
                .unwrap()
                .has(Feature::Operations(Tag::Domains))
        );
    }

    #[test]
    fn unknown_groups_and_refs_are_rejected_with_those_that_exist() {
        for features in ["databases", "operations/nothing", "operations-domains"] {
            let error = of(features).unwrap_err().message().into_owned();
            assert!(error.contains("branching"), "{error}");
        }
        let query = McpQuery {
            project_ref: Some("../x".to_owned()),
            ..McpQuery::default()
        };
        assert!(Selection::new(&query).is_err());
    }
}
