//! `gantry key`: export the sealing key for safekeeping.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Subcommand;
use gantry_base::clock::{Clock, Entropy};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use uuid::Uuid;

use crate::{
    cli::{admin::CommandOptions, control::OpenControl, secret},
    platform::{
        db::Db,
        exported_key::{DOCUMENT_BYTES_MAX, ExportedKey, PASSPHRASE_CHARS_MIN},
        sealing::{self, SealingKey},
    },
};

/// Largest file with a passphrase, in bytes.
const PASSPHRASE_BYTES_MAX: u64 = 1024;
const OTHER_KEY: &str = "the control database is encrypted with a different sealing key: set --sealing-key to the key file that the server uses";

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Write the sealing key to a file, sealed under a passphrase. `gantry recover` needs it.
    ///
    /// The passphrase is read from the terminal, from standard input or from a file. Keep the
    /// exported file and the passphrase at two places, neither of them on this machine.
    Export {
        /// File to write. It must not exist.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// File with the passphrase, in one line.
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        /// File with the sealing key. Default: `sealing-key` in the data folder.
        #[arg(long, env = "GANTRY_SEALING_KEY", value_name = "FILE")]
        sealing_key: Option<PathBuf>,
        #[command(flatten)]
        common: CommandOptions,
    },
}

impl KeyCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self::Export {
            out,
            passphrase_file,
            sealing_key,
            common,
        } = self;
        anyhow::ensure!(
            !out.exists(),
            "{} exists; choose another file",
            out.display()
        );
        let file = sealing_key.unwrap_or_else(|| common.control.home().join("sealing-key"));
        let text = sealing::read_text(&file)?;
        let key = SealingKey::read(&file)?;
        let passphrase = new_passphrase(passphrase_file.as_deref())?;
        let exported = OpenControl::with(&common.control, async |db| {
            export(db, &key, &text, &passphrase, &out).await
        })
        .await?;
        let value = json!({ "file": out, "fingerprint": exported.fingerprint });
        common.output.print(&value, || {
            format!(
                "Wrote {} with the sealing key {}.\nKeep it away from this machine and from the backups, and the passphrase somewhere else. \
                 `gantry recover` needs both.",
                out.display(),
                exported.fingerprint
            )
        })
    }
}

/// Writes the file, then records the export.
async fn export(
    db: &Db,
    key: &SealingKey,
    text: &SecretString,
    passphrase: &SecretString,
    out: &Path,
) -> anyhow::Result<ExportedKey> {
    anyhow::ensure!(key.fits(db).await?, OTHER_KEY);
    let rows = db.query("select id from installation", &[]).await?;
    let installation: Uuid = rows
        .first()
        .context("the control database has no id")?
        .get(0);
    let now = Clock::system().now();
    let exported = ExportedKey::seal(
        text,
        passphrase,
        installation.to_string(),
        &Entropy::system(),
        now,
    )?;
    // Opened before it counts: the file is read in an emergency.
    let document = serde_json::to_string_pretty(&exported)? + "\n";
    let opened = ExportedKey::parse(&document)?.open(passphrase)?;
    anyhow::ensure!(
        opened.expose_secret() == text.expose_secret(),
        "the exported key does not open"
    );
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(out)
        .and_then(|mut file| {
            file.write_all(document.as_bytes())?;
            file.sync_all()
        });
    written.with_context(|| format!("cannot write {}", out.display()))?;
    db.query("update sealing set exported_at = $1", &[&now])
        .await
        .context("the key was exported, but this could not be recorded")?;
    Ok(exported)
}

/// Returns a new passphrase, and asks for it twice on a terminal.
fn new_passphrase(file: Option<&Path>) -> anyhow::Result<SecretString> {
    let passphrase = match file {
        Some(file) => read_passphrase(file)?,
        None => secret::ask_new("Passphrase")?,
    };
    let length = passphrase.expose_secret().chars().count();
    anyhow::ensure!(
        length >= PASSPHRASE_CHARS_MIN,
        "the passphrase has {length} characters, and at least {PASSPHRASE_CHARS_MIN} are needed; four or more random words are good"
    );
    Ok(passphrase)
}

fn read_passphrase(file: &Path) -> anyhow::Result<SecretString> {
    let unreadable = || format!("cannot read {}", file.display());
    let size = fs::metadata(file).with_context(unreadable)?.len();
    let text = (size <= PASSPHRASE_BYTES_MAX)
        .then(|| fs::read_to_string(file))
        .transpose()
        .with_context(unreadable)?
        .map(SecretString::from);
    text.map(|text| SecretString::from(text.expose_secret().trim_end_matches(['\r', '\n'])))
        .filter(|text| !text.expose_secret().is_empty() && !text.expose_secret().contains('\n'))
        .with_context(|| format!("{} does not have exactly one line", file.display()))
}

/// Reads a sealing key: the server's key file, or an exported key with its passphrase. Returns the
/// text of the key as well.
pub(super) fn read_any(
    file: &Path,
    passphrase_file: Option<&Path>,
) -> anyhow::Result<(SealingKey, SecretString)> {
    let unreadable = || format!("cannot read {}", file.display());
    let size = fs::metadata(file).with_context(unreadable)?.len();
    anyhow::ensure!(
        size <= DOCUMENT_BYTES_MAX,
        "{} is neither a sealing key nor an exported one: it is too large",
        file.display()
    );
    let is_document = fs::read(file)
        .with_context(unreadable)?
        .trim_ascii_start()
        .starts_with(b"{");
    let text = if is_document {
        let exported = ExportedKey::parse(&fs::read_to_string(file).with_context(unreadable)?)
            .with_context(unreadable)?;
        let passphrase = match passphrase_file {
            Some(file) => read_passphrase(file)?,
            None => secret::ask("Passphrase")?,
        };
        exported
            .open(&passphrase)
            .with_context(|| format!("cannot open {}", file.display()))?
    } else {
        sealing::read_text(file)?
    };
    let key = SealingKey::from_hex(&text)
        .map_err(|_| anyhow::anyhow!("{} does not contain a sealing key", file.display()))?;
    Ok((key, text))
}
