//! Files of a package that derive from the command line: man pages, completions and the example of
//! a configuration file.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;

use super::{command_line::settings, definition};
use crate::app::config::example;

/// Shells of the packages, with the path of their completion below `/usr/share`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/gantry"),
    (Shell::Zsh, "zsh/vendor-completions/_gantry"),
    (Shell::Fish, "fish/vendor_completions.d/gantry.fish"),
];

#[derive(Debug, Args)]
pub(super) struct CompletionCommand {
    /// The shell.
    shell: Shell,
}

impl CompletionCommand {
    pub(super) fn run(self) {
        // A closed output ends the command as it ends others.
        let _ = io::stdout().write_all(&completion(self.shell));
    }
}

fn completion(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "gantry", &mut script);
    script
}

/// Writes the files of a package, with the layout below `/usr/share`.
pub(super) fn write(dir: &Path) -> anyhow::Result<()> {
    let mut files = vec![("doc/gantry/gantry.toml", example(&settings()).into_bytes())];
    files.extend(COMPLETIONS.map(|(shell, path)| (path, completion(shell))));
    for (path, content) in files {
        let file = dir.join(path);
        let parent = file.parent().context("a file of a package has no folder")?;
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&file, content))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let pages = dir.join("man/man1");
    fs::create_dir_all(&pages)
        .and_then(|()| clap_mangen::generate_to(definition(), &pages))
        .with_context(|| format!("cannot write {}", pages.display()))
}
