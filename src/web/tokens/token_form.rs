//! The form of a new token: parsed from the request, stored as a draft for the review, converted
//! to the body of the operation.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use gantry_base::ids::OrganizationId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{permission_groups, permission_groups::PermissionRow};
use crate::platform::{
    access::{Permission, Reach, Role},
    names,
};

/// Prefix of the fields with the level of a permission row.
const LEVEL_PREFIX: &str = "may.";
/// Default lifetime, in days.
const DAYS_DEFAULT: &str = "7";
/// Maximum lifetime, in days.
const DAYS_MAX: i64 = 365;

/// The values of the form.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct ScopedTokenForm {
    pub(super) name: String,
    /// `1`, `7`, `30`, `90` or `custom`.
    pub(super) days: String,
    /// The last day (`YYYY-MM-DD`), if `days` is `custom`.
    pub(super) until: String,
    /// `projects`, `organizations` or `account`.
    pub(super) reach: String,
    pub(super) projects: BTreeSet<String>,
    pub(super) organizations: BTreeSet<String>,
    /// Confirms `account`.
    pub(super) sure: bool,
    /// `read` or `write`, by key of the permission row.
    pub(super) levels: BTreeMap<String, String>,
    pub(super) networks: String,
    pub(super) search: String,
}

/// Error messages by field.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ScopedTokenErrors {
    pub(super) name: Option<String>,
    pub(super) days: Option<String>,
    pub(super) reach: Option<String>,
    pub(super) permissions: Option<String>,
    pub(super) networks: Option<String>,
    pub(super) other: Option<String>,
}

impl ScopedTokenErrors {
    /// Returns the errors for a field of the body that an operation rejected.
    pub(super) fn from_operation(field: &str, problem: String) -> Self {
        let mut errors = Self::default();
        *match field {
            "name" => &mut errors.name,
            "expires_at" | "expires_in_days" => &mut errors.days,
            "project_refs" | "organization_slugs" => &mut errors.reach,
            "permissions" => &mut errors.permissions,
            "networks" => &mut errors.networks,
            _ => &mut errors.other,
        } = Some(problem);
        errors
    }
}

impl ScopedTokenForm {
    /// Returns the empty form.
    pub(super) fn new() -> Self {
        Self {
            days: DAYS_DEFAULT.to_owned(),
            reach: "projects".to_owned(),
            ..Self::default()
        }
    }

    /// Parses the fields of the request.
    pub(super) fn parse(fields: Vec<(String, String)>) -> Self {
        let mut form = Self::default();
        for (name, value) in fields {
            match name.as_str() {
                "name" => form.name = value,
                "days" => form.days = value,
                "until" => form.until = value,
                "reach" => form.reach = value,
                "project" => drop(form.projects.insert(value)),
                "organization" => drop(form.organizations.insert(value)),
                "sure" => form.sure = true,
                "networks" => form.networks = value,
                "search" => form.search = value,
                _ => {
                    if let Some(row) = name.strip_prefix(LEVEL_PREFIX).filter(|_| value != "none") {
                        form.levels.insert(row.to_owned(), value);
                    }
                }
            }
        }
        form
    }

    /// Returns the level of a row.
    pub(super) fn level(&self, row: &PermissionRow) -> &str {
        self.levels.get(row.key).map_or("none", String::as_str)
    }

    /// Sets every row to a level, as far as the token resources and the role permit.
    pub(super) fn apply_preset(&mut self, level: &str, role: Role) {
        let is_usable = |permissions: &[Permission]| {
            permissions.iter().all(|it| self.covers(*it))
                && role >= PermissionRow::required_role(permissions)
        };
        let level_of = |row: &PermissionRow| match level {
            "write" if !row.write.is_empty() && is_usable(row.write) => Some("write"),
            "read" | "write" if is_usable(row.read) => Some("read"),
            _ => None,
        };
        self.levels = permission_groups::rows()
            .filter_map(|row| Some((row.key.to_owned(), level_of(row)?.to_owned())))
            .collect();
    }

    /// Returns whether the permission applies to the chosen token resources.
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

    /// Returns the granted permissions. Rows that do not apply to the token resources are hidden
    /// and therefore ignored.
    pub(super) fn permissions(&self) -> Vec<Permission> {
        let granted = permission_groups::rows()
            .flat_map(|row| row.granted(self.level(row)).collect::<Vec<_>>());
        granted.filter(|it| self.covers(*it)).collect()
    }

    /// Returns the expiry; nothing if it is invalid, past, or more than a year ahead.
    pub(super) fn expiry(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
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

    /// Returns the last day that can be chosen.
    pub(super) fn last_day(now: DateTime<Utc>) -> String {
        (now + TimeDelta::days(DAYS_MAX)).date_naive().to_string()
    }

    /// Returns the networks, which are separated by commas, spaces or line ends.
    pub(super) fn networks(&self) -> Vec<&str> {
        self.networks
            .split([',', '\n', ' '])
            .map(str::trim)
            .filter(|network| !network.is_empty())
            .collect()
    }

    /// Validates the form before the operation is called.
    pub(super) fn validate(&self, now: DateTime<Utc>) -> Result<(), Box<ScopedTokenErrors>> {
        let reach = match self.reach.as_str() {
            "organizations" if self.organizations.is_empty() => {
                Some("Choose at least one organization.")
            }
            "account" if !self.sure => Some("Confirm access to the whole account."),
            "organizations" | "account" => None,
            _ if self.reach != "projects" || self.projects.is_empty() => {
                Some("Choose at least one project.")
            }
            _ => None,
        };
        let errors = ScopedTokenErrors {
            name: names::check("name", self.name.trim(), 256)
                .is_err()
                .then(|| "Enter a name of 1 to 256 visible characters.".to_owned()),
            days: self
                .expiry(now)
                .is_none()
                .then(|| "Choose a date between today and one year from now.".to_owned()),
            reach: reach.map(str::to_owned),
            permissions: self
                .permissions()
                .is_empty()
                .then(|| "Choose at least one permission.".to_owned()),
            ..ScopedTokenErrors::default()
        };
        let is_valid = errors.name.is_none()
            && errors.days.is_none()
            && errors.reach.is_none()
            && errors.permissions.is_none();
        if is_valid {
            Ok(())
        } else {
            Err(Box::new(errors))
        }
    }

    /// Returns the limits of the token as the body of an operation.
    pub(super) fn limits(&self) -> Value {
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

    fn form(fields: &[(&str, &str)]) -> ScopedTokenForm {
        ScopedTokenForm::parse(
            fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn expiry_is_within_a_year() {
        for (days, until, expected) in [
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
            let expiry = form(&[("days", days), ("until", until)]).expiry(now());
            assert_eq!(
                expiry,
                expected.map(|end| end.parse().unwrap()),
                "{days} {until}"
            );
        }
    }

    #[test]
    fn permissions_are_limited_to_the_token_resources() {
        let levels = [
            ("may.database", "read"),
            ("may.members", "write"),
            ("may.organizations", "write"),
            ("may.logs", "none"),
        ];
        let names = |reach: &str| {
            let form = form(&[&[("reach", reach)][..], &levels].concat());
            form.permissions()
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
    fn preset_is_limited_by_resources_and_role() {
        let mut form = form(&[("reach", "projects")]);
        form.apply_preset("write", Role::Developer);
        let level = |key: &str| form.levels.get(key).map(String::as_str);
        assert_eq!(
            [
                level("database"),
                level("project"),
                level("members"),
                level("logs")
            ],
            [Some("write"), Some("read"), None, Some("read")]
        );
        form.apply_preset("none", Role::Owner);
        assert!(form.levels.is_empty());
    }

    #[test]
    fn form_without_resources_is_rejected() {
        let valid = [("name", "ci"), ("days", "7"), ("may.database", "read")];
        let with = |more: &[(&str, &str)]| form(&[&valid[..], more].concat());
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
                Some("Confirm access to the whole account."),
            ),
            (&[("reach", "account"), ("sure", "yes")], None),
        ] {
            let reach = with(fields)
                .validate(now())
                .err()
                .and_then(|errors| errors.reach);
            assert_eq!(reach.as_deref(), problem);
        }
        assert!(with(&[]).validate(now()).is_err(), "no token resources");
    }
}
