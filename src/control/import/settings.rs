//! Import of settings, functions and names of secrets from another project, through the Management
//! API of both (decision 0137).
//!
//! Only values that differ are written. Secrets are not readable in the source, so their names are
//! reported.

use std::time::Duration;

use bytes::Bytes;
use gantry_base::{
    ids::ProjectRef,
    net::{http_client::HttpClient, outbound::OutboundPolicy},
};
use http_body_util::Full;
use hyper::{Method, Request, StatusCode, header};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::{Map, Value};
use url::Url;

use super::{ImportError, Result};
use crate::control::service_settings::AUTH;

/// Largest response, in bytes: a bundle of a function.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Functions of a project.
const FUNCTIONS_MAX: usize = 1000;
/// Settings of one document that the target may reject, one after another.
const REJECTED_MAX: usize = 20;
/// Requests after 429, the pause before one if the server gives none, and the longest.
const RETRIES_MAX: usize = 5;
const PAUSE: Duration = Duration::from_mins(1);
const PAUSE_MAX: Duration = Duration::from_mins(2);
/// Type of a bundle.
const ESZIP: &str = "application/vnd.denoland.eszip";

/// The documents of settings: path below the project, name in reports, and keys that are taken.
/// Empty: all.
const DOCUMENTS: [(&str, &str, &[&str]); 5] = [
    ("config/auth", "auth", &[]),
    (
        "postgrest",
        "Data API",
        &["db_schema", "max_rows", "db_extra_search_path", "db_pool"],
    ),
    ("config/storage", "storage", &["fileSizeLimit", "features"]),
    ("config/realtime", "realtime", &[]),
    ("config/database/postgres", "server", &[]),
];

/// A project behind a Management API.
#[derive(Debug)]
pub struct RemoteProject {
    /// Address of the API, such as `https://api.example.com`.
    pub api: Url,
    /// The project.
    pub project: ProjectRef,
    /// A personal access token.
    pub token: SecretString,
}

/// The result of an import of settings.
#[derive(Debug, Default, Serialize)]
pub struct SettingsReport {
    /// Settings that were written, as `auth.site_url`.
    pub settings: Vec<String>,
    /// Functions that were deployed.
    pub functions: Vec<String>,
    /// Secrets to set again: of settings and of functions.
    pub secrets: Vec<String>,
    /// Things that could not be imported, each with the reason.
    pub not_imported: Vec<String>,
}

struct RemoteResponse {
    status: StatusCode,
    body: Bytes,
}

impl RemoteResponse {
    /// Returns the message of an error response.
    fn message(&self) -> String {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = value.get("message").and_then(Value::as_str);
        text.map_or_else(|| self.status.to_string(), str::to_owned)
    }
}

impl RemoteProject {
    fn url(&self, path: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.api.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/v1/projects/{}/{path}", self.project));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    async fn call(
        &self,
        method: Method,
        url: &Url,
        media: &str,
        body: Bytes,
    ) -> Result<RemoteResponse> {
        // The operator chooses the address.
        let policy = OutboundPolicy::unrestricted();
        let client = HttpClient::new(&policy);
        let failed = |error: &dyn std::fmt::Display| {
            let host = url.host_str().unwrap_or_default();
            ImportError::Program(format!("{host} could not be reached: {error}"))
        };
        for attempt in 0.. {
            let request = Request::builder()
                .method(&method)
                .uri(url.as_str())
                .header(
                    header::AUTHORIZATION,
                    format!("Bearer {}", self.token.expose_secret()),
                )
                .header(header::CONTENT_TYPE, media)
                .body(Full::new(body.clone()))
                .map_err(|error| failed(&error))?;
            let sent = client.send(request, TIMEOUT, RESPONSE_BYTES_MAX).await;
            let mut response = sent.map_err(|error| failed(&error))?;
            let body = response.bytes().await.map_err(|error| failed(&error))?;
            let status = response.status;
            if status == StatusCode::TOO_MANY_REQUESTS && attempt < RETRIES_MAX {
                let pause = response.retry_after().unwrap_or(PAUSE);
                tokio::time::sleep(pause.min(PAUSE_MAX)).await;
                continue;
            }
            return Ok(RemoteResponse { status, body });
        }
        Err(failed(&"too many requests"))
    }

    async fn get(&self, path: &str) -> Result<RemoteResponse> {
        let url = self.url(path, &[]);
        self.call(Method::GET, &url, "application/json", Bytes::new())
            .await
    }

    async fn document(&self, path: &str) -> Result<Result<Value, String>> {
        let answer = self.get(path).await?;
        if answer.status != StatusCode::OK {
            return Ok(Err(answer.message()));
        }
        Ok(serde_json::from_slice(&answer.body).map_err(|error| error.to_string()))
    }
}

/// Copies settings and functions from one project to another. It can be repeated.
pub async fn run(
    source: &RemoteProject,
    target: &RemoteProject,
    dry_run: bool,
) -> Result<SettingsReport> {
    let mut report = SettingsReport::default();
    // Before anything is written.
    for project in [source, target] {
        if let Err(reason) = project.document("postgrest").await? {
            return Err(ImportError::Program(format!(
                "the settings of {} cannot be read: {reason}",
                project.project
            )));
        }
    }
    for (path, name, keys) in DOCUMENTS {
        let (there, here) = (source.document(path).await?, target.document(path).await?);
        let (there, here) = match (there, here) {
            (Ok(Value::Object(there)), Ok(Value::Object(here))) => (there, here),
            (Err(reason), _) | (_, Err(reason)) => {
                let text = format!("settings of {name}: {reason}");
                report.not_imported.push(text);
                continue;
            }
            _ => continue,
        };
        let mut change = difference(&there, &here, keys, name, &mut report);
        if !dry_run {
            write(target, path, name, &mut change, &mut report).await?;
        }
        let written = change.keys().map(|key| format!("{name}.{key}"));
        report.settings.extend(written);
    }
    copy_functions(source, target, dry_run, &mut report).await?;
    if let Ok(Value::Array(secrets)) = source.document("secrets").await? {
        let names = secrets
            .iter()
            .filter_map(|secret| secret.get("name")?.as_str());
        // The target has its own variables of the platform.
        for name in names.filter(|name| !name.starts_with("SUPABASE_")) {
            report.secrets.push(format!("functions.{name}"));
        }
    }
    Ok(report)
}

/// Returns the settings of the source that differ and that the target has. Names secrets.
fn difference(
    there: &Map<String, Value>,
    here: &Map<String, Value>,
    keys: &[&str],
    name: &str,
    report: &mut SettingsReport,
) -> Map<String, Value> {
    let mut change = Map::new();
    for (key, value) in there {
        let is_taken = keys.is_empty() || keys.contains(&key.as_str());
        let is_known = here.contains_key(key) || name == "server";
        if value.is_null() || !is_taken || here.get(key) == Some(value) {
            continue;
        }
        let setting = (AUTH.settings)().get(key);
        if name == "auth" && setting.is_some_and(|setting| setting.is_secret) {
            if value.as_str() != Some("") {
                report.secrets.push(format!("{name}.{key}"));
            }
        } else if is_known {
            change.insert(key.clone(), value.clone());
        } else {
            let text = format!("{name}.{key}: this server has no such setting");
            report.not_imported.push(text);
        }
    }
    change
}

/// Writes settings. One that the target names as invalid is left out.
async fn write(
    target: &RemoteProject,
    path: &str,
    name: &str,
    change: &mut Map<String, Value>,
    report: &mut SettingsReport,
) -> Result<()> {
    for _ in 0..REJECTED_MAX {
        if change.is_empty() {
            return Ok(());
        }
        let body = Value::Object(change.clone()).to_string();
        let url = target.url(path, &[]);
        let answer = target
            .call(Method::PATCH, &url, "application/json", body.into())
            .await?;
        if answer.status.is_success() {
            return Ok(());
        }
        let message = answer.message();
        let named = change
            .keys()
            .find(|key| message.to_lowercase().contains(&key.to_lowercase()))
            .cloned();
        let Some(key) = named else {
            let text = format!("settings of {name}: {message}");
            report.not_imported.push(text);
            change.clear();
            return Ok(());
        };
        change.remove(&key);
        report.not_imported.push(format!("{name}.{key}: {message}"));
    }
    change.clear();
    Ok(())
}

async fn copy_functions(
    source: &RemoteProject,
    target: &RemoteProject,
    dry_run: bool,
    report: &mut SettingsReport,
) -> Result<()> {
    let listed = match source.document("functions").await? {
        Ok(Value::Array(listed)) => listed,
        Ok(_) => return Ok(()),
        Err(reason) => {
            report.not_imported.push(format!("functions: {reason}"));
            return Ok(());
        }
    };
    for function in listed.iter().take(FUNCTIONS_MAX) {
        let text = |key: &str| {
            function
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let slug = text("slug");
        if slug.is_empty() || slug.contains('/') {
            continue;
        }
        if !dry_run {
            let outcome = copy_function(source, target, function, slug).await?;
            if let Err(reason) = outcome {
                report
                    .not_imported
                    .push(format!("function {slug}: {reason}"));
                continue;
            }
        }
        report.functions.push(slug.to_owned());
    }
    Ok(())
}

/// Deploys the bundle of one function. Returns the reason if that is not possible.
async fn copy_function(
    source: &RemoteProject,
    target: &RemoteProject,
    function: &Value,
    slug: &str,
) -> Result<Result<(), String>> {
    let bundle = source.get(&format!("functions/{slug}/body")).await?;
    if bundle.status != StatusCode::OK {
        return Ok(Err(bundle.message()));
    }
    let there = target.get(&format!("functions/{slug}")).await?;
    let verify = function.get("verify_jwt").and_then(Value::as_bool);
    let verify = verify.unwrap_or(true).to_string();
    let mut query = vec![("slug", slug), ("verify_jwt", verify.as_str())];
    for key in ["name", "entrypoint_path", "import_map_path"] {
        let value = function.get(key).and_then(Value::as_str);
        query.extend(value.map(|value| (key, value)));
    }
    let (method, path) = if there.status == StatusCode::OK {
        (Method::PATCH, format!("functions/{slug}"))
    } else {
        (Method::POST, "functions".to_owned())
    };
    let url = target.url(&path, &query);
    let answer = target.call(method, &url, ESZIP, bundle.body).await?;
    if answer.status.is_success() {
        return Ok(Ok(()));
    }
    Ok(Err(answer.message()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_names_secrets_and_unknown_settings() {
        let (there, here) = (
            json!({"site_url": "https://a", "smtp_pass": "0f", "jwt_exp": 1, "hook": null, "newer": 1}),
            json!({"site_url": "https://b", "smtp_pass": "", "jwt_exp": 1, "hook": 2}),
        );
        let mut report = SettingsReport::default();
        let change = difference(
            there.as_object().unwrap(),
            here.as_object().unwrap(),
            &[],
            "auth",
            &mut report,
        );
        assert_eq!(Value::Object(change), json!({"site_url": "https://a"}));
        assert_eq!(report.secrets, ["auth.smtp_pass"]);
        assert_eq!(
            report.not_imported,
            ["auth.newer: this server has no such setting"]
        );
    }
}
