//! Resources: the reference of the API, and the schema, the advice and the logs of a project.

use http::Method;
use rmcp::{
    ErrorData,
    model::{
        ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    },
};
use serde_json::{Value, json};

use super::{
    client::encoded,
    selection::Selection,
    tool::{ToolContext, ToolError},
};
use crate::{api::reference::tables, platform::error::Error};

/// Address of the reference.
const REFERENCE: &str = "gantry://reference/endpoints";
/// Begin of the addresses of projects' resources.
const PROJECTS: &str = "gantry://projects/";

/// A resource that each project has.
struct ProjectResource {
    /// Last segment of the address.
    name: &'static str,
    description: &'static str,
}

const OF_PROJECT: [ProjectResource; 3] = [
    ProjectResource {
        name: "schema",
        description: "Tables, columns, relations and policies of the database",
    },
    ProjectResource {
        name: "advisors",
        description: "Findings about security and performance",
    },
    ProjectResource {
        name: "logs",
        description: "Requests to the services of the last minutes",
    },
];

/// Returns the resources with a fixed address in a selection.
pub(super) fn list(selection: &Selection) -> Vec<Resource> {
    let mut resources = vec![
        Resource::new(REFERENCE, "endpoints")
            .with_description("Every operation of the API with its permissions and limits")
            .with_mime_type("text/markdown"),
    ];
    if let Some(project) = &selection.project {
        resources.extend(OF_PROJECT.iter().map(|resource| {
            Resource::new(
                format!("{PROJECTS}{project}/{}", resource.name),
                resource.name,
            )
            .with_description(resource.description)
            .with_mime_type("application/json")
        }));
    }
    resources
}

/// Returns the forms of addresses of a selection without a project.
pub(super) fn templates(selection: &Selection) -> Vec<ResourceTemplate> {
    if selection.project.is_some() {
        return Vec::new();
    }
    let template = |resource: &ProjectResource| {
        ResourceTemplate::new(
            format!("{PROJECTS}{{ref}}/{}", resource.name),
            resource.name,
        )
        .with_description(resource.description)
        .with_mime_type("application/json")
    };
    OF_PROJECT.iter().map(template).collect()
}

/// Reads a resource with the rights of the caller.
pub(super) async fn read(
    context: &ToolContext,
    uri: &str,
) -> Result<ReadResourceResponse, ErrorData> {
    if uri == REFERENCE {
        let contents = ResourceContents::text(tables::endpoints(), uri);
        return Ok(ReadResourceResult::new(vec![contents.with_mime_type("text/markdown")]).into());
    }
    let not_found = || {
        let data = json!({ "uri": uri });
        ErrorData::resource_not_found("there is no such resource", Some(data))
    };
    let (project, name) = uri
        .strip_prefix(PROJECTS)
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(not_found)?;
    let selected = context.selection.project.as_ref();
    if selected.is_some_and(|selected| selected.as_str() != project) {
        return Err(not_found());
    }
    let value = read_of_project(context, project, name).await;
    let value = value.map_err(|error| match error {
        ToolError::Operation(Error::NotFound) => not_found(),
        other => ErrorData::invalid_params(other.message(), None),
    })?;
    let value = value.ok_or_else(not_found)?;
    let contents = ResourceContents::text(value.to_string(), uri);
    Ok(ReadResourceResult::new(vec![contents.with_mime_type("application/json")]).into())
}

async fn read_of_project(
    context: &ToolContext,
    project: &str,
    name: &str,
) -> Result<Option<Value>, ToolError> {
    let at = |rest: &str| format!("/v1/projects/{}{rest}", encoded(project));
    let client = &context.client;
    Ok(Some(match name {
        "schema" => client.get(&at("/database/context")).await?,
        "advisors" => {
            let security = client.get(&at("/advisors/security")).await?;
            let performance = client.get(&at("/advisors/performance")).await?;
            json!({"security": security, "performance": performance})
        }
        "logs" => {
            client
                .call(Method::GET, &at("/analytics/endpoints/logs.all"), None)
                .await?
        }
        _ => return Ok(None),
    }))
}
