//! Cache of the last known access rules of projects. It is used only while the control database is
//! unavailable; otherwise the rules are read for each connection.

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Ticks,
    ids::{ProjectId, ProjectRef},
};
use ipnet::IpNet;
use quick_cache::{Weighter, sync::Cache};

use crate::control::projects::{sizes::ConnectionBudget, status::Status};

/// Maximum age of cached rules, in milliseconds: one hour.
const AGE_MAX: Ticks = 60 * 60 * 1000;
/// Expected number of cached projects.
const PROJECTS: usize = 10_000;
/// Capacity in networks, with one more per project: about 10 MB.
const NETWORKS_MAX: u64 = 200_000;

/// Maximum number of active bans of a project. Bans expire.
pub(crate) const BANS_MAX: i64 = 1000;

/// Properties of a project that decide on a connection from one address.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent of each other"
)]
#[derive(Debug, Clone)]
pub struct ConnectionAdmission {
    /// Project id.
    pub id: ProjectId,
    /// Last observed status.
    pub status: Status,
    /// Whether the server is stopped until the next connection.
    pub asleep: bool,
    /// Whether the server runs on this node.
    pub here: bool,
    /// Whether connections without TLS are rejected.
    pub tls_required: bool,
    /// The connections that its server has room for.
    pub connections: ConnectionBudget,
    /// Whether the client address is in a permitted network.
    pub admitted: bool,
    /// Whether the client address is banned.
    pub banned: bool,
}

/// Access rules of one project's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessRules {
    pub(crate) id: ProjectId,
    pub(crate) status: Status,
    pub(crate) asleep: bool,
    pub(crate) here: bool,
    pub(crate) tls_required: bool,
    pub(crate) connections: ConnectionBudget,
    /// Permitted networks. `None` permits all.
    pub(crate) allowed: Option<Vec<IpNet>>,
    /// Banned networks with their expiry.
    pub(crate) bans: Vec<(IpNet, DateTime<Utc>)>,
}

impl AccessRules {
    /// Applies the rules to a client address.
    pub(crate) fn admission(&self, address: IpAddr, now: DateTime<Utc>) -> ConnectionAdmission {
        let address = address.to_canonical();
        ConnectionAdmission {
            id: self.id,
            status: self.status,
            asleep: self.asleep,
            here: self.here,
            tls_required: self.tls_required,
            connections: self.connections,
            admitted: self
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.iter().any(|network| network.contains(&address))),
            banned: self
                .bans
                .iter()
                .any(|(network, until)| network.contains(&address) && *until > now),
        }
    }
}

/// Rules with the time at which they were read.
type Entry = (Arc<AccessRules>, Ticks);

#[derive(Clone)]
struct Weight;

impl Weighter<ProjectRef, Entry> for Weight {
    fn weight(&self, _: &ProjectRef, (rules, _): &Entry) -> u64 {
        let networks = rules.bans.len() + rules.allowed.as_ref().map_or(0, Vec::len);
        u64::try_from(networks + 1).unwrap_or(u64::MAX)
    }
}

/// Cache of access rules. Evicts the least recently used projects.
pub struct AccessRuleCache(Cache<ProjectRef, Entry, Weight>);

impl Default for AccessRuleCache {
    fn default() -> Self {
        Self(Cache::with_weighter(PROJECTS, NETWORKS_MAX, Weight))
    }
}

impl AccessRuleCache {
    /// Caches rules that were read at `now`.
    pub(crate) fn keep(&self, project: &ProjectRef, rules: AccessRules, now: Ticks) {
        self.0.insert(project.clone(), (Arc::new(rules), now));
    }

    /// Removes a project.
    pub(crate) fn forget(&self, project: &ProjectRef) {
        self.0.remove(project);
    }

    /// Returns the cached rules, unless they are too old.
    pub(crate) fn last(&self, project: &ProjectRef, now: Ticks) -> Option<Arc<AccessRules>> {
        let (rules, at) = self.0.get(project)?;
        (now.saturating_sub(at) < AGE_MAX).then_some(rules)
    }

    /// Adds a ban to the cached rules, because the row cannot be written while the database is
    /// unavailable.
    pub(crate) fn ban(&self, project: &ProjectRef, network: IpNet, until: DateTime<Utc>) {
        let Some((rules, at)) = self.0.get(project) else {
            return;
        };
        let mut rules = AccessRules::clone(&rules);
        rules.bans.retain(|(banned, _)| *banned != network);
        if rules.bans.len() < usize::try_from(BANS_MAX).unwrap_or_default() {
            rules.bans.push((network, until));
        }
        self.0.insert(project.clone(), (Arc::new(rules), at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> AccessRules {
        AccessRules {
            id: ProjectId(1),
            status: Status::ActiveHealthy,
            asleep: false,
            here: true,
            tls_required: true,
            connections: ConnectionBudget::of("micro", None),
            allowed: None,
            bans: Vec::new(),
        }
    }

    fn project() -> ProjectRef {
        "a".repeat(20).parse().unwrap()
    }

    fn network(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn networks_and_bans_decide_admission() {
        let now = DateTime::UNIX_EPOCH;
        let soon = now + chrono::TimeDelta::seconds(1);
        let some = AccessRules {
            allowed: Some(vec![network("10.0.0.0/8"), network("2001:db8::/32")]),
            ..rules()
        };
        let none = AccessRules {
            allowed: Some(Vec::new()),
            ..rules()
        };
        let banned = AccessRules {
            bans: vec![
                (network("10.1.0.0/16"), soon),
                (network("10.2.0.0/16"), now),
            ],
            ..rules()
        };
        for (rules, address, admitted, is_banned) in [
            (rules(), "192.0.2.1", true, false),
            (some.clone(), "10.255.0.1", true, false),
            (some.clone(), "::ffff:10.255.0.1", true, false),
            (some.clone(), "2001:db8::1", true, false),
            (some, "192.0.2.1", false, false),
            (none, "10.0.0.1", false, false),
            (banned.clone(), "10.1.2.3", true, true),
            (banned.clone(), "::ffff:10.1.2.3", true, true),
            (banned, "10.2.2.3", true, false),
        ] {
            let admission = rules.admission(address.parse().unwrap(), now);
            assert_eq!(
                (admission.admitted, admission.banned),
                (admitted, is_banned),
                "{address}: {rules:?}"
            );
        }
    }

    #[test]
    fn rules_expire_after_one_hour() {
        let cache = AccessRuleCache::default();
        assert_eq!(cache.last(&project(), 0), None);
        cache.keep(&project(), rules(), 5);
        assert_eq!(
            cache.last(&project(), 5 + AGE_MAX - 1).as_deref(),
            Some(&rules())
        );
        assert_eq!(cache.last(&project(), 5 + AGE_MAX), None);
        cache.forget(&project());
        assert_eq!(cache.last(&project(), 5), None);
    }

    #[test]
    fn ban_applies_to_cached_rules_and_keeps_their_age() {
        let cache = AccessRuleCache::default();
        let now = DateTime::UNIX_EPOCH;
        cache.keep(&project(), rules(), 0);
        cache.ban(
            &project(),
            network("192.0.2.1/32"),
            now + chrono::TimeDelta::minutes(30),
        );
        let kept = cache.last(&project(), AGE_MAX - 1).unwrap();
        assert!(
            kept.admission("192.0.2.1".parse().unwrap(), now).banned
                && !kept.admission("192.0.2.2".parse().unwrap(), now).banned
        );
        assert_eq!(cache.last(&project(), AGE_MAX), None);
    }
}
