//! The reference of the configuration.

use std::fmt::Write;

use super::{sections, setting::Setting};
use crate::api::reference::tables::{NOTICE, row};

const HEAD: &str = "\
`gantry dev` and `gantry serve` take these settings. A flag takes precedence over its environment
variable, this over the file of `--config`, and the file over the default.

In the file, TOML, a key is written with its section (`api.listen = \"127.0.0.1:8080\"`), or below the
section's table (`[api]`). [gantry.toml](gantry.toml) is a commented example with every setting; its
JSON Schema is `generated/server-config.schema.json`. A list is a list of texts, or one text with
commas. `${NAME}` is replaced by an environment variable, `$$` is a dollar sign. Secrets can be
`file:PATH`, the content of a file that other accounts cannot read.

`gantry server-config` checks, shows and compares files. On SIGHUP a server reads its file again: it
takes over the settings marked *reload*, and logs the names of others that differ.
";

/// Returns `docs/reference/configuration.md`.
pub fn reference(settings: &[Setting]) -> String {
    let mut text = format!("# Configuration\n\n{NOTICE}{HEAD}");
    for section in &sections::ALL {
        let _ = write!(
            text,
            "\n## {}\n\n| Key | Flag | Variable | Default | Meaning |\n|---|---|---|---|---|\n",
            section.heading
        );
        for setting in settings.iter().filter(|setting| setting.section == section) {
            let mark = if setting.is_reloaded() {
                ". *Reload*"
            } else {
                ""
            };
            row(
                &mut text,
                &[
                    &format!("`{}`", setting.path()),
                    &format!("`--{}`", setting.flag),
                    &format!("`{}`", setting.variable),
                    setting.default.as_deref().unwrap_or_default(),
                    &format!("{}{mark}", setting.help),
                ],
            );
        }
    }
    text
}
