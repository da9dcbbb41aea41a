//! Running copies of clusters, in which SQL is tried before it reaches the original.
//!
//! A scratch copy runs in its folder in `tmp/` and is never moved to a place. It is removed when it
//! is discarded or dropped; the next start of Gantry removes one that is left by a crash, with its
//! server.

use std::path::PathBuf;

use gantry_base::ids::ProjectRef;
use tokio::runtime::Handle;

use super::{
    copy::{CopySpec, READY_PATIENCE, STOP_PATIENCE},
    progress::CopyProgress,
};
use crate::{
    background::blocking,
    clusters::{
        home, local_driver::LocalDriver, server::process::Server, shutdown::ShutdownMode,
        socket::ServerSocket, spec::ClusterSpec, vault_key,
    },
    error::Result,
    files,
    supervisor::ProcessOwner,
};

/// Maximum size of the settings of the original, in bytes.
const SETTINGS_BYTES_MAX: u64 = 64 << 10;
/// Settings of the copy, appended to those of the original.
const SETTINGS: &str = "
archive_mode = off
max_wal_senders = 0
autovacuum = off
";

/// A running copy of a cluster, isolated from its original. Removed on drop.
#[derive(Debug)]
pub struct ScratchCopy {
    server: Server,
    place: PathBuf,
    sockets: PathBuf,
    is_removed: bool,
}

impl ScratchCopy {
    /// The socket of its server.
    pub fn socket(&self) -> ServerSocket {
        self.server.socket()
    }

    /// Stops its server and removes its files.
    pub async fn discard(mut self) -> Result<()> {
        remove(
            self.server.clone(),
            self.place.clone(),
            self.sockets.clone(),
        )
        .await?;
        self.is_removed = true;
        Ok(())
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        // Without a runtime, the process ends; the next start removes the copy.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let removal = remove(
            self.server.clone(),
            self.place.clone(),
            self.sockets.clone(),
        );
        runtime.spawn(async move {
            if let Err(error) = removal.await {
                tracing::warn!(%error, "scratch copy of a cluster could not be removed");
            }
        });
    }
}

async fn remove(server: Server, place: PathBuf, sockets: PathBuf) -> Result<()> {
    if place.exists() {
        server.stop(ShutdownMode::Immediate, STOP_PATIENCE).await?;
    }
    blocking(move || {
        files::remove_tree(&place)?;
        files::remove_tree(&sockets)
    })
    .await
}

impl LocalDriver {
    /// Starts an isolated copy of a running cluster, with the data, the settings and the libraries
    /// of the original.
    ///
    /// Errors: as those of [`Self::create_copy`].
    pub async fn scratch_copy(&self, source: &ProjectRef, bytes_max: u64) -> Result<ScratchCopy> {
        let original = self.existing(source)?;
        let _permit = self.copy_permit()?;
        let name = self.copy_name();
        let place = self.home().tmp().join(&name);
        let owner = original.run_as();
        let scratch = ScratchCopy {
            server: self.server_for(original.major(), &name, &place, owner)?,
            place,
            sockets: self.home().socket_dir(&name),
            is_removed: false,
        };
        let spec = CopySpec {
            cluster: ClusterSpec {
                project: source.clone(),
                uid: owner.uid(),
                major: original.major(),
            },
            source: source.clone(),
            marker: String::new(),
            secrets: Vec::new(),
            masking: Vec::new(),
            schema_only: false,
            rebuild: None,
            bytes_max,
            progress: CopyProgress::default(),
        };
        if let Some(resources) = self.resources() {
            resources.bound(&name, Some(resources.limits_of(source.as_str())));
        }
        let started = self.start_scratch(&spec, &name, &scratch, &original).await;
        if let Some(resources) = self.resources() {
            resources.bound(&name, None);
        }
        match started {
            Ok(()) => Ok(scratch),
            Err(error) => {
                scratch.discard().await?;
                Err(error)
            }
        }
    }

    async fn start_scratch(
        &self,
        spec: &CopySpec,
        name: &str,
        scratch: &ScratchCopy,
        original: &Server,
    ) -> Result<()> {
        self.isolated_copy(spec, name, &scratch.place).await?;
        let (from, to) = (original.data().to_owned(), scratch.server.data().to_owned());
        let owner: ProcessOwner = scratch.server.run_as();
        let entropy = self.entropy().clone();
        blocking(move || {
            let settings = from.join(home::OVERRIDES);
            let mut settings =
                files::read_untrusted(&settings, SETTINGS_BYTES_MAX).unwrap_or_default();
            settings.push_str(SETTINGS);
            let overrides = to.join(home::OVERRIDES);
            files::remove_file(&overrides)?;
            files::write_new(&overrides, &settings, 0o600, owner)?;
            vault_key::create(&to, owner, &entropy)
        })
        .await?;
        scratch.server.start_ready(READY_PATIENCE).await
    }
}
