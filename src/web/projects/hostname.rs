//! The custom hostname of a project: the results of its checks, and the next steps.

use askama::Template;
use serde::Deserialize;

use super::project::ProjectResponse;
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
    },
};

pub(in crate::web) static HOSTNAME: Endpoint = page(
    "page-hostname",
    "Custom hostname of a project",
    Verb::Get,
    "/projects/{project}/hostname",
    || mount(show),
);

/// The response of the operation that returns the hostname.
#[derive(Deserialize)]
pub(super) struct HostnameResponse {
    pub(super) custom_hostname: String,
    status: String,
}

impl HostnameResponse {
    /// Returns the label and style class of the status.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "2_initiated" => ("Waiting for DNS", "busy"),
            "3_challenge_verified" => ("Waiting for certificate", "busy"),
            "4_origin_setup_completed" => ("Ready to activate", "busy"),
            _ => ("Active", "good"),
        }
    }
}

#[derive(Deserialize)]
struct HostnameChecks {
    #[serde(flatten)]
    hostname: HostnameResponse,
    checks: Vec<HostnameCheck>,
}

#[derive(Deserialize)]
struct HostnameCheck {
    name: String,
    status: String,
    expected: String,
    observed: String,
    next_action: Option<String>,
}

impl HostnameCheck {
    fn title(&self) -> &str {
        match self.name.as_str() {
            "spelling" => "Spelling",
            "cname" => "CNAME record",
            "txt" => "TXT record",
            "caa" => "CAA records",
            "delegation" => "DNS challenge",
            "http" => "HTTP",
            "https" => "HTTPS",
            "certificate" => "Certificate",
            "chain" => "Certificate chain",
            other => other,
        }
    }

    /// Returns the label and style class of the result.
    fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "passed" => ("Passed", "good"),
            "failed" => ("Failed", "bad"),
            "waiting" => ("Waiting", "busy"),
            "optional" => ("Optional", "idle"),
            _ => ("Skipped", "idle"),
        }
    }
}

#[derive(Template)]
#[template(path = "project_hostname.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    /// The checks, or the reason that there are none.
    checked: Result<HostnameChecks, String>,
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let checked = match visitor
        .get(&format!(
            "/v1/projects/{reference}/config/custom-hostname/checks"
        ))
        .await
    {
        Ok(checked) => Ok(checked),
        Err(Error::Rejected(message)) => Err(message.into_owned()),
        Err(error) => return Err(error),
    };
    PageResponse::page(&Page {
        layout: visitor.layout().at_path(&format!("/projects/{reference}")),
        project,
        checked,
    })
}
