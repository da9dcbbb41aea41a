//! Creation of a project.

use askama::Template;
use gantry_base::{clock::Entropy, ids::ProjectRef};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        resources::{self, OrganizationEntry},
    },
};

pub(in crate::web) static NEW: Endpoint = page(
    "page-new-project",
    "New project",
    Verb::Get,
    "/projects/new",
    || mount(new),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-create-project",
    "Create a project",
    Verb::Post,
    "/projects/new",
    || mount(create),
);

/// Maximum number of organizations to check for permission. Further ones are offered unchecked.
const CHECKS_MAX: usize = 50;

/// The values of the form.
#[derive(Deserialize)]
struct ProjectForm {
    name: String,
    #[serde(default)]
    organization: String,
    region: String,
    password: String,
}

/// Error messages by field.
#[derive(Default, PartialEq, Eq)]
struct ProjectFormErrors {
    name: Option<String>,
    organization: Option<String>,
    region: Option<String>,
    password: Option<String>,
    other: Option<String>,
}

/// An organization in the form.
struct OrganizationOption {
    organization: OrganizationEntry,
    /// The reason that the visitor may not create projects there.
    refusal: Option<String>,
}

/// A region in the response of the operation.
#[derive(Deserialize)]
struct RegionOption {
    code: String,
    name: String,
}

#[derive(Deserialize)]
struct RegionsResponse {
    all: RegionGroups,
}

#[derive(Deserialize)]
struct RegionGroups {
    specific: Vec<RegionOption>,
}

#[derive(Template)]
#[template(path = "project_new.html")]
struct Page {
    layout: Layout,
    options: Vec<OrganizationOption>,
    regions: Vec<RegionOption>,
    form: ProjectForm,
    errors: ProjectFormErrors,
}

impl Page {
    fn can_create(&self) -> bool {
        self.options.iter().any(|option| option.refusal.is_none())
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewProjectQuery {
    organization: Option<String>,
}

async fn new(
    visitor: Visitor,
    Query(query): Query<NewProjectQuery>,
) -> Result<PageResponse, Error> {
    let password = suggest_password(&visitor.context.entropy);
    let form = ProjectForm {
        name: String::new(),
        organization: query.organization.unwrap_or_default(),
        region: "eu-central-1".to_owned(),
        password,
    };
    show(&visitor, form, ProjectFormErrors::default()).await
}

async fn show(
    visitor: &Visitor,
    form: ProjectForm,
    errors: ProjectFormErrors,
) -> Result<PageResponse, Error> {
    let mut options = Vec::new();
    for (index, organization) in resources::organizations(visitor)
        .await?
        .into_iter()
        .enumerate()
    {
        let refusal = if index < CHECKS_MAX {
            let body = json!({"organization_slug": organization.slug}).to_string();
            let check = visitor.check_body("POST", "/v1/projects", &body).await?;
            check.refusal()
        } else {
            None
        };
        options.push(OrganizationOption {
            organization,
            refusal,
        });
    }
    let regions = match options.first() {
        Some(first) => {
            let path = format!(
                "/v1/projects/available-regions?organization_slug={}",
                first.organization.slug
            );
            visitor.get::<RegionsResponse>(&path).await?.all.specific
        }
        None => Vec::new(),
    };
    let page = Page {
        layout: visitor.layout().at_path("/projects/new"),
        options,
        regions,
        form,
        errors,
    };
    let is_rejected = page.errors != ProjectFormErrors::default();
    PageResponse::form(&page, is_rejected)
}

/// The response of an operation that creates a project.
#[derive(Deserialize)]
pub(super) struct CreatedProject {
    #[serde(rename = "ref")]
    pub(super) reference: ProjectRef,
}

async fn create(
    visitor: Visitor,
    SessionForm(form): SessionForm<ProjectForm>,
) -> Result<PageResponse, Error> {
    let name = form.name.trim();
    if form.organization.is_empty() {
        let errors = ProjectFormErrors {
            organization: Some("Choose an organization.".to_owned()),
            ..ProjectFormErrors::default()
        };
        return show(&visitor, form, errors).await;
    }
    let body = json!({"name": name, "organization_slug": form.organization, "region": form.region, "db_pass": form.password});
    let errors = match visitor.post::<CreatedProject>("/v1/projects", &body).await {
        Ok(created) => {
            return PageResponse::redirect(&format!(
                "/projects/{}?done=created",
                created.reference
            ));
        }
        Err(Error::Invalid { field, problem }) => {
            let message = Some(format!("Invalid value: {problem}."));
            let mut errors = ProjectFormErrors::default();
            match &*field {
                "name" => errors.name = message,
                "db_pass" => errors.password = message,
                "region" => errors.region = message,
                _ => errors.other = message,
            }
            errors
        }
        Err(Error::Rejected(text)) => ProjectFormErrors {
            other: Some(format!("{text}.")),
            ..ProjectFormErrors::default()
        },
        Err(error) => return Err(error),
    };
    show(&visitor, form, errors).await
}

/// Characters of suggested passwords: none that look alike, such as `0` and `o`.
const PASSWORD_CHARACTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Returns a random password of 24 characters (120 bits).
pub(super) fn suggest_password(entropy: &Entropy) -> String {
    entropy
        .bytes::<24>()
        .iter()
        .map(|byte| char::from(PASSWORD_CHARACTERS[usize::from(byte % 32)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_passwords_differ_and_avoid_ambiguous_characters() {
        let entropy = Entropy::seeded(3);
        let one = suggest_password(&entropy);
        let other = suggest_password(&entropy);
        assert!(
            one != other
                && one.len() == 24
                && one
                    .bytes()
                    .all(|letter| PASSWORD_CHARACTERS.contains(&letter))
        );
        assert!(!one.contains(['0', 'o', '1', 'l']));
    }
}
