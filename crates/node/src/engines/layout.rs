//! The copy of an installation that servers run: a layout.
//!
//! PostgreSQL finds its extensions relative to its executable. A layout is a folder with a copy of
//! the `postgres` and `initdb` programs, and beside them, at the same relative places, folders with
//! links to the files of the installation. In it the control files of permitted extensions are
//! trusted, the operator's own extensions are added, and programs of an engine with its own C
//! library are pointed at it (decision 0087). The installation itself is not changed.
//!
//! The name of a layout contains a digest of its inputs, so a change of the installation, of the
//! operator's extensions or of the list makes another layout, which is used at the next start.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use gantry_base::clock::Entropy;
use sha2::{Digest, Sha256};

use super::engine::Engine;
use crate::{
    engines::{
        bundled, elf,
        extensions::{ExtensionPolicy, ExtensionRule, is_library, with_trust},
    },
    error::{At, ClusterError, Result},
    files,
    proc_files::{ProcessFiles, pids},
};

/// Version of the rules by which a layout is made.
const FORMAT: &str = "3";
/// Mode of folders and programs.
const OPEN: u32 = 0o755;
/// Programs that find other files relative to themselves.
const COPIED: [&str; 3] = ["postgres", "initdb", "pg_ctl"];
/// Link in the layout to the engine's own libraries.
const LIBRARIES: &str = "libs";
/// Maximum size of a control file, in bytes.
const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of entries of one folder, and of files of the operator.
const ENTRIES_MAX: usize = 10_000;
/// Maximum size of one file of the operator's folder, in bytes.
const EXTRA_BYTES_MAX: u64 = 512 << 20;
/// Folders in the operator's folder that can hold files of extensions.
const EXTRA_PLACES: [&str; 6] = [
    "",
    "extension",
    "share/extension",
    "share/postgresql/extension",
    "lib",
    "lib/postgresql",
];
/// Age from which a layout that no process uses is removed.
const UNUSED_MAX: Duration = Duration::from_hours(24);

/// The layout of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineLayout {
    programs: PathBuf,
    extensions: PathBuf,
    libraries: PathBuf,
    readable: Vec<PathBuf>,
    loader: Option<PathBuf>,
}

impl EngineLayout {
    /// Folder of the programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Folder of the control files of extensions.
    pub fn extensions(&self) -> &Path {
        &self.extensions
    }

    /// Folder of the libraries of extensions.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// Folders that a server reads.
    pub fn readable(&self) -> &[PathBuf] {
        &self.readable
    }

    /// The dynamic loader, if it is not that of the machine.
    pub fn loader(&self) -> Option<&Path> {
        self.loader.as_deref()
    }
}

/// Inputs of layouts besides the installations.
#[derive(Debug, Clone)]
pub struct LayoutOptions {
    /// Folder of the layouts.
    pub dir: PathBuf,
    /// The permitted extensions.
    pub policy: ExtensionPolicy,
    /// Folders with further extensions, each for a major version. The first one with a file of a
    /// name provides that file.
    pub folders: Vec<(u16, PathBuf)>,
}

impl LayoutOptions {
    /// Layouts beside the installed engines of a data folder, with Gantry's list of extensions
    /// only.
    pub fn beside(engines: &Path) -> Self {
        Self {
            dir: engines.join("layouts"),
            policy: ExtensionPolicy::default(),
            folders: Vec::new(),
        }
    }

    /// Returns the operator's files for a major version, by name.
    pub fn extra_files(&self, major: u16) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        for (_, folder) in self.folders.iter().filter(|(of, _)| *of == major) {
            for place in EXTRA_PLACES {
                for (name, path) in entries(&folder.join(place))? {
                    let metadata = fs::metadata(&path).at("examining", &path)?;
                    let is_extension = [".control", ".sql", ".so"]
                        .iter()
                        .any(|suffix| name.ends_with(suffix));
                    if !is_extension || !metadata.is_file() {
                        continue;
                    }
                    if metadata.len() > EXTRA_BYTES_MAX || found.len() >= ENTRIES_MAX {
                        return Err(ClusterError::NotInstalled(format!(
                            "{} is too large for a folder of extensions",
                            folder.display()
                        )));
                    }
                    found.entry(name).or_insert(path);
                }
            }
        }
        Ok(found)
    }
}

/// The folders of an installation, without symbolic links.
#[derive(Debug)]
struct Folders {
    /// The common parent of the others.
    root: PathBuf,
    programs: PathBuf,
    share: PathBuf,
    libraries: PathBuf,
}

impl Folders {
    fn of(engine: &Engine) -> Option<Self> {
        let programs = engine.bin_dir().to_owned();
        let share = share_dir(&programs, engine.major())?;
        let libraries = library_dir(&programs)?;
        let root = programs
            .ancestors()
            .find(|parent| share.starts_with(parent) && libraries.starts_with(parent))?
            .to_owned();
        // Programs directly below the root directory could not be told from the system.
        root.parent()?;
        Some(Self {
            root,
            programs,
            share,
            libraries,
        })
    }

    /// Returns the place in the layout `to` of a folder of the installation.
    fn in_layout(&self, to: &Path, folder: &Path) -> PathBuf {
        folder
            .strip_prefix(&self.root)
            .map_or_else(|_| to.to_owned(), |rest| to.join(rest))
    }

    /// Returns whether the root holds nothing but PostgreSQL, so that programs may find other files
    /// of it relative to themselves.
    fn is_own(&self) -> bool {
        !["/usr", "/usr/local"]
            .iter()
            .any(|shared| self.root == Path::new(shared))
    }
}

/// Returns the folder of PostgreSQL's shared files for a folder of programs.
pub(super) fn share_dir(programs: &Path, major: u16) -> Option<PathBuf> {
    let places = [
        "../share/postgresql".to_owned(),
        "../share".to_owned(),
        "../share/pgsql".to_owned(),
        format!("../share/postgresql/{major}"),
        format!("../share/postgresql{major}"),
        format!("../../../../share/postgresql/{major}"),
    ];
    first_with(programs, &places, "postgres.bki")
}

/// Returns the folder of the libraries of extensions for a folder of programs.
pub(super) fn library_dir(programs: &Path) -> Option<PathBuf> {
    let places = [
        "../lib/postgresql",
        "../lib",
        "../lib64/pgsql",
        "../lib64/postgresql",
        "../lib64",
    ];
    first_with(programs, &places.map(str::to_owned), "plpgsql.so")
}

fn first_with(programs: &Path, places: &[String], file: &str) -> Option<PathBuf> {
    let mut dirs = places.iter().map(|place| programs.join(place));
    let found = dirs.find(|dir| dir.join(file).is_file())?;
    found.canonicalize().ok()
}

/// Returns the engine with its layout, which is made unless it exists. The engine is returned
/// unchanged if its folders are not found.
pub(super) fn lay_out(
    engine: &Engine,
    options: &LayoutOptions,
    entropy: &Entropy,
) -> Result<Engine> {
    let Some(from) = Folders::of(engine) else {
        return Ok(engine.clone());
    };
    let extra = options.extra_files(engine.major())?;
    let name = name(engine, &from, &extra, options)?;
    // Not `create_dir_all`: servers of other accounts pass through, with any umask.
    if let Some(parent) = options.dir.parent() {
        files::make_dir(parent, OPEN)?;
    }
    files::make_dir(&options.dir, OPEN)?;
    let dir = options.dir.canonicalize().at("opening", &options.dir)?;
    let target = dir.join(name);
    if !target.exists() {
        let new = dir.join(format!(".new-{}", entropy.letters(8)));
        files::make_dir(&new, OPEN)?;
        let made = fill(engine, &from, &extra, options, &new)
            .and_then(|()| files::sync_fs(&new))
            .and_then(|()| files::commit(&new, &target));
        if made.is_err() {
            // The cause is more useful than an error of the removal.
            let _ = files::remove_tree(&new);
        }
        // Another process may have made it meanwhile.
        if !target.exists() {
            made?;
        }
    }
    let runtime = engine.manifest().and_then(|manifest| {
        let runtime = manifest.runtime.as_ref()?;
        Some(manifest.folder.join(&runtime.loader))
    });
    let mut readable = vec![target.clone(), from.root.clone()];
    if let Some(manifest) = engine.manifest() {
        readable.push(manifest.folder.clone());
    }
    Ok(engine.clone().laid_out(EngineLayout {
        programs: from.in_layout(&target, &from.programs),
        extensions: from.in_layout(&target, &from.share).join("extension"),
        libraries: from.in_layout(&target, &from.libraries),
        readable,
        loader: runtime,
    }))
}

/// Returns the name of a layout: the version, and a digest of all inputs. Files are identified by
/// name, size and time of change.
fn name(
    engine: &Engine,
    from: &Folders,
    extra: &BTreeMap<String, PathBuf>,
    options: &LayoutOptions,
) -> Result<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    add(FORMAT.as_bytes());
    add(from.programs.as_os_str().as_encoded_bytes());
    for name in options.policy.added() {
        add(name.as_bytes());
    }
    for extension in bundled::BUNDLED {
        for (name, text) in extension.files(true) {
            add(name.as_bytes());
            add(text.as_bytes());
        }
    }
    let mut inputs = Vec::new();
    for folder in [
        from.programs.clone(),
        from.libraries.clone(),
        from.share.join("extension"),
    ] {
        inputs.extend(entries(&folder)?);
    }
    if let Some(tools) = engine.tools_dir() {
        inputs.extend(entries(&tools)?);
    }
    inputs.extend(
        extra
            .iter()
            .map(|(name, path)| (name.clone(), path.clone())),
    );
    for (name, path) in inputs {
        add(name.as_bytes());
        // A broken link is an input as well.
        if let Ok(found) = fs::metadata(&path) {
            add(&found.len().to_le_bytes());
            add(&found.mtime().to_le_bytes());
            add(&found.mtime_nsec().to_le_bytes());
        }
    }
    let digest = hash.finalize();
    Ok(format!("{}-{}", engine.text(), hex::encode(&digest[..6])))
}

fn fill(
    engine: &Engine,
    from: &Folders,
    extra: &BTreeMap<String, PathBuf>,
    options: &LayoutOptions,
    to: &Path,
) -> Result<()> {
    for folder in [&from.programs, &from.share, &from.libraries] {
        make_parents(from, folder, to)?;
    }
    let extensions = from.share.join("extension");
    let share = from.in_layout(to, &from.share);
    link_all(&from.share, &share, &[&extensions])?;
    files::make_dir(&share.join("extension"), OPEN)?;
    programs(engine, from, to)?;

    let libraries = from.in_layout(to, &from.libraries);
    let mut sources: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (name, path) in entries(&from.libraries)? {
        if !extra.contains_key(&name) {
            link(&path, &libraries.join(&name))?;
        }
    }
    sources.extend(entries(&extensions)?);
    for (name, path) in extra {
        if is_library(name) {
            copy(path, &libraries.join(name))?;
        } else {
            sources.insert(name.clone(), path.clone());
        }
    }
    let present: BTreeSet<&str> = sources.keys().map(String::as_str).collect();
    for extension in bundled::missing_from(&present) {
        for (name, text) in extension.files(true) {
            // Scripts without a control file would be updates of another version.
            if !present.contains(name.as_str()) {
                write_file(&share.join("extension").join(name), &text)?;
            }
        }
    }
    for (name, path) in sources {
        let target = share.join("extension").join(&name);
        let own = extra.contains_key(&name);
        match controlled(&name).map(|extension| options.policy.rule(extension)) {
            Some(ExtensionRule::Permitted) => write_control(&path, &target, true)?,
            Some(ExtensionRule::Forbidden) => write_control(&path, &target, false)?,
            _ if own => copy(&path, &target)?,
            _ => link(&path, &target)?,
        }
    }
    Ok(())
}

/// Creates the folders from the layout's root to the place of `folder`. Other entries of these
/// folders are linked, because programs may find their libraries relative to themselves.
fn make_parents(from: &Folders, folder: &Path, to: &Path) -> Result<()> {
    let mut parents: Vec<&Path> = folder
        .ancestors()
        .take_while(|parent| parent.starts_with(&from.root))
        .collect();
    parents.reverse();
    let kept = [
        from.programs.as_path(),
        from.share.as_path(),
        from.libraries.as_path(),
    ];
    for parent in parents {
        let place = from.in_layout(to, parent);
        let is_new = !place.exists();
        files::make_dir(&place, OPEN)?;
        let is_leaf = kept.contains(&parent);
        if from.is_own() && (is_new || parent == from.root) && !is_leaf {
            link_all(parent, &place, &kept)?;
        }
    }
    Ok(())
}

/// Copies or links the programs.
fn programs(engine: &Engine, from: &Folders, to: &Path) -> Result<()> {
    let place = from.in_layout(to, &from.programs);
    let runtime = engine.manifest().and_then(|manifest| {
        let runtime = manifest.runtime.as_ref()?;
        let loader = manifest.folder.join(&runtime.loader);
        Some((loader, manifest.folder.join(&runtime.libraries)))
    });
    let up = from
        .programs
        .strip_prefix(&from.root)
        .map_or(0, |rest| rest.components().count());
    let library_path = format!("$ORIGIN/{}{LIBRARIES}", "../".repeat(up));
    if let Some((_, libraries)) = &runtime {
        link(libraries, &to.join(LIBRARIES))?;
    }
    for (name, path) in entries(&from.programs)? {
        let target = place.join(&name);
        match &runtime {
            Some((loader, _)) => {
                let mut program = fs::read(&path).at("reading", &path)?;
                if elf::has_loader(&program) {
                    elf::relocate(&mut program, loader, &library_path).map_err(|error| {
                        ClusterError::NotInstalled(format!("{}: {error}", path.display()))
                    })?;
                }
                fs::write(&target, program).at("writing", &target)?;
                fs::set_permissions(&target, Permissions::from_mode(OPEN))
                    .at("opening up", &target)?;
            }
            None if COPIED.contains(&name.as_str()) => {
                copy(&path, &target)?;
                fs::set_permissions(&target, Permissions::from_mode(OPEN))
                    .at("opening up", &target)?;
            }
            None => link(&path, &target)?,
        }
    }
    // Client programs that the installation lacks.
    if let Some(tools) = engine.tools_dir() {
        for (name, path) in entries(&tools)? {
            let target = place.join(name);
            if fs::symlink_metadata(&target).is_err() {
                link(&path, &target)?;
            }
        }
    }
    Ok(())
}

/// Returns the extension of a control file: `vector` of `vector.control`. A file for a single
/// version, `postgis--3.3.control`, cannot change the trust.
fn controlled(file: &str) -> Option<&str> {
    file.strip_suffix(".control")
        .filter(|name| !name.contains("--"))
}

fn write_control(from: &Path, to: &Path, trusted: bool) -> Result<()> {
    let text = files::read_bounded(from, CONTROL_BYTES_MAX).at("reading", from)?;
    write_file(to, &with_trust(&text, trusted))
}

fn write_file(to: &Path, text: &str) -> Result<()> {
    fs::write(to, text).at("writing", to)?;
    fs::set_permissions(to, Permissions::from_mode(0o644)).at("opening up", to)
}

/// Links the entries of `from` except for those that lead to a folder of `kept`.
fn link_all(from: &Path, to: &Path, kept: &[&Path]) -> Result<()> {
    for (name, path) in entries(from)? {
        let leads = kept.iter().any(|kept| kept.starts_with(&path));
        let target = to.join(name);
        if !leads && fs::symlink_metadata(&target).is_err() {
            link(&path, &target)?;
        }
    }
    Ok(())
}

fn link(from: &Path, to: &Path) -> Result<()> {
    symlink(from, to).at("linking", to)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).at("copying", to)?;
    fs::set_permissions(to, Permissions::from_mode(0o644)).at("opening up", to)
}

/// Returns the entries of a folder by name, at most [`ENTRIES_MAX`]. A missing folder is empty;
/// names that are not UTF-8 are left out.
fn entries(dir: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        listed => listed.at("listing", dir)?,
    };
    let mut found = BTreeMap::new();
    for entry in listed {
        let entry = entry.at("listing", dir)?;
        if found.len() >= ENTRIES_MAX {
            return Err(ClusterError::NotInstalled(format!(
                "{} has more than {ENTRIES_MAX} entries",
                dir.display()
            )));
        }
        if let Ok(name) = entry.file_name().into_string() {
            found.insert(name, entry.path());
        }
    }
    Ok(found)
}

/// Removes layouts that are neither in `used` nor used by a process, and incomplete ones. Only of
/// the data folder of one Gantry, where no other process makes layouts.
pub(super) fn remove_unused(dir: &Path, used: &[&Engine], now: SystemTime) -> Result<()> {
    let Ok(dir) = dir.canonicalize() else {
        return Ok(());
    };
    let processes = pids().at("listing", Path::new("/proc"))?;
    let mut programs: Vec<PathBuf> = processes
        .into_iter()
        .filter_map(|pid| ProcessFiles::of(pid).executable().ok())
        .collect();
    programs.extend(used.iter().map(|engine| engine.program("postgres")));
    for (_, path) in entries(&dir)? {
        let changed = fs::symlink_metadata(&path).and_then(|found| found.modified());
        let is_old = changed.is_ok_and(|changed| {
            now.duration_since(changed)
                .is_ok_and(|age| age > UNUSED_MAX)
        });
        if is_old && !programs.iter().any(|program| program.starts_with(&path)) {
            files::remove_tree(&path)?;
        }
    }
    Ok(())
}
