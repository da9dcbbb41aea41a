//! What a person types. Parsing and printing only; the work is done by the slices.

mod admin;
mod application;
mod audit;
mod check;
mod control;
mod databases;
mod dev;
mod edges;
mod engine;
mod files;
mod generate;
mod hostname;
mod key_check;
mod limits;
mod node;
mod output;
mod secret;
mod serve;
mod snippet;
mod token;
mod upstream;
mod with_postgres;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    app::config::Config,
    data_plane::{clusters, clusters::LaunchPlan},
};

/// Self-hosted Management API: organizations, projects that are real PostgreSQL clusters, tokens, limits.
#[derive(Debug, Parser)]
#[command(
    name = "gantry",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start everything on this machine with no configuration: the quickest way to look around.
    Dev(dev::Dev),
    /// Start the server for production.
    Serve(Box<Config>),
    /// Bring the control database up to this version.
    Migrate(admin::Migrate),
    /// Manage users.
    #[command(subcommand)]
    User(admin::User),
    /// Manage organizations.
    #[command(subcommand)]
    Org(admin::Org),
    /// Manage members of organizations.
    #[command(subcommand)]
    Member(admin::Member),
    /// Manage personal access tokens.
    #[command(subcommand)]
    Token(token::Token),
    /// Say which OAuth applications are who they say they are.
    #[command(subcommand)]
    Application(application::Application),
    /// Keep SQL snippets for people to find.
    #[command(subcommand)]
    Snippet(snippet::Snippet),
    /// Keep the audit log elsewhere, and check what was kept.
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Raise or lower limits.
    #[command(subcommand)]
    Limits(limits::Limits),
    /// Say where services of single projects answer.
    #[command(subcommand)]
    Upstream(upstream::Upstream),
    /// Say for which projects API keys are checked at the edge.
    #[command(subcommand)]
    KeyCheck(key_check::KeyCheck),
    /// Say which custom hostnames are not served.
    #[command(subcommand)]
    Hostname(hostname::Hostname),
    /// Write the files that derive from the code: the OpenAPI document, tables and requests.
    Generate(generate::Generate),
    /// Look after data folders that were copied or moved.
    #[command(subcommand)]
    Node(node::Node),
    /// List and install PostgreSQL versions.
    #[command(subcommand)]
    Engine(engine::Engine),
    /// Look whether this machine has what Gantry needs.
    Check(check::Check),
    /// Become a PostgreSQL server: how Gantry starts servers. Not for people.
    #[command(hide = true)]
    Launch(LaunchPlan),
    /// Run a command beside a throw-away PostgreSQL: how the tests get theirs.
    #[command(hide = true)]
    WithPostgres(with_postgres::WithPostgres),
}

/// Parses the command line, does what it says, and tells how it went.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Command::Launch(plan) = &command {
        // Before any thread: what follows applies to this thread and what it becomes.
        return failure(clusters::launch(plan).map(|never| match never {}));
    }
    if command.keeps_files() {
        // Before any thread and any file: a later look at modes would come too late.
        clusters::home::keep_files_private();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failure(Err::<(), _>(error)),
    };
    let outcome = runtime.block_on(run(command));
    // A blocking copy may still run; it leaves only what the next start clears.
    runtime.shutdown_background();
    failure(outcome)
}

impl Command {
    /// Whether the command may write into a data folder. The others write for other programs to read.
    fn keeps_files(&self) -> bool {
        !matches!(
            self,
            Self::Generate(_) | Self::WithPostgres(_) | Self::Check(_)
        )
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(dev) => dev.run().await,
        Command::Serve(config) => serve::serve(*config).await,
        Command::Migrate(migrate) => migrate.run().await,
        Command::User(user) => user.run().await,
        Command::Org(org) => org.run().await,
        Command::Member(member) => member.run().await,
        Command::Token(token) => token.run().await,
        Command::Application(application) => application.run().await,
        Command::Snippet(snippet) => snippet.run().await,
        Command::Audit(audit) => audit.run().await,
        Command::Limits(limits) => limits.run().await,
        Command::Upstream(upstream) => upstream.run().await,
        Command::KeyCheck(key_check) => key_check.run().await,
        Command::Hostname(hostname) => hostname.run().await,
        Command::Generate(generate) => generate.run(),
        Command::Node(node) => node.run().await,
        Command::Engine(engine) => engine.run().await,
        Command::Check(check) => check.run().await,
        Command::WithPostgres(with) => with.run().await,
        Command::Launch(_) => anyhow::bail!("launched before the runtime started"),
    }
}

/// One clear line on standard error and exit code 1, or nothing and 0.
fn failure<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("gantry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command line's definition, for the page generated from it.
pub fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_is_sound() {
        super::definition().debug_assert();
    }
}
