#!/usr/bin/env python3
"""Weakens the OAuth server in one place after the other, and expects the suite to notice each time.

    tests/weakenings/oauth.py              # all, one by one: a build each, so hours
    tests/weakenings/oauth.py plain iss    # some of them
    tests/weakenings/oauth.py --together   # all in one build: each test must fail, but may fail for another's reason

The source is put back in the end, whatever happens. It must be as committed before. A weakening names the test that has to
fail; a weakening that nothing fails for is a test to be written, and makes the exit code 1.
"""

import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Name, file, what stands there, what stands there instead, the test that has to fail.
WEAKENINGS = [
    ("prefix", "oauth/redirect.rs", "known == sent ||", "sent.starts_with(known.as_str()) ||", "nothing_goes_to_an_address_that_is_not_registered"),
    ("port", "oauth/redirect.rs", '["127.0.0.1", "[::1]"]', '["127.0.0.1", "[::1]", "localhost"]', "an_address_counts_letter_by_letter"),
    ("http", "oauth/redirect.rs", '"http" if is_local(&url) => None', '"http" => None', "what_cannot_be_trusted_is_not_registered"),
    ("plain", "oauth/pkce.rs", 'Some("S256" | "sha256")', 'Some("S256" | "sha256" | "plain")', "only_s256_is_taken"),
    ("verifier", "oauth/pkce.rs", "well_formed(verifier) && verify", "well_formed(verifier) || verify", "a_code_is_tried_once"),
    ("downgrade", "oauth/code.rs", "(Some(_), None) => Verdict::Burnt(\"code_verifier is missing.\")", "(Some(_), None) => Verdict::Issue", "every_attempt_has_one_outcome"),
    ("slip", "oauth/code.rs", "(None, Some(_)) => Verdict::Burnt", "(None, Some(_)) if false => Verdict::Burnt(\"\"),\n        (None, Some(_)) => Verdict::Issue,\n        #[expect(unreachable_patterns)]\n        (None, Some(_)) => Verdict::Burnt", "a_proof_cannot_be_left_out_or_slipped_in"),
    ("owner", "oauth/code.rs", "if code.application != attempt.application {", "if false {", "a_stolen_code_or_token_is_of_no_use_to_another_application"),
    ("burn", "oauth/exchange.rs", "if verdict != code::Verdict::Foreign {", "if verdict == code::Verdict::Issue {", "a_code_is_tried_once"),
    ("replay", "oauth/exchange.rs", "code::Verdict::Replayed => Err(Refused::Ended)", "code::Verdict::Replayed => Err(Refused::Kept(fault(\"invalid_grant\", NO_CODE)))", "a_replayed_code_ends_what_it_led_to"),
    ("minute", "oauth/mod.rs", "CODE_LIFE: TimeDelta = TimeDelta::seconds(60)", "CODE_LIFE: TimeDelta = TimeDelta::seconds(600)", "a_code_is_over_after_a_minute"),
    ("reuse", "oauth/refresh.rs", "Some(_) => Verdict::Reused", "Some(_) => Verdict::Rotate", "every_use_has_one_outcome"),
    ("lost", "oauth/refresh.rs", "if refresh.next_unused && now >= consumed", "if now >= consumed", "an_answer_may_get_lost_once_and_only_just_now"),
    ("widen", "oauth/exchange.rs", "!wanted.within(grant.scopes)", "false", "scopes_can_be_narrowed_and_never_widened"),
    ("lock", "oauth/grants.rs", "where g.id = $1 for update of g", "where g.id = $1", "of_sixteen_who_bring_a_code_one_gets_tokens_and_nobody_keeps_them"),
    ("secret", "oauth/client.rs", "(false, Some(secret)) if proves(db, &application, secret, now).await?", "(false, Some(secret)) if proves(db, &application, secret, now).await? || secret.len() > 3", "who_does_not_prove_who_it_is_gets_one_answer"),
    ("public", "oauth/client.rs", "(true, Some(_)) | (false, _)", "(true, Some(_)) => Ok(application),\n        (false, _)", "who_does_not_prove_who_it_is_gets_one_answer"),
    ("iss", "oauth/requests/mod.rs", 'all.push(("iss", &self.issuer));', "", "an_application_gets_tokens_uses_renews_and_returns_them"),
    ("session", "oauth/requests/mod.rs", "and (session is null or session = $2) returning id", "returning id", "a_request_belongs_to_the_browser_that_opened_it"),
    ("once", "oauth/requests/mod.rs", "where id = $1 and done_at is null and created_at > $3 returning id\";\n    let taken", "where id = $1 and created_at > $3 returning id\";\n    let taken", "of_sixteen_answers_to_a_request_one_counts"),
    ("role", "oauth/requests/mod.rs", "!application.bound && held.organization < Role::Administrator", "false", "what_is_not_bound_is_approved_by_administrators_only"),
    ("scope", "access/decide.rs", "Some(scope) if !approval.scopes.contains(scope)", "Some(scope) if approval.scopes.is_empty()", "an_application_is_let_in_exactly_where_scope_reach_and_role_say"),
    ("closed", "access/decide.rs", "None => return Err(Error::Forbidden(Denial::NotByApplications)),", "None => {}", "what_has_no_scope_is_closed_to_applications"),
    ("cache", "access/directory.rs", '"oauth_applications" | "oauth_grants" | "oauth_access_tokens" => self.issued.clear()', '"oauth_applications" => self.issued.clear()', "what_ends_is_over_with_the_next_request_on_every_node"),
    ("other", "oauth/introspect.rs", "where g.application_id = $2 and g.revoked_at is null", "where g.application_id = g.application_id + $2 * 0 and g.revoked_at is null", "a_token_is_explained_to_its_application_only"),
    ("twice", "oauth/fields.rs", "if fields.iter().any(|(known, _)| *known == name) {", "if false {", "a_field_is_there_once"),
    ("native", "oauth/redirect.rs", "native && without_port(known)", "(native || true) && without_port(known)", "only_a_native_application_is_answered_on_another_port"),
    ("insufficient", "http/guard.rs", 'Error::Forbidden(Denial::Scope(_)) => Some("error=\\"insufficient_scope\\"".to_owned()),', "", "an_application_gets_what_the_decision_says"),
    ("introspect", "oauth/api.rs", "if error.code().status == 422 { client::unknown() } else { error }", "error", "a_token_is_explained_to_its_application_only"),
    ("flood", "oauth/register.rs", "if unused >= UNUSED_MANY {", "if false {", "a_flood_makes_room_oldest_first_and_never_takes_what_was_approved"),
    ("share", "oauth/register.rs", "if of_address >= UNUSED_OF_ADDRESS_MAX {", "if false {", "one_address_uses_up_its_own_share"),
    ("host", "oauth/redirect.rs", "if url.has_host() && !names_host(text, &url) {", "if false {", "what_cannot_be_trusted_is_not_registered"),
    ("policy", "oauth/redirect.rs", "url.host().as_ref().is_some_and(is_plain) =>", "url.host().is_some() =>", "the_policy_of_the_page_names_hosts_only"),
    ("confusable", "names.rs", "let skeleton: String = skeleton(&compatible).collect();", "let skeleton = compatible;", "a_name_that_looks_like_a_reserved_one_is_found"),
    ("hidden", "names.rs", "(*first..=*last).contains(&c)", "(*first..=*last).contains(&c) && false", "a_name_is_what_it_looks_like"),
    ("names", "projects/api.rs", 'names::check("name", &request.name, 256)?;', "", "a_name_is_refused_for_what_cannot_be_seen_and_for_nothing_else"),
    ("issuer", "oauth/mod.rs", "self.public_url.as_deref().ok_or(Error::Unconfigured(NO_ISSUER))", 'Ok(self.public_url.as_deref().unwrap_or("http://evil.example"))', "without_a_public_address_nothing_is_asked_for_and_the_operator_is_told_why"),
    ("audience", "oauth/approvals.rs", "if Audience::stored(row.get(15)) != Audience::Api {", "if false {", "a_token_for_an_mcp_server_does_not_work_at_the_api"),
    ("target", "oauth/audience.rs", 'if matches!(path, Some("" | "/v1" | MCP)) {', "if path.is_some() {", "what_cannot_be_asked_is_told_to_the_application"),
    ("state", "oauth/fields.rs", "if value.contains(", "if false && value.contains(", "a_state_comes_back_as_it_went_or_is_refused"),
    ("grown", "oauth/applications/mod.rs", "scopes.within(application.scopes)\n", "true\n", "what_the_operator_vouched_for_is_what_they_looked_at"),
    ("empty", "oauth/requests/mod.rs", "if request.scopes.is_empty() {", "if false {", "an_application_that_lost_its_scopes_is_allowed_nothing_and_the_member_is_told_why"),
    ("resubmit", "web/oauth/consent.rs", "Err(Error::Rejected(_)) => Answer::to(page),", "", "pressing_twice_is_no_error"),
    ("nul-json", "http/input.rs", "    nul::check_json(bytes)?;\n", "", "no_operation_fails_on_a_body_with_a_nul"),
    ("nul-query", "http/guard.rs", ".or(nul::check_query(query).err())", "", "no_operation_fails_on_a_query_or_a_path_with_a_nul"),
    ("nul-form", "web/form.rs", "    nul::check_form(body)?;\n", "", "a_sign_in_with_a_nul_is_refused"),
    ("bearer", "http/guard.rs", 'if scheme.eq_ignore_ascii_case("bearer") {', "if false {", "a_bearer_token_beside_credentials_in_the_body_says_nothing"),
    ("bearer-alone", "oauth/client.rs", "Basic::Bearer => (named.ok_or_else(unknown)?, secret),", 'Basic::Bearer => (named.ok_or_else(|| unprocessable("no name"))?, secret),', "who_does_not_prove_who_it_is_gets_one_answer"),
]


def apply(weakening):
    _, file, before, after, _ = weakening
    path = ROOT / "src" / file
    text = path.read_text()
    if before not in text:
        sys.exit(f"{weakening[0]}: {file} does not have {before!r} any more")
    path.write_text(text.replace(before, after, 1))


def restore():
    subprocess.run(["git", "checkout", "--quiet", "--", "src"], cwd=ROOT, check=True)


def failed(test):
    """Whether the test fails. What does not compile is no weakening."""
    # Tables stand beside the code, attacks in the integration tests: only what has the test is built.
    beside = any(f"fn {test}(" in path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    target = ["--lib"] if beside else ["--test", "it"]
    build = subprocess.run(["cargo", "test", "--no-run", *target], cwd=ROOT, capture_output=True, text=True)
    if build.returncode != 0:
        sys.exit(f"does not compile:\n{build.stderr[-4000:]}")
    # The server that tests share comes from a binary that was built before anything was weakened.
    run = ["cargo", "test", *target, "--", test]
    done = subprocess.run([GANTRY, "with-postgres", "--", *run], cwd=ROOT, capture_output=True, text=True)
    if f"::{test} ... " not in done.stdout:
        sys.exit(f"there is no test {test}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def survivors(chosen, together):
    for weakening in chosen if together else []:
        apply(weakening)
    for weakening in chosen:
        if not together:
            apply(weakening)
        caught = failed(weakening[4])
        print(f"{'caught  ' if caught else 'SURVIVED'} {weakening[0]}: {weakening[4]}", flush=True)
        if not caught:
            yield weakening
        if not together:
            restore()


if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=ROOT).returncode != 0:
    sys.exit("commit what you changed first: it would be lost")
# The integration tests bring the server with them; built by itself it would have other features, and its dependencies twice.
subprocess.run(["cargo", "test", "--quiet", "--no-run", "--test", "it"], cwd=ROOT, check=True)
meta = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True, text=True)

built = pathlib.Path(json.loads(meta.stdout)["target_directory"], "debug", "gantry")
GANTRY = built.with_name("gantry-before-weakening")
shutil.copy(built, GANTRY)
names = [name for name in sys.argv[1:] if name != "--together"]
unknown = set(names) - {weakening[0] for weakening in WEAKENINGS}
if unknown:
    sys.exit(f"unknown: {', '.join(sorted(unknown))}")
chosen = [weakening for weakening in WEAKENINGS if not names or weakening[0] in names]
try:
    left = list(survivors(chosen, "--together" in sys.argv))
finally:
    restore()
print(f"{len(chosen) - len(left)} of {len(chosen)} caught")
sys.exit(1 if left else 0)
