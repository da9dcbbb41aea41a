//! The options for further extensions of PostgreSQL.

use std::path::PathBuf;

use clap::Args;

use super::sections;

/// A folder with further extensions for the engines of a major version, as `17=DIR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionsFolder {
    /// Major version of PostgreSQL.
    pub major: u16,
    /// The folder.
    pub dir: PathBuf,
}

impl std::str::FromStr for ExtensionsFolder {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORMAT: &str = "must be a major version and a folder, such as 17=/srv/extensions";
        let (major, dir) = text.split_once('=').ok_or(FORMAT)?;
        let major = major.parse().map_err(|_| FORMAT)?;
        if dir.is_empty() {
            return Err(FORMAT);
        }
        Ok(Self {
            major,
            dir: dir.into(),
        })
    }
}

/// Folders of the operator with further extensions.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = sections::PROJECTS.heading)]
pub struct ExtensionOptions {
    /// Folder with further extensions for PostgreSQL of a major version: control files, SQL scripts
    /// and libraries, as `17=DIR`. Comma separated. The folder `extensions/17` of the data folder
    /// is always searched.
    #[arg(
        long,
        env = "GANTRY_EXTENSIONS_DIR",
        value_delimiter = ',',
        value_name = "VERSION=DIR"
    )]
    pub extensions_dir: Vec<ExtensionsFolder>,
}
