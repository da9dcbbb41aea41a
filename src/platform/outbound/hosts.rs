//! The hosts that requests of an organization or a project may go to. Without a list, all public
//! hosts.

use std::sync::Arc;

use gantry_base::ids::{OrganizationId, ProjectId};
use serde_json::json;
use tokio_postgres::Row;
use url::Host;

use crate::platform::{
    audit::Recorder,
    context::PlatformContext,
    db::Db,
    error::{Context, Error},
    notifications,
    tables::Table,
};

/// Maximum number of hosts in a list.
const HOSTS_MAX: usize = 100;
/// Longest host, in bytes (RFC 1035 §2.3.4), with a wildcard.
const HOST_BYTES_MAX: usize = 255;

/// The owner of a list, and the party that chose the URL of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UrlOwner {
    /// The operator. All addresses are permitted.
    Operator,
    /// The owners of an organization.
    Organization(OrganizationId),
    /// The members of a project. The list of its organization applies as well.
    Project(ProjectId),
}

/// The lists that apply to an owner. A host must be in each.
#[derive(Debug, Clone, Default)]
pub struct HostRules(Arc<[Vec<String>]>);

impl HostRules {
    /// Returns whether requests to a host are permitted. `host` is that of a URL.
    pub fn permit(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        self.0
            .iter()
            .all(|list| list.iter().any(|pattern| matches(pattern, &host)))
    }

    pub(super) async fn read(db: &Db, owner: UrlOwner) -> Result<Self, Error> {
        let sql = "select hosts from outbound_hosts where project_id = $1 or organization_id = $2 \
                   union all select h.hosts from outbound_hosts h \
                   join projects p on p.organization_id = h.organization_id where p.id = $1";
        let (project, organization) = keys(owner);
        let rows = db.query(sql, &[&project, &organization]).await;
        let rows = rows.context("reading the permitted hosts")?;
        Ok(Self(rows.iter().map(|row| row.get(0)).collect()))
    }
}

/// Returns the values of the columns `project_id` and `organization_id`.
fn keys(owner: UrlOwner) -> (Option<i64>, Option<i64>) {
    match owner {
        UrlOwner::Operator => (None, None),
        UrlOwner::Organization(id) => (None, Some(id.0)),
        UrlOwner::Project(id) => (Some(id.0), None),
    }
}

/// Returns whether a host is that of a pattern: the same, or below `*.`.
fn matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => host
            .strip_suffix(domain)
            .is_some_and(|below| below.len() > 1 && below.ends_with('.')),
        None => pattern == host,
    }
}

/// Returns a pattern in the spelling of hosts in URLs.
fn normalized(text: &str) -> Result<String, Error> {
    let invalid = || {
        let problem = "expected hosts such as api.example.com, *.example.com and 192.0.2.1, \
                       without scheme, port and path";
        Error::invalid("allowed_hosts", problem)
    };
    let (wildcard, name) = match text.strip_prefix("*.") {
        Some(domain) => ("*.", domain),
        None => ("", text),
    };
    let host = Host::parse(name.trim_end_matches('.')).map_err(|_| invalid())?;
    if !wildcard.is_empty() && !matches!(host, Host::Domain(_)) {
        return Err(invalid());
    }
    let pattern = format!("{wildcard}{host}");
    if pattern.len() > HOST_BYTES_MAX || name.contains('*') {
        return Err(invalid());
    }
    Ok(pattern)
}

/// Returns the list of an owner, or `None` if it has none.
pub async fn list(
    context: &PlatformContext,
    owner: UrlOwner,
) -> Result<Option<Vec<String>>, Error> {
    let sql = "select hosts from outbound_hosts where project_id = $1 or organization_id = $2";
    let (project, organization) = keys(owner);
    let rows = context.db.query(sql, &[&project, &organization]).await;
    let rows = rows.context("reading the permitted hosts")?;
    Ok(rows.first().map(|row: &Row| row.get(0)))
}

/// Replaces the list of an owner and returns it in its stored form. It applies when this returns.
pub async fn replace(
    context: &PlatformContext,
    owner: UrlOwner,
    hosts: Option<Vec<String>>,
    audit: &Recorder,
) -> Result<Option<Vec<String>>, Error> {
    let doing = "replacing the permitted hosts";
    let hosts = match hosts {
        Some(hosts) if hosts.len() > HOSTS_MAX => {
            let problem = format!("has at most {HOSTS_MAX} hosts");
            return Err(Error::invalid("allowed_hosts", problem));
        }
        Some(hosts) => {
            let hosts = hosts.iter().map(|host| normalized(host));
            Some(hosts.collect::<Result<Vec<String>, Error>>()?)
        }
        None => None,
    };
    let (project, organization) = keys(owner);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "delete from outbound_hosts where project_id = $1 or organization_id = $2 \
               returning hosts";
    let before = transaction.query_opt(sql, &[&project, &organization]).await;
    let before = before
        .context(doing)?
        .map(|row| row.get::<_, Vec<String>>(0));
    if let Some(hosts) = &hosts {
        let sql = "insert into outbound_hosts (project_id, organization_id, hosts) \
                   values ($1, $2, $3)";
        let inserted = transaction
            .execute(sql, &[&project, &organization, hosts])
            .await;
        inserted.context(doing)?;
    }
    let entry = |hosts: &Option<Vec<String>>| Some(json!({ "allowed_hosts": hosts }));
    let change = (entry(&before), entry(&hosts));
    audit.result(&hosts);
    audit
        .commit(transaction, doing, 200, change, context.clock.now())
        .await?;
    context.table_changed(Table::OutboundHosts);
    notifications::settle(&context.db).await?;
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(lists: &[&[&str]]) -> HostRules {
        let list = |list: &&[&str]| list.iter().map(|host| normalized(host).unwrap()).collect();
        HostRules(lists.iter().map(list).collect())
    }

    #[test]
    fn host_must_be_in_each_list() {
        let both = rules(&[
            &["*.Example.com", "192.0.2.1", "bücher.example"],
            &[
                "api.example.com",
                "*.com",
                "192.0.2.1",
                "xn--bcher-kva.example.",
            ],
        ]);
        for (host, expected) in [
            ("api.example.com", true),
            ("API.example.com.", true),
            ("a.b.example.com", true),
            ("192.0.2.1", true),
            ("xn--bcher-kva.example", true),
            ("example.com", false),
            (".example.com", false),
            ("notexample.com", false),
            ("api.example.com.evil.test", false),
            ("192.0.2.10", false),
            ("", false),
        ] {
            assert_eq!(both.permit(host), expected, "{host}");
        }
        assert!(rules(&[]).permit("a.test"));
        assert!(!rules(&[&[]]).permit("a.test"));
    }

    #[test]
    fn texts_that_are_no_hosts_are_rejected() {
        for text in [
            "",
            "*",
            "*.",
            "*.*.example.com",
            "a*.example.com",
            "*.192.0.2.1",
            "https://a.example.com",
            "a.example.com/x",
            "a.example.com:443",
            "a b",
            "*.[::1]",
        ] {
            assert!(normalized(text).is_err(), "{text}");
        }
        assert_eq!(normalized("[2001:DB8::1]").unwrap(), "[2001:db8::1]");
    }
}
