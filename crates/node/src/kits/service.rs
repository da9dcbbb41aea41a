//! The services of a project.

use std::{fmt, str::FromStr, time::Duration};

use gantry_base::ids::Malformed;

/// A service of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is upstream as the paths name it")]
pub enum Service {
    Rest,
    Auth,
    Storage,
    Realtime,
    Functions,
    Pooler,
}

impl Service {
    /// The services with requests by HTTP, in the order of their discriminants.
    pub const ALL: [Self; 5] = [
        Self::Rest,
        Self::Auth,
        Self::Storage,
        Self::Realtime,
        Self::Functions,
    ];

    /// The services that programs serve, in the order of their discriminants.
    pub const WITH_PROGRAMS: [Self; 6] = [
        Self::Rest,
        Self::Auth,
        Self::Storage,
        Self::Realtime,
        Self::Functions,
        Self::Pooler,
    ];

    /// Returns the service of this name, if a program can serve it.
    pub fn of_program(name: &str) -> Option<Self> {
        let mut all = Self::WITH_PROGRAMS.into_iter();
        all.find(|service| service.name() == name)
    }

    /// Returns the name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Auth => "auth",
            Self::Storage => "storage",
            Self::Realtime => "realtime",
            Self::Functions => "functions",
            Self::Pooler => "pooler",
        }
    }

    /// Returns the path prefix of its requests. Empty for a service without HTTP.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Rest => "/rest/v1",
            Self::Auth => "/auth/v1",
            Self::Storage => "/storage/v1",
            Self::Realtime => "/realtime/v1",
            Self::Functions => "/functions/v1",
            Self::Pooler => "",
        }
    }

    /// Returns the largest request body, in bytes. Only storage accepts file uploads.
    pub const fn body_bytes_max(self) -> usize {
        match self {
            Self::Storage => 5 << 30,
            Self::Rest | Self::Auth | Self::Realtime | Self::Functions | Self::Pooler => 32 << 20,
        }
    }

    /// Returns the timeout for the head of a response, from the end of the request body.
    pub const fn response_timeout(self) -> Duration {
        match self {
            Self::Functions => Duration::from_secs(150),
            Self::Rest | Self::Auth | Self::Storage | Self::Realtime | Self::Pooler => {
                Duration::from_mins(1)
            }
        }
    }

    /// Returns the service of a path and the rest of the path.
    pub fn of_path(path: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|service| {
            let rest = path.strip_prefix(service.prefix())?;
            (rest.is_empty() || rest.starts_with('/')).then_some((service, rest))
        })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Service {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        let found = Self::ALL.into_iter().find(|service| service.name() == name);
        found.ok_or(Malformed("rest, auth, storage, realtime or functions"))
    }
}
