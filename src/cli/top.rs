//! `gantry top`: what the running projects of a node use, refreshed until it is interrupted.

mod sample;
mod usage;

use std::{io::IsTerminal, net::SocketAddr, time::Duration};

use anyhow::Context;
use clap::Args;
use gantry_base::clock::Clock;
use http::StatusCode;
use tokio::time::interval;

use self::{
    sample::Sample,
    usage::{SortKey, between, sort, table},
};
use crate::cli::{admin_listener, output::Output};

/// Escape sequence that clears the terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

#[derive(Debug, Args)]
pub(super) struct TopCommand {
    /// Address of the server's admin listener.
    #[arg(long, env = "GANTRY_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    /// Order of the projects, the largest first.
    #[arg(long, value_enum, default_value_t = SortKey::Cpu)]
    sort: SortKey,
    /// Seconds between two screens. Processor time is measured every five seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600), value_name = "SECONDS")]
    interval: u64,
    /// Number of screens. Default: until it is interrupted on a terminal, otherwise 1.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..), value_name = "NUMBER")]
    count: Option<u64>,
    /// Number of projects on a screen.
    #[arg(long, default_value_t = 30, value_name = "NUMBER")]
    limit: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl TopCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let address = self.admin_listen.context(
            "set --admin-listen of the server, such as 127.0.0.1:9187, restart it, and give the \
             same address here",
        )?;
        let is_terminal = self.output.is_text() && std::io::stdout().is_terminal();
        let count = self.count.unwrap_or(if is_terminal { u64::MAX } else { 1 });
        let mut earlier = read(address).await?;
        let clock = Clock::system();
        let mut read_at = clock.ticks();
        let mut due = interval(Duration::from_secs(self.interval));
        // The first tick is due at once.
        due.tick().await;
        for _ in 0..count {
            due.tick().await;
            let later = read(address).await?;
            let now = clock.ticks();
            let between_reads = Duration::from_millis(now.saturating_sub(read_at));
            read_at = now;
            let mut projects = between(&earlier, &later, between_reads.as_secs_f64());
            sort(&mut projects, self.sort);
            earlier = later;
            if is_terminal {
                anstream::print!("{CLEAR}");
            }
            self.output
                .print(&projects, || table(&projects, self.limit))?;
        }
        Ok(())
    }
}

async fn read(address: SocketAddr) -> anyhow::Result<Sample> {
    let (status, page) = admin_listener::get(address, "metrics")
        .await
        .with_context(|| format!("the server does not answer at {address}"))?;
    anyhow::ensure!(
        status == StatusCode::OK,
        "{address} answers {status} at /metrics; is it the admin listener?"
    );
    Ok(Sample::parse(&page))
}
