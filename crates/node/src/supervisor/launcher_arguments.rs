//! The command line of a launcher, which its hidden subcommand parses.

use std::ffi::{OsStr, OsString};

use crate::supervisor::confinement::Confinement;

/// Arguments of a launcher, in the order in which they are added.
#[derive(Debug)]
pub struct LauncherArguments(Vec<OsString>);

impl LauncherArguments {
    /// Begins with the name of the hidden subcommand.
    pub fn new(subcommand: &str) -> Self {
        Self(vec![subcommand.into()])
    }

    /// Adds the flag before each of the values.
    #[must_use]
    pub fn values(
        mut self,
        flag: &str,
        values: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        for value in values {
            self.0.extend([flag.into(), value.as_ref().to_owned()]);
        }
        self
    }

    /// Adds the flag before each of the numbers.
    #[must_use]
    pub fn numbers(self, flag: &str, numbers: impl IntoIterator<Item = impl Into<u64>>) -> Self {
        let texts = numbers.into_iter().map(|number| number.into().to_string());
        self.values(flag, texts)
    }

    /// Adds each text as one argument `flag=text`, because a text may begin with a dash.
    #[must_use]
    pub fn texts(mut self, flag: &str, texts: &[String]) -> Self {
        let joined = texts.iter().map(|text| format!("{flag}={text}").into());
        self.0.extend(joined);
        self
    }

    /// Adds the flag if it is set.
    #[must_use]
    pub fn flag(mut self, flag: &str, is_set: bool) -> Self {
        self.0.extend(is_set.then(|| flag.into()));
        self
    }

    /// Adds the arguments that all launchers have.
    #[must_use]
    pub fn confinement(self, confinement: &Confinement) -> Self {
        let (ids, bounds) = (confinement.ids(), &confinement.bounds);
        self.numbers("--uid", ids.map(|(uid, _)| uid))
            .numbers("--gid", ids.map(|(_, gid)| gid))
            .values("--group", &bounds.groups)
            .numbers("--memory-max", bounds.memory_max)
            .numbers("--data-max", bounds.data_max)
            .numbers("--descriptors-max", bounds.descriptors_max)
            .numbers("--processes-max", bounds.processes_max)
            .numbers("--file-max", bounds.file_max)
            .numbers("--locked-memory-max", bounds.locked_memory_max)
            .flag("--no-sandbox", !confinement.sandbox)
    }

    /// The arguments, without the name of the program.
    pub fn into_vec(self) -> Vec<OsString> {
        self.0
    }
}
