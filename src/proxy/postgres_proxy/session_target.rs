//! Finds the project and the role that a startup message refers to.

use gantry_base::ids::ProjectRef;

use super::{rejection::ConnectionRejection, startup::StartupMessage};

/// Beginning of the names of login roles for clients.
pub const LOGIN_ROLE_PREFIX: &str = "cli_login_";
/// Beginning of the names of login roles for temporary access.
pub const TEMPORARY_LOGIN_PREFIX: &str = "gantry_jit_";

/// Destination of a session, without the project's reference in role and options.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionTarget {
    pub(super) project: ProjectRef,
    pub(super) user: String,
    pub(super) options: Option<String>,
}

/// Roles that clients must not log in as. Most of them cannot log in to the server either.
const RESERVED: &[&str] = &[
    "authenticator",
    "anon",
    "authenticated",
    "service_role",
    "pgbouncer",
];
/// Prefixes of roles of Gantry, the platform and PostgreSQL.
const RESERVED_PREFIXES: &[&str] = &["gantry_", "supabase_", "pg_"];
/// The option that names the project.
const REFERENCE: &str = "reference=";

/// Finds the project by the suffix of the role, the option, the TLS server name, or the name of a
/// temporary login role. All that name a project must name the same one.
pub(super) fn find(
    startup: &StartupMessage,
    sni: Option<&str>,
    domain: &str,
) -> Result<SessionTarget, ConnectionRejection> {
    let (user, by_user) = by_user(&startup.user);
    let (options, by_options) = match &startup.options {
        Some(text) => by_options(text)?,
        None => (None, None),
    };
    let mut project: Option<ProjectRef> = None;
    for found in [
        by_user,
        by_options,
        sni.and_then(|host| by_host(host, domain)),
        by_login_role(user),
    ]
    .into_iter()
    .flatten()
    {
        match &project {
            Some(first) if *first != found => {
                return Err(ConnectionRejection::Conflict(first.clone(), found));
            }
            _ => project = Some(found),
        }
    }
    let project = project.ok_or(ConnectionRejection::NoProject)?;
    if user.is_empty() {
        return Err(ConnectionRejection::NoUser);
    }
    let ours = RESERVED.contains(&user)
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| user.starts_with(prefix));
    // Roles for temporary access of members have a password and are permitted.
    if ours && !user.starts_with(TEMPORARY_LOGIN_PREFIX) {
        return Err(ConnectionRejection::Reserved(user.to_owned()));
    }
    if startup.names_libraries() {
        return Err(ConnectionRejection::Libraries);
    }
    Ok(SessionTarget {
        project,
        user: user.to_owned(),
        options,
    })
}

/// Splits `role.<ref>`. A role may contain further dots.
fn by_user(user: &str) -> (&str, Option<ProjectRef>) {
    match user
        .rsplit_once('.')
        .map(|(role, suffix)| (role, suffix.parse()))
    {
        Some((role, Ok(project))) => (role, Some(project)),
        _ => (user, None),
    }
}

/// Parses `cli_login_<…>_<ref>_<random>`. Clients that connect to a local alias send no other hint.
fn by_login_role(user: &str) -> Option<ProjectRef> {
    user.strip_prefix(LOGIN_ROLE_PREFIX)?
        .rsplit('_')
        .nth(1)?
        .parse()
        .ok()
}

/// Parses `db.<ref>.<domain>` or `<ref>.<domain>`.
fn by_host(host: &str, domain: &str) -> Option<ProjectRef> {
    let host = host.to_ascii_lowercase();
    let name = host
        .strip_suffix(&domain.to_ascii_lowercase())?
        .strip_suffix('.')?;
    name.strip_prefix("db.").unwrap_or(name).parse().ok()
}

/// Returns the remaining options and the project, split by PostgreSQL's rules.
fn by_options(text: &str) -> Result<(Option<String>, Option<ProjectRef>), ConnectionRejection> {
    let mut kept: Vec<&str> = Vec::new();
    let mut project: Option<ProjectRef> = None;
    for word in words(text) {
        let Some(reference) = word.strip_prefix(REFERENCE) else {
            kept.push(word);
            continue;
        };
        let found: ProjectRef = reference
            .parse()
            .map_err(|_| ConnectionRejection::Unknown)?;
        match &project {
            Some(first) if *first != found => {
                return Err(ConnectionRejection::Conflict(first.clone(), found));
            }
            _ => project = Some(found),
        }
    }
    Ok(((!kept.is_empty()).then(|| kept.join(" ")), project))
}

/// Splits `options` into words at white space that is not escaped by a backslash.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    let separates = move |c: char| {
        let separator = !escaped && c.is_ascii_whitespace();
        escaped = !escaped && c == '\\';
        separator
    };
    text.split(separates).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{
        super::startup::{StartupRequest, opening},
        *,
    };

    const A: &str = "aaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbb";

    fn ask(
        user: &str,
        options: Option<&str>,
        sni: Option<&str>,
    ) -> Result<SessionTarget, ConnectionRejection> {
        let mut packet = [0, 3, 0, 0].to_vec();
        for text in [
            Some("user"),
            Some(user),
            options.map(|_| "options"),
            options,
        ]
        .into_iter()
        .flatten()
        {
            packet.extend_from_slice(text.as_bytes());
            packet.push(0);
        }
        packet.push(0);
        let StartupRequest::Start(startup) = opening(&packet)? else {
            panic!()
        };
        find(&startup, sni, "example.test")
    }

    fn named(project: &str, user: &str, options: Option<&str>) -> SessionTarget {
        SessionTarget {
            project: project.parse().unwrap(),
            user: user.to_owned(),
            options: options.map(str::to_owned),
        }
    }

    #[test]
    fn project_is_found_by_role_option_host_and_login_role() {
        let suffix = format!("postgres.{A}");
        let option = format!("reference={A}");
        let host = format!("DB.{A}.Example.test");
        let short = format!("{A}.example.test");
        let login = format!("cli_login_postgres_{A}_qwertyui");
        let plain = || named(A, "postgres", None);
        assert_eq!(ask(&suffix, None, None).unwrap(), plain());
        assert_eq!(ask("postgres", Some(&option), None).unwrap(), plain());
        for host in [&host, &short] {
            assert_eq!(ask("postgres", None, Some(host)).unwrap(), plain());
            assert_eq!(ask(&suffix, Some(&option), Some(host)).unwrap(), plain());
        }
        assert_eq!(ask(&login, None, None).unwrap(), named(A, &login, None));
        assert_eq!(
            ask(&format!("{login}.{A}"), None, None).unwrap(),
            named(A, &login, None)
        );
    }

    #[test]
    fn conflicting_or_missing_project_is_rejected() {
        let conflict = Err(ConnectionRejection::Conflict(
            A.parse().unwrap(),
            B.parse().unwrap(),
        ));
        assert_eq!(
            ask(
                &format!("postgres.{A}"),
                Some(&format!("reference={B}")),
                None
            ),
            conflict
        );
        assert_eq!(
            ask(
                &format!("postgres.{A}"),
                None,
                Some(&format!("db.{B}.example.test"))
            ),
            conflict
        );
        assert_eq!(
            ask("x", Some(&format!("reference={A} reference={B}")), None),
            conflict
        );
        assert_eq!(
            ask(&format!("cli_login_postgres_{B}_qwertyui.{A}"), None, None),
            conflict
        );
        for (user, sni) in [
            ("postgres", None),
            ("post.gres", None),
            ("postgres.", None),
            ("postgres", Some("db.example.test")),
        ] {
            assert_eq!(
                ask(user, None, sni),
                Err(ConnectionRejection::NoProject),
                "{user}"
            );
        }
        assert_eq!(
            ask("postgres", Some("reference=short"), None),
            Err(ConnectionRejection::Unknown)
        );
        assert_eq!(
            ask("postgres", None, Some(&format!("db.{A}.elsewhere.test"))),
            Err(ConnectionRejection::NoProject)
        );
        assert_eq!(
            ask(&format!(".{A}"), None, None),
            Err(ConnectionRejection::NoUser)
        );
    }

    #[test]
    fn role_is_passed_unchanged() {
        for role in [
            "a.b",
            "\"q\"",
            "Straße",
            "o'hara",
            "-c role=x",
            " ",
            "postgres;--",
            B,
        ] {
            assert_eq!(
                ask(&format!("{role}.{A}"), None, None).unwrap(),
                named(A, role, None)
            );
        }
    }

    #[test]
    fn reserved_role_is_rejected() {
        for role in [
            "supabase_admin",
            "gantry_owner",
            "supabase_read_only_user",
            "authenticator",
            "anon",
            "service_role",
            "pgbouncer",
            "pg_monitor",
        ] {
            assert_eq!(
                ask(&format!("{role}.{A}"), None, None),
                Err(ConnectionRejection::Reserved(role.to_owned()))
            );
        }
    }

    #[test]
    fn libraries_are_rejected_in_every_spelling() {
        let user = format!("postgres.{A}");
        for options in [
            "-c local_preload_libraries=x",
            "-clocal_preload_libraries=x",
            "--local-preload-libraries=x",
            "--Local_Preload-LIBRARIES=x",
            "-c local\\_preload_\\libraries=x",
            "-c a=b -c local_preload_libraries=",
        ] {
            assert_eq!(
                ask(&user, Some(options), None),
                Err(ConnectionRejection::Libraries),
                "{options}"
            );
        }
        for options in ["-c a=local_preload", "-c preload_libraries=x"] {
            assert!(ask(&user, Some(options), None).is_ok(), "{options}");
        }
    }

    #[test]
    fn temporary_login_role_is_accepted() {
        let role = format!("{TEMPORARY_LOGIN_PREFIX}alice_k3v9");
        assert_eq!(
            ask(&format!("{role}.{A}"), None, None).unwrap(),
            named(A, &role, None)
        );
        assert_eq!(
            ask(&format!("gantry_jit.{A}"), None, None),
            Err(ConnectionRejection::Reserved("gantry_jit".to_owned()))
        );
    }

    #[test]
    fn other_options_are_kept() {
        for (sent, kept) in [
            (format!("reference={A}"), None),
            (
                format!("-c a=b reference={A}  -c c=d\\ e"),
                Some("-c a=b -c c=d\\ e"),
            ),
            (
                format!("-c a=x\\ reference={B} reference={A}"),
                Some("-c a=x\\ reference=bbbbbbbbbbbbbbbbbbbb"),
            ),
            (format!("-c a=\\\\ reference={A}"), Some("-c a=\\\\")),
        ] {
            assert_eq!(
                ask("r", Some(&sent), None).unwrap(),
                named(A, "r", kept),
                "{sent}"
            );
        }
    }
}
