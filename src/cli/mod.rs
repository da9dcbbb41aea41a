//! The command line: parsing, dispatch and output.

mod admin;
mod admin_listener;
mod application;
mod audit;
mod backup;
mod branch;
mod check;
mod command_line;
mod config;
mod control;
mod databases;
mod dev;
mod doctor;
mod edges;
mod engine;
mod extension;
mod files;
mod generate;
mod hostname;
mod import;
mod init;
mod key;
mod key_check;
mod limits;
mod listeners;
mod logs;
mod moves;
mod node;
mod output;
mod package_files;
mod project;
mod recover;
mod secret;
mod serve;
mod server_config;
mod service;
mod snippet;
mod status;
mod token;
mod top;
mod upstream;
mod with_postgres;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use gantry_node::{
    clusters::{self, LaunchPlan, UpgradeLaunchPlan},
    services::launch::ServiceLaunchPlan,
};

use self::{command_line::CommandLine, serve::LoadedConfig};
use crate::{app::config::Config, control::services};

/// Self-hosted Management API for projects that are real PostgreSQL clusters.
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

    /// Configuration file (TOML) with settings for which neither flag nor variable is given.
    /// `gantry server-config example` prints one with every setting.
    #[arg(long, env = command_line::FILE_VARIABLE, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start Gantry on this machine without configuration, to try it out.
    Dev(dev::DevCommand),
    /// Start the server for production.
    Serve(Box<Config>),
    /// Write the configuration file of a first production server, and show the next steps.
    Init(Box<init::InitCommand>),
    /// Show nodes, projects by state, open work, backups and certificates.
    Status(status::StatusCommand),
    /// Show what running projects use: processor time, memory, disk, connections and requests.
    Top(top::TopCommand),
    /// Check, show and compare configuration files of the server.
    #[command(subcommand)]
    ServerConfig(server_config::ServerConfigCommand),
    /// Apply migrations to the control database.
    Migrate(admin::MigrateCommand),
    /// Manage users.
    #[command(subcommand)]
    User(admin::UserCommand),
    /// Manage organizations.
    #[command(subcommand)]
    Org(admin::OrgCommand),
    /// Manage members of organizations.
    #[command(subcommand)]
    Member(admin::MemberCommand),
    /// Manage personal access tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Verify OAuth applications.
    #[command(subcommand)]
    Application(application::ApplicationCommand),
    /// Manage SQL snippets.
    #[command(subcommand)]
    Snippet(snippet::SnippetCommand),
    /// Export and verify audit logs.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Manage rate limit overrides.
    #[command(subcommand)]
    Limits(limits::LimitsCommand),
    /// Manage upstream URLs of single projects.
    #[command(subcommand)]
    Upstream(upstream::UpstreamCommand),
    /// Manage the API key check of single projects.
    #[command(subcommand)]
    KeyCheck(key_check::KeyCheckCommand),
    /// List, delete, expire and mask branches.
    #[command(subcommand)]
    Branch(branch::BranchCommand),
    /// Export, plan and apply the settings of a project or an organization as a file.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Import a database, or settings and functions, into a project.
    Import(import::ImportCommand),
    /// List and purge deleted projects.
    #[command(subcommand)]
    Project(project::ProjectCommand),
    /// Block custom hostnames.
    #[command(subcommand)]
    Hostname(hostname::HostnameCommand),
    /// Generate the OpenAPI document, reference tables and sample requests.
    Generate(generate::GenerateCommand),
    /// Manage copied or moved data folders.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Write, list and verify snapshots of this installation in the store of backups.
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Export the sealing key.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Recover an installation from the store of backups into an empty data folder.
    Recover(Box<recover::RecoverCommand>),
    /// Check and repair stored log lines.
    #[command(subcommand)]
    Logs(logs::LogsCommand),
    /// List and install PostgreSQL versions.
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// List, install and permit extensions of PostgreSQL.
    #[command(subcommand)]
    Extension(extension::ExtensionCommand),
    /// List, install, verify and remove programs for the services of projects.
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Check the requirements of this machine.
    Check(check::CheckCommand),
    /// Print the completion script of a shell.
    Completion(package_files::CompletionCommand),
    /// Examine an installation: configuration, machine, control database, projects and backups.
    ///
    /// Problems come first, each with its remedy; the exit code is 1 if there is one. Neither a
    /// running server nor root is needed. It takes the options of `gantry serve`.
    Doctor(doctor::DoctorCommand),
    /// Replace this process with a PostgreSQL server. Internal: used to start servers.
    #[command(hide = true)]
    Launch(LaunchPlan),
    /// Replace this process with an instance of a service. Internal: used to start services.
    #[command(hide = true)]
    LaunchService(ServiceLaunchPlan),
    /// Replace this process with `pg_upgrade`. Internal: used to upgrade projects.
    #[command(hide = true)]
    LaunchUpgrade(UpgradeLaunchPlan),
    /// Run a command with a temporary control cluster. Internal: used by the tests.
    #[command(hide = true)]
    WithPostgres(with_postgres::WithPostgres),
}

/// Parses the command line, runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let line = CommandLine::of_process();
    let parsed = line.parse().unwrap_or_else(|error| error.exit());
    let values = parsed.values;
    let Cli { command, config } = parsed.cli;
    if let Command::Launch(plan) = &command {
        // Must run before any thread starts: the confinement applies to this thread and to the
        // program that replaces it.
        return failure(clusters::launch(plan).map(|never| match never {}));
    }
    if let Command::LaunchService(plan) = &command {
        return failure(services::launch(plan).map(|never| match never {}));
    }
    if let Command::LaunchUpgrade(plan) = &command {
        return failure(clusters::upgrade::launch(plan).map(|never| match never {}));
    }
    if command.keeps_files() {
        // Must run before any thread starts and any file is created.
        clusters::home::keep_files_private();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failure(Err::<(), _>(error)),
    };
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(config) => {
                let loaded = LoadedConfig::new(line, values);
                Box::pin(serve::serve(*config, loaded)).await
            }
            Command::ServerConfig(command) => command.run(config),
            Command::Doctor(doctor) => Box::pin(doctor.run(&line, values, config)).await,
            other => run(other).await,
        }
    });
    // A blocking copy may still run; the next start removes its partial result.
    runtime.shutdown_background();
    failure(outcome)
}

impl Command {
    /// Whether the command may write into a data folder. Files of other commands must be readable
    /// by other programs.
    fn keeps_files(&self) -> bool {
        !matches!(
            self,
            Self::Generate(_)
                | Self::WithPostgres(_)
                | Self::Check(_)
                | Self::Config(_)
                | Self::ServerConfig(_)
                | Self::Init(_)
                | Self::Completion(_)
                | Self::Top(_)
        )
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(dev) => Box::pin(dev.run()).await,
        Command::Status(status) => status.run().await,
        Command::Top(top) => top.run().await,
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
        Command::Branch(branch) => branch.run().await,
        Command::Config(config) => config.run().await,
        Command::Import(import) => import.run().await,
        Command::Project(project) => project.run().await,
        Command::Hostname(hostname) => hostname.run().await,
        Command::Generate(generate) => generate.run(),
        Command::Node(node) => node.run().await,
        Command::Backup(backup) => backup.run().await,
        Command::Key(key) => key.run().await,
        Command::Recover(recover) => recover.run().await,
        Command::Logs(logs) => logs.run().await,
        Command::Engine(engine) => engine.run().await,
        Command::Extension(extension) => extension.run().await,
        Command::Service(service) => service.run().await,
        Command::Check(check) => check.run().await,
        Command::Init(init) => init.run(),
        Command::Completion(completion) => {
            completion.run();
            Ok(())
        }
        Command::WithPostgres(with) => with.run().await,
        Command::Serve(_)
        | Command::ServerConfig(_)
        | Command::Doctor(_)
        | Command::Launch(_)
        | Command::LaunchService(_)
        | Command::LaunchUpgrade(_) => anyhow::bail!("this command is run by `main`"),
    }
}

/// Returns exit code 0, or prints the error as one line on standard error and returns 1.
fn failure<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("gantry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the definition of the command line, for the generated reference.
pub fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_definition_is_valid() {
        super::definition().debug_assert();
    }
}
