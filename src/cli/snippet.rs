//! `gantry snippet`: create, list and delete SQL snippets. The API only reads them.

use std::{fs::File, io::Read, path::PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use gantry_base::{
    clock::{Clock, Entropy},
    ids::ProjectRef,
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::{
        projects,
        snippets::{self, NewSnippet, SQL_BYTES_MAX, Visibility},
    },
    cli::{
        admin::{CommandOptions, about, user},
        control::OpenControl,
        limits::operator,
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum SnippetCommand {
    /// Save a query. Replaces the snippet with the same name, owner and project.
    Add {
        /// Email address of the owner.
        #[arg(long, value_name = "EMAIL")]
        owner: String,
        /// Ref of the project. The owner must be a member of its organization.
        #[arg(long, value_name = "REF")]
        project: ProjectRef,
        /// Name of the snippet.
        #[arg(long)]
        name: String,
        /// Description.
        #[arg(long)]
        description: Option<String>,
        /// Visibility: the owner only, or all members of the organization.
        #[arg(long, value_enum, default_value_t = Visibility::User)]
        visibility: Visibility,
        /// File with the SQL text.
        file: PathBuf,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Delete a snippet.
    Remove {
        /// Id of the snippet.
        id: Uuid,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl SnippetCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Add {
                owner,
                project,
                name,
                description,
                visibility,
                file,
                common,
            } => {
                let sql = read(&file)?;
                let id = OpenControl::with(&common.control, async |db| {
                    let owner = user(db, &owner).await?.id;
                    let found = projects::of_member(db, owner, &[project.clone()].into()).await?;
                    let found = found.first().with_context(|| {
                        format!("project {project} not found in the user's organizations")
                    })?;
                    let new = NewSnippet {
                        owner,
                        project: found.id,
                        visibility,
                        name: name.clone(),
                        description,
                        sql,
                    };
                    let audit =
                        operator("gantry snippet add")?.about(found.organization, &found.reference);
                    Ok(snippets::add(
                        db,
                        &Entropy::system(),
                        &new,
                        Clock::system().now(),
                        Some(&audit),
                    )
                    .await?)
                })
                .await?;
                common.output.print(&json!({ "id": id, "name": name }), || {
                    format!("Keeping {name} ({id}).")
                })
            }
            Self::Remove { id, common } => {
                OpenControl::with(&common.control, async |db| {
                    let unknown = |error| about("snippet", &id.to_string(), error);
                    let project = snippets::project(db, id).await.map_err(unknown)?;
                    let audit = operator("gantry snippet remove")?
                        .about(project.organization, &project.reference);
                    snippets::remove(db, id, Clock::system().now(), Some(&audit))
                        .await
                        .map_err(unknown)
                })
                .await?;
                common
                    .output
                    .print(&json!({ "id": id }), || format!("Forgot {id}."))
            }
        }
    }
}

/// Reads at most one byte more than a snippet may contain, so that a longer file is rejected with
/// the snippet.
fn read(file: &PathBuf) -> anyhow::Result<String> {
    let unreadable = || format!("cannot read {}", file.display());
    let mut sql = String::new();
    File::open(file)
        .with_context(unreadable)?
        .take(SQL_BYTES_MAX as u64 + 1)
        .read_to_string(&mut sql)
        .with_context(unreadable)?;
    Ok(sql)
}
