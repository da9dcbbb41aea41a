//! A code, and what becomes of it: exchanged once, within a minute, by who it was made for.

use chrono::{DateTime, Utc};

use super::{CODE_LIFETIME, pkce::PkceChallenge};
use crate::base::ids::ApplicationId;

/// A code, as its row has it under the lock of its grant.
#[derive(Debug, Clone)]
pub struct AuthorizationCode {
    /// Whose it is.
    pub application: ApplicationId,
    /// Where it was sent.
    pub redirect_uri: String,
    /// What the verifier has to hash to.
    pub challenge: Option<PkceChallenge>,
    /// When it was issued.
    pub created_at: DateTime<Utc>,
    /// Whether somebody tried it before.
    pub used: bool,
    /// Whether what was approved still holds.
    pub live: bool,
}

/// An attempt to exchange it.
#[derive(Debug, Clone, Copy)]
pub struct CodeExchange<'a> {
    /// Who asks.
    pub application: ApplicationId,
    /// Where it says that the code was sent.
    pub redirect_uri: Option<&'a str>,
    /// The proof.
    pub verifier: Option<&'a str>,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeVerdict {
    /// Another application's: refused, and as good as before.
    OtherClient,
    /// It was tried before, so somebody else has it: refused, and what was approved ends.
    Replayed,
    /// Refused, and used up. Says why.
    Invalid(&'static str),
    /// Tokens are issued, and it is used up.
    Issue,
}

/// What becomes of a code at an attempt to exchange it.
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
        return CodeVerdict::Invalid("What was approved is revoked.");
    }
    // A clock that was set back makes no code older, and none newer than it can be.
    if now >= code.created_at + CODE_LIFETIME {
        return CodeVerdict::Invalid("The code is expired.");
    }
    if attempt.redirect_uri != Some(&code.redirect_uri) {
        return CodeVerdict::Invalid("redirect_uri is not where the code was sent.");
    }
    match (&code.challenge, attempt.verifier) {
        (Some(challenge), Some(verifier)) if challenge.matches(verifier) => CodeVerdict::Issue,
        (None, None) => CodeVerdict::Issue,
        (Some(_), None) => CodeVerdict::Invalid("code_verifier is missing."),
        (Some(_), Some(_)) => CodeVerdict::Invalid("code_verifier does not fit."),
        // Who proves something that nobody asked for has a code that was made for somebody else.
        (None, Some(_)) => {
            CodeVerdict::Invalid("There is a code_verifier, and there was no code_challenge.")
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    const CALLBACK: &str = "https://app.example/cb";

    #[test]
    fn every_attempt_has_one_outcome() {
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
        let (plain, unproven) = (
            AuthorizationCode {
                challenge: None,
                ..code.clone()
            },
            CodeExchange {
                verifier: None,
                ..right
            },
        );
        let at = |secs| now + TimeDelta::seconds(secs);
        let (foreign, replayed, issue) = (
            CodeVerdict::OtherClient,
            CodeVerdict::Replayed,
            CodeVerdict::Issue,
        );
        let other = CodeExchange {
            application: ApplicationId(2),
            ..right
        };
        let (used, dead) = (
            AuthorizationCode {
                used: true,
                ..code.clone()
            },
            AuthorizationCode {
                live: false,
                ..code.clone()
            },
        );
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
