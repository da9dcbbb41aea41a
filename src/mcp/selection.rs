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

/// A group of tools that an address selects by its name.
#[derive(Debug, Clone, Copy)]
pub struct FeatureGroup {
    /// Name in the address.
    pub name: &'static str,
    /// Subjects of its tools, in a few words.
    pub description: &'static str,
    /// Whether an address without groups has it.
    pub is_default: bool,
    /// The feature of its tools. Absent for operations, which are selected by tag.
    feature: Option<Feature>,
}

impl FeatureGroup {
    const fn new(name: &'static str, description: &'static str, feature: Feature) -> Self {
        Self {
            name,
            description,
            is_default: true,
            feature: Some(feature),
        }
    }

    const fn optional(mut self) -> Self {
        self.is_default = false;
        self
    }
}

/// All groups.
pub static FEATURE_GROUPS: [FeatureGroup; 8] = [
    FeatureGroup::new("account", "Organizations and projects", Feature::Account),
    FeatureGroup::new("database", "Tables, SQL and migrations", Feature::Database),
    FeatureGroup::new("debugging", "Logs and advisors", Feature::Debugging),
    FeatureGroup::new(
        "development",
        "Address, publishable keys and types",
        Feature::Development,
    ),
    FeatureGroup::new("functions", "Edge Functions", Feature::Functions),
    FeatureGroup::new("branching", "Branches", Feature::Branching),
    FeatureGroup::new(
        "storage",
        "Buckets and settings of Storage",
        Feature::Storage,
    )
    .optional(),
    FeatureGroup {
        name: OPERATIONS,
        description: "A tool for each operation of the API",
        is_default: false,
        feature: None,
    },
];
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
            None => FEATURE_GROUPS
                .iter()
                .filter(|group| group.is_default)
                .filter_map(|group| group.feature)
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

/// Returns the address of the server for the tools of one project. Groups that are those of an
/// address without groups are left out.
pub fn project_address(
    origin: &str,
    project: &ProjectRef,
    is_read_only: bool,
    groups: &[&FeatureGroup],
) -> String {
    let mut address = format!("{origin}/mcp?project_ref={project}");
    if is_read_only {
        address.push_str("&read_only=true");
    }
    let names: Vec<_> = groups.iter().map(|group| group.name).collect();
    let defaults = FEATURE_GROUPS.iter().filter(|group| group.is_default);
    if !defaults.map(|group| group.name).eq(names.iter().copied()) {
        address.push_str("&features=");
        address.push_str(&names.join(","));
    }
    address
}

fn parse_features(names: &str) -> Result<Vec<Feature>, Error> {
    let mut features = Vec::new();
    let names = names.split(',').map(str::trim);
    for name in names.filter(|name| !name.is_empty()) {
        // The hosted server's group of its documentation has no tools here.
        if name == "docs" {
            continue;
        }
        let group = FEATURE_GROUPS.iter().find(|group| group.name == name);
        if let Some(feature) = group.and_then(|group| group.feature) {
            features.push(feature);
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
    let known: Vec<_> = FEATURE_GROUPS.iter().map(|group| group.name).collect();
    format!(
        "there is no group {name}; known are {} and {OPERATIONS}/TAG",
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
    fn address_selects_the_project_and_the_groups() {
        let project: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
        let address = |is_read_only, wanted: fn(&FeatureGroup) -> bool| {
            let groups: Vec<_> = FEATURE_GROUPS.iter().filter(|it| wanted(it)).collect();
            project_address("https://api.test", &project, is_read_only, &groups)
        };
        assert_eq!(
            address(false, |group| group.is_default),
            "https://api.test/mcp?project_ref=abcdefghijklmnopqrst"
        );
        let address = address(true, |group| !group.is_default);
        let (_, query) = address.split_once('?').unwrap();
        let selection = Selection::new(&serde_urlencoded::from_str(query).unwrap()).unwrap();
        assert_eq!(selection.project, Some(project));
        assert!(selection.read_only && !selection.has(Feature::Database));
        assert!(selection.has(Feature::Storage));
        assert!(selection.has(Feature::Operations(Tag::Domains)));
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
