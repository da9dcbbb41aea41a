//! Authorization codes: single use, valid for one minute, bound to one application.

use chrono::{DateTime, Utc};
use gantry_base::ids::ApplicationId;

use super::{CODE_LIFETIME, pkce::PkceChallenge};

/// An authorization code, read while its grant is locked.
#[derive(Debug, Clone)]
pub struct AuthorizationCode {
    /// The application that the code was issued to.
    pub application: ApplicationId,
    /// The redirect URI that the code was sent to.
    pub redirect_uri: String,
    /// The PKCE challenge of the authorization request.
    pub challenge: Option<PkceChallenge>,
    /// Time of issue.
    pub created_at: DateTime<Utc>,
    /// Whether the code was presented before.
    pub used: bool,
    /// Whether the grant is not revoked.
    pub live: bool,
}

/// A request to exchange a code for tokens.
#[derive(Debug, Clone, Copy)]
pub struct CodeExchange<'a> {
    /// The authenticated application.
    pub application: ApplicationId,
    /// The `redirect_uri` parameter.
    pub redirect_uri: Option<&'a str>,
    /// The `code_verifier` parameter (RFC 7636).
    pub verifier: Option<&'a str>,
}

/// The decision about an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeVerdict {
    /// The code belongs to another application: reject and leave the code usable.
    OtherClient,
    /// The code was presented before and has leaked: reject and revoke the grant.
    Replayed,
    /// Reject and consume the code. Holds the error description.
    Invalid(&'static str),
    /// Issue tokens and consume the code.
    Issue,
}

/// Decides whether a code can be exchanged.
pub fn judge(
    code: &AuthorizationCode,
    attempt: CodeExchange<'_>,
    now: DateTime<Utc>,
) -> CodeVerdict {
    if code.application != attempt.application {
        return CodeVerdict::OtherClient;
    }
    if code.used {
        return CodeVerdict::Replayed;
    }
    if !code.live {
        return CodeVerdict::Invalid("The authorization is revoked.");
    }
    // Comparing against the creation time is safe if the clock was set back: a code never expires
    // early, and never lives longer than its lifetime by the same clock.
    if now >= code.created_at + CODE_LIFETIME {
        return CodeVerdict::Invalid("The code is expired.");
    }
    if attempt.redirect_uri != Some(&code.redirect_uri) {
        return CodeVerdict::Invalid(
            "redirect_uri differs from that of the authorization request.",
        );
    }
    match (&code.challenge, attempt.verifier) {
        (Some(challenge), Some(verifier)) if challenge.matches(verifier) => CodeVerdict::Issue,
        (None, None) => CodeVerdict::Issue,
        (Some(_), None) => CodeVerdict::Invalid("code_verifier is missing."),
        (Some(_), Some(_)) => {
            CodeVerdict::Invalid("code_verifier does not match the code_challenge.")
        }
        // A verifier without a challenge means that the code was issued for another request (code
        // injection).
        (None, Some(_)) => CodeVerdict::Invalid(
            "code_verifier was sent without a code_challenge in the authorization request.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    const CALLBACK: &str = "https://app.example/cb";

    #[test]
    fn judge_code_returns_expected_verdict() {
        let now: DateTime<Utc> = "2026-11-21T09:15:03Z".parse().unwrap();
        let challenge = PkceChallenge::parse(
            Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
            Some("S256"),
        )
        .unwrap();
        let code = AuthorizationCode {
            application: ApplicationId(1),
            redirect_uri: CALLBACK.to_owned(),
            challenge,
            created_at: now,
            used: false,
            live: true,
        };
        let right = CodeExchange {
            application: ApplicationId(1),
            redirect_uri: Some(CALLBACK),
            verifier: Some(VERIFIER),
        };
        let plain = AuthorizationCode {
            challenge: None,
            ..code.clone()
        };
        let unproven = CodeExchange {
            verifier: None,
            ..right
        };
        let at = |secs| now + TimeDelta::seconds(secs);
        let foreign = CodeVerdict::OtherClient;
        let replayed = CodeVerdict::Replayed;
        let issue = CodeVerdict::Issue;
        let other = CodeExchange {
            application: ApplicationId(2),
            ..right
        };
        let used = AuthorizationCode {
            used: true,
            ..code.clone()
        };
        let dead = AuthorizationCode {
            live: false,
            ..code.clone()
        };
        for (case, code, attempt, when, verdict) in [
            ("right", &code, right, 0, Some(issue)),
            ("at the last moment", &code, right, 59, Some(issue)),
            ("without a challenge", &plain, unproven, 0, Some(issue)),
            ("another application", &code, other, 0, Some(foreign)),
            ("another application, used", &used, other, 0, Some(foreign)),
            ("again", &used, right, 0, Some(replayed)),
            ("again, and wrong", &used, unproven, 0, Some(replayed)),
            ("again, much later", &used, right, 86_400, Some(replayed)),
            ("revoked", &dead, right, 0, None),
            ("too late", &code, right, 60, None),
            (
                "another address",
                &code,
                CodeExchange {
                    redirect_uri: Some("https://app.example/cb/"),
                    ..right
                },
                0,
                None,
            ),
            (
                "no address",
                &code,
                CodeExchange {
                    redirect_uri: None,
                    ..right
                },
                0,
                None,
            ),
            ("no proof", &code, unproven, 0, None),
            (
                "the challenge itself",
                &code,
                CodeExchange {
                    verifier: Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
                    ..right
                },
                0,
                None,
            ),
            ("proof of nothing", &plain, right, 0, None),
        ] {
            let outcome = judge(code, attempt, at(when));
            match verdict {
                Some(expected) => assert_eq!(outcome, expected, "{case}"),
                None => assert!(
                    matches!(outcome, CodeVerdict::Invalid(_)),
                    "{case}: {outcome:?}"
                ),
            }
        }
    }
}
