//! The environment of the Realtime service, and its tenant: the project, registered by the
//! service's own API after each start, with limits that change in the running process.

use gantry_base::ids::ProjectRef;
use gantry_node::kits::Service;
use hyper::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::variables::{DatabaseLogin, plain, secret};
use crate::{
    control::{
        api_keys::issuer::{VerifierKeys, verifier_keys},
        context::ControlContext,
        service_settings::{REALTIME, ServiceSettings, setting::RenderedVariable},
        services::{instance::RunningInstance, probe, start_failure::StartFailure},
    },
    platform::{
        access::Project,
        error::{Context, Error},
    },
    proxy::unavailable::UnavailableReason,
};

/// Length of the key that encrypts columns of those tables, in characters.
const ENCRYPTION_KEY_CHARS: usize = 16;
/// Settings that are no limits of a tenant: the size of a pool of the connection to the database.
const POOL: &str = "connection_pool";

/// Returns the variables of a project, without those that differ with each start.
pub(super) fn variables(keys: &VerifierKeys, reference: &ProjectRef) -> Vec<RenderedVariable> {
    let encryption = keys.derive("realtime: encryption");
    let encryption = encryption.expose_secret()[..ENCRYPTION_KEY_CHARS].to_owned();
    vec![
        plain("APP_NAME", reference.as_str()),
        plain("REGION", "local"),
        plain("DB_HOST", "127.0.0.1"),
        plain("DB_IP_VERSION", "ipv4"),
        plain("DB_NAME", "postgres"),
        plain("DB_SSL", "false"),
        plain("DB_AFTER_CONNECT_QUERY", "set search_path to _realtime"),
        plain("REALTIME_IP_VERSION", "ipv4"),
        plain("PHX_HTTP_IP", "127.0.0.1"),
        plain("GEN_RPC_SOCKET_IP", "127.0.0.1"),
        // Releases that do not know PHX_HTTP_IP listen on the default address of the runtime.
        plain(
            "ERL_AFLAGS",
            "-kernel inet_default_listen_options [{ip,{127,0,0,1}}]",
        ),
        // One node: no other one is looked for.
        plain("CLUSTER_STRATEGIES", "NONE"),
        plain("RUN_JANITOR", "true"),
        secret("DB_ENC_KEY", encryption.into()),
        secret("API_JWT_SECRET", keys.derive(API)),
        secret("METRICS_JWT_SECRET", keys.derive("realtime: metrics")),
        secret("SECRET_KEY_BASE", keys.derive("realtime: cookies")),
        secret("DASHBOARD_PASSWORD", keys.derive("realtime: dashboard")),
        plain("DASHBOARD_USER", "gantry"),
    ]
}

/// Purpose of the secret that signs tokens of the service's API.
const API: &str = "realtime: API";

/// Returns the variables that differ with each start. The last port leads to the database.
pub(super) fn of_start(login: &DatabaseLogin<'_>, ports: &[u16]) -> Vec<RenderedVariable> {
    let mut all = vec![
        plain("DB_USER", login.role),
        secret("DB_PASSWORD", login.password.clone()),
    ];
    if let [requests, calls, database] = ports {
        all.extend([
            plain("PORT", requests.to_string()),
            plain("GEN_RPC_TCP_SERVER_PORT", calls.to_string()),
            plain("GEN_RPC_TCP_CLIENT_PORT", calls.to_string()),
            plain("DB_PORT", database.to_string()),
        ]);
    }
    all
}

/// Returns the limits of a tenant. Those that were never set are the program's.
fn limits(settings: &ServiceSettings) -> Map<String, Value> {
    let names = (REALTIME.settings)().keys().filter(|name| *name != POOL);
    let valued = names.map(|name| (name.clone(), settings.value(name)));
    valued.filter(|(_, value)| !value.is_null()).collect()
}

/// Returns the description of a tenant with its keys and the way to its database.
fn tenant(
    settings: &ServiceSettings,
    keys: &VerifierKeys,
    reference: &ProjectRef,
    (login, port): (&DatabaseLogin<'_>, u16),
) -> Value {
    let unused = keys.derive("realtime: no legacy secret");
    let secret = keys.legacy.as_ref().unwrap_or(&unused);
    let key_set: Value = serde_json::from_str(keys.key_set.expose_secret()).unwrap_or_default();
    let mut tenant = limits(settings);
    let mut database = json!({
        "db_host": "127.0.0.1",
        "db_port": port.to_string(),
        "db_name": "postgres",
        "db_user": login.role,
        "db_password": login.password.expose_secret(),
        "region": "local",
        "ip_version": 4,
        "ssl_enforced": false,
        "poll_interval_ms": 100,
        "poll_max_record_bytes": 1_048_576,
    });
    if let Some(pool) = settings.value(POOL).as_i64() {
        database["db_pool"] = json!(pool);
    }
    for (name, value) in [
        ("external_id", json!(reference.as_str())),
        ("name", json!(reference.as_str())),
        ("jwt_secret", json!(secret.expose_secret())),
        ("jwt_jwks", key_set),
        (
            "extensions",
            json!([{"type": "postgres_cdc_rls", "settings": database}]),
        ),
    ] {
        tenant.insert(name.to_owned(), value);
    }
    json!({ "tenant": tenant })
}

/// Registers the project with a process that is ready, with all settings.
pub(in crate::control::services) async fn register(
    context: &ControlContext,
    running: &RunningInstance,
    settings: &ServiceSettings,
    (password, port): (&SecretString, u16),
) -> Result<(), StartFailure> {
    let failed = |why: String| StartFailure::new(UnavailableReason::Failed, why);
    let id = &running.id;
    let keys = verifier_keys(context, id.project, &id.reference)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))?;
    let keys = keys.ok_or_else(|| failed("the project has no internal key".to_owned()))?;
    let login = DatabaseLogin {
        role: gantry_node::kits::manifest::login_role(Service::Realtime).unwrap_or_default(),
        password,
        folder: "",
    };
    let body = tenant(settings, &keys, &id.reference, (&login, port));
    let status = send(context, running, &keys, (Method::PUT, ""), &body).await;
    match status {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(failed(format!("registering the project: status {status}"))),
        Err(error) => Err(failed(format!("registering the project: {error}"))),
    }
}

/// Changes the limits of the project in a running process.
pub(super) async fn change(
    context: &ControlContext,
    running: &RunningInstance,
    settings: &ServiceSettings,
) -> Result<(), Error> {
    let body = json!({ "tenant": limits(settings) });
    call(context, running, (Method::PUT, ""), &body).await
}

/// Closes all connections of a project's clients, if its Realtime runs here.
pub async fn shut_down(context: &ControlContext, project: &Project) -> Result<(), Error> {
    let running = context.services.running(project.id, Service::Realtime);
    let Some(running) = running else {
        return Ok(());
    };
    call(context, &running, (Method::POST, "/shutdown"), &json!({})).await
}

async fn call(
    context: &ControlContext,
    running: &RunningInstance,
    to: (Method, &str),
    body: &Value,
) -> Result<(), Error> {
    let doing = "changing a running Realtime";
    let id = &running.id;
    let keys = verifier_keys(context, id.project, &id.reference).await?;
    let keys = keys.ok_or(Error::NotFound)?;
    let status = send(context, running, &keys, to, body)
        .await
        .context(doing)?;
    if status.is_success() {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!("Realtime answers {status}; try again").into(),
        retry: std::time::Duration::from_secs(1),
    })
}

/// Sends a request about the project's tenant to the service's API.
async fn send(
    context: &ControlContext,
    running: &RunningInstance,
    keys: &VerifierKeys,
    (method, path): (Method, &str),
    body: &Value,
) -> std::io::Result<StatusCode> {
    let expires = context.clock.now().timestamp() + TOKEN_SECS;
    let claims = json!({"role": "gantry", "exp": expires}).to_string();
    let token = keys.sign(&claims, API);
    let bearer = format!("Bearer {}", token.expose_secret());
    let path = format!("/api/tenants/{}{path}", running.id.reference);
    probe::send_json(&running.address, method, &path, &bearer, body).await
}

/// Validity of a token of the service's API, in seconds.
const TOKEN_SECS: i64 = 60;

#[cfg(test)]
mod tests {
    use super::{super::variables::assert_documented, *};

    /// Variables that the program reads, from its documentation.
    const DOCUMENTED: &str = include_str!("realtime_variables.txt");

    fn reference() -> ProjectRef {
        "abcdefghijklmnopqrst".parse().unwrap()
    }

    #[test]
    fn environment_is_complete_documented_and_has_each_name_once() {
        let keys = VerifierKeys::for_tests();
        let mut all = variables(&keys, &reference());
        let password = "p".into();
        let login = DatabaseLogin {
            role: "gantry_realtime",
            password: &password,
            folder: "",
        };
        all.extend(of_start(&login, &[23_000, 23_001, 23_002]));
        assert_documented(&all, DOCUMENTED);
        let value = |name: &str| {
            let found = all.iter().find(|one| one.name == name).unwrap();
            (found.value.expose_secret().len(), found.is_secret)
        };
        // As the program recommends.
        assert_eq!(value("DB_ENC_KEY"), (16, true));
        assert_eq!(value("SECRET_KEY_BASE"), (64, true));
        assert_eq!(value("DB_PASSWORD"), (1, true));
        for (name, port) in [
            ("PORT", "23000"),
            ("GEN_RPC_TCP_SERVER_PORT", "23001"),
            ("DB_PORT", "23002"),
        ] {
            let found = all.iter().find(|one| one.name == name).unwrap();
            assert_eq!(found.value.expose_secret(), port, "{name}");
        }
    }

    #[test]
    fn tenant_has_the_limits_that_are_set() {
        let change = json!({"max_concurrent_users": 7, "connection_pool": 3, "suspend": true});
        let settings = ServiceSettings::new(&REALTIME)
            .update(&reference(), change.as_object().unwrap())
            .unwrap();
        let password = "p".into();
        let login = DatabaseLogin {
            role: "gantry_realtime",
            password: &password,
            folder: "",
        };
        let keys = VerifierKeys::for_tests();
        let tenant = tenant(&settings, &keys, &reference(), (&login, 23_002));
        let tenant = &tenant["tenant"];
        assert_eq!(tenant["max_concurrent_users"], 7);
        assert_eq!(tenant["suspend"], true);
        assert!(tenant.get("max_events_per_second").is_none(), "{tenant}");
        assert!(tenant.get(POOL).is_none(), "{tenant}");
        let database = &tenant["extensions"][0]["settings"];
        assert_eq!(
            (&database["db_pool"], &database["db_port"]),
            (&json!(3), &json!("23002"))
        );
        assert_eq!(tenant["external_id"], reference().as_str());
    }
}
