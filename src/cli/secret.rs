//! Asking for a secret: never an argument, which other processes and the shell's history would show.

use std::io::{IsTerminal, Write, stdin};

use anyhow::Context;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;

/// The next line of standard input, not shown while it is typed.
pub(super) fn ask(what: &str) -> anyhow::Result<SecretString> {
    let terminal = stdin().is_terminal();
    let hidden = if terminal {
        anstream::eprint!("{what}: ");
        std::io::stderr()
            .flush()
            .context("cannot ask on standard error")?;
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
        "standard input has no line with the {}",
        what.to_lowercase()
    );
    Ok(secret.into())
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(Termios);

impl Hidden {
    fn start() -> anyhow::Result<Self> {
        let before = tcgetattr(stdin()).context("cannot ask the terminal")?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Flush, &quiet).context("cannot hide what is typed")?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Nothing more can be done for a terminal that is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.0);
    }
}
