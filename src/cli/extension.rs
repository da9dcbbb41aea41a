//! `gantry extension`: list, install and permit extensions of PostgreSQL.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand};
use gantry_node::{
    clusters::Home,
    engines::{
        Engine, ExtensionPolicy, ExtensionRule, Installed, LayoutOptions,
        bundled::{self, BundledExtension},
        debian, extensions, wheel,
    },
};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    app::config::{ControlOptions, ExtensionOptions},
    cli::{engine, output::Output, serve},
};

#[derive(Debug, Args)]
pub(super) struct ExtensionArguments {
    #[command(flatten)]
    control: ControlOptions,
    #[command(flatten)]
    folders: ExtensionOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Subcommand)]
pub(super) enum ExtensionCommand {
    /// List the extensions of each engine: version, source, digest, and whether the owner of a
    /// project can create them.
    List {
        /// Only engines of this major version.
        #[arg(long)]
        engine: Option<u16>,
        #[command(flatten)]
        common: ExtensionArguments,
    },
    /// Copy the files of an extension into the data folder, for the engines of a major version.
    /// Without --from, vector is downloaded for PostgreSQL 16 and 18; of others, print how to
    /// install them. Restart the server to use it.
    Install {
        /// Name of the extension.
        name: String,
        /// Major version of PostgreSQL for which the files were built.
        #[arg(long, default_value_t = gantry_node::engines::catalog::DEFAULT_MAJOR)]
        engine: u16,
        /// Folder with the control file, the SQL scripts and the library.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        #[command(flatten)]
        common: ExtensionArguments,
    },
    /// Permit the owners of projects to create an installed extension. Its script then runs as
    /// superuser of the project's cluster. Restart the server to apply the change.
    Allow {
        /// Name of the extension.
        name: String,
        /// Withdraw the permission. Extensions that were created stay.
        #[arg(long)]
        remove: bool,
        #[command(flatten)]
        common: ExtensionArguments,
    },
}

#[derive(Debug, Serialize)]
struct ExtensionRow {
    engine: String,
    name: String,
    version: String,
    rule: ExtensionRule,
    /// Whether the owner of a project can create it.
    creatable: bool,
    /// The engine's origin, or the operator's folder.
    origin: String,
    /// SHA-256 of its control file, scripts and library.
    digest: String,
}

impl ExtensionCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List { engine, common } => list(engine, &common),
            Self::Install {
                name,
                engine,
                from,
                common,
            } => install(&name, engine, from.as_deref(), &common).await,
            Self::Allow {
                name,
                remove,
                common,
            } => allow(&name, remove, &common),
        }
    }
}

fn installed(common: &ExtensionArguments) -> anyhow::Result<Installed> {
    let engines = Home::engines_of(&common.control.home());
    Ok(Installed::find(
        common.control.postgres_bin.as_deref(),
        &engines,
    )?)
}

fn list(major: Option<u16>, common: &ExtensionArguments) -> anyhow::Result<()> {
    let options = serve::layout_options(&common.control.home(), &common.folders);
    let mut rows = Vec::new();
    for engine in installed(common)?.all() {
        if major.is_none_or(|major| major == engine.major()) {
            rows.extend(rows_of(engine, &options)?);
        }
    }
    common.output.print(&rows, || {
        let lines: Vec<String> = rows.iter().map(line).collect();
        lines.join("\n")
    })
}

fn line(row: &ExtensionRow) -> String {
    let creatable = if row.creatable { "yes" } else { "no" };
    format!(
        "{:<8} {:<28} {:<10} {creatable:<4} {:<10} {}",
        row.engine, row.name, row.version, row.origin, row.digest
    )
}

/// Returns the extensions of an engine and of the operator's folders for it.
fn rows_of(engine: &Engine, options: &LayoutOptions) -> anyhow::Result<Vec<ExtensionRow>> {
    let mut sources: BTreeMap<String, (PathBuf, String)> = BTreeMap::new();
    if let Some(dir) = engine.extensions_dir() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                sources.insert(name, (entry.path(), engine.origin().to_owned()));
            }
        }
    }
    let mut libraries = BTreeMap::new();
    for (name, path) in options.extra_files(engine.major())? {
        let folder = path.parent().unwrap_or(&path).display().to_string();
        if extensions::is_library(&name) {
            libraries.insert(name, path);
        } else {
            sources.insert(name, (path, folder));
        }
    }
    let mut rows = Vec::new();
    for (file, (path, origin)) in &sources {
        let Some(name) = file
            .strip_suffix(".control")
            .filter(|name| !name.contains("--"))
        else {
            continue;
        };
        let control = fs::read_to_string(path).unwrap_or_default();
        let rule = options.policy.rule(name);
        let trusted = setting(&control, "trusted").is_some_and(|value| value == "true");
        let for_all = setting(&control, "superuser").is_some_and(|value| value == "false");
        let mut files: Vec<&Path> = vec![path];
        for (other, (path, _)) in &sources {
            if other.starts_with(&format!("{name}--")) {
                files.push(path);
            }
        }
        let library = engine_library(engine, name, &libraries);
        files.extend(library.as_deref());
        rows.push(ExtensionRow {
            engine: engine.text().to_owned(),
            name: name.to_owned(),
            version: setting(&control, "default_version").unwrap_or_default(),
            rule,
            creatable: match rule {
                ExtensionRule::Permitted => true,
                ExtensionRule::Unlisted => trusted || for_all,
                ExtensionRule::Forbidden => false,
            },
            origin: origin.clone(),
            digest: digest(&files)?,
        });
    }
    let present = sources.keys().map(String::as_str).collect();
    for extension in bundled::missing_from(&present) {
        rows.push(bundled_row(engine, extension));
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

/// Returns the row of a bundled extension.
fn bundled_row(engine: &Engine, extension: &BundledExtension) -> ExtensionRow {
    let mut files = extension.files(false);
    files.sort();
    let contents = files
        .iter()
        .map(|(name, text)| (name.as_bytes(), text.as_bytes()));
    let digest = digest_of(contents);
    ExtensionRow {
        engine: engine.text().to_owned(),
        name: extension.name.to_owned(),
        version: extension.version.to_owned(),
        rule: ExtensionRule::Permitted,
        creatable: true,
        origin: "gantry".to_owned(),
        digest,
    }
}

/// Returns the library of an extension, if it has the extension's name.
fn engine_library(engine: &Engine, name: &str, own: &BTreeMap<String, PathBuf>) -> Option<PathBuf> {
    let file = format!("{name}.so");
    own.get(&file)
        .cloned()
        .or_else(|| Some(engine.libraries_dir()?.join(file)))
        .filter(|library| library.is_file())
}

/// Returns the value of a line `name = 'value'` of a control file.
fn setting(control: &str, name: &str) -> Option<String> {
    control.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim().trim_matches('\'').to_owned())
    })
}

/// Returns the SHA-256 of files in the order of their names.
fn digest(files: &[&Path]) -> anyhow::Result<String> {
    let mut files: Vec<&Path> = files.to_vec();
    files.sort_by_key(|file| file.file_name());
    let mut contents = Vec::new();
    for file in files {
        let content = fs::read(file).with_context(|| file.display().to_string())?;
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        contents.push((name, content));
    }
    let contents = contents
        .iter()
        .map(|(name, content)| (*name, content.as_slice()));
    Ok(digest_of(contents))
}

/// Returns the SHA-256 of names and contents of files.
fn digest_of<'a>(files: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (name, content) in files {
        add_file(&mut hash, name, content);
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}

/// Adds the name and the content of a file to a digest.
fn add_file(hash: &mut Sha256, name: &[u8], content: &[u8]) {
    for part in [name, content] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
}

async fn install(
    name: &str,
    major: u16,
    from: Option<&Path>,
    common: &ExtensionArguments,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        extensions::is_name(name),
        "{name:?} is not the name of an extension"
    );
    let files = match from {
        Some(from) => files_in(from, name, major)?,
        None => match wheel::find(name, major) {
            Some(wheel) => {
                let (registry, index) = (engine::registry()?, engine::index()?);
                wheel.fetch(major, &index, &registry).await?.files
            }
            None => return explain(name, major, common),
        },
    };
    let contents = files
        .iter()
        .map(|(file, content)| (file.as_bytes(), content.as_slice()));
    let digest = digest_of(contents);
    let target = extensions::folder_of(&common.control.home(), major);
    fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
    // The control file is last: an extension without it is not offered.
    let mut order: Vec<(&String, &Vec<u8>)> = files.iter().collect();
    order.sort_by_key(|(file, _)| file.ends_with(".control"));
    for (file, content) in order {
        let unfinished = target.join(format!(".{file}.new"));
        fs::write(&unfinished, content).with_context(|| unfinished.display().to_string())?;
        fs::File::open(&unfinished)?.sync_all()?;
        fs::rename(&unfinished, target.join(file))?;
    }
    let policy = ExtensionPolicy::read(&common.control.home());
    let answer = json!({
        "name": name,
        "engine": major,
        "files": files.keys().collect::<Vec<_>>(),
        "digest": digest,
        "rule": policy.rule(name),
    });
    common.output.print(&answer, || {
        let next = match policy.rule(name) {
            ExtensionRule::Permitted => "Restart Gantry to use it.".to_owned(),
            _ => format!("Permit it with `gantry extension allow {name}`, then restart Gantry."),
        };
        format!(
            "{name} for PostgreSQL {major} is installed in {} ({digest}). {next}",
            target.display()
        )
    })
}

/// Returns the files of an extension in a folder of the operator, by name.
fn files_in(from: &Path, name: &str, major: u16) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let options = LayoutOptions {
        folders: vec![(major, from.to_owned())],
        ..LayoutOptions::beside(from)
    };
    let mut paths = options.extra_files(major)?;
    paths.retain(|file, _| {
        file == &format!("{name}.control")
            || file.starts_with(&format!("{name}--"))
            || (file.starts_with(name) && extensions::is_library(file))
    });
    anyhow::ensure!(
        paths.contains_key(&format!("{name}.control")),
        "{} has no {name}.control",
        from.display()
    );
    let mut files = BTreeMap::new();
    for (file, path) in paths {
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        files.insert(file, content);
    }
    Ok(files)
}

/// Prints how to install an extension that is not in a folder of the operator.
fn explain(name: &str, major: u16, common: &ExtensionArguments) -> anyhow::Result<()> {
    let installed = installed(common)?;
    let engine = installed
        .all()
        .iter()
        .find(|engine| engine.major() == major);
    let has = |extension: &str| engine.is_some_and(|engine| engine.has_extension(extension));
    let mut bundled = bundled::BUNDLED.iter();
    let bundled = bundled.find(|extension| extension.name == name);
    let needed = bundled.and_then(|extension| extension.requires);
    if let Some(needed) = needed.filter(|needed| !has(needed) && !has(name)) {
        anyhow::bail!(
            "{name} comes with Gantry and needs {needed}; see: gantry extension install {needed}"
        );
    }
    if bundled.is_some() || has(name) {
        return common.output.print(&json!({"installed": true}), || {
            format!("{name} is already installed for PostgreSQL {major}")
        });
    }
    let package = match name {
        "vector" => "pgvector",
        "pg_cron" => "cron",
        "postgis" => "postgis-3",
        "pg_repack" => "repack",
        "pg_partman" => "partman",
        other => other,
    }
    .replace('_', "-");
    let engine = if major == debian::MAJOR {
        format!("the engine with the most extensions: gantry engine install debian-{major}; ")
    } else {
        String::new()
    };
    anyhow::bail!(
        "{name} is not installed for PostgreSQL {major}. It can come with {engine}the package of your distribution, such as \
         postgresql-{major}-{package}; or its files: gantry extension install {name} --engine {major} --from DIR"
    )
}

fn allow(name: &str, remove: bool, common: &ExtensionArguments) -> anyhow::Result<()> {
    let home = common.control.home();
    Home::create(&home)?;
    let policy = ExtensionPolicy::change(&home, name, !remove)?;
    let added: Vec<&str> = policy.added().collect();
    common.output.print(&json!({"allowed": added}), || {
        let what = if remove {
            "not added to the permitted extensions"
        } else {
            "permitted"
        };
        format!("{name} is {what}. Restart Gantry to apply the change.")
    })
}
