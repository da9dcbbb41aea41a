//! The location of a data folder: machine, boot, device and inode.
//!
//! Two machines can have copies of one data folder: a restored snapshot, a cloned disk. Servers of
//! both copies would be two databases under one name. The location tells a copy from the folder
//! itself.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use gantry_base::files::replace;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    clusters::moved::Moved,
    error::{At, ClusterError, Result},
};

/// The file in a data folder that records its location.
const FILE: &str = "location";
/// The machine's identity, created with its operating system. Properly cloned machines have
/// different ones.
const MACHINE_ID: &str = "/etc/machine-id";
/// A random identity of the running kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The location of a data folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// Digest of the machine's identity, which itself is confidential. `None` if the machine has
    /// no identity, as in many containers.
    pub machine: Option<String>,
    /// Identity of the boot. Empty if the kernel has none.
    pub boot: String,
    /// Number of the folder's device, which may change at the next boot.
    pub device: u64,
    /// Number of the folder on its device.
    pub inode: u64,
    /// The machine's host name, for messages.
    pub host: String,
}

/// How a location compares with an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// One folder, on one running kernel.
    Same,
    /// One folder on one machine that was rebooted in between, or a clone of that machine.
    Rebooted,
    /// Another folder, or another machine.
    Other,
}

impl Location {
    /// Returns the location of a folder on this machine.
    pub fn of(dir: &Path) -> Result<Self> {
        let folder = fs::metadata(dir).at("examining", dir)?;
        let machine = read(MACHINE_ID).filter(|id| id.len() == 32).map(|id| {
            let digest = Sha256::new()
                .chain_update("gantry machine ")
                .chain_update(id)
                .finalize();
            hex::encode(&digest[..16])
        });
        Ok(Self {
            machine,
            boot: read(BOOT_ID).unwrap_or_default(),
            device: folder.dev(),
            inode: folder.ino(),
            host: read(HOST_NAME).unwrap_or_else(|| "another machine".to_owned()),
        })
    }

    /// Compares this location with one that was recorded earlier.
    pub fn likeness(&self, earlier: &Self) -> Likeness {
        let same_boot = !self.boot.is_empty() && self.boot == earlier.boot;
        if same_boot && (self.device, self.inode) == (earlier.device, earlier.inode) {
            return Likeness::Same;
        }
        let same_machine = self.machine.is_some() && self.machine == earlier.machine;
        if same_machine && !same_boot && self.inode == earlier.inode {
            Likeness::Rebooted
        } else {
            Likeness::Other
        }
    }

    /// The location recorded in the folder, if there is one.
    pub fn recorded(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(FILE);
        match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(io::Error::from)
                .at("reading", &file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("reading", &file),
        }
    }

    /// Records the location in the folder.
    pub fn record(&self, dir: &Path) -> Result<()> {
        let file = dir.join(FILE);
        let text = serde_json::to_string(self)
            .map_err(io::Error::from)
            .at("writing", &file)?;
        // A crash must not leave a partial file.
        replace(&file, text + "\n", 0o600).at("writing", &file)
    }

    /// Checks that a folder with its own control database has not moved, before that database is
    /// started. Records the location if it is new.
    ///
    /// Errors: [`ClusterError::Moved`] if it is elsewhere.
    pub fn confirm(dir: &Path) -> Result<()> {
        let here = Self::of(dir)?;
        match Self::recorded(dir)? {
            Some(earlier) if here.likeness(&earlier) == Likeness::Other => {
                Err(ClusterError::Moved(Moved::new(dir, &earlier)))
            }
            Some(earlier) if here == earlier => Ok(()),
            _ => here.record(dir),
        }
    }
}

fn read(file: &str) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(machine: &str, boot: &str, device: u64, inode: u64) -> Location {
        let machine = Some(machine.to_owned()).filter(|machine| !machine.is_empty());
        Location {
            machine,
            boot: boot.to_owned(),
            device,
            inode,
            host: "web-1".to_owned(),
        }
    }

    #[test]
    fn likeness_distinguishes_copies_and_reboots() {
        let earlier = location("m", "b", 1, 2);
        for (now, likeness, what) in [
            (location("m", "b", 1, 2), Likeness::Same, "nothing changed"),
            (
                location("other", "b", 1, 2),
                Likeness::Same,
                "two containers of one kernel see one folder",
            ),
            (
                location("m", "b", 1, 3),
                Likeness::Other,
                "copied on the same machine",
            ),
            (
                location("m", "b", 9, 2),
                Likeness::Other,
                "copied block by block to another disk of the same machine",
            ),
            (
                location("m", "c", 1, 2),
                Likeness::Rebooted,
                "started again",
            ),
            (
                location("m", "c", 9, 2),
                Likeness::Rebooted,
                "started again, and devices are numbered otherwise",
            ),
            (
                location("m", "c", 1, 3),
                Likeness::Other,
                "copied, then started again",
            ),
            (
                location("other", "c", 1, 2),
                Likeness::Other,
                "a cloned disk in another machine",
            ),
            (
                location("", "c", 1, 2),
                Likeness::Other,
                "nothing tells which machine it is",
            ),
        ] {
            assert_eq!(now.likeness(&earlier), likeness, "{what}");
        }
        let nowhere = location("", "", 1, 2);
        assert_eq!(
            nowhere.likeness(&nowhere),
            Likeness::Other,
            "nothing is known of either"
        );
    }

    #[test]
    fn confirm_rejects_folder_at_another_location() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        assert_eq!(Location::recorded(dir).unwrap(), None);
        Location::confirm(dir).unwrap();
        let here = Location::recorded(dir).unwrap().unwrap();
        assert_eq!(here, Location::of(dir).unwrap());
        Location::confirm(dir).unwrap();

        let elsewhere = Location {
            inode: here.inode + 1,
            host: "web-7".to_owned(),
            ..here.clone()
        };
        elsewhere.record(dir).unwrap();
        let refusal = Location::confirm(dir).unwrap_err().to_string();
        assert!(
            refusal.contains("last used on web-7")
                && refusal.contains("gantry node adopt --data-dir"),
            "{refusal}"
        );
        assert_eq!(
            Location::recorded(dir).unwrap(),
            Some(elsewhere),
            "a refusal changes nothing"
        );
        here.record(dir).unwrap();
        Location::confirm(dir).unwrap();
    }
}
