//! SSO providers, stored in the database of a project.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::TestApp;

/// SAML metadata of an identity provider.
pub(crate) fn metadata(entity_id: &str) -> String {
    format!(
        r#"<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="{entity_id}">
           <IDPSSODescriptor protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol">
             <SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="https://idp.example.com/sso"/>
           </IDPSSODescriptor></EntityDescriptor>"#
    )
}

/// An app with one real project with SAML enabled.
struct Saml {
    app: TestApp,
    project: String,
    path: String,
}

impl Saml {
    async fn new() -> Self {
        let app = TestApp::running().await;
        let project = app.real_project().await.to_string();
        let path = format!("/v1/projects/{project}/config/auth/sso/providers");
        let saml = Self { app, project, path };
        saml.app
            .request(
                "PATCH",
                &format!("/v1/projects/{}/config/auth", saml.project),
            )
            .as_(&saml.app.owner)
            .json(&json!({"saml_enabled": true}))
            .send()
            .await
            .expect(200);
        saml
    }

    async fn create(&self, body: &Value) -> (StatusCode, Value) {
        let answer = self
            .app
            .post(&self.path)
            .as_(&self.app.owner)
            .json(body)
            .send()
            .await;
        (answer.status, answer.json())
    }

    async fn call(&self, method: &str, id: &str, body: &Value) -> (StatusCode, Value) {
        let answer = self
            .app
            .request(method, &format!("{}/{id}", self.path))
            .as_(&self.app.owner)
            .json(body)
            .send()
            .await;
        (answer.status, answer.json())
    }

    async fn list(&self) -> Value {
        let answer = self.app.get(&self.path).as_(&self.app.owner).send().await;
        answer.expect(200).json()["items"].clone()
    }

    async fn sql(&self, query: &str) -> Value {
        let path = format!("/v1/projects/{}/database/query", self.project);
        let answer = self
            .app
            .post(&path)
            .as_(&self.app.owner)
            .json(&json!({ "query": query }))
            .send()
            .await;
        answer.expect(201).json()
    }
}

#[tokio::test]
async fn sso_provider_is_created_changed_and_deleted() {
    let saml = Saml::new().await;
    assert_eq!(saml.list().await, json!([]));
    let xml = metadata("https://idp.example.com");
    let (status, made) = saml
        .create(&json!({
            "type": "saml", "metadata_xml": xml, "domains": ["Example.com", "example.org"],
            "attribute_mapping": {"keys": {"name": {"names": ["displayName", "cn"], "default": "unknown"}}},
            "name_id_format": "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent",
        }))
        .await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["saml"]["entity_id"], "https://idp.example.com");
    assert_eq!(made["saml"]["metadata_xml"], json!(xml));
    assert_eq!(made["disabled"], Value::Null);
    assert_eq!(
        made["saml"]["attribute_mapping"]["keys"]["name"]["default"],
        "unknown"
    );
    let names = |provider: &Value| -> Vec<String> {
        let domains = provider["domains"].as_array().unwrap();
        domains
            .iter()
            .map(|domain| domain["domain"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&made), ["example.com", "example.org"]);
    let id = made["id"].as_str().unwrap();
    assert_eq!(saml.list().await, json!([made]));
    assert_eq!(saml.call("GET", id, &json!({})).await.1, made);

    let (status, changed) = saml
        .call(
            "PUT",
            id,
            &json!({"domains": ["example.org", "example.net"]}),
        )
        .await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(names(&changed), ["example.org", "example.net"]);
    assert_eq!(changed["domains"][0]["id"], made["domains"][1]["id"]);
    assert_eq!(changed["saml"], made["saml"]);

    // The Auth service reads the same rows.
    let rows = saml
        .sql("select entity_id from auth.saml_providers where name_id_format like '%persistent'")
        .await;
    assert_eq!(rows, json!([{"entity_id": "https://idp.example.com"}]));

    assert_eq!(
        saml.call("DELETE", id, &json!({})).await,
        (StatusCode::OK, changed)
    );
    assert_eq!(saml.list().await, json!([]));
    let rows = saml
        .sql(
            "select (select count(*) from auth.saml_providers) + \
             (select count(*) from auth.sso_domains) as rows",
        )
        .await;
    assert_eq!(rows, json!([{"rows": 0}]));
    let (status, body) = saml.call("GET", id, &json!({})).await;
    assert_eq!(
        (status, &body["message"]),
        (
            StatusCode::NOT_FOUND,
            &json!("SSO Identity Provider not found")
        )
    );
}

#[tokio::test]
async fn sso_providers_without_saml_return_404() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/config/auth/sso/providers");
    let refused = app.get(&path).as_(&app.owner).send().await.expect(404);
    assert_eq!(
        refused.message(),
        "SAML 2.0 support is not enabled for this project"
    );
}

#[tokio::test]
async fn invalid_sso_provider_is_refused_and_changes_nothing() {
    let saml = Saml::new().await;
    let xml = metadata("https://idp.example.com");
    let first = json!({"type": "saml", "metadata_xml": xml, "domains": ["example.com"]});
    let (_, made) = saml.create(&first).await;
    let id = made["id"].as_str().unwrap();
    let other = metadata("https://other.example.com");
    for (body, status, text) in [
        (json!({"metadata_xml": other}), 400, "type"),
        (json!({"type": "oidc", "metadata_xml": other}), 400, "type"),
        (
            json!({"type": "saml"}),
            400,
            "Either metadata_xml or metadata_url",
        ),
        (
            json!({"type": "saml", "metadata_xml": other, "metadata_url": "https://a.example"}),
            400,
            "Only one of",
        ),
        (
            json!({"type": "saml", "metadata_xml": "<a/>"}),
            400,
            "metadata_xml",
        ),
        (
            json!({"type": "saml", "metadata_url": "https://169.254.169.254/m"}),
            400,
            "metadata_url",
        ),
        (
            json!({"type": "saml", "metadata_xml": other, "domains": ["no spaces.com"]}),
            400,
            "domains",
        ),
        (
            json!({"type": "saml", "metadata_xml": other, "name_id_format": "email"}),
            400,
            "unknown variant `email`, expected one of `urn:",
        ),
        (first.clone(), 409, "entity id"),
        (
            json!({"type": "saml", "metadata_xml": other, "domains": ["EXAMPLE.com"]}),
            409,
            "domains",
        ),
    ] {
        let (refused, answer) = saml.create(&body).await;
        let message = answer["message"].as_str().unwrap();
        assert_eq!(refused, status, "{body}: {message}");
        assert!(message.contains(text), "{body}: {message}");
    }
    let (status, answer) = saml.call("PUT", id, &json!({"metadata_xml": other})).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(saml.list().await, json!([made]));
}

/// A trigger of the project's owner on these tables would run with the rights of their owner.
#[tokio::test]
async fn trigger_of_the_tenant_does_not_run() {
    let saml = Saml::new().await;
    saml.sql(
        "create table public.seen (role text); \
         create function public.note() returns trigger language plpgsql as $$ begin \
             insert into public.seen values (current_user); return new; end $$; \
         grant insert on public.seen to public; \
         create trigger note before insert or update on auth.sso_providers \
             for each row execute function public.note()",
    )
    .await;
    let xml = metadata("https://idp.example.com");
    let (status, made) = saml
        .create(&json!({"type": "saml", "metadata_xml": xml}))
        .await;
    assert_eq!(status, 201, "{made}");
    let rows = saml.sql("select role from public.seen").await;
    assert_eq!(rows, json!([]));
}
