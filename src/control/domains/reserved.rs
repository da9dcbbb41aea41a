//! Reserved labels below the projects' domain, which cannot be vanity subdomains.

/// Labels reserved for the same reason.
struct ReservedLabels {
    /// Reason of the reservation.
    reason: &'static str,
    /// Sorted.
    labels: &'static [&'static str],
}

/// Reserved labels. A project keeps a label that was reserved after its activation.
const RESERVED: &[ReservedLabels] = &[
    ReservedLabels {
        reason: "programs look the name up automatically and trust its host with mail, proxies or certificates",
        labels: &[
            "acme",
            "acme-challenge",
            "autoconfig",
            "autodiscover",
            "bimi",
            "broadcasthost",
            "caldav",
            "carddav",
            "crl",
            "enterpriseenrollment",
            "enterpriseregistration",
            "isatap",
            "kerberos",
            "localdomain",
            "localhost",
            "loopback",
            "lyncdiscover",
            "mta-sts",
            "ocsp",
            "openpgpkey",
            "pki",
            "sip",
            "stun",
            "turn",
            "wpad",
            "xmpp",
        ],
    },
    ReservedLabels {
        reason: "a mailbox name that certificate authorities or RFC 2142 reserve for the operator",
        labels: &[
            "abuse",
            "admin",
            "administrator",
            "hostmaster",
            "info",
            "noc",
            "postmaster",
            "root",
            "security",
            "ssladmin",
            "ssladministrator",
            "sslwebmaster",
            "support",
            "sysadmin",
            "usenet",
            "uucp",
            "webmaster",
        ],
    },
    ReservedLabels {
        reason: "the name looks like a page or a service of the operator",
        labels: &[
            "about",
            "account",
            "accounts",
            "app",
            "billing",
            "blog",
            "console",
            "dashboard",
            "dev",
            "docs",
            "help",
            "internal",
            "legal",
            "login",
            "logout",
            "official",
            "password",
            "payment",
            "payments",
            "portal",
            "privacy",
            "prod",
            "production",
            "register",
            "secure",
            "signin",
            "signup",
            "ssl",
            "sso",
            "staff",
            "staging",
            "status",
            "team",
            "terms",
            "test",
            "webmail",
        ],
    },
    ReservedLabels {
        reason: "the platform uses the name, or may use it in future",
        labels: &[
            "api",
            "assets",
            "auth",
            "cdn",
            "database",
            "db",
            "edge",
            "functions",
            "gantry",
            "graphql",
            "mcp",
            "oauth",
            "pooler",
            "postgres",
            "realtime",
            "rest",
            "static",
            "storage",
            "studio",
            "supabase",
        ],
    },
    ReservedLabels {
        reason: "a usual name for the operator's machines or their monitoring",
        labels: &[
            "alertmanager",
            "backup",
            "gateway",
            "grafana",
            "health",
            "healthz",
            "logs",
            "metrics",
            "monitor",
            "monitoring",
            "prometheus",
            "proxy",
            "sftp",
            "ssh",
        ],
    },
];

/// Server names, reserved with any number appended: `ns`, `ns1`, `ns-02`. Sorted.
const SERVERS: &[&str] = &[
    "dns", "ftp", "imap", "ldap", "mail", "mx", "ns", "ntp", "pop", "relay", "resolver", "smtp",
    "time", "vpn", "web", "www",
];

/// Returns the reason for which a lower-case label is reserved, or `None`.
pub(crate) fn reason(label: &str) -> Option<&'static str> {
    let listed = |label: &str| {
        RESERVED
            .iter()
            .find(|group| group.labels.binary_search(&label).is_ok())
            .map(|group| group.reason)
    };
    let server = |label: &str| {
        let stem = label
            .trim_end_matches(|letter: char| letter.is_ascii_digit())
            .trim_end_matches('-');
        SERVERS
            .binary_search(&stem)
            .is_ok()
            .then_some("a usual name for servers of a domain")
    };
    let reserved = |label: &str| listed(label).or_else(|| server(label));
    reserved(label).or_else(|| {
        look_alikes(label)
            .iter()
            .find_map(|alike| reserved(alike))
            .map(|_| "it looks like a reserved name")
    })
}

/// Returns the labels that a label can be mistaken for: `0`, `1`, `rn` and `vv` replaced by similar
/// letters.
fn look_alikes(label: &str) -> [String; 2] {
    let letters = label
        .replace('0', "o")
        .replace("rn", "m")
        .replace("vv", "w");
    [letters.replace('1', "l"), letters.replace('1', "i")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_labels_and_look_alikes_are_detected() {
        for label in [
            "mta-sts",
            "ns",
            "ns1",
            "ns2",
            "ns-3",
            "ns10",
            "mx1",
            "metrics",
            "autodiscover",
            "autoconfig",
            "wpad",
            "isatap",
            "www",
            "www2",
            "mail",
            "mail01",
            "smtp",
            "imap",
            "ftp",
            "api",
            "admin",
            "status",
            "localhost",
            "acme-challenge",
            "adm1n",
            "log1n",
            "b1ll1ng",
            "supp0rt",
            "vvebmaster",
            "rnetrics",
        ] {
            assert!(reason(label).is_some(), "{label}");
        }
        for label in [
            "shop", "my-api", "api2go", "nsfw", "mailer", "a11y", "modern", "timeline", "webshop",
            "testing", "bureau-1",
        ] {
            assert_eq!(reason(label), None, "{label}");
        }
    }

    #[test]
    fn reserved_labels_are_sorted_and_unique() {
        let all: Vec<_> = RESERVED
            .iter()
            .flat_map(|group| group.labels)
            .chain(SERVERS)
            .collect();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
        assert!(
            RESERVED
                .iter()
                .all(|group| group.labels.is_sorted() && !group.reason.is_empty())
                && SERVERS.is_sorted()
        );
        assert!(all.iter().all(|label| {
            label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        }));
    }
}
