//! Operations on custom hostnames.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    base::error::Error,
    data_plane::domains::{
        hostnames,
        hostnames::{Held, Host, State, check::CAA_ERROR, doctor, doctor::Check, keeper},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        http::{
            Endpoint, Json, Query, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::{DOMAINS, STANDARD},
    },
};

/// Two years: what browsers' lists of such names ask for.
const HSTS_SECS_MAX: i32 = 63_072_000;

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &DELETE,
    &GET,
    &ACTIVATE,
    &INITIALIZE,
    &REVERIFY,
    &CHECKS,
    &HSTS,
];

/// A hostname, as the contract tells it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UpdateCustomHostnameResponse")]
struct Told {
    status: Step,
    custom_hostname: String,
    data: Data,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
enum Step {
    #[serde(rename = "1_not_started")]
    #[expect(
        dead_code,
        reason = "of the contract; a project without a hostname is an error"
    )]
    NotStarted,
    #[serde(rename = "2_initiated")]
    Initiated,
    #[serde(rename = "3_challenge_verified")]
    Verified,
    #[serde(rename = "4_origin_setup_completed")]
    Certified,
    #[serde(rename = "5_services_reconfigured")]
    Active,
}

impl From<State> for Step {
    fn from(state: State) -> Self {
        match state {
            State::Initiated => Self::Initiated,
            State::Verified => Self::Verified,
            State::Certified => Self::Certified,
            State::Active => Self::Active,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Data {
    success: bool,
    errors: Vec<Value>,
    messages: Vec<Value>,
    result: Detail,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Detail {
    /// New whenever a name is asked for.
    #[schemars(with = "String")]
    id: Uuid,
    hostname: String,
    ssl: Ssl,
    ownership_verification: Ownership,
    /// Where a CNAME record of the hostname must lead.
    custom_origin_server: String,
    /// What DNS lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    verification_errors: Vec<String>,
    /// `pending`, `active`, `moved` if DNS has led elsewhere for a week, or `blocked` by the operator.
    status: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Ssl {
    /// `pending_validation`, `initializing`, `validation_timed_out` or `active`.
    status: &'static str,
    validation_records: Vec<Record>,
    /// Why there is no certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    validation_errors: Vec<Message>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Record {
    txt_name: String,
    txt_value: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Message {
    message: String,
}

/// The TXT record that proves the hostname; empty once it did.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Ownership {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    value: String,
}

impl Told {
    fn new(context: &ApiContext, held: Held) -> Self {
        let wanted = held.wanted(context);
        let proven = matches!(held.state, State::Certified | State::Active);
        let ssl = match held.state {
            State::Initiated if held.refusal.is_some() => "validation_timed_out",
            State::Initiated => "pending_validation",
            State::Verified => "initializing",
            State::Certified | State::Active => "active",
        };
        let record = || Record {
            txt_name: wanted.proof_name.clone(),
            txt_value: wanted.proof.clone(),
        };
        let moved = keeper::has_moved(&held, context.clock.now());
        // Problems of the certificate are listed with the certificate, all others with the ownership.
        let (caa, problems): (Vec<_>, Vec<_>) = held
            .problems
            .into_iter()
            .partition(|problem| problem.starts_with(CAA_ERROR));
        let validation_errors = held
            .refusal
            .into_iter()
            .chain(caa)
            .map(|message| Message { message })
            .collect();
        Self {
            status: held.state.into(),
            custom_hostname: held.host.to_string(),
            data: Data {
                success: true,
                errors: Vec::new(),
                messages: Vec::new(),
                result: Detail {
                    id: held.id,
                    hostname: held.host.to_string(),
                    ssl: Ssl {
                        status: ssl,
                        validation_records: if held.state == State::Initiated {
                            vec![record()]
                        } else {
                            Vec::new()
                        },
                        validation_errors,
                    },
                    ownership_verification: if proven {
                        Ownership::default()
                    } else {
                        Ownership {
                            kind: "txt",
                            name: wanted.proof_name.clone(),
                            value: wanted.proof.clone(),
                        }
                    },
                    custom_origin_server: wanted.alias,
                    verification_errors: problems,
                    status: match (moved, proven) {
                        _ if held.blocked => "blocked",
                        (true, _) => "moved",
                        (false, true) => "active",
                        (false, false) => "pending",
                    },
                },
            },
        }
    }
}

static GET: Endpoint = Endpoint {
    id: "v1-get-hostname-config",
    summary: "Get the custom hostname",
    tag: Tag::Domains,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/custom-hostname",
    aliases: &["/v1/projects/{ref}/custom-hostname"],
    access: needs(&[&[P::CustomDomainRead]], S::DomainsRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(project: Project, context: ApiContext) -> Result<Json<Told>, Error> {
    Ok(Json(Told::new(
        &context,
        hostnames::get(&context, &project).await?,
    )))
}

static INITIALIZE: Endpoint = Endpoint {
    id: "v1-update-hostname-config",
    summary: "Ask for a custom hostname",
    tag: Tag::Domains,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/custom-hostname/initialize",
    aliases: &["/v1/projects/{ref}/custom-hostname/initialize"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || mount(initialize).sample(r#"{"custom_hostname": "api.customer.com"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateCustomHostnameBody")]
struct Wish {
    /// A subdomain of a domain of yours.
    #[schemars(length(min = 1, max = 253))]
    custom_hostname: String,
}

async fn initialize(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(wish): Json<Wish>,
) -> Result<Created<Told>, Error> {
    let host = Host::parse(&wish.custom_hostname, &context.settings.project_domain);
    let host = host.map_err(|unfit| Error::invalid("custom_hostname", unfit.to_string()))?;
    let held = hostnames::initialize(&context, &project, &host, &audit).await?;
    Ok(Created(Told::new(&context, held)))
}

static REVERIFY: Endpoint = Endpoint {
    id: "v1-verify-dns-config",
    summary: "Look at the records of the custom hostname now",
    tag: Tag::Domains,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/custom-hostname/reverify",
    aliases: &["/v1/projects/{ref}/custom-hostname/reverify"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || mount(reverify),
};

async fn reverify(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Created<Told>, Error> {
    let held = hostnames::reverify(&context, &project, &audit).await?;
    Ok(Created(Told::new(&context, held)))
}

static ACTIVATE: Endpoint = Endpoint {
    id: "v1-activate-custom-hostname",
    summary: "Activate the custom hostname",
    tag: Tag::Domains,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/custom-hostname/activate",
    aliases: &["/v1/projects/{ref}/custom-hostname/activate"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &STANDARD,
    handler: || mount(activate),
};

async fn activate(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Created<Told>, Error> {
    let held = hostnames::activate(&context, &project, &audit).await?;
    Ok(Created(Told::new(&context, held)))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-Delete hostname config",
    summary: "Delete the custom hostname",
    tag: Tag::Domains,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/config/custom-hostname",
    aliases: &["/v1/projects/{ref}/custom-hostname"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &DOMAINS,
    handler: || mount(delete),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Removal {
    /// Of no meaning here: there is no add-on to pay for.
    #[serde(default)]
    #[serde(rename = "remove_addon")]
    _remove_addon: bool,
}

async fn delete(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(_): Query<Removal>,
) -> Result<OkEmpty, Error> {
    hostnames::remove(&context, &project, &audit).await?;
    Ok(OkEmpty)
}

static CHECKS: Endpoint = Endpoint {
    id: "gantry-check-custom-hostname",
    summary: "Look at everything the custom hostname needs",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/custom-hostname/checks",
    aliases: &["/v1/projects/{ref}/custom-hostname/checks"],
    access: needs(&[&[P::CustomDomainRead]], S::DomainsRead),
    limit: &DOMAINS,
    handler: || mount(checks),
};

/// A hostname, and what was found when everything it needs was looked at.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CustomHostnameChecks")]
struct Checked {
    custom_hostname: String,
    status: Step,
    checks: Vec<Check>,
}

async fn checks(project: Project, context: ApiContext) -> Result<Json<Checked>, Error> {
    let held = hostnames::get(&context, &project).await?;
    let checks = doctor::examine(&context, &held).await?;
    Ok(Json(Checked {
        custom_hostname: held.host.to_string(),
        status: held.state.into(),
        checks,
    }))
}

static HSTS: Endpoint = Endpoint {
    id: "gantry-set-custom-hostname-hsts",
    summary: "Say for how long clients are to use nothing but HTTPS for the custom hostname",
    tag: Tag::Gantry,
    method: Verb::Put,
    path: "/v1/projects/{ref}/config/custom-hostname/hsts",
    aliases: &["/v1/projects/{ref}/custom-hostname/hsts"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &STANDARD,
    handler: || mount(hsts).sample(r#"{"max_age_secs": 31536000}"#),
};

/// What `Strict-Transport-Security` says.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CustomHostnameHsts")]
struct Hsts {
    /// Zero: nothing is said, besides by the services themselves.
    #[schemars(range(min = 0, max = 63_072_000))]
    max_age_secs: i32,
}

async fn hsts(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(wish): Json<Hsts>,
) -> Result<Json<Hsts>, Error> {
    if !(0..=HSTS_SECS_MAX).contains(&wish.max_age_secs) {
        return Err(Error::invalid(
            "max_age_secs",
            format!("expected 0 to {HSTS_SECS_MAX}"),
        ));
    }
    hostnames::set_hsts(
        &context,
        &project,
        Some(wish.max_age_secs).filter(|secs| *secs > 0),
        &audit,
    )
    .await?;
    Ok(Json(wish))
}
