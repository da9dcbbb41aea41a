//! Files of organizations: members with their roles, OAuth applications, and projects with their
//! settings.

use std::collections::BTreeMap;

use anyhow::Context as _;
use gantry_base::ids::{OrgSlug, ProjectRef};
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{ApiClient, apply_project, export_project, line, plan_project};
use crate::control::project_settings::SettingsPlan;

/// The file of an organization. What it does not name stays as it is.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OrganizationDocument {
    /// Roles by email address.
    members: BTreeMap<String, String>,
    /// Applications by client id.
    applications: BTreeMap<String, ApplicationDocument>,
    /// Projects by ref.
    projects: BTreeMap<String, ProjectDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplicationDocument {
    name: String,
    website: String,
    redirect_uris: Vec<String>,
    scopes: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProjectDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Settings by section.
    settings: Map<String, Value>,
}

/// A member, as the API lists it.
#[derive(Deserialize)]
struct ListedMember {
    user_id: String,
    email: String,
    role_name: String,
}

impl ListedMember {
    /// Returns the code of the role.
    fn role(&self) -> String {
        self.role_name.to_lowercase().replace([' ', '-'], "_")
    }
}

/// The state of an organization.
struct OrganizationState {
    slug: OrgSlug,
    members: Vec<ListedMember>,
    document: OrganizationDocument,
    secrets: Vec<String>,
}

impl OrganizationState {
    /// Reads an organization. `settings` selects the projects of which settings are read.
    async fn read(
        api: &ApiClient,
        slug: &OrgSlug,
        settings: impl Fn(&str) -> bool,
        all: bool,
    ) -> anyhow::Result<Self> {
        let at = |rest: &str| format!("/v1/organizations/{slug}/{rest}");
        let members: Vec<ListedMember> =
            serde_json::from_value(api.get(&at("members")).await?).context("reading members")?;
        let mut document = OrganizationDocument::default();
        for member in &members {
            document.members.insert(member.email.clone(), member.role());
        }
        let applications = api.get(&at("oauth/apps")).await?;
        for application in applications.as_array().into_iter().flatten() {
            let id = application["id"].as_str().unwrap_or_default().to_owned();
            let mut fields = application.as_object().cloned().unwrap_or_default();
            fields.retain(|name, _| {
                ["name", "website", "redirect_uris", "scopes"].contains(&name.as_str())
            });
            let own = serde_json::from_value(fields.into()).context("reading an application")?;
            document.applications.insert(id, own);
        }
        let projects = api.get("/v1/projects").await?;
        let mut secrets = Vec::new();
        for project in projects.as_array().into_iter().flatten() {
            if project["organization_slug"] != slug.as_str() {
                continue;
            }
            let reference: ProjectRef = project["ref"].as_str().unwrap_or_default().parse()?;
            let mut own = ProjectDocument {
                name: project["name"].as_str().map(str::to_owned),
                settings: Map::new(),
            };
            if settings(reference.as_str()) {
                let (exported, hidden) = export_project(api, &reference, all).await?;
                own.settings = exported;
                secrets.extend(hidden.into_iter().map(|path| format!("{reference} {path}")));
            }
            document.projects.insert(reference.to_string(), own);
        }
        Ok(Self {
            slug: slug.clone(),
            members,
            document,
            secrets,
        })
    }

    /// Returns the steps from this state to the document, without those of projects' settings.
    fn steps_to(&self, wanted: &OrganizationDocument) -> anyhow::Result<Vec<OrganizationStep>> {
        let mut steps = Vec::new();
        for (email, role) in &wanted.members {
            let member = self.members.iter().find(|member| member.email == *email);
            match member {
                Some(member) if member.role() == *role => {}
                Some(member) => steps.push(OrganizationStep {
                    text: format!("member {email}: {} -> {role}", member.role()),
                    method: "PATCH",
                    path: format!(
                        "/v2/organizations/{}/members/{}/roles",
                        self.slug, member.user_id
                    ),
                    body: json!({"data": {"type": "organization_member_role", "attributes": {"role": role}}}),
                }),
                None => steps.push(OrganizationStep {
                    text: format!("member {email}: invited as {role}"),
                    method: "POST",
                    path: format!("/v2/organizations/{}/members/invitations", self.slug),
                    body: json!({"data": [{"type": "organization_invitation", "attributes": {"email": email, "role": role}}]}),
                }),
            }
        }
        for (id, application) in &wanted.applications {
            let current = self.document.applications.get(id);
            let current = current.with_context(|| {
                format!("the application {id} does not exist; create it first, because its secret is shown once")
            })?;
            if current != application {
                steps.push(OrganizationStep {
                    text: format!("application {id}: {}", application.name),
                    method: "PATCH",
                    path: format!("/v1/organizations/{}/oauth/apps/{id}", self.slug),
                    body: json!(application),
                });
            }
        }
        for (reference, project) in &wanted.projects {
            let current = self.document.projects.get(reference);
            let current = current.with_context(|| {
                format!(
                    "the project {reference} does not exist in this organization; create it first"
                )
            })?;
            if let Some(name) = project
                .name
                .as_ref()
                .filter(|name| current.name.as_ref() != Some(name))
            {
                steps.push(OrganizationStep {
                    text: format!("project {reference}: renamed to {name}"),
                    method: "PATCH",
                    path: format!("/v1/projects/{reference}"),
                    body: json!({"name": name}),
                });
            }
        }
        Ok(steps)
    }

    /// Returns the members that a document does not name.
    fn unnamed(&self, wanted: &OrganizationDocument) -> Vec<String> {
        if wanted.members.is_empty() {
            return Vec::new();
        }
        let emails = self.members.iter().map(|member| &member.email);
        emails
            .filter(|email| !wanted.members.contains_key(*email))
            .cloned()
            .collect()
    }
}

/// A call of the API.
#[derive(Debug, Serialize)]
struct OrganizationStep {
    text: String,
    method: &'static str,
    path: String,
    body: Value,
}

/// The settings of a project in a plan.
#[derive(Debug, Serialize)]
struct ProjectPlan {
    project: ProjectRef,
    plan: SettingsPlan,
    /// Not printed, because it may contain secrets.
    #[serde(skip)]
    settings: Map<String, Value>,
}

/// The difference between a file and an organization.
#[derive(Debug, Serialize)]
pub(super) struct OrganizationPlan {
    /// Identifies the current state and the file.
    pub(super) hash: String,
    steps: Vec<OrganizationStep>,
    projects: Vec<ProjectPlan>,
    /// Members that the file does not name. They stay members.
    unnamed: Vec<String>,
}

impl OrganizationPlan {
    /// Compares a file with the organization.
    pub(super) async fn new(
        api: &ApiClient,
        slug: &OrgSlug,
        document: Map<String, Value>,
    ) -> anyhow::Result<Self> {
        let wanted: OrganizationDocument =
            serde_json::from_value(document.into()).context("the file is not valid")?;
        let state = OrganizationState::read(api, slug, |_| false, false).await?;
        let steps = state.steps_to(&wanted)?;
        let unnamed = state.unnamed(&wanted);
        let mut projects = Vec::new();
        for (reference, project) in wanted.projects {
            if project.settings.is_empty() {
                continue;
            }
            let reference: ProjectRef = reference.parse()?;
            let plan = plan_project(api, &reference, &project.settings)
                .await
                .with_context(|| format!("project {reference}"))?;
            projects.push(ProjectPlan {
                project: reference,
                plan,
                settings: project.settings,
            });
        }
        let hashes: Vec<&str> = projects.iter().map(|it| it.plan.hash.as_str()).collect();
        let text = json!([&state.document, &steps, hashes]).to_string();
        Ok(Self {
            hash: hex::encode(Sha256::digest(text)),
            steps,
            projects,
            unnamed,
        })
    }

    /// Carries out the plan: first the settings of projects, each as a whole, then the rest.
    pub(super) async fn apply(&self, api: &ApiClient) -> anyhow::Result<()> {
        for own in &self.projects {
            if !own.plan.changes.is_empty() {
                apply_project(api, &own.project, &own.settings, &own.plan.hash)
                    .await
                    .with_context(|| format!("project {}", own.project))?;
            }
        }
        for step in &self.steps {
            let method = Method::from_bytes(step.method.as_bytes())?;
            api.call(method, &step.path, Some(&step.body))
                .await
                .with_context(|| step.text.clone())?;
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.steps.iter().map(|step| step.text.clone()).collect();
        for own in &self.projects {
            let changes = own.plan.changes.iter();
            lines.extend(changes.map(|change| format!("{}: {}", own.project, line(change))));
        }
        lines
    }

    pub(super) fn describe(&self) -> String {
        let mut lines = self.lines();
        if lines.is_empty() {
            lines.push("No changes.".to_owned());
        } else {
            lines.push(format!("Apply with --hash {}", self.hash));
        }
        if !self.unnamed.is_empty() {
            lines.push(format!(
                "Members that the file does not name stay: {}",
                self.unnamed.join(", ")
            ));
        }
        lines.join("\n")
    }

    pub(super) fn describe_applied(&self) -> String {
        match self.lines().len() {
            0 => "No changes.".to_owned(),
            1 => "1 change applied.".to_owned(),
            count => format!("{count} changes applied."),
        }
    }
}

/// Returns the file of an organization, and the paths of secrets.
pub(super) async fn export(
    api: &ApiClient,
    slug: &OrgSlug,
    all: bool,
) -> anyhow::Result<(Map<String, Value>, Vec<String>)> {
    let state = OrganizationState::read(api, slug, |_| true, all).await?;
    let document = serde_json::to_value(&state.document)?;
    Ok((
        document.as_object().cloned().unwrap_or_default(),
        state.secrets,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_name_what_differs() {
        let application = ApplicationDocument {
            name: "Editor".to_owned(),
            website: "https://a.example".to_owned(),
            redirect_uris: vec!["https://a.example/back".to_owned()],
            scopes: Vec::new(),
        };
        let member = |email: &str, role_name: &str| ListedMember {
            user_id: "7".to_owned(),
            email: email.to_owned(),
            role_name: role_name.to_owned(),
        };
        let state = OrganizationState {
            slug: "acme".parse().unwrap(),
            members: vec![
                member("ada@example.com", "Owner"),
                member("bob@example.com", "Read-only"),
            ],
            document: OrganizationDocument {
                applications: BTreeMap::from([("1".to_owned(), application.clone())]),
                ..OrganizationDocument::default()
            },
            secrets: Vec::new(),
        };
        let mut wanted = OrganizationDocument::default();
        assert!(state.steps_to(&wanted).unwrap().is_empty());
        for (email, role) in [
            ("ada@example.com", "owner"),
            ("bob@example.com", "developer"),
            ("eve@example.com", "developer"),
        ] {
            wanted.members.insert(email.to_owned(), role.to_owned());
        }
        let renamed = ApplicationDocument {
            name: "Writer".to_owned(),
            ..application
        };
        wanted.applications.insert("1".to_owned(), renamed);
        let steps = state.steps_to(&wanted).unwrap();
        let texts: Vec<&str> = steps.iter().map(|step| step.text.as_str()).collect();
        let expected = [
            "member bob@example.com: read_only -> developer",
            "member eve@example.com: invited as developer",
            "application 1: Writer",
        ];
        assert_eq!(texts, expected);
        wanted
            .projects
            .insert("a".repeat(20), ProjectDocument::default());
        assert!(state.steps_to(&wanted).is_err());
    }
}
