//! What a token is to be, as the form says it: kept while it is filled in and looked over, and turned into the operation's body.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{catalogue, catalogue::Row};
use crate::{
    base::{ids::OrganizationId, names},
    platform::access::{Permission, Reach, Role},
};

/// Before the name of a row, the field that says its level.
const LEVEL: &str = "may.";
/// What lives by default is what lives shortest among what is useful.
const DAYS_DEFAULT: &str = "7";
/// Longest life that can be chosen, in days.
const DAYS_MAX: i64 = 365;

/// The form, filled in.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// `1`, `7`, `30`, `90` or `custom`.
    pub(super) days: String,
    /// The last day, if custom.
    pub(super) until: String,
    /// `projects`, `organizations` or `account`.
    pub(super) reach: String,
    pub(super) projects: BTreeSet<String>,
    pub(super) organizations: BTreeSet<String>,
    /// That the whole account is meant.
    pub(super) sure: bool,
    /// `read` or `write`, by row.
    pub(super) levels: BTreeMap<String, String>,
    pub(super) networks: String,
    pub(super) search: String,
}

/// What is wrong with the fields.
#[derive(Debug, Default)]
pub(super) struct Wrong {
    pub(super) name: Option<String>,
    pub(super) days: Option<String>,
    pub(super) reach: Option<String>,
    pub(super) permissions: Option<String>,
    pub(super) networks: Option<String>,
    pub(super) other: Option<String>,
}

impl Wrong {
    /// What an operation says about a field of its body.
    pub(super) fn said(field: &str, problem: String) -> Self {
        let mut wrong = Self::default();
        *match field {
            "name" => &mut wrong.name,
            "expires_at" | "expires_in_days" => &mut wrong.days,
            "project_refs" | "organization_slugs" => &mut wrong.reach,
            "permissions" => &mut wrong.permissions,
            "networks" => &mut wrong.networks,
            _ => &mut wrong.other,
        } = Some(problem);
        wrong
    }
}

impl Wanted {
    /// Before anything is filled in.
    pub(super) fn new() -> Self {
        Self {
            days: DAYS_DEFAULT.to_owned(),
            reach: "projects".to_owned(),
            ..Self::default()
        }
    }

    /// As it was sent.
    pub(super) fn of(fields: Vec<(String, String)>) -> Self {
        let mut wanted = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "name" => wanted.name = value,
                "days" => wanted.days = value,
                "until" => wanted.until = value,
                "reach" => wanted.reach = value,
                "project" => drop(wanted.projects.insert(value)),
                "organization" => drop(wanted.organizations.insert(value)),
                "sure" => wanted.sure = true,
                "networks" => wanted.networks = value,
                "search" => wanted.search = value,
                _ => {
                    if let Some(row) = name.strip_prefix(LEVEL).filter(|_| value != "none") {
                        wanted.levels.insert(row.to_owned(), value);
                    }
                }
            }
        }
        wanted
    }

    /// The level of a row.
    pub(super) fn level(&self, row: &Row) -> &str {
        self.levels.get(row.key).map_or("none", String::as_str)
    }

    /// Sets every row at once, as far as the roles go.
    pub(super) fn preset(&mut self, level: &str, role: Role) {
        let of_use = |permissions: &[Permission]| {
            permissions.iter().all(|it| self.covers(*it)) && role >= Row::role(permissions)
        };
        let level_of = |row: &Row| match level {
            "write" if !row.write.is_empty() && of_use(row.write) => Some("write"),
            "read" | "write" if of_use(row.read) => Some("read"),
            _ => None,
        };
        self.levels = catalogue::rows()
            .filter_map(|row| Some((row.key.to_owned(), level_of(row)?.to_owned())))
            .collect();
    }

    /// Whether a token that reaches this could have the permission.
    pub(super) fn covers(&self, permission: Permission) -> bool {
        let reach = match self.reach.as_str() {
            "account" => Reach::Account,
            "organizations" => Reach::Organizations(Vec::new()),
            _ => Reach::Projects {
                organization: OrganizationId(0),
                projects: Vec::new(),
            },
        };
        reach.covers(permission)
    }

    /// What is granted. Rows that the reach does not have are not shown, and so not meant.
    pub(super) fn permissions(&self) -> Vec<Permission> {
        let granted =
            catalogue::rows().flat_map(|row| row.granted(self.level(row)).collect::<Vec<_>>());
        granted.filter(|it| self.covers(*it)).collect()
    }

    /// When it ends.
    pub(super) fn ends(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.days == "custom" {
            let last: NaiveDate = self.until.parse().ok()?;
            return Some(last.and_hms_opt(23, 59, 59)?.and_utc())
                .filter(|end| *end > now && *end < now + TimeDelta::days(DAYS_MAX + 1));
        }
        let days = self
            .days
            .parse()
            .ok()
            .filter(|days| (1..=DAYS_MAX).contains(days))?;
        Some(now + TimeDelta::days(days))
    }

    /// The last day that can be chosen.
    pub(super) fn last_day(now: DateTime<Utc>) -> String {
        (now + TimeDelta::days(DAYS_MAX)).date_naive().to_string()
    }

    /// Networks, one on a line or between commas.
    pub(super) fn networks(&self) -> Vec<&str> {
        self.networks
            .split([',', '\n', ' '])
            .map(str::trim)
            .filter(|network| !network.is_empty())
            .collect()
    }

    /// What a person should not have to send to learn.
    pub(super) fn check(&self, now: DateTime<Utc>) -> Result<(), Box<Wrong>> {
        let reach = match self.reach.as_str() {
            "organizations" if self.organizations.is_empty() => {
                Some("Choose at least one organization.")
            }
            "account" if !self.sure => Some("Tick the box if you mean the whole account."),
            "organizations" | "account" => None,
            _ if self.reach != "projects" || self.projects.is_empty() => {
                Some("Choose at least one project.")
            }
            _ => None,
        };
        let wrong = Wrong {
            name: names::check("name", self.name.trim(), 256)
                .is_err()
                .then(|| "Give it a name of up to 256 visible characters.".to_owned()),
            days: self
                .ends(now)
                .is_none()
                .then(|| "Choose a day from today on, within a year.".to_owned()),
            reach: reach.map(str::to_owned),
            permissions: self
                .permissions()
                .is_empty()
                .then(|| "Choose at least one permission.".to_owned()),
            ..Wrong::default()
        };
        let fine = wrong.name.is_none()
            && wrong.days.is_none()
            && wrong.reach.is_none()
            && wrong.permissions.is_none();
        if fine { Ok(()) } else { Err(Box::new(wrong)) }
    }

    /// What it is to be limited to, as the operations take it.
    pub(super) fn draft(&self) -> Value {
        let none = BTreeSet::new();
        let permissions: Vec<_> = self
            .permissions()
            .into_iter()
            .map(Permission::name)
            .collect();
        json!({
            "project_refs": if self.reach == "projects" { &self.projects } else { &none },
            "organization_slugs": if self.reach == "organizations" { &self.organizations } else { &none },
            "permissions": permissions,
            "networks": self.networks(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        "2026-11-21T09:15:03Z".parse().unwrap()
    }

    fn filled(fields: &[(&str, &str)]) -> Wanted {
        Wanted::of(
            fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn a_life_ends_within_a_year() {
        for (days, until, ends) in [
            ("7", "", Some("2026-11-28T09:15:03Z")),
            ("custom", "2026-11-21", Some("2026-11-21T23:59:59Z")),
            ("custom", "2027-11-21", Some("2027-11-21T23:59:59Z")),
            ("custom", "2027-11-22", None),
            ("custom", "2026-11-20", None),
            ("custom", "", None),
            ("0", "", None),
            ("366", "", None),
            ("", "", None),
        ] {
            let ended = filled(&[("days", days), ("until", until)]).ends(now());
            assert_eq!(
                ended,
                ends.map(|end| end.parse().unwrap()),
                "{days} {until}"
            );
        }
    }

    #[test]
    fn only_what_is_reached_is_granted() {
        let levels = [
            ("may.database", "read"),
            ("may.members", "write"),
            ("may.organizations", "write"),
            ("may.logs", "none"),
        ];
        let names = |reach: &str| {
            let wanted = filled(&[&[("reach", reach)][..], &levels].concat());
            wanted
                .permissions()
                .into_iter()
                .map(Permission::name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("projects"), ["database_read", "organizations_read"]);
        assert_eq!(
            names("organizations"),
            [
                "database_read",
                "organizations_read",
                "members_read",
                "members_write"
            ]
        );
        assert_eq!(names("account").len(), 5);
    }

    #[test]
    fn presets_go_as_far_as_reach_and_role() {
        let mut wanted = filled(&[("reach", "projects")]);
        wanted.preset("write", Role::Developer);
        let level = |key: &str| wanted.levels.get(key).map(String::as_str);
        assert_eq!(
            [
                level("database"),
                level("project"),
                level("members"),
                level("logs")
            ],
            [Some("write"), Some("read"), None, Some("read")]
        );
        wanted.preset("none", Role::Owner);
        assert!(wanted.levels.is_empty());
    }

    #[test]
    fn nothing_is_reached_by_leaving_something_out() {
        let fine = [("name", "ci"), ("days", "7"), ("may.database", "read")];
        let with = |more: &[(&str, &str)]| filled(&[&fine[..], more].concat());
        for (fields, problem) in [
            (
                &[("reach", "projects")][..],
                Some("Choose at least one project."),
            ),
            (
                &[("reach", "organizations")],
                Some("Choose at least one organization."),
            ),
            (
                &[("reach", "account")],
                Some("Tick the box if you mean the whole account."),
            ),
            (&[("reach", "account"), ("sure", "yes")], None),
        ] {
            let reach = with(fields)
                .check(now())
                .err()
                .and_then(|wrong| wrong.reach);
            assert_eq!(reach.as_deref(), problem);
        }
        assert!(
            with(&[]).check(now()).is_err(),
            "nothing is said about what it reaches"
        );
    }
}
