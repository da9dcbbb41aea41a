//! `gantry snippet`: the way in for SQL snippets, which the API only lets read.

use std::{fs::File, io::Read, path::PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::{
        projects, snippets,
        snippets::{NewSnippet, SQL_BYTES_MAX, Visibility},
    },
    base::{
        clock::{Clock, Entropy},
        ids::ProjectRef,
    },
    cli::{
        admin::{Common, about, user},
        control::OpenControl,
        limits::operator,
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum Snippet {
    /// Keep a query under a name. One of the same name, owner and project is replaced.
    Add {
        /// Address of the user whose it is.
        #[arg(long, value_name = "EMAIL")]
        owner: String,
        /// Ref of the project it is about; the owner belongs to its organization.
        #[arg(long, value_name = "REF")]
        project: ProjectRef,
        /// What it is called.
        #[arg(long)]
        name: String,
        /// What it is for.
        #[arg(long)]
        description: Option<String>,
        /// Who sees it: the owner, or every member of the project's organization.
        #[arg(long, value_enum, default_value_t = Visibility::User)]
        visibility: Visibility,
        /// File with the SQL.
        file: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Forget a query.
    Remove {
        /// Its id.
        id: Uuid,
        #[command(flatten)]
        common: Common,
    },
}

impl Snippet {
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
                        format!("the user belongs to no organization with a project {project}")
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

/// The file's text, as much of it as can be kept and a byte: more is refused with the snippet.
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
