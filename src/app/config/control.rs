//! Options of the data folder and the control database.

use std::path::{Path, PathBuf};

use clap::Args;
use gantry_node::clusters::Home;
use secrecy::SecretString;
use sha2::{Digest, Sha256};

use super::sections;

/// Default data folder.
const DATA_DIR: &str = "./.gantry";

/// Location of the data and the control database: options of every command that uses them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::DATA.heading)]
pub struct ControlOptions {
    /// Folder for clusters and all other files of Gantry.
    #[arg(long, env = "GANTRY_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,

    /// Folder with the PostgreSQL programs (`postgres`, `initdb`). Default: the newest installed
    /// version.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,

    /// URL of the control database, PostgreSQL 15 or newer. Default: a control cluster in the data
    /// folder.
    #[arg(
        long,
        env = "GANTRY_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database_url: Option<SecretString>,
}

impl ControlOptions {
    /// The data folder. If the default one is below a private home directory, which the accounts of
    /// servers cannot enter, a folder below `/var/lib/gantry`.
    pub fn home(&self) -> PathBuf {
        let default = Path::new(DATA_DIR);
        if self.data_dir != default || Home::reachable(default) {
            return self.data_dir.clone();
        }
        let place = std::path::absolute(default).unwrap_or_else(|_| default.to_owned());
        let digest = Sha256::digest(place.as_os_str().as_encoded_bytes());
        Path::new("/var/lib/gantry").join(hex::encode(&digest[..4]))
    }
}
