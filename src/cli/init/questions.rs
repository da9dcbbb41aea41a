//! The questions of `gantry init`.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anyhow::Context as _;

use super::{Answers, CertificateFiles, ServerPlan};

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Asks for the answers that were not given as options.
pub(super) fn ask(given: Answers, takes_defaults: bool) -> anyhow::Result<ServerPlan> {
    let stdin = io::stdin();
    let is_asked = !takes_defaults && stdin.is_terminal();
    let input = is_asked.then(|| stdin.lock());
    complete(given, input, io::stderr())
}

/// Reads answers, if there is an input for them.
struct Questions<I, O> {
    input: Option<I>,
    output: O,
}

impl<I: BufRead, O: Write> Questions<I, O> {
    /// Returns the given answer, one that is typed, or the default.
    fn answer(
        &mut self,
        given: Option<String>,
        (option, question): (&str, &str),
        default: Option<&str>,
    ) -> anyhow::Result<String> {
        if let Some(given) = given {
            return Ok(given);
        }
        if let Some(input) = &mut self.input {
            match default {
                Some(default) => write!(self.output, "{question} [{default}]: ")?,
                None => write!(self.output, "{question}: ")?,
            }
            self.output.flush()?;
            let mut line = String::new();
            (&mut *input).take(ANSWER_BYTES_MAX).read_line(&mut line)?;
            let typed = line.trim();
            if !typed.is_empty() {
                return Ok(typed.to_owned());
            }
        }
        let default = default.map(ToOwned::to_owned);
        default.with_context(|| format!("give an answer, or the option {option}"))
    }

    /// Asks for the files of a certificate. None if the first answer is empty.
    fn certificate(
        &mut self,
        given: (Option<String>, Option<String>),
        (option, question): (&str, &str),
    ) -> anyhow::Result<Option<CertificateFiles>> {
        let certificate_option = format!("--{option}-certificate");
        let certificate = self.answer(given.0, (&certificate_option, question), Some(""))?;
        if certificate.is_empty() {
            return Ok(None);
        }
        let key_option = format!("--{option}-key");
        let key = self.answer(given.1, (&key_option, "  Its private key (PEM)"), None)?;
        Ok(Some(CertificateFiles { certificate, key }))
    }
}

fn complete(
    given: Answers,
    input: Option<impl BufRead>,
    output: impl Write,
) -> anyhow::Result<ServerPlan> {
    let mut questions = Questions { input, output };
    let domain = questions.answer(
        given.domain,
        (
            "--domain",
            "Domain of the installation, such as example.com",
        ),
        None,
    )?;
    anyhow::ensure!(
        is_domain(&domain),
        "`{domain}` is not a domain; give one such as example.com, without https://"
    );
    let data = questions.answer(
        given.data,
        ("--data", "Folder for all data"),
        Some("/var/lib/gantry"),
    )?;
    let api = (given.api_certificate, given.api_key);
    let question = format!("Certificate (PEM) for api.{domain}; empty behind a proxy");
    let api_tls = questions.certificate(api, ("api", &question))?;
    let projects = (given.projects_certificate, given.projects_key);
    let question = format!("Certificate (PEM) for *.projects.{domain}; empty for none");
    let projects_tls = questions.certificate(projects, ("projects", &question))?;
    let acme = questions.answer(
        given.acme,
        (
            "--acme",
            "ACME directory for custom hostnames; empty for none",
        ),
        Some(""),
    )?;
    let backups = questions.answer(
        given.backups,
        (
            "--backups",
            "Folder on another disk, or s3://bucket/prefix, for backups",
        ),
        Some("/var/backups/gantry"),
    )?;
    let admin = questions.answer(
        given.admin,
        ("--admin", "Email address of the administrator"),
        None,
    )?;
    anyhow::ensure!(
        is_address(&admin),
        "`{admin}` is not an email address; give one such as ops@{domain}"
    );
    Ok(ServerPlan {
        domain,
        data,
        api_tls,
        projects_tls,
        acme: (!acme.is_empty()).then_some(acme),
        backups,
        admin,
    })
}

/// Whether the text has the form of a domain with at least two labels.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 200 && text.contains('.') && text.split('.').all(is_label)
}

/// Whether the text can be an email address that needs no quotes in a shell.
fn is_address(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-@".contains(&byte);
    let parts = text.split_once('@');
    text.bytes().all(is_plain)
        && parts.is_some_and(|(name, host)| !name.is_empty() && is_domain(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(lines: &str) -> anyhow::Result<ServerPlan> {
        complete(Answers::default(), Some(lines.as_bytes()), io::sink())
    }

    #[test]
    fn answers_are_typed_or_defaults() {
        let plan = typed("example.com\n\n/api.pem\n/api.key\n\n\n\nops@example.com\n").unwrap();
        assert_eq!(plan.data, "/var/lib/gantry");
        let tls = plan.api_tls.unwrap();
        assert_eq!(
            (tls.certificate, tls.key),
            ("/api.pem".into(), "/api.key".into())
        );
        assert_eq!(plan.projects_tls, None);
        assert_eq!(plan.backups, "/var/backups/gantry");
    }

    #[test]
    fn options_are_not_asked_for() {
        let given = Answers {
            domain: Some("example.com".to_owned()),
            admin: Some("ops@example.com".to_owned()),
            ..Answers::default()
        };
        let plan = complete(given, None::<&[u8]>, io::sink()).unwrap();
        assert_eq!((plan.domain.as_str(), plan.acme), ("example.com", None));
    }

    #[test]
    fn missing_and_invalid_answers_name_the_remedy() {
        let error = complete(Answers::default(), None::<&[u8]>, io::sink()).unwrap_err();
        assert!(error.to_string().contains("--domain"), "{error}");
        for domain in [
            "https://example.com",
            "example",
            "a..b",
            "-a.com",
            "a b.com",
        ] {
            let error = typed(&format!("{domain}\n")).unwrap_err().to_string();
            assert!(error.contains("is not a domain"), "{error}");
        }
        let error = typed("example.com\n\n\n\n\n\n$(id)@example.com\n").unwrap_err();
        assert!(
            error.to_string().contains("not an email address"),
            "{error}"
        );
        let error = typed("example.com\n\n/api.pem\n").unwrap_err();
        assert!(error.to_string().contains("--api-key"), "{error}");
    }
}
