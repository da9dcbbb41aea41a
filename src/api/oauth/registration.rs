//! Dynamic client registration (RFC 7591). Registered applications are unverified: their tokens are
//! bound to the role of the granting member and to selected projects, and applications that are
//! never approved are deleted.

use std::net::{IpAddr, Ipv6Addr};

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    GeneratedSecret, applications,
    applications::{ApplicationDraft, ProjectSelection, secrets},
    exchange::RequestOrigin,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::Scopes,
        error::{Context, Error, oauth_error},
        names,
    },
};

/// Maximum number of self-registered applications without an approval.
const UNUSED_MAX: i64 = 10_000;
/// From this number on, an application without an approval expires after [`SHORT_LIFETIME`].
const UNUSED_MANY: i64 = 8_000;
/// Lifetime of unapproved applications under load: long enough to sign in and approve.
const SHORT_LIFETIME: TimeDelta = TimeDelta::minutes(30);
/// Unapproved applications from one network (an IPv4 address or an IPv6 /64). The oldest are
/// deleted to make room.
const UNUSED_OF_ADDRESS_MAX: i64 = 50;
/// Applications of one network that one registration deletes. Deleting in batches limits cache
/// invalidations, because each batch drops the cached tokens of every node.
const EXPIRED_OF_ADDRESS_MAX: i64 = 10;
/// Applications that one registration deletes.
const EXPIRED_MAX: i64 = 500;

/// Reserved parts of names, which would suggest another publisher.
const RESERVED: [&str; 4] = ["gantry", "supabase", "administrator", "official"];

/// A registration request of a client.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RegisterOauthApplication")]
pub struct ClientRegistration {
    /// Display name.
    #[schemars(length(min = 1, max = 100))]
    pub client_name: Option<String>,
    /// Redirect URIs.
    #[serde(default)]
    pub redirect_uris: Vec<String>,
    /// `authorization_code`, optionally with `refresh_token`.
    pub grant_types: Option<Vec<String>>,
    /// `code`.
    pub response_types: Option<Vec<String>>,
    /// `client_secret_basic`, `client_secret_post`, or `none` for a public client.
    pub token_endpoint_auth_method: Option<String>,
    /// Scopes that it may request, separated by spaces. Defaults to all.
    pub scope: Option<String>,
    /// Website.
    pub client_uri: Option<String>,
    /// URL of a logo.
    pub logo_uri: Option<String>,
}

/// A registered client.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RegisteredOauthApplication")]
#[expect(missing_docs, reason = "the fields of RFC 7591")]
pub struct RegisteredClient {
    pub client_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_expires_at: Option<i64>,
    pub client_id_issued_at: i64,
    pub client_name: String,
    pub redirect_uris: Vec<String>,
    pub grant_types: Vec<String>,
    pub response_types: Vec<String>,
    pub token_endpoint_auth_method: String,
    pub scope: String,
}

/// Registers an application.
pub async fn register(
    context: &ApiContext,
    registration: ClientRegistration,
    origin: &RequestOrigin,
) -> Result<RegisteredClient, Error> {
    let doing = "registering an application dynamically";
    let (draft, method) = registration.draft()?;
    let scopes = draft.check().map_err(invalid_metadata)?;
    let now = context.clock.now();
    let client_id = context.entropy.uuid();
    let secret = (!draft.public).then(|| GeneratedSecret::secret(&context.entropy));
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    evict_unused(&transaction, origin.address, now).await?;
    let id = applications::insert(&transaction, client_id, None, &draft, scopes, now).await?;
    let sql = "update oauth_applications set registered_from = $2 where id = $1";
    transaction
        .execute(sql, &[&id.0, &network(origin.address)])
        .await
        .context(doing)?;
    if let Some(secret) = &secret {
        secrets::insert(&transaction, id, secret, now).await?;
    }
    let after = json!({"application": client_id, "name": draft.name, "redirect_uris": draft.redirect_uris, "scopes": draft.scopes});
    origin
        .registration(client_id)
        .write_in(&transaction, 201, (None, Some(after)), now)
        .await?;
    transaction.commit().await.context(doing)?;
    Ok(RegisteredClient {
        client_id,
        client_secret_expires_at: secret.as_ref().map(|_| 0),
        client_secret: secret.map(|secret| secret.expose().to_owned()),
        client_id_issued_at: now.timestamp(),
        client_name: draft.name,
        redirect_uris: draft.redirect_uris,
        grant_types: vec!["authorization_code".to_owned(), "refresh_token".to_owned()],
        response_types: vec!["code".to_owned()],
        token_endpoint_auth_method: method.to_owned(),
        scope: scopes.to_string(),
    })
}

/// Deletes the oldest unapproved applications if one network or the server has too many. So a flood
/// of registrations blocks registration for [`SHORT_LIFETIME`] at most.
async fn evict_unused(
    transaction: &Transaction<'_>,
    address: IpAddr,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "deleting unapproved applications";
    let sql = "select count(*), count(*) filter (where registered_from = $1) from oauth_applications a \
               where source = 'dcr' and deleted_at is null and not exists (select 1 from oauth_grants g where g.application_id = a.id)";
    let network = network(address);
    let row = transaction
        .query_one(sql, &[&network])
        .await
        .context(doing)?;
    let mut unused: i64 = row.get(0);
    let of_address: i64 = row.get(1);
    if of_address >= UNUSED_OF_ADDRESS_MAX {
        unused -= delete_unused(
            transaction,
            Some(&network),
            now,
            of_address - UNUSED_OF_ADDRESS_MAX + EXPIRED_OF_ADDRESS_MAX,
        )
        .await?;
    }
    if unused >= UNUSED_MANY {
        unused -= delete_unused(transaction, None, now - SHORT_LIFETIME, EXPIRED_MAX).await?;
    }
    if unused >= UNUSED_MAX {
        return Err(Error::Unavailable {
            what: "Too many registered applications were never approved".into(),
            retry: std::time::Duration::from_mins(5),
        });
    }
    Ok(())
}

/// Deletes up to `most` self-registered applications without an approval that were created until
/// `before`, oldest first, from one network or from all. Returns their number.
pub(super) async fn delete_unused(
    transaction: &Transaction<'_>,
    network: Option<&str>,
    before: DateTime<Utc>,
    most: i64,
) -> Result<i64, Error> {
    let doing = "expiring applications without an approval";
    // Skips applications that a concurrent approval has locked.
    let sql = "select id from oauth_applications a where source = 'dcr' and created_at <= $1 and ($2::text is null or registered_from = $2) \
               and not exists (select 1 from oauth_grants g where g.application_id = a.id) \
               order by created_at, id limit $3 for update skip locked";
    let rows = transaction
        .query(sql, &[&before, &network, &most])
        .await
        .context(doing)?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    // Checks again under the lock: an approval may have been committed between the snapshot of the
    // first statement and its lock.
    let sql = "delete from oauth_applications a where id = any($1) \
               and not exists (select 1 from oauth_grants g where g.application_id = a.id)";
    let deleted = transaction.execute(sql, &[&ids]).await.context(doing)?;
    Ok(i64::try_from(deleted).unwrap_or(most))
}

/// Returns the network of one subscriber: an IPv4 address, or an IPv6 /64.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!(
            "{}/64",
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))
        ),
    }
}

impl ClientRegistration {
    fn draft(self) -> Result<(ApplicationDraft, &'static str), Error> {
        let invalid_metadata =
            |problem: &'static str| oauth_error("invalid_client_metadata", problem);
        let known = |given: &Option<Vec<String>>, known: &[&str]| {
            given.as_ref().is_none_or(|given| {
                given.iter().all(|it| known.contains(&it.as_str()))
                    && given.iter().any(|it| it == known[0])
            })
        };
        if !known(&self.grant_types, &["authorization_code", "refresh_token"]) {
            return Err(invalid_metadata(
                "grant_types must be authorization_code, optionally with refresh_token.",
            ));
        }
        if !known(&self.response_types, &["code"]) {
            return Err(invalid_metadata("response_types must be code."));
        }
        let method = match self.token_endpoint_auth_method.as_deref() {
            None | Some("client_secret_basic") => "client_secret_basic",
            Some("client_secret_post") => "client_secret_post",
            Some("none") => "none",
            Some(_) => {
                return Err(invalid_metadata(
                    "token_endpoint_auth_method must be client_secret_basic, client_secret_post or none.",
                ));
            }
        };
        let name = self
            .client_name
            .unwrap_or_else(|| "Unnamed application".to_owned());
        if names::imitates(&name, &RESERVED) {
            return Err(invalid_metadata(
                "client_name contains a reserved name or look-alike characters.",
            ));
        }
        let scopes = match self
            .scope
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty() && *text != "all")
        {
            Some(text) => Scopes::named(text.split(' ')),
            None => Scopes::all(),
        };
        if scopes.is_empty() {
            return Err(invalid_metadata("scope contains no known scope."));
        }
        let page =
            |address: Option<String>| address.filter(|address| applications::is_https_url(address));
        let draft = ApplicationDraft {
            name,
            website: page(self.client_uri).unwrap_or_default(),
            icon: page(self.logo_uri),
            redirect_uris: self.redirect_uris,
            scopes: scopes.names().into_iter().map(str::to_owned).collect(),
            public: method == "none",
            bound_to_user: true,
            selection: ProjectSelection::Required,
        };
        Ok((draft, method))
    }
}

/// Converts a validation error to an error of RFC 7591.
fn invalid_metadata(error: Error) -> Error {
    match error {
        Error::Invalid { field, problem } if field == "redirect_uris" => {
            oauth_error("invalid_redirect_uri", problem)
        }
        Error::Invalid { field, problem } => {
            oauth_error("invalid_client_metadata", format!("{field}: {problem}"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> ClientRegistration {
        ClientRegistration {
            client_name: Some("Acme".to_owned()),
            redirect_uris: vec!["https://acme.example/cb".to_owned()],
            grant_types: None,
            response_types: None,
            token_endpoint_auth_method: None,
            scope: None,
            client_uri: None,
            logo_uri: Some("javascript:alert(1)".to_owned()),
        }
    }

    #[test]
    fn draft_is_bound_to_user_and_requires_projects() {
        let (draft, method) = registration().draft().unwrap();
        assert!(
            draft.bound_to_user
                && draft.selection == ProjectSelection::Required
                && !draft.public
                && method == "client_secret_basic"
        );
        assert_eq!((draft.scopes.len(), draft.icon), (24, None));
        let none = ClientRegistration {
            token_endpoint_auth_method: Some("none".to_owned()),
            ..registration()
        };
        assert!(none.draft().unwrap().0.public);
    }

    #[test]
    fn network_groups_ipv6_by_prefix() {
        for (address, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(network(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn draft_with_unsupported_metadata_is_rejected() {
        let list = |text: &str| Some(vec![text.to_owned()]);
        for wrong in [
            ClientRegistration {
                grant_types: list("implicit"),
                ..registration()
            },
            ClientRegistration {
                grant_types: list("client_credentials"),
                ..registration()
            },
            ClientRegistration {
                grant_types: list("refresh_token"),
                ..registration()
            },
            ClientRegistration {
                response_types: list("token"),
                ..registration()
            },
            ClientRegistration {
                token_endpoint_auth_method: Some("private_key_jwt".to_owned()),
                ..registration()
            },
            ClientRegistration {
                client_name: Some("Supabase CLI".to_owned()),
                ..registration()
            },
            ClientRegistration {
                client_name: Some("The GANTRY console".to_owned()),
                ..registration()
            },
            ClientRegistration {
                client_name: Some("Ｓｕｐａｂａｓｅ".to_owned()),
                ..registration()
            },
            ClientRegistration {
                client_name: Some("G\u{430}ntry".to_owned()),
                ..registration()
            },
            ClientRegistration {
                scope: Some("everything".to_owned()),
                ..registration()
            },
        ] {
            assert!(
                matches!(wrong.draft(), Err(Error::OAuth(fault)) if fault.error == "invalid_client_metadata")
            );
        }
    }
}
