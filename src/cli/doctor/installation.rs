//! Checks of the installation by its control database, which is neither started nor migrated.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::clock::Clock;
use tokio::time::timeout;

use super::result::{CheckResult, CheckSubject};
use crate::{
    app::config::ControlOptions,
    cli::control,
    control::installation::status::{BackupStatus, CertificateStatus, InstallationStatus},
    platform::{
        db::{Db, SchemaVersions},
        error::{Context, Error},
    },
};

const DATABASE: CheckSubject = CheckSubject::new("control database", "a connection");
const SCHEMA: CheckSubject = CheckSubject::new("schema", "migrations of the control database");
const CLOCK: CheckSubject = CheckSubject::new("clock", "clock of the control database");
const NODES: CheckSubject = CheckSubject::new("nodes", "leases of nodes");
const PROJECTS: CheckSubject = CheckSubject::new("projects", "statuses of projects");
const BACKUPS: CheckSubject = CheckSubject::new("project backups", "backups and archives");
const CERTIFICATES: CheckSubject = CheckSubject::new(
    "certificates",
    "certificates of custom hostnames and wildcards",
);

/// Time limit of all statements together.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Difference of the clocks from which it is reported.
const OFFSET_WARNING: TimeDelta = TimeDelta::seconds(1);
/// Difference of the clocks from which tokens and signatures are rejected.
const OFFSET_PROBLEM: TimeDelta = TimeDelta::seconds(30);

/// Results of the checks of an installation.
#[derive(Default)]
pub(super) struct InstallationReport {
    pub(super) results: Vec<CheckResult>,
    /// Its state, if the control database answered.
    pub(super) status: Option<InstallationStatus>,
}

/// Examines the installation.
pub(super) async fn examine(options: &ControlOptions, clock: &Clock) -> InstallationReport {
    let mut report = InstallationReport::default();
    let read = async {
        let db = control::running(options)?;
        report.read(&db, clock).await?;
        db.close();
        anyhow::Ok(())
    };
    let outcome = timeout(TIMEOUT, read).await;
    let finding = match outcome {
        Ok(Ok(())) => return report,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("it did not answer within {} seconds", TIMEOUT.as_secs()),
    };
    let remedy = if options.database_url.is_some() {
        "Start the database, or correct --database-url."
    } else {
        "Start the server, which starts it; a running one answers its own account only."
    };
    report.results.push(DATABASE.problem(finding, remedy));
    report
}

impl InstallationReport {
    async fn read(&mut self, db: &Db, clock: &Clock) -> Result<(), Error> {
        let versions = db.schema_versions().await?;
        self.results.push(DATABASE.ok("it accepts connections"));
        self.results.push(schema(versions));
        self.results.push(clock_offset(offset(db, clock).await?));
        let now = clock.now();
        match InstallationStatus::read(db, now).await {
            Ok(status) => {
                self.results.extend(of_status(&status, now));
                self.status = Some(status);
            }
            // A schema of another version may lack a table.
            Err(error) if versions.applied != Some(versions.known) => {
                let finding = format!("their state cannot be read: {error}");
                let remedy = "Resolve the finding about the schema first.";
                self.results.push(PROJECTS.warning(finding, remedy));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn schema(versions: SchemaVersions) -> CheckResult {
    let SchemaVersions { applied, known } = versions;
    match applied {
        None => SCHEMA.warning(
            "no migration was applied to the control database",
            "Start the server, or run `gantry migrate`.",
        ),
        Some(applied) if applied > known => SCHEMA.problem(
            format!("version {applied} is newer than {known}, the newest of this binary"),
            "Use the version of Gantry that migrated it, or a newer one.",
        ),
        Some(applied) if applied < known => SCHEMA.warning(
            format!("version {applied} is older than {known} of this binary"),
            "Restart the server with this binary, or run `gantry migrate`.",
        ),
        Some(applied) => SCHEMA.ok(format!("version {applied}, as this binary")),
    }
}

/// Returns the time by which the control database's clock is ahead of this machine's.
async fn offset(db: &Db, clock: &Clock) -> Result<TimeDelta, Error> {
    let doing = "reading the clock of the control database";
    // The first statement on a connection takes longer, as it is prepared.
    let mut offset = TimeDelta::zero();
    for _ in 0..2 {
        let before = clock.now();
        let rows = db.query("select clock_timestamp()", &[]).await;
        let after = clock.now();
        let rows = rows.context(doing)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::internal(doing, "no row"))?;
        let there: DateTime<Utc> = row.get(0);
        offset = there - (before + (after - before) / 2);
    }
    Ok(offset)
}

fn clock_offset(offset: TimeDelta) -> CheckResult {
    let millis = offset.num_milliseconds();
    let finding = format!("the control database is {millis} ms ahead of this machine");
    let remedy = "Synchronize both with a time server: tokens and signatures depend on it.";
    if offset.abs() > OFFSET_PROBLEM {
        CLOCK.problem(finding, remedy)
    } else if offset.abs() > OFFSET_WARNING {
        CLOCK.warning(finding, remedy)
    } else {
        CLOCK.ok(finding)
    }
}

fn of_status(status: &InstallationStatus, now: DateTime<Utc>) -> Vec<CheckResult> {
    let mut results = vec![nodes(status), projects(status)];
    results.push(backups(&status.backups));
    results.extend(certificates(&status.certificates, now));
    results
}

fn nodes(status: &InstallationStatus) -> CheckResult {
    let down = status.nodes.iter().filter_map(|node| {
        let since = node.down_since?.format("%Y-%m-%d %H:%M:%S UTC");
        Some(format!("{} since {since}", node.name))
    });
    let down: Vec<String> = down.collect();
    if !down.is_empty() {
        NODES.problem(
            format!("down: {}", down.join(", ")),
            "Start the server there, or run `gantry node rebuild` if the machine is lost.",
        )
    } else if status.nodes.is_empty() {
        NODES.warning("no node has been started", "Start the server.")
    } else {
        NODES.ok(format!("{} run", status.nodes.len()))
    }
}

fn projects(status: &InstallationStatus) -> CheckResult {
    let faulty = status.faulty.iter();
    let faulty: Vec<String> = faulty
        .map(|project| format!("{} {}", project.reference, project.status))
        .collect();
    if faulty.is_empty() {
        let count: i64 = status.projects.iter().map(|status| status.count).sum();
        PROJECTS.ok(format!("none of {count} is faulty"))
    } else {
        PROJECTS.problem(
            format!("faulty: {}", faulty.join(", ")),
            "Read `GET /v1/projects/{ref}/health`, which has the reason.",
        )
    }
}

fn backups(backups: &BackupStatus) -> CheckResult {
    let BackupStatus {
        without_backup,
        behind,
        failed_tests,
        ..
    } = backups;
    if *behind > 0 || *failed_tests > 0 {
        BACKUPS.problem(
            format!(
                "{behind} projects shipped no log for 15 minutes, {failed_tests} have a failed test"
            ),
            "Check the store of backups and the server's log: docs/operating/backups.md.",
        )
    } else if *without_backup > 0 {
        BACKUPS.warning(
            format!("{without_backup} running projects have no backup yet"),
            "Wait for their first backup; if none comes, read the server's log.",
        )
    } else {
        BACKUPS.ok("no project is behind")
    }
}

fn certificates(listed: &[CertificateStatus], now: DateTime<Utc>) -> Vec<CheckResult> {
    if listed.is_empty() {
        return vec![CERTIFICATES.ok("none ends within 14 days")];
    }
    let result = |certificate: &CertificateStatus| {
        let CertificateStatus { host, ends, error } = certificate;
        let mut finding = match ends {
            Some(ends) => format!("{host} ends at {}", ends.format("%Y-%m-%d %H:%M UTC")),
            None => format!("{host} has none"),
        };
        if let Some(error) = error {
            finding.extend([": ", error]);
        }
        let remedy = "Follow docs/operating/dns-and-acme.md.";
        if ends.is_none_or(|ends| ends <= now) {
            CERTIFICATES.problem(finding, remedy)
        } else {
            CERTIFICATES.warning(finding, remedy)
        }
    };
    listed.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::result::CheckOutcome, *};

    #[test]
    fn schema_is_compared_with_the_binary() {
        for (applied, expected) in [
            (None, CheckOutcome::Warning),
            (Some(4), CheckOutcome::Warning),
            (Some(5), CheckOutcome::Ok),
            (Some(6), CheckOutcome::Problem),
        ] {
            let result = schema(SchemaVersions { applied, known: 5 });
            assert_eq!(result.outcome, expected, "{applied:?}");
        }
    }

    #[test]
    fn difference_of_clocks_is_judged_in_both_directions() {
        for (millis, expected) in [
            (0, CheckOutcome::Ok),
            (-1_000, CheckOutcome::Ok),
            (1_001, CheckOutcome::Warning),
            (-30_000, CheckOutcome::Warning),
            (30_001, CheckOutcome::Problem),
            (-86_400_000, CheckOutcome::Problem),
        ] {
            let result = clock_offset(TimeDelta::milliseconds(millis));
            assert_eq!(result.outcome, expected, "{millis}");
        }
    }

    #[test]
    fn backups_and_certificates_are_judged() {
        let status = |without_backup, behind, failed_tests| BackupStatus {
            last_completed: None,
            without_backup,
            behind,
            failed_tests,
        };
        for (status, expected) in [
            (status(0, 0, 0), CheckOutcome::Ok),
            (status(1, 0, 0), CheckOutcome::Warning),
            (status(0, 1, 0), CheckOutcome::Problem),
            (status(1, 0, 1), CheckOutcome::Problem),
        ] {
            assert_eq!(backups(&status).outcome, expected, "{status:?}");
        }
        let now = DateTime::UNIX_EPOCH;
        let ends = |days| CertificateStatus {
            host: "a.test".to_owned(),
            ends: Some(now + TimeDelta::days(days)),
            error: None,
        };
        let results = certificates(&[ends(0), ends(3)], now);
        let outcomes: Vec<_> = results.iter().map(|result| result.outcome).collect();
        assert_eq!(outcomes, [CheckOutcome::Problem, CheckOutcome::Warning]);
        assert_eq!(certificates(&[], now).len(), 1);
    }
}
