//! Creation of a scoped token: form, review, creation.

use askama::Template;
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    TokenSecret,
    permission_groups::{GROUPS, PermissionGroup, PermissionRow},
    store,
    token_form::{ScopedTokenErrors, ScopedTokenForm},
};
use crate::{
    platform::{
        access::Role,
        error::{Context, Error},
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        form::NoFields,
        labels::Timestamp,
        organizations::roles::MemberList,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathDraft,
        permissions::missing_role_message,
        resources::{OrganizationProjects, organizations_with_projects},
    },
};

pub(in crate::web) static NEW: Endpoint = page(
    "page-new-token",
    "New access token",
    Verb::Get,
    "/account/tokens/new",
    || mount(new),
);
pub(in crate::web) static DRAFT: Endpoint = page(
    "page-draft-token",
    "Fill in an access token",
    Verb::Post,
    "/account/tokens/new",
    || mount(submit),
);
pub(in crate::web) static REVIEW: Endpoint = page(
    "page-review-token",
    "Review an access token",
    Verb::Get,
    "/account/tokens/review/{draft}",
    || mount(review),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-create-token",
    "Create an access token",
    Verb::Post,
    "/account/tokens/review/{draft}",
    || mount(create),
);

/// Maximum number of organizations to load roles of, for the hints about missing roles.
const ROLE_LOOKUPS_MAX: usize = 10;

#[derive(Template)]
#[template(path = "token_new.html")]
struct Page {
    layout: Layout,
    form: ScopedTokenForm,
    errors: ScopedTokenErrors,
    resources: TokenResources,
    role: Role,
    last_day: String,
    groups: &'static [PermissionGroup],
}

impl Page {
    /// Returns the message about a missing role for a level of a row.
    fn missing_role(&self, row: &PermissionRow, level: &str) -> Option<String> {
        let required =
            PermissionRow::required_role(if level == "read" { row.read } else { row.write });
        (required > self.role).then(|| missing_role_message(required, self.role))
    }

    /// Returns whether the row matches the search.
    fn matches(&self, row: &PermissionRow) -> bool {
        let text = self.form.search.trim().to_lowercase();
        text.is_empty()
            || row.label.to_lowercase().contains(&text)
            || row.granted("write").any(|it| it.name().contains(&text))
    }
}

/// The organizations and projects that a token can be limited to.
struct TokenResources {
    organizations: Vec<OrganizationProjects>,
}

impl TokenResources {
    async fn load(visitor: &Visitor) -> Result<Self, Error> {
        Ok(Self {
            organizations: organizations_with_projects(visitor).await?,
        })
    }

    /// Returns the names of the chosen organizations or projects.
    fn chosen_names<'a>(&'a self, form: &'a ScopedTokenForm) -> impl Iterator<Item = &'a str> {
        self.organizations.iter().flat_map(move |entry| {
            let whole = (form.reach == "organizations"
                && form.organizations.contains(&entry.organization.slug))
            .then_some(entry.organization.name.as_str());
            let projects = entry.projects.iter().filter(move |it| {
                form.reach == "projects" && form.projects.contains(&it.reference)
            });
            whole
                .into_iter()
                .chain(projects.map(|project| project.name.as_str()))
        })
    }

    /// Returns whether the organization or one of its projects is chosen; true for every
    /// organization if nothing is chosen yet.
    fn is_chosen(entry: &OrganizationProjects, form: &ScopedTokenForm) -> bool {
        match form.reach.as_str() {
            "organizations" => {
                form.organizations.is_empty()
                    || form.organizations.contains(&entry.organization.slug)
            }
            "projects" => {
                form.projects.is_empty()
                    || entry
                        .projects
                        .iter()
                        .any(|it| form.projects.contains(&it.reference))
            }
            _ => true,
        }
    }
}

/// Returns the visitor's highest role on the chosen resources, for the hints about missing roles.
/// Access is decided by the role at the time of each request. Returns [`Role::Owner`], which shows
/// no hints, if the roles are not visible.
async fn highest_role(
    visitor: &Visitor,
    resources: &TokenResources,
    form: &ScopedTokenForm,
) -> Result<Role, Error> {
    let mut highest = Role::Member;
    let email =
        form_urlencoded::byte_serialize(visitor.account.email.as_bytes()).collect::<String>();
    for entry in resources
        .organizations
        .iter()
        .filter(|entry| TokenResources::is_chosen(entry, form))
        .take(ROLE_LOOKUPS_MAX)
    {
        let path = format!(
            "/v2/organizations/{}/members?filter%5Bprimary_email%5D={email}",
            entry.organization.slug
        );
        let members: MemberList = match visitor.get(&path).await {
            Ok(members) => members,
            Err(Error::Forbidden(_)) => return Ok(Role::Owner),
            Err(error) => return Err(error),
        };
        let roles = members
            .data
            .iter()
            .flat_map(|member| &member.attributes.roles);
        highest = roles
            .filter_map(|role| role.name.parse().ok())
            .max()
            .unwrap_or(highest)
            .max(highest);
    }
    Ok(highest)
}

async fn show(
    visitor: &Visitor,
    form: ScopedTokenForm,
    errors: ScopedTokenErrors,
) -> Result<PageResponse, Error> {
    let resources = TokenResources::load(visitor).await?;
    let role = highest_role(visitor, &resources, &form).await?;
    let is_rejected = errors != ScopedTokenErrors::default();
    let page = Page {
        layout: visitor.layout().at_path("/account/tokens/new"),
        last_day: ScopedTokenForm::last_day(visitor.context.clock.now()),
        form,
        errors,
        resources,
        role,
        groups: GROUPS,
    };
    PageResponse::form(&page, is_rejected)
}

#[derive(Deserialize, JsonSchema)]
struct NewTokenQuery {
    /// The id of a draft to edit.
    draft: Option<Uuid>,
}

async fn new(visitor: Visitor, Query(query): Query<NewTokenQuery>) -> Result<PageResponse, Error> {
    let form = match query.draft {
        Some(draft) => parse_draft(store::find(&visitor, draft).await?)?,
        None => ScopedTokenForm::new(),
    };
    show(&visitor, form, ScopedTokenErrors::default()).await
}

fn parse_draft<T: DeserializeOwned>(draft: Value) -> Result<T, Error> {
    serde_json::from_value(draft).context("reading a token draft")
}

/// Handles the buttons of the form: preset, search, review.
async fn submit(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
) -> Result<PageResponse, Error> {
    visitor.skip_audit();
    let pressed_button = fields
        .iter()
        .find(|(name, _)| matches!(name.as_str(), "preset" | "find"))
        .cloned();
    let mut form = ScopedTokenForm::parse(fields);
    if let Some((button, value)) = pressed_button {
        if button == "preset" {
            let resources = TokenResources::load(&visitor).await?;
            let role = highest_role(&visitor, &resources, &form).await?;
            form.apply_preset(&value, role);
        }
        return show(&visitor, form, ScopedTokenErrors::default()).await;
    }
    let now = visitor.context.clock.now();
    if let Err(errors) = form.validate(now) {
        return show(&visitor, form, *errors).await;
    }
    // The operation validates the limits before the review.
    let mut simulation = form.limits();
    simulation["method"] = "GET".into();
    simulation["path"] = "/v1/projects".into();
    match visitor
        .post::<Value>("/v1/tokens/simulate", &simulation)
        .await
    {
        Ok(_) => {}
        Err(error) => return show_rejected(&visitor, form, error).await,
    }
    let draft = serde_json::to_value(&form).context("saving a token draft")?;
    PageResponse::redirect(&format!(
        "/account/tokens/review/{}",
        store::save(&visitor, &draft, now).await?
    ))
}

/// Shows the form again with the error of the operation.
async fn show_rejected(
    visitor: &Visitor,
    form: ScopedTokenForm,
    error: Error,
) -> Result<PageResponse, Error> {
    let errors = match error {
        Error::Invalid { field, problem } => {
            ScopedTokenErrors::from_operation(&field, problem.into_owned())
        }
        Error::Rejected(text) => ScopedTokenErrors::from_operation("", text.into_owned()),
        error => return Err(error),
    };
    show(visitor, form, errors).await
}

#[derive(Template)]
#[template(path = "token_review.html")]
struct ReviewPage {
    layout: Layout,
    draft: Uuid,
    form: ScopedTokenForm,
    resource_names: Vec<String>,
    expiry: Timestamp,
    groups: Vec<(&'static str, Vec<GrantedRow>)>,
    /// The visitor's role, if a permission requires a higher one.
    low_role: Option<&'static str>,
    count: usize,
}

/// A permission row with a granted level.
struct GrantedRow {
    row: &'static PermissionRow,
    writes: bool,
    /// Whether the permissions require a higher role than the visitor's.
    above_role: bool,
}

impl GrantedRow {
    /// Returns the warning about the granted level.
    fn risk(&self) -> Option<&'static str> {
        self.row
            .risk
            .filter(|risk| self.writes || !risk.starts_with("Write access"))
    }
}

async fn review(visitor: Visitor, PathDraft(draft): PathDraft) -> Result<PageResponse, Error> {
    let form: ScopedTokenForm = parse_draft(store::find(&visitor, draft).await?)?;
    let now = visitor.context.clock.now();
    let expiry = Timestamp::new(form.expiry(now).ok_or(Error::NotFound)?, now);
    let resources = TokenResources::load(&visitor).await?;
    let role = highest_role(&visitor, &resources, &form).await?;
    let granted = |row: &'static PermissionRow| {
        let permissions: Vec<_> = row
            .granted(form.level(row))
            .filter(|it| form.covers(*it))
            .collect();
        let writes = permissions.iter().any(|it| row.write.contains(it));
        (!permissions.is_empty()).then(|| GrantedRow {
            row,
            writes,
            above_role: PermissionRow::required_role(&permissions) > role,
        })
    };
    let groups = GROUPS.iter().map(|group| {
        (
            group.title,
            group.rows.iter().filter_map(granted).collect::<Vec<_>>(),
        )
    });
    let groups: Vec<_> = groups.filter(|(_, rows)| !rows.is_empty()).collect();
    let low_role = groups
        .iter()
        .any(|(_, rows)| rows.iter().any(|granted| granted.above_role))
        .then(|| role.label());
    let resource_names = resources.chosen_names(&form).map(str::to_owned).collect();
    PageResponse::page(&ReviewPage {
        layout: visitor.layout().at_path("/account/tokens/new"),
        draft,
        count: form.permissions().len(),
        form,
        resource_names,
        expiry,
        groups,
        low_role,
    })
}

/// Creates the token and redirects to the page that shows it once.
async fn create(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathDraft(draft): PathDraft,
) -> Result<PageResponse, Error> {
    let form: ScopedTokenForm = parse_draft(store::take(&visitor, draft).await?)?;
    let now = visitor.context.clock.now();
    let mut body = form.limits();
    body["name"] = form.name.trim().into();
    body["expires_at"] = json!(form.expiry(now));
    let created: TokenSecret = match visitor.post("/v1/tokens", &body).await {
        Ok(created) => created,
        Err(error) => return show_rejected(&visitor, form, error).await,
    };
    store::save_reveal(&visitor, created.id(), &created.token, now).await?;
    PageResponse::redirect(&format!("/account/tokens/{}", created.id()))
}
