//! `gantry audit`: export audit logs and verify exported files.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Subcommand;
use gantry_base::ids::OrgSlug;
use serde_json::json;

use crate::{
    cli::{
        admin::{CommandOptions, about},
        control::OpenControl,
        output::Output,
    },
    platform::{
        access::organization_by_slug,
        audit::{
            Chain, Hash, read,
            verify::{self, Verified},
        },
    },
};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Export an audit log to a file, one JSON object per line.
    Export {
        /// Export the audit log of the organization with this slug.
        #[arg(long, required_unless_present = "server")]
        org: Option<OrgSlug>,
        /// Export the audit log of the server: operator commands that concern no organization or
        /// account.
        #[arg(long, conflicts_with = "org")]
        server: bool,
        /// Output file.
        file: PathBuf,
        #[command(flatten)]
        common: CommandOptions,
    },
    /// Verify the hash chain of an exported audit log. Reports the first entry that was changed,
    /// removed or inserted.
    Verify {
        /// Exported file.
        file: PathBuf,
        /// Hash of the last entry, recorded separately. Needed to detect entries removed from the
        /// end.
        #[arg(long, value_name = "HASH")]
        head: Option<Hash>,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

impl AuditCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Export {
                org,
                server: _,
                file,
                common,
            } => {
                let mut out = BufWriter::new(
                    File::create(&file)
                        .with_context(|| format!("cannot write {}", file.display()))?,
                );
                let last = OpenControl::with(&common.control, async |db| {
                    let chain = match &org {
                        Some(org) => Chain::Organization(
                            organization_by_slug(db, org)
                                .await
                                .map_err(|error| about("organization", org.as_str(), error))?,
                        ),
                        None => Chain::Server,
                    };
                    let mut last = 0;
                    loop {
                        let (lines, reached) = read::export(db, chain, last).await?;
                        if reached == last {
                            return Ok(last);
                        }
                        out.write_all(&lines)?;
                        last = reached;
                    }
                })
                .await?;
                out.flush()?;
                common.output.print(&json!({ "entries": last }), || {
                    format!("Wrote {last} entries to {}.", file.display())
                })
            }
            Self::Verify { file, head, output } => {
                let log = BufReader::new(
                    File::open(&file).with_context(|| format!("cannot read {}", file.display()))?,
                );
                let Verified {
                    chain,
                    numbers: (first, last),
                    head: found,
                } = verify::verify(log)?;
                if head.is_some_and(|head| head != found) {
                    anyhow::bail!(
                        "the last hash is {found}, not the expected one: entries after number {last} are missing, or this is a different log"
                    );
                }
                let value = json!({ "chain": chain, "first": first, "last": last, "head": found });
                output.print(&value, || {
                    format!("Entries {first} to {last} of {chain} are intact.\nLast hash: {found}.")
                })
            }
        }
    }
}
