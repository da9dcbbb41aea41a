//! The custom hostname of a project: everything it needs, and what is still to be done.

use askama::Template;
use serde::Deserialize;

use super::Detail;
use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Frame, Visitor, named::InProject, page},
};

pub(in crate::web) static HOSTNAME: Endpoint = page(
    "page-hostname",
    "A project's custom hostname",
    Verb::Get,
    "/projects/{project}/hostname",
    Access::Caller,
    || mount(show),
);

/// A hostname, as its operation shows it.
#[derive(Deserialize)]
pub(super) struct Hostname {
    pub(super) custom_hostname: String,
    status: String,
}

impl Hostname {
    /// How far it is in words, and how that is marked.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "2_initiated" => ("Waiting for DNS", "busy"),
            "3_challenge_verified" => ("Waiting for its certificate", "busy"),
            "4_origin_setup_completed" => ("Ready to be activated", "busy"),
            _ => ("Active", "good"),
        }
    }
}

#[derive(Deserialize)]
struct Checked {
    #[serde(flatten)]
    hostname: Hostname,
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    name: String,
    status: String,
    expected: String,
    observed: String,
    next_action: Option<String>,
}

impl Check {
    fn title(&self) -> &str {
        match self.name.as_str() {
            "spelling" => "Spelling",
            "cname" => "CNAME record",
            "txt" => "TXT record",
            "caa" => "CAA records",
            "delegation" => "Proof by DNS",
            "http" => "Reached over HTTP",
            "https" => "Reached over HTTPS",
            "certificate" => "Certificate",
            "chain" => "Chain of the certificate",
            other => other,
        }
    }

    /// How it came out in words, and how that is marked.
    fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "passed" => ("Right", "good"),
            "failed" => ("Wrong", "bad"),
            "waiting" => ("Waiting", "busy"),
            "optional" => ("Optional", "idle"),
            _ => ("Not looked at", "idle"),
        }
    }
}

#[derive(Template)]
#[template(path = "project_hostname.html")]
struct Page {
    frame: Frame,
    project: Detail,
    /// Or why there is nothing to be looked at.
    checked: Result<Checked, String>,
}

async fn show(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    let project = Detail::of(&visitor, &reference).await?;
    let checked = match visitor
        .get(&format!(
            "/v1/projects/{reference}/config/custom-hostname/checks"
        ))
        .await
    {
        Ok(checked) => Ok(checked),
        Err(Error::Rejected(why)) => Err(why.into_owned()),
        Err(error) => return Err(error),
    };
    Answer::page(&Page {
        frame: visitor.frame().of(&format!("/projects/{reference}")),
        project,
        checked,
    })
}
