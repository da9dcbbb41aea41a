//! Settings of a project: by section or search, with the difference before they are saved, and
//! earlier versions.

mod fields;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::fields::{SettingField, SubmittedSettings};
pub(in crate::web) use self::versions::VERSIONS;
use super::project::ProjectResponse;
use crate::{
    control::project_settings::{
        ChangeEffect, Drift, PlannedChange, Section, SettingsPlan, SettingsVersion,
    },
    platform::{
        error::Error,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        form,
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static SETTINGS: Endpoint = page(
    "page-project-settings",
    "Settings of a project",
    Verb::Get,
    "/projects/{project}/settings",
    || mount(show),
);
pub(in crate::web) static REVIEW_SETTINGS: Endpoint = page(
    "page-review-project-settings",
    "Review a change of settings",
    Verb::Post,
    "/projects/{project}/settings/review",
    || mount(review),
);
pub(in crate::web) static APPLY_SETTINGS: Endpoint = page(
    "page-apply-project-settings",
    "Apply a change of settings",
    Verb::Post,
    "/projects/{project}/settings/apply",
    || mount(apply),
);

/// Settings on a page of search results.
const FOUND_MAX: usize = 50;
/// Changes that are searched for the last author of a setting: one page of the operation.
const VERSIONS_READ: usize = 100;

/// The choice of settings. Browsers send empty fields as well.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct SettingsQuery {
    section: String,
    q: String,
}

/// The response of the operation that exports the settings.
#[derive(Default, Deserialize)]
struct ExportedSettings {
    document: Map<String, Value>,
    secrets: BTreeSet<String>,
}

#[derive(Template)]
#[template(path = "project_settings.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_read: PermissionCheck,
    can_change: PermissionCheck,
    sections: &'static [Section],
    section: Section,
    query: String,
    fields: Vec<SettingField>,
    drift: Option<Drift>,
    applied: Option<Timestamp>,
    problem: Option<String>,
}

impl Page {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "templates pass references"
    )]
    fn is_at(&self, section: &Section) -> bool {
        self.query.is_empty() && self.section == *section
    }

    /// Returns the address of this page, for its form.
    fn action(&self) -> String {
        format!("/projects/{}/settings/review", self.project.reference)
    }
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
    Query(query): Query<SettingsQuery>,
) -> Result<PageResponse, Error> {
    let none = SubmittedSettings::default();
    PageResponse::page(&load(&visitor, &reference, &query, &none, None).await?)
}

/// Loads the page. `submitted` are values of a form that was rejected.
async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    query: &SettingsQuery,
    submitted: &SubmittedSettings,
    problem: Option<String>,
) -> Result<Page, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}/config/{rest}");
    let can_read = visitor.check("GET", &at("document")).await?;
    let can_change = visitor.check("POST", &at("apply")).await?;
    let mut page = Page {
        layout: visitor
            .layout()
            .at_path(&format!("/projects/{reference}/settings")),
        project,
        can_read,
        can_change,
        sections: &Section::ALL,
        section: Section::of_name(&query.section).unwrap_or(Section::Api),
        query: query.q.trim().to_owned(),
        fields: Vec::new(),
        drift: None,
        applied: None,
        problem,
    };
    if !page.can_read.is_allowed() {
        return Ok(page);
    }
    let now = visitor.context.clock.now();
    let current = current(visitor, reference).await?;
    let values = fields::by_path(&current.document);
    let mut authors = authors(visitor, reference).await?;
    for (section, name) in chosen(page.section, &page.query) {
        let path = format!("{}.{name}", section.name());
        let Some(setting) = section.settings().get(name) else {
            continue;
        };
        let mut field = SettingField::new(section, name, setting, values.get(&path));
        field.is_set = current.secrets.contains(&path);
        field.author = authors
            .remove(&path)
            .map(|(author, at)| (author, Timestamp::new(at, now)));
        submitted.overwrite(&mut field);
        page.fields.push(field);
    }
    let drift: Drift = visitor.get(&at("drift")).await?;
    page.applied = drift.applied_at.map(|at| Timestamp::new(at, now));
    page.drift = Some(drift).filter(|drift| !drift.settings.is_empty());
    Ok(page)
}

async fn current(visitor: &Visitor, reference: &ProjectRef) -> Result<ExportedSettings, Error> {
    let path = format!("/v1/projects/{reference}/config/document?all=true");
    visitor.get(&path).await
}

/// The last author of a setting, if known, and the time of the change.
type LastChange = (Option<String>, chrono::DateTime<chrono::Utc>);

/// Returns the last change of each setting, by path.
async fn authors(
    visitor: &Visitor,
    reference: &ProjectRef,
) -> Result<BTreeMap<String, LastChange>, Error> {
    let path = format!("/v1/projects/{reference}/config/versions?limit={VERSIONS_READ}");
    let versions: Vec<SettingsVersion> = visitor.get(&path).await?;
    let mut last = BTreeMap::new();
    for version in versions {
        for change in version.changes {
            let by = (version.author.clone(), version.at);
            last.entry(change.setting).or_insert(by);
        }
    }
    Ok(last)
}

/// Returns the settings of a section, or those that a search finds by name or explanation.
fn chosen(section: Section, query: &str) -> Vec<(Section, &'static str)> {
    let of = |section: Section| {
        let settings = section.settings().iter();
        settings.filter(|(_, setting)| !setting.is_read_only)
    };
    if query.is_empty() {
        return of(section)
            .map(|(name, _)| (section, name.as_str()))
            .collect();
    }
    let wanted = query.to_lowercase();
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let mut found = Vec::new();
    for section in Section::ALL {
        for (name, setting) in of(section) {
            let text = format!("{}.{name} {}", section.name(), setting.explanation).to_lowercase();
            if words.iter().all(|word| text.contains(word)) && found.len() < FOUND_MAX {
                found.push((section, name.as_str()));
            }
        }
    }
    found
}

#[derive(Template)]
#[template(path = "project_settings_review.html")]
struct ReviewPage {
    layout: Layout,
    project: ProjectResponse,
    plan: SettingsPlan,
    /// Body of the operation that applies the change, without the hash.
    request: String,
    can_change: PermissionCheck,
}

impl ReviewPage {
    /// Returns the text of a value.
    fn text(change: &PlannedChange, value: &Value) -> String {
        fields::text(value, change.secret)
    }

    fn effect(change: &PlannedChange) -> &'static str {
        match change.effect {
            ChangeEffect::Immediate => "at once",
            ChangeEffect::Reload => "reload",
            ChangeEffect::Restart => "restart",
        }
    }
}

/// Shows what a form, or an earlier version, changes.
async fn review(
    visitor: Visitor,
    SessionForm(form): SessionForm<Vec<(String, String)>>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    visitor.skip_audit();
    let submitted = SubmittedSettings::new(form);
    let request = if let Some(version) = submitted.version() {
        json!({"version": version})
    } else {
        let current = current(&visitor, &reference).await?;
        json!({"document": submitted.document(&current.document)})
    };
    let path = format!("/v1/projects/{reference}/config/plan");
    let plan = visitor.post::<SettingsPlan>(&path, &request).await;
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return refused(&visitor, &reference, &submitted, error).await,
    };
    let can_change = visitor
        .check("POST", &format!("/v1/projects/{reference}/config/apply"))
        .await?;
    let page = ReviewPage {
        layout: visitor
            .layout()
            .at_path(&format!("/projects/{reference}/settings")),
        project: ProjectResponse::load(&visitor, &reference).await?,
        plan,
        request: request.to_string(),
        can_change,
    };
    PageResponse::page(&page)
}

/// Shows the form again with the message of an operation that rejected it.
async fn refused(
    visitor: &Visitor,
    reference: &ProjectRef,
    submitted: &SubmittedSettings,
    error: Error,
) -> Result<PageResponse, Error> {
    let problem = Some(form::problem(error)?);
    let query = SettingsQuery {
        section: submitted.section().to_owned(),
        q: submitted.query().to_owned(),
    };
    let page = load(visitor, reference, &query, submitted, problem).await?;
    PageResponse::form(&page, true)
}

/// The confirmed change.
#[derive(Deserialize)]
struct ConfirmedChange {
    request: String,
    hash: String,
}

async fn apply(
    visitor: Visitor,
    SessionForm(form): SessionForm<ConfirmedChange>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let mut request: Map<String, Value> = serde_json::from_str(&form.request)
        .map_err(|_| Error::invalid("request", "expected a JSON object"))?;
    request.insert("hash".to_owned(), form.hash.into());
    let path = format!("/v1/projects/{reference}/config/apply");
    let applied = visitor.post::<SettingsPlan>(&path, &request.into()).await;
    match applied {
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}/settings?done=saved")),
        Err(error) => refused(&visitor, &reference, &SubmittedSettings::default(), error).await,
    }
}
