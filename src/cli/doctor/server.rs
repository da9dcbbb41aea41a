//! Checks of the running server: its listeners, and the health that it reports.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use http::StatusCode;
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::result::{CheckResult, CheckSubject};
use crate::{app::config::Config, cli::admin_listener};

const API: CheckSubject = CheckSubject::new("server", "a connection to --listen");
const OPERATOR: CheckSubject =
    CheckSubject::new("operator socket", "a connection to --operator-socket");
const HEALTH: CheckSubject = CheckSubject::new("health", "/healthz on --admin-listen");
const READINESS: CheckSubject = CheckSubject::new("readiness", "/readyz on --admin-listen");

/// Time limit of a connection.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Begin of a line of a health report about something that is missing.
const WARNING: &str = "warning: ";
const START: &str = "Start it, and read its log: journalctl -u gantry";
const LOOK_UP: &str = "Look it up in docs/operating/troubleshooting.md.";

/// Results of the checks of a server.
#[derive(Default)]
pub(super) struct ServerReport {
    pub(super) results: Vec<CheckResult>,
    /// The responses of `/healthz` and `/readyz`, if the server sent them.
    pub(super) health: Option<String>,
}

/// Examines the server with these settings.
pub(super) async fn examine(config: &Config) -> ServerReport {
    let mut report = ServerReport::default();
    // Port 0 is chosen by the kernel.
    if config.api.listen.port() != 0 {
        report.results.push(api(config.api.listen).await);
    }
    if let Some(file) = &config.api.operator_socket {
        report.results.push(operator_socket(file).await);
    }
    if let Some(address) = config.api.admin_listen {
        report.read_health(address).await;
    }
    report
}

async fn api(address: SocketAddr) -> CheckResult {
    match bounded(TcpStream::connect(address)).await {
        Ok(_) => API.ok(format!("it accepts connections at {address}")),
        Err(error) => {
            let finding = format!("it does not accept connections at {address}: {error}");
            API.problem(finding, START)
        }
    }
}

async fn operator_socket(file: &Path) -> CheckResult {
    let shown = file.display();
    match bounded(UnixStream::connect(file)).await {
        Ok(_) => OPERATOR.ok(format!("the server accepts connections at {shown}")),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => OPERATOR.warning(
            format!("this account may not connect to {shown}"),
            "Run `gantry doctor` as the account of the server.",
        ),
        Err(error) => OPERATOR.problem(
            format!("the server does not accept connections at {shown}: {error}"),
            START,
        ),
    }
}

async fn bounded<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(TIMEOUT, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl ServerReport {
    async fn read_health(&mut self, address: SocketAddr) {
        for (subject, path) in [(HEALTH, "healthz"), (READINESS, "readyz")] {
            match admin_listener::get(address, path).await {
                Ok((status, text)) => {
                    self.results.extend(reported(subject, status, &text));
                    let health = self.health.get_or_insert_default();
                    health.extend(["# ", path, "\n", &text]);
                }
                Err(error) => {
                    let finding = format!("{address} does not answer: {error:#}");
                    self.results.push(subject.problem(finding, START));
                }
            }
        }
    }
}

/// Returns the results of a health report: a line for the state, then lines with warnings.
fn reported(subject: CheckSubject, status: StatusCode, text: &str) -> Vec<CheckResult> {
    if !status.is_success() {
        return vec![subject.problem(format!("the server reports: {}", text.trim()), LOOK_UP)];
    }
    let warnings = text.lines().filter_map(|line| line.strip_prefix(WARNING));
    let results: Vec<_> = warnings
        .map(|warning| subject.warning(warning, LOOK_UP))
        .collect();
    if results.is_empty() {
        vec![subject.ok("the server reports no problem")]
    } else {
        results
    }
}

#[cfg(test)]
mod tests {
    use super::{super::result::CheckOutcome, *};

    #[test]
    fn each_warning_of_a_health_report_is_a_result() {
        let outcomes = |status, text| {
            let results = reported(HEALTH, status, text);
            results
                .iter()
                .map(|result| result.outcome)
                .collect::<Vec<_>>()
        };
        let (ok, warning) = (CheckOutcome::Ok, CheckOutcome::Warning);
        assert_eq!(outcomes(StatusCode::OK, "ok\n"), [ok]);
        let text = "ok\nwarning: a\nwarning: b\n";
        assert_eq!(outcomes(StatusCode::OK, text), [warning, warning]);
        let down = reported(READINESS, StatusCode::SERVICE_UNAVAILABLE, "down\n");
        assert_eq!(down[0].outcome, CheckOutcome::Problem);
        assert_eq!(down[0].finding, "the server reports: down");
    }

    #[tokio::test]
    async fn server_that_is_not_started_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let result = operator_socket(&dir.path().join("socket")).await;
        assert_eq!(result.outcome, CheckOutcome::Problem);
        let result = api(SocketAddr::from(([127, 0, 0, 1], 9))).await;
        assert_eq!(result.outcome, CheckOutcome::Problem);
    }
}
