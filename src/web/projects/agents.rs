//! The connection of an agent: the address of the MCP server for a project, and the configuration
//! of common clients.

use askama::Template;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::project::ProjectResponse;
use crate::{
    mcp::{FEATURE_GROUPS, FeatureGroup, project_address},
    platform::{
        error::Error,
        http::{Endpoint, Verb, input::QueryWithLists, mount},
    },
    web::{
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
    },
};

pub(in crate::web) static AGENTS: Endpoint = page(
    "page-project-agents",
    "Connect an agent to a project",
    Verb::Get,
    "/projects/{project}/agents",
    || mount(show),
);

/// The form. A group that is not checked is not in the query.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct AgentsQuery {
    /// `false` for tools that may change something.
    read_only: String,
    /// Names of groups, separated by commas.
    features: String,
}

impl AgentsQuery {
    fn is_read_only(&self) -> bool {
        self.read_only != "false"
    }

    /// Returns all groups and whether each is selected: those of the query, or the default.
    fn choices(&self) -> Vec<GroupChoice> {
        let is_named = |group: &FeatureGroup| self.features.split(',').any(|it| it == group.name);
        let names_one = FEATURE_GROUPS.iter().any(is_named);
        let choice = |group: &'static FeatureGroup| GroupChoice {
            group,
            is_selected: if names_one {
                is_named(group)
            } else {
                group.is_default
            },
        };
        FEATURE_GROUPS.iter().map(choice).collect()
    }
}

/// A group of tools in the form.
struct GroupChoice {
    group: &'static FeatureGroup,
    is_selected: bool,
}

/// The configuration of a client.
struct ClientSetup {
    /// Id of the element with the text.
    id: &'static str,
    client: &'static str,
    /// The file that has the text, or the place where the command is run.
    place: &'static str,
    text: String,
}

#[derive(Template)]
#[template(path = "project_agents.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    is_read_only: bool,
    groups: Vec<GroupChoice>,
    address: String,
    setups: Vec<ClientSetup>,
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
    QueryWithLists(query): QueryWithLists<AgentsQuery>,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let groups = query.choices();
    let selected: Vec<_> = groups
        .iter()
        .filter(|choice| choice.is_selected)
        .map(|choice| choice.group)
        .collect();
    // Tokens of OAuth are issued for the public address.
    let issuer = visitor.context.settings.issuer();
    let origin = issuer.unwrap_or(&visitor.origin);
    let address = project_address(origin, &reference, query.is_read_only(), &selected);
    PageResponse::page(&Page {
        layout: visitor.layout(),
        project,
        is_read_only: query.is_read_only(),
        groups,
        setups: setups(&address),
        address,
    })
}

/// Returns the configurations of clients, which read the token from a variable or ask for it.
fn setups(address: &str) -> Vec<ClientSetup> {
    let server = |token: &str| {
        json!({
            "type": "http",
            "url": address,
            "headers": {"Authorization": format!("Bearer {token}")},
        })
    };
    let servers = |token| json!({"mcpServers": {"gantry": server(token)}});
    let vs_code = json!({
        "inputs": [{
            "type": "promptString",
            "id": "gantry-token",
            "description": "Access token of Gantry",
            "password": true,
        }],
        "servers": {"gantry": server("${input:gantry-token}")},
    });
    let setup = |id, client, place, text| ClientSetup {
        id,
        client,
        place,
        text,
    };
    vec![
        setup("claude-code", "Claude Code", "shell", command(address)),
        setup(
            "cursor",
            "Cursor",
            ".cursor/mcp.json",
            pretty(&servers("${env:GANTRY_TOKEN}")),
        ),
        setup(
            "vs-code",
            "Visual Studio Code",
            ".vscode/mcp.json",
            pretty(&vs_code),
        ),
        setup(
            "other",
            "Other clients",
            ".mcp.json",
            pretty(&servers("${GANTRY_TOKEN}")),
        ),
    ]
}

/// Returns the command that adds the server to Claude Code.
fn command(address: &str) -> String {
    format!(
        "claude mcp add --transport http gantry \"{address}\" \\\n  \
         --header \"Authorization: Bearer $GANTRY_TOKEN\""
    )
}

fn pretty(value: &Value) -> String {
    format!("{value:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(features: &str) -> Vec<&'static str> {
        let query = AgentsQuery {
            features: features.to_owned(),
            ..AgentsQuery::default()
        };
        let choices = query.choices().into_iter();
        choices
            .filter(|choice| choice.is_selected)
            .map(|choice| choice.group.name)
            .collect()
    }

    #[test]
    fn groups_are_those_of_the_query_or_the_default() {
        assert_eq!(
            selected("storage,database,nothing"),
            ["database", "storage"]
        );
        for features in ["", "nothing"] {
            let names = selected(features);
            assert!(names.contains(&"branching") && !names.contains(&"storage"));
        }
    }

    #[test]
    fn configurations_are_json_with_the_address_and_no_token() {
        let address = "https://api.test/mcp?project_ref=abcdefghijklmnopqrst&read_only=true";
        for setup in setups(address) {
            assert!(setup.text.contains(address), "{}", setup.text);
            if setup.id == "claude-code" {
                continue;
            }
            let value: Value = serde_json::from_str(&setup.text).unwrap();
            let servers = if setup.id == "vs-code" {
                "servers"
            } else {
                "mcpServers"
            };
            let header = &value[servers]["gantry"]["headers"]["Authorization"];
            assert!(header.as_str().unwrap().starts_with("Bearer ${"), "{value}");
        }
    }
}
