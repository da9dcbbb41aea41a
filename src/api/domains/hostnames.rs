//! Operations on custom hostnames.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    control::domains::hostnames::{
        self, CustomHostname, Host, State,
        diagnosis::{self, HostnameCheck},
        hostname_reconciler,
        required_records::CAA_ERROR,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Query, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::{DOMAINS, STANDARD},
    },
};

/// Two years, as browsers' preload lists require.
const HSTS_SECS_MAX: i32 = 63_072_000;

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[
    &DELETE,
    &GET,
    &ACTIVATE,
    &INITIALIZE,
    &REVERIFY,
    &CHECKS,
    &HSTS,
];

/// Response of the contract.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UpdateCustomHostnameResponse")]
struct HostnameResponse {
    status: HostnameStatus,
    custom_hostname: String,
    data: HostnameData,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
enum HostnameStatus {
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

impl From<State> for HostnameStatus {
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
struct HostnameData {
    success: bool,
    errors: Vec<Value>,
    messages: Vec<Value>,
    result: HostnameDetail,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct HostnameDetail {
    /// Changes with every request of a hostname.
    #[schemars(with = "String")]
    id: Uuid,
    hostname: String,
    ssl: HostnameSsl,
    ownership_verification: OwnershipVerification,
    /// Required target of the hostname's CNAME record.
    custom_origin_server: String,
    /// Unmet DNS requirements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    verification_errors: Vec<String>,
    /// `pending`, `active`, `moved` if DNS has routed the name elsewhere for a week, or `blocked`
    /// by the operator.
    status: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct HostnameSsl {
    /// `pending_validation`, `initializing`, `validation_timed_out` or `active`.
    status: &'static str,
    validation_records: Vec<ValidationRecord>,
    /// Reasons for a missing certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    validation_errors: Vec<ValidationError>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ValidationRecord {
    txt_name: String,
    txt_value: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ValidationError {
    message: String,
}

/// TXT record that verifies ownership. Empty after the verification.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct OwnershipVerification {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    value: String,
}

impl HostnameResponse {
    /// Returns the function that makes the response, which `audit` uses as well.
    fn view(
        context: &ApiContext,
        audit: &Recorder,
    ) -> impl Fn(&CustomHostname) -> Created<Self> + use<> {
        let context = context.clone();
        let view = move |hostname: &CustomHostname| Created(Self::new(&context, hostname.clone()));
        let answer = view.clone();
        audit.answer_with(move |hostname| answer(hostname).respond());
        view
    }

    fn new(context: &ApiContext, hostname: CustomHostname) -> Self {
        let required = hostname.required(context);
        let proven = matches!(hostname.state, State::Certified | State::Active);
        let ssl = match hostname.state {
            State::Initiated if hostname.refusal.is_some() => "validation_timed_out",
            State::Initiated => "pending_validation",
            State::Verified => "initializing",
            State::Certified | State::Active => "active",
        };
        let record = || ValidationRecord {
            txt_name: required.proof_name.clone(),
            txt_value: required.proof.clone(),
        };
        let moved = hostname_reconciler::has_moved(&hostname, context.clock.now());
        // CAA problems are listed with the certificate, all others with the ownership.
        let (caa, problems): (Vec<_>, Vec<_>) = hostname
            .problems
            .into_iter()
            .partition(|problem| problem.starts_with(CAA_ERROR));
        let validation_errors = hostname
            .refusal
            .into_iter()
            .chain(caa)
            .map(|message| ValidationError { message })
            .collect();
        Self {
            status: hostname.state.into(),
            custom_hostname: hostname.host.to_string(),
            data: HostnameData {
                success: true,
                errors: Vec::new(),
                messages: Vec::new(),
                result: HostnameDetail {
                    id: hostname.id,
                    hostname: hostname.host.to_string(),
                    ssl: HostnameSsl {
                        status: ssl,
                        validation_records: if hostname.state == State::Initiated {
                            vec![record()]
                        } else {
                            Vec::new()
                        },
                        validation_errors,
                    },
                    ownership_verification: if proven {
                        OwnershipVerification::default()
                    } else {
                        OwnershipVerification {
                            kind: "txt",
                            name: required.proof_name.clone(),
                            value: required.proof.clone(),
                        }
                    },
                    custom_origin_server: required.alias,
                    verification_errors: problems,
                    status: match (moved, proven) {
                        _ if hostname.blocked => "blocked",
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

async fn get(project: Project, context: ApiContext) -> Result<Json<HostnameResponse>, Error> {
    Ok(Json(HostnameResponse::new(
        &context,
        hostnames::get(&context, &project).await?,
    )))
}

static INITIALIZE: Endpoint = Endpoint {
    id: "v1-update-hostname-config",
    summary: "Request a custom hostname",
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
struct InitializeHostnameRequest {
    /// A subdomain of a domain that you own.
    #[schemars(length(min = 1, max = 253))]
    custom_hostname: String,
}

async fn initialize(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<InitializeHostnameRequest>,
) -> Result<Created<HostnameResponse>, Error> {
    let host = Host::parse(&request.custom_hostname, &context.settings.project_domain);
    let host = host.map_err(|unfit| Error::invalid("custom_hostname", unfit.to_string()))?;
    let view = HostnameResponse::view(&context, &audit);
    let hostname = hostnames::initialize(&context, &project, &host, &audit).await?;
    Ok(view(&hostname))
}

static REVERIFY: Endpoint = Endpoint {
    id: "v1-verify-dns-config",
    summary: "Check the DNS records of the custom hostname",
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
) -> Result<Created<HostnameResponse>, Error> {
    let view = HostnameResponse::view(&context, &audit);
    let hostname = hostnames::reverify(&context, &project, &audit).await?;
    Ok(view(&hostname))
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
) -> Result<Created<HostnameResponse>, Error> {
    let view = HostnameResponse::view(&context, &audit);
    let hostname = hostnames::activate(&context, &project, &audit).await?;
    Ok(view(&hostname))
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
struct DeleteHostnameQuery {
    /// Ignored: there is no billing add-on.
    #[serde(default)]
    #[serde(rename = "remove_addon")]
    _remove_addon: bool,
}

async fn delete(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(_): Query<DeleteHostnameQuery>,
) -> Result<OkEmpty, Error> {
    hostnames::remove(&context, &project, &audit).await?;
    Ok(OkEmpty)
}

static CHECKS: Endpoint = Endpoint {
    id: "gantry-check-custom-hostname",
    summary: "Check the requirements of the custom hostname",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/custom-hostname/checks",
    aliases: &["/v1/projects/{ref}/custom-hostname/checks"],
    access: needs(&[&[P::CustomDomainRead]], S::DomainsRead),
    limit: &DOMAINS,
    handler: || mount(checks),
};

/// A hostname with the results of all checks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CustomHostnameChecks")]
struct HostnameChecksResponse {
    custom_hostname: String,
    status: HostnameStatus,
    checks: Vec<HostnameCheck>,
}

async fn checks(
    project: Project,
    context: ApiContext,
) -> Result<Json<HostnameChecksResponse>, Error> {
    let hostname = hostnames::get(&context, &project).await?;
    let checks = diagnosis::examine(&context, &hostname).await?;
    Ok(Json(HostnameChecksResponse {
        custom_hostname: hostname.host.to_string(),
        status: hostname.state.into(),
        checks,
    }))
}

static HSTS: Endpoint = Endpoint {
    id: "gantry-set-custom-hostname-hsts",
    summary: "Set how long clients must use HTTPS for the custom hostname (HSTS)",
    tag: Tag::Gantry,
    method: Verb::Put,
    path: "/v1/projects/{ref}/config/custom-hostname/hsts",
    aliases: &["/v1/projects/{ref}/custom-hostname/hsts"],
    access: needs(&[&[P::CustomDomainWrite]], S::DomainsWrite),
    limit: &STANDARD,
    handler: || mount(hsts).sample(r#"{"max_age_secs": 31536000}"#),
};

/// Value of `Strict-Transport-Security`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CustomHostnameHsts")]
struct Hsts {
    /// Zero disables the header.
    #[schemars(range(min = 0, max = 63_072_000))]
    max_age_secs: i32,
}

async fn hsts(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<Hsts>,
) -> Result<Json<Hsts>, Error> {
    if !(0..=HSTS_SECS_MAX).contains(&request.max_age_secs) {
        return Err(Error::invalid(
            "max_age_secs",
            format!("expected 0 to {HSTS_SECS_MAX}"),
        ));
    }
    audit.answer(|| Json(&request));
    hostnames::set_hsts(
        &context,
        &project,
        Some(request.max_age_secs).filter(|secs| *secs > 0),
        &audit,
    )
    .await?;
    Ok(Json(request))
}
