//! Commands of the pooler's console, by its Unix socket and the login of the role in its folder.

use std::{collections::BTreeMap, io, time::Duration};

use gantry_base::ids::ProjectId;
use gantry_node::kits::Service;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

use super::identity::{ROLE, USERS};
use crate::{
    control::{context::ControlContext, services::instance::RunningInstance},
    proxy::{postgres_proxy::CONSOLE, service_proxy::upstreams::UpstreamAddress},
};

/// Longest time of a command.
const COMMAND_MAX: Duration = Duration::from_secs(5);

/// Rows of an answer: values by the names of their columns.
pub(super) type ConsoleRows = Vec<BTreeMap<String, String>>;

/// Sends a command to a process, and returns the rows of its answer.
pub(super) async fn command(running: &RunningInstance, text: &str) -> io::Result<ConsoleRows> {
    command_within(running, text, COMMAND_MAX).await
}

/// Does [`command`] with another bound on its time.
pub(super) async fn command_within(
    running: &RunningInstance,
    text: &str,
    patience: Duration,
) -> io::Result<ConsoleRows> {
    let UpstreamAddress::Unix(socket) = &running.address else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let password = password(&running.folder.read(USERS)?)?;
    let exchange = async {
        let stream = socket.connect().await?;
        let (client, connection) = Config::new()
            .user(ROLE)
            .dbname(CONSOLE)
            .password(password.expose_secret())
            .connect_raw(stream, NoTls)
            .await
            .map_err(io::Error::other)?;
        let answer = async {
            let answer = client.simple_query(text).await;
            drop(client);
            answer
        };
        let (answer, _) = tokio::join!(answer, connection);
        Ok(rows(&answer.map_err(io::Error::other)?))
    };
    timeout(patience, exchange).await?
}

/// Returns the number of server connections that are logging in.
pub(super) async fn logins(running: &RunningInstance) -> io::Result<f64> {
    let pools = command(running, "SHOW POOLS").await?;
    Ok(sum(&pools, "sv_login"))
}

/// Returns the sum of a column, without the row of the console.
fn sum(rows: &ConsoleRows, name: &str) -> f64 {
    let rows = rows.iter().filter(|row| row["database"] != CONSOLE);
    let value = |row: &BTreeMap<String, String>| row.get(name)?.parse::<f64>().ok();
    rows.filter_map(value).sum()
}

/// Returns the password of the role of a process.
pub(super) fn own_password(running: &RunningInstance) -> Option<SecretString> {
    password(&running.folder.read(USERS).ok()?).ok()
}

/// Returns the password in the file of users.
fn password(users: &str) -> io::Result<SecretString> {
    let mut quoted = users.split('"');
    let password = quoted.nth(3).filter(|password| !password.is_empty());
    password
        .map(SecretString::from)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file of users is damaged"))
}

fn rows(answer: &[SimpleQueryMessage]) -> ConsoleRows {
    let mut all = ConsoleRows::new();
    for message in answer {
        if let SimpleQueryMessage::Row(row) = message {
            let names = row.columns().iter().map(|column| column.name().to_owned());
            let values = (0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned());
            all.push(names.zip(values).collect());
        }
    }
    all
}

/// A setting of a running pooler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigValue {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Returns the settings that the running pooler of a project reports. `None` if none runs.
pub async fn show_config(
    context: &ControlContext,
    project: ProjectId,
) -> Option<io::Result<Vec<ConfigValue>>> {
    let running = context.services.running(project, Service::Pooler)?;
    let rows = command(&running, "SHOW CONFIG").await;
    let value = |mut row: BTreeMap<String, String>| {
        Some(ConfigValue {
            name: row.remove("key")?,
            value: row.remove("value")?,
        })
    };
    Some(rows.map(|rows| rows.into_iter().filter_map(value).collect()))
}

/// Figures of a running pooler since its start. Those of the console itself are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PoolerFigures {
    /// Clients with a server connection, or without a request.
    pub clients_active: f64,
    /// Clients that wait for a server connection.
    pub clients_waiting: f64,
    /// Server connections that a client has.
    pub servers_active: f64,
    /// Server connections that no client has.
    pub servers_idle: f64,
    /// Time for which the oldest waiting client has waited, in seconds.
    pub longest_wait: f64,
    /// Transactions.
    pub transactions: f64,
    /// Queries.
    pub queries: f64,
    /// Bytes that clients sent.
    pub bytes_received: f64,
    /// Bytes that clients received.
    pub bytes_sent: f64,
    /// Time for which clients waited for server connections, in seconds.
    pub waited: f64,
}

/// Returns the figures of the running pooler of a project. `None` if none runs or answers.
pub async fn figures(context: &ControlContext, project: ProjectId) -> Option<PoolerFigures> {
    let running = context.services.running(project, Service::Pooler)?;
    let pools = command(&running, "SHOW POOLS").await.ok()?;
    let totals = command(&running, "SHOW STATS_TOTALS").await.ok()?;
    Some(PoolerFigures::of(&pools, &totals))
}

impl PoolerFigures {
    fn of(pools: &ConsoleRows, totals: &ConsoleRows) -> Self {
        let longest = |row: &BTreeMap<String, String>| {
            let part = |name: &str| row.get(name).and_then(|text| text.parse::<f64>().ok());
            part("maxwait").unwrap_or_default() + part("maxwait_us").unwrap_or_default() / 1e6
        };
        let servers_idle = ["sv_idle", "sv_used", "sv_tested"];
        Self {
            clients_active: sum(pools, "cl_active"),
            clients_waiting: sum(pools, "cl_waiting"),
            servers_active: sum(pools, "sv_active"),
            servers_idle: servers_idle.iter().map(|name| sum(pools, name)).sum(),
            longest_wait: pools.iter().map(longest).fold(0.0, f64::max),
            transactions: sum(totals, "xact_count"),
            queries: sum(totals, "query_count"),
            bytes_received: sum(totals, "bytes_received"),
            bytes_sent: sum(totals, "bytes_sent"),
            waited: sum(totals, "wait_time") / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_sums_without_the_console() {
        let rows = |rows: &[&[(&str, &str)]]| -> ConsoleRows {
            let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let row = |row: &&[(&str, &str)]| row.iter().map(pair).collect();
            rows.iter().map(row).collect()
        };
        let pools = rows(&[
            &[
                ("database", "a"),
                ("cl_active", "2"),
                ("sv_idle", "1"),
                ("sv_used", "3"),
            ],
            &[
                ("database", "b"),
                ("cl_active", "5"),
                ("maxwait", "1"),
                ("maxwait_us", "500000"),
            ],
            &[("database", CONSOLE), ("cl_active", "1")],
        ]);
        let totals = rows(&[&[
            ("database", "a"),
            ("xact_count", "9"),
            ("wait_time", "2000000"),
        ]]);
        let figures = PoolerFigures::of(&pools, &totals);
        let expected = PoolerFigures {
            clients_active: 7.0,
            servers_idle: 4.0,
            longest_wait: 1.5,
            transactions: 9.0,
            waited: 2.0,
            ..PoolerFigures::default()
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn password_is_read_from_the_file_of_users() {
        let read = |text| password(text).map(|found| found.expose_secret().to_owned());
        assert_eq!(read("\"pgbouncer\" \"x-Y_1\"\n").unwrap(), "x-Y_1");
        for damaged in ["", "\"pgbouncer\"", "\"pgbouncer\" \"\""] {
            assert!(read(damaged).is_err(), "{damaged}");
        }
    }
}
