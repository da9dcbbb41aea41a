//! The rules of projects as they were last read, for connections that come while the control database is away.
//!
//! They are used only then: while the database answers, it is asked for every connection.

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use quick_cache::{Weighter, sync::Cache};

use super::{Door, bans::BANS_MAX};
use crate::{
    base::{
        clock::Ticks,
        ids::{ProjectId, ProjectRef},
    },
    data_plane::projects::Status,
};

/// How long rules that cannot be read again are believed, in milliseconds: an hour.
const BELIEVED_MAX: Ticks = 60 * 60 * 1000;
/// Projects whose rules are kept, as a rule.
const PROJECTS: usize = 10_000;
/// Networks in all rules together, with one more for each project: some 10 MB.
const NETWORKS_MAX: u64 = 200_000;

/// The rules that decide on connections to one project's database, from any address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) id: ProjectId,
    pub(crate) status: Status,
    pub(crate) asleep: bool,
    pub(crate) here: bool,
    pub(crate) tls_required: bool,
    /// Networks that may come. None: all.
    pub(crate) allowed: Option<Vec<IpNet>>,
    /// Networks that may not come, each until a time.
    pub(crate) bans: Vec<(IpNet, DateTime<Utc>)>,
}

impl Rules {
    /// Applies the rules to an address.
    pub(crate) fn door(&self, address: IpAddr, now: DateTime<Utc>) -> Door {
        let address = address.to_canonical();
        Door {
            id: self.id,
            status: self.status,
            asleep: self.asleep,
            here: self.here,
            tls_required: self.tls_required,
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

/// Rules, and when they were read.
type Entry = (Arc<Rules>, Ticks);

#[derive(Clone)]
struct Weight;

impl Weighter<ProjectRef, Entry> for Weight {
    fn weight(&self, _: &ProjectRef, (rules, _): &Entry) -> u64 {
        let networks = rules.bans.len() + rules.allowed.as_ref().map_or(0, Vec::len);
        u64::try_from(networks + 1).unwrap_or(u64::MAX)
    }
}

/// Rules of recently connected projects. The least recently used are dropped first.
pub struct Doors(Cache<ProjectRef, Entry, Weight>);

impl Default for Doors {
    fn default() -> Self {
        Self(Cache::with_weighter(PROJECTS, NETWORKS_MAX, Weight))
    }
}

impl Doors {
    /// Keeps what was read at `now`.
    pub(crate) fn keep(&self, project: &ProjectRef, rules: Rules, now: Ticks) {
        self.0.insert(project.clone(), (Arc::new(rules), now));
    }

    /// Forgets a project that is gone.
    pub(crate) fn forget(&self, project: &ProjectRef) {
        self.0.remove(project);
    }

    /// The rules last read, unless they are too old.
    pub(crate) fn last(&self, project: &ProjectRef, now: Ticks) -> Option<Arc<Rules>> {
        let (rules, at) = self.0.get(project)?;
        (now.saturating_sub(at) < BELIEVED_MAX).then_some(rules)
    }

    /// Bans a network in what is kept as well: the row may not be written while the database is away.
    pub(crate) fn ban(&self, project: &ProjectRef, network: IpNet, until: DateTime<Utc>) {
        let Some((rules, at)) = self.0.get(project) else {
            return;
        };
        let mut rules = Rules::clone(&rules);
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

    fn rules() -> Rules {
        Rules {
            id: ProjectId(1),
            status: Status::ActiveHealthy,
            asleep: false,
            here: true,
            tls_required: true,
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
    fn networks_and_bans_decide_on_an_address() {
        let now = DateTime::UNIX_EPOCH;
        let soon = now + chrono::TimeDelta::seconds(1);
        let some = Rules {
            allowed: Some(vec![network("10.0.0.0/8"), network("2001:db8::/32")]),
            ..rules()
        };
        let none = Rules {
            allowed: Some(Vec::new()),
            ..rules()
        };
        let banned = Rules {
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
            let door = rules.door(address.parse().unwrap(), now);
            assert_eq!(
                (door.admitted, door.banned),
                (admitted, is_banned),
                "{address}: {rules:?}"
            );
        }
    }

    #[test]
    fn rules_are_believed_for_an_hour_and_not_longer() {
        let doors = Doors::default();
        assert_eq!(doors.last(&project(), 0), None);
        doors.keep(&project(), rules(), 5);
        assert_eq!(
            doors.last(&project(), 5 + BELIEVED_MAX - 1).as_deref(),
            Some(&rules())
        );
        assert_eq!(doors.last(&project(), 5 + BELIEVED_MAX), None);
        doors.forget(&project());
        assert_eq!(doors.last(&project(), 5), None);
    }

    #[test]
    fn a_ban_while_the_database_is_away_holds_and_makes_rules_no_younger() {
        let (doors, now) = (Doors::default(), DateTime::UNIX_EPOCH);
        doors.keep(&project(), rules(), 0);
        doors.ban(
            &project(),
            network("192.0.2.1/32"),
            now + chrono::TimeDelta::minutes(30),
        );
        let seen = doors.last(&project(), BELIEVED_MAX - 1).unwrap();
        assert!(
            seen.door("192.0.2.1".parse().unwrap(), now).banned
                && !seen.door("192.0.2.2".parse().unwrap(), now).banned
        );
        assert_eq!(doors.last(&project(), BELIEVED_MAX), None);
    }
}
