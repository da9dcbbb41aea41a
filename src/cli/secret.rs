//! Prompts for secrets. Secrets are never arguments, which other processes and the shell history
//! would show.

use std::io::{IsTerminal, Write, stdin};

use anyhow::Context;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use secrecy::{ExposeSecret, SecretString};

/// Reads one line of standard input without echo.
pub(super) fn ask(what: &str) -> anyhow::Result<SecretString> {
    let terminal = stdin().is_terminal();
    let hidden = if terminal {
        anstream::eprint!("{what}: ");
        std::io::stderr()
            .flush()
            .context("cannot write the prompt to standard error")?;
        Some(Hidden::start()?)
    } else {
        None
    };
    let mut line = String::new();
    stdin()
        .read_line(&mut line)
        .context("cannot read standard input")?;
    if hidden.is_some() {
        anstream::eprintln!();
    }
    let secret = line.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(
        !secret.is_empty(),
        "cannot read the {} from standard input: no input",
        what.to_lowercase()
    );
    Ok(secret.into())
}

/// As [`ask`], twice on a terminal, where a mistake would not be seen.
pub(super) fn ask_new(what: &str) -> anyhow::Result<SecretString> {
    let secret = ask(what)?;
    if stdin().is_terminal() {
        let again = ask("The same again")?;
        anyhow::ensure!(
            secret.expose_secret() == again.expose_secret(),
            "the two are different; try again"
        );
    }
    Ok(secret)
}

/// A terminal with echo disabled. Echo is restored on drop.
struct Hidden(Termios);

impl Hidden {
    fn start() -> anyhow::Result<Self> {
        let before = tcgetattr(stdin()).context("cannot ask the terminal")?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Flush, &quiet)
            .context("cannot disable terminal echo")?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // The terminal is gone; there is nothing to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}
