//! Detects modules that use the network modules of Node.js.
//!
//! Those have servers and connections of their own, which are led to the sockets of the instance by
//! loading `node:net` before the function. That costs as much as the start of a small function, so
//! it is only done if a module needs it (decision 0174).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use gantry_node::files::read_untrusted;
use regex::Regex;

/// Total size of the modules that are searched, in bytes. Larger functions count as users.
const SEARCHED_BYTES_MAX: u64 = 128 << 20;

/// Ways to name a network module: with the prefix, by an import, or by a call of a renamed
/// `require`. A call with `"http"` alone is more often a comparison of text.
static NETWORK_MODULE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?x-u)
        node:(?:net|tls|https?|http2)\b
        | (?:from|import|require|Module) [\w$]* \s* \(? \s* ["'`] (?:net|tls|https?|http2) ["'`]
        | \( \s* ["'`] (?:net|tls|http2) ["'`] \s* \)
        "#,
    )
    .ok()
});

/// Returns whether the text of a module names a network module of Node.js.
fn names_network_module(text: &str) -> bool {
    NETWORK_MODULE
        .as_ref()
        .is_none_or(|pattern| pattern.is_match(text))
}

/// Returns whether a file below the folders names a network module of Node.js. Files that cannot be
/// searched count as if they did.
pub(super) fn is_used(folders: impl IntoIterator<Item = PathBuf>) -> bool {
    let mut folders: Vec<PathBuf> = folders.into_iter().collect();
    let mut remaining = SEARCHED_BYTES_MAX;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else {
            return true;
        };
        for entry in entries.flatten() {
            // Symbolic links have neither type: they are not followed.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && !is_cache(&entry.path()) => {
                    let Some(text) = read(&entry.path(), &mut remaining) else {
                        return true;
                    };
                    if names_network_module(&text) {
                        return true;
                    }
                }
                _ => {}
            }
        }
    }
    false
}

/// Returns whether a file is a database of the runtime with compiled code, or describes a package.
fn is_cache(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let endings = [".d.ts", ".d.mts", ".d.cts", ".map", ".md"];
    name.contains("_cache_v") || endings.iter().any(|ending| name.ends_with(ending))
}

/// Reads a file, which a process of the function may have put there. `None`: it cannot be read, or
/// more than the remaining bytes would be.
fn read(path: &Path, remaining: &mut u64) -> Option<String> {
    let text = read_untrusted(path, *remaining).ok()?;
    // At least one byte, so that the number of files is bounded too.
    *remaining = remaining.saturating_sub(text.len().max(1) as u64);
    (*remaining > 0).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_modules_are_found_by_each_way_to_name_them() {
        for text in [
            r#"import net from "node:net";"#,
            r#"import{connect}from"net""#,
            r#"import "tls";"#,
            "await import('https')",
            r#"const http = require( "http" );"#,
            r#"var n = __require("net");"#,
            r#"process.getBuiltinModule("http2")"#,
            r#"{"imports": {"server": "node:http"}}"#,
            r#"var a=t("net"),b=1"#,
        ] {
            assert!(names_network_module(text), "{text}");
        }
        for text in [
            r#"import { createClient } from "npm:@supabase/supabase-js@2";"#,
            r#"url.startsWith("http")"#,
            r#"import os from "node:os";"#,
            r#"const scheme = "https";"#,
            r#"import x from "./net";"#,
            r#"import x from "npm:node-netstat";"#,
        ] {
            assert!(!names_network_module(text), "{text}");
        }
    }

    #[test]
    fn modules_are_searched_in_all_folders_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (own, other) = (place.path().join("own"), place.path().join("other"));
        fs::create_dir_all(own.join("npm/package")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("index.js"), "require('net')").unwrap();
        std::os::unix::fs::symlink(&other, own.join("npm/link")).unwrap();
        fs::write(own.join("npm/package/index.d.ts"), "import 'net'").unwrap();
        fs::write(own.join("v8_code_cache_v2"), "node:net").unwrap();
        assert!(!is_used([own.clone()]));
        assert!(is_used([own.clone(), other]));
        fs::write(own.join("npm/package/index.js"), [0xff, b' ']).unwrap();
        assert!(!is_used([own.clone()]));
        fs::write(own.join("npm/package/index.cjs"), "\u{ff}require('net')").unwrap();
        assert!(is_used([own.clone()]));
        assert!(is_used([own.join("absent")]));
    }
}
