//! Help texts, as snapshots.

use super::machine::Machine;

/// Returns the output and exit code of a command.
fn said(arguments: &[&str]) -> String {
    let output = Machine::unprepared()
        .command(arguments)
        .env_remove("COLUMNS")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    format!(
        "exit {}\n--- out\n{}--- err\n{}",
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Returns the words of every documented command, parents first.
fn commands(parent: &[String], command: &clap::Command) -> Vec<Vec<String>> {
    let mut all = vec![parent.to_vec()];
    for child in command.get_subcommands() {
        if child.get_name() != "help" && !child.is_hide_set() {
            let path = [parent, &[child.get_name().to_owned()]].concat();
            all.extend(commands(&path, child));
        }
    }
    all
}

#[test]
fn help_of_every_command_matches_snapshot() {
    let all = commands(&[], &gantry::cli::definition());
    assert!(all.len() > 45, "{all:?}");
    for command in all {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = [&["gantry"], &words[..]].concat().join("-");
        let help = said(&[&words[..], &["--help"]].concat());
        assert!(
            help.starts_with("exit 0\n") && help.ends_with("--- err\n"),
            "{help}"
        );
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{help}"
        );
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, { insta::assert_snapshot!(name, help) });
    }
}

#[test]
fn usage_errors_exit_with_code_2() {
    for arguments in [
        &["serv"][..],
        &["dev", "--port", "1"],
        &["token", "create", "--email", "a@example.com"],
        &["token", "revoke"],
        &[],
    ] {
        let text = said(arguments);
        assert!(text.starts_with("exit 2\n--- out\n--- err\n"), "{text}");
        assert!(text.contains("Usage: gantry"), "{text}");
    }
    assert!(
        said(&["serv"]).contains("'serve'"),
        "the nearest command is proposed"
    );
    let version = said(&["--version"]);
    assert_eq!(
        version,
        format!(
            "exit 0\n--- out\ngantry {}\n--- err\n",
            env!("CARGO_PKG_VERSION")
        )
    );
}

#[test]
fn help_hides_secret_environment_values() {
    let machine = Machine::unprepared();
    let mut command = machine.command(&["dev", "--help"]);
    let output = command
        .env("GANTRY_DATABASE_URL", "postgres://ada:hush@db/x")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("GANTRY_DATABASE_URL") && !text.contains("hush"),
        "{text}"
    );
}
