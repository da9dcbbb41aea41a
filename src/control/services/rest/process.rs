//! The configuration and the keys of a process of PostgREST.

use std::{io, sync::atomic::Ordering, time::Duration};

use gantry_base::clock::Entropy;
use gantry_node::supervisor::ProcessOwner;
use hyper::StatusCode;
use rustix::process::Signal;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::stored_settings::RestSettings;
use crate::{
    control::{
        context::ControlContext,
        projects::{request::verifier, sizes::ConnectionBudget},
        services::{
            folder::InstanceFolder, instance::RunningInstance, instance_id::InstanceId, probe,
            start_failure::StartFailure,
        },
    },
    platform::random_secret::random_secret,
    proxy::{
        accepted_keys::{AcceptedKeys, TokenKey},
        service_proxy::upstreams::UpstreamAddress,
        unavailable::{Unavailable, UnavailableReason},
    },
};

/// The login role of PostgREST.
const LOGIN: &str = "authenticator";
pub(super) const CONFIG: &str = "rest.conf";
pub(super) const KEYS: &str = "jwks.json";
/// Sessions of an instance with an automatic pool, without the one that learns of changes.
const AUTOMATIC_POOL: u32 = ConnectionBudget::DATA_API - 1;
/// Longest time until a changed key set is in use.
const RELOAD_MAX: Duration = Duration::from_secs(5);
/// Interval of polling for a reload.
const POLL: Duration = Duration::from_millis(3);

/// Writes configuration and key set of a new process, and gives its login role a new password,
/// which only the configuration contains.
pub(in crate::control::services) async fn prepare(
    context: &ControlContext,
    id: &InstanceId,
    folder: &InstanceFolder,
    owner: ProcessOwner,
    settings: &RestSettings,
    keys: &AcceptedKeys,
) -> Result<KeySetCheck, StartFailure> {
    let password = random_secret(&context.entropy);
    let verifier = verifier(password.clone())
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
    context
        .driver
        .set_password(&id.reference, LOGIN, &verifier)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseRefuses, error))?;
    let database = context.driver.socket(&id.reference);
    let database = database.path().parent().unwrap_or(database.path());
    let inner = folder.inner();
    let port = context
        .service_proxy
        .https_port()
        .filter(|port| *port != 443)
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let config = config(&ConfigParts {
        settings,
        password: &password,
        database: &database.to_string_lossy(),
        folder: &inner.to_string_lossy(),
        public_url: &format!(
            "https://{}.{}{port}/rest/v1",
            id.reference, context.settings.project_domain
        ),
    });
    let check = KeySetCheck::new(&context.entropy, keys);
    let write = |error: io::Error| {
        StartFailure::new(
            UnavailableReason::Failed,
            format!("writing the configuration: {error}"),
        )
    };
    folder
        .write(KEYS, check.text.expose_secret(), owner)
        .map_err(write)?;
    folder
        .write(CONFIG, config.expose_secret(), owner)
        .map_err(write)?;
    Ok(check)
}

/// Replaces the key set of a running instance, unless it has these keys already.
pub(in crate::control::services) async fn load_keys(
    context: &ControlContext,
    running: &RunningInstance,
    keys: &AcceptedKeys,
) -> Result<(), Unavailable> {
    let _one = running.loading.lock().await;
    if running.keys_loaded(keys) {
        return Ok(());
    }
    let before = running.folder.read(KEYS).ok();
    let check = KeySetCheck::new(&context.entropy, keys);
    let write = |text: &str| running.folder.write(KEYS, text, running.owner);
    let loaded = async {
        write(check.text.expose_secret())
            .and_then(|()| running.handle.signal(Signal::USR2))
            .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
        check.confirm(running, keys).await
    };
    if let Err(failure) = loaded.await {
        tracing::warn!(
            project = %running.id.reference,
            why = failure.why,
            "failed to load the keys of a service; the previous keys remain in use"
        );
        if let Some(before) = before {
            let restored = write(&before).and_then(|()| running.handle.signal(Signal::USR2));
            if let Err(error) = restored {
                tracing::warn!(%error, "failed to restore the keys of a service");
            }
        }
        return Err(Unavailable::now(failure.reason));
    }
    Ok(())
}

/// A key set that was written, and the tokens that prove its use.
pub(in crate::control::services) struct KeySetCheck {
    pub(super) text: SecretString,
    /// A token of a key that only this key set contains.
    own: SecretString,
    /// A token signed with the text of the key set itself, which must be refused.
    of_text: SecretString,
}

impl KeySetCheck {
    pub(super) fn new(entropy: &Entropy, keys: &AcceptedKeys) -> Self {
        let probe = TokenKey::new("probe", random_secret(entropy));
        let text = key_set(keys, &probe);
        // Valid for a day: the key itself is replaced with the set.
        let claims = json!({"role": "anon", "exp": 253_402_300_799_i64}).to_string();
        Self {
            own: probe.sign(&claims),
            of_text: TokenKey::new("probe", text.clone()).sign(&claims),
            text,
        }
    }

    /// Waits until the process accepts the key set.
    pub(in crate::control::services) async fn confirm(
        &self,
        running: &RunningInstance,
        keys: &AcceptedKeys,
    ) -> Result<(), StartFailure> {
        self.judge(&running.address).await?;
        running.keys.store(keys.id(), Ordering::Release);
        Ok(())
    }

    async fn judge(&self, socket: &UpstreamAddress) -> Result<(), StartFailure> {
        let fault = |why: &str| StartFailure::new(UnavailableReason::Failed, why);
        let judged = async {
            while Self::status(socket, &self.own).await != Some(true) {
                sleep(POLL).await;
            }
            loop {
                // No answer while PostgREST connects again, as it does after its start.
                match Self::status(socket, &self.of_text).await {
                    Some(accepts_text) => return accepts_text,
                    None => sleep(POLL).await,
                }
            }
        };
        let accepts_text = timeout(RELOAD_MAX, judged)
            .await
            .map_err(|_| fault("the new key set was not loaded in time"))?;
        if accepts_text {
            return Err(fault("the text of the key set is accepted as a secret"));
        }
        Ok(())
    }

    /// Returns whether the process accepts a token. `None`: it gave no answer about it.
    async fn status(socket: &UpstreamAddress, token: &SecretString) -> Option<bool> {
        let bearer = format!("Bearer {}", token.expose_secret());
        let status = probe::head(socket, "/", &[(AUTHORIZATION, &bearer)]).await;
        match status.ok()? {
            StatusCode::UNAUTHORIZED => Some(false),
            StatusCode::SERVICE_UNAVAILABLE => None,
            _ => Some(true),
        }
    }
}

/// Name of the header field of the probes.
const AUTHORIZATION: &str = "authorization";

/// Formats a key set (RFC 7517).
fn key_set(keys: &AcceptedKeys, probe: &TokenKey) -> SecretString {
    let mut keys = keys.verification_keys();
    keys.push(probe.to_json());
    SecretString::from(json!({ "keys": keys }).to_string())
}

/// The values of a configuration.
struct ConfigParts<'a> {
    settings: &'a RestSettings,
    password: &'a SecretString,
    /// Folder of the database's socket.
    database: &'a str,
    /// Folder of the instance.
    folder: &'a str,
    public_url: &'a str,
}

/// Formats the configuration of PostgREST.
fn config(parts: &ConfigParts<'_>) -> SecretString {
    let ConfigParts {
        settings,
        password,
        database,
        folder,
        public_url,
    } = parts;
    // libpq does not read `+` as a space.
    let host: String = form_urlencoded::byte_serialize(database.as_bytes()).collect();
    let host = host.replace('+', "%20");
    // The password has no character that a URI encodes.
    let uri = format!(
        "postgresql://{LOGIN}:{}@/postgres?host={host}",
        password.expose_secret()
    );
    let pool = settings.db_pool.unwrap_or(AUTOMATIC_POOL);
    let fixed = [
        text("db-uri", &uri),
        text("db-anon-role", "anon"),
        text("jwt-secret", &format!("@{folder}/{KEYS}")),
        text("openapi-server-proxy-uri", public_url),
        text("server-unix-socket", &format!("{folder}/s")),
        text("log-level", "error"),
        format!("db-pool = {pool}"),
    ];
    with_settings(&fixed.join("\n"), settings)
}

/// Returns a configuration with other settings, of those that can change without a restart.
pub(super) fn with_settings(config: &str, settings: &RestSettings) -> SecretString {
    let mut changed = vec![
        text("db-schemas", &settings.db_schema),
        text("db-extra-search-path", &settings.db_extra_search_path),
    ];
    if settings.max_rows > 0 {
        changed.push(format!("db-max-rows = {}", settings.max_rows));
    }
    let is_fixed = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        !CHANGEABLE.contains(&name)
    };
    let fixed = config.lines().filter(is_fixed).map(str::to_owned);
    let lines: Vec<String> = fixed.chain(changed).collect();
    SecretString::from(lines.join("\n") + "\n")
}

/// Names of the settings that can change without a restart.
const CHANGEABLE: [&str; 3] = ["db-schemas", "db-extra-search-path", "db-max-rows"];

/// Formats a setting of the configuration.
fn text(name: &str, value: &str) -> String {
    format!("{name} = {}", quoted(value))
}

/// Quotes a value of the configuration. Control characters are rejected with the settings.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_node::clusters::ServerSocket;

    #[test]
    fn configuration_quotes_values() {
        let settings = RestSettings {
            db_schema: "public, \"my\\api\"".to_owned(),
            ..RestSettings::default()
        };
        let text = config(&ConfigParts {
            settings: &settings,
            password: &SecretString::from("secret"),
            database: "/run/my dir",
            folder: "/i",
            public_url: "https://x/rest/v1",
        });
        let text = text.expose_secret();
        for line in [
            "db-uri = \"postgresql://authenticator:secret@/postgres?host=%2Frun%2Fmy%20dir\"",
            "db-schemas = \"public, \\\"my\\\\api\\\"\"",
            "jwt-secret = \"@/i/jwks.json\"",
            "db-pool = 10",
            "db-max-rows = 1000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let changed = RestSettings {
            db_schema: "api".to_owned(),
            max_rows: 0,
            ..settings
        };
        let changed = with_settings(text, &changed);
        let changed = changed.expose_secret();
        assert!(changed.contains("\ndb-schemas = \"api\"\n"), "{changed}");
        assert!(!changed.contains("db-max-rows"), "{changed}");
        assert_eq!(changed.lines().next(), text.lines().next(), "the password");
        assert_eq!(changed.lines().count(), text.lines().count() - 1);
    }

    /// Serves statuses for requests with a bearer token, on a socket of this process.
    fn serve(
        path: &std::path::Path,
        status: impl Fn(&str) -> u16 + Send + 'static,
    ) -> UpstreamAddress {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::UnixListener::bind(path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 8192];
                let read = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let token = request.split("Bearer ").nth(1).unwrap();
                let status = status(token.lines().next().unwrap());
                let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let uid = rustix::process::geteuid().as_raw();
        UpstreamAddress::Unix(ServerSocket::of_process(path.to_owned(), uid, pid))
    }

    #[tokio::test]
    async fn process_that_accepts_the_text_of_the_key_set_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let check = KeySetCheck::new(&Entropy::system(), &AcceptedKeys::for_tests(&[]));
        let open = serve(&place.path().join("open"), |_| 200);
        let failure = check.judge(&open).await.unwrap_err();
        assert!(failure.why.contains("accepted as a secret"), "{failure:?}");
        let own = check.own.expose_secret().to_owned();
        let strict = move |token: &str| if token == own { 200 } else { 401 };
        let strict = serve(&place.path().join("strict"), strict);
        check.judge(&strict).await.unwrap();
        let other = KeySetCheck::new(&Entropy::system(), &AcceptedKeys::for_tests(&[]));
        let failure = other.judge(&strict).await.unwrap_err();
        assert!(failure.why.contains("not loaded"), "{failure:?}");
    }

    #[test]
    fn key_set_is_json_of_all_keys() {
        let probe = TokenKey::new("probe", SecretString::from("y".repeat(43)));
        let text = key_set(&AcceptedKeys::for_tests(&[]), &probe);
        let value: serde_json::Value = serde_json::from_str(text.expose_secret()).unwrap();
        let keys = value["keys"].as_array().unwrap();
        assert_eq!((keys.len(), &keys[0]["kty"]), (2, &json!("oct")));
    }
}
