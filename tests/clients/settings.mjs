// Settings of projects: `supabase config`, both generations of the CLI, and `gantry config`.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { call, clients, environment, project, run, supabase } from './harness.mjs';

/** Sections that both versions of the CLI read. */
const config = (ref) => `
project_id = "${ref}"

[api]
enabled = true
schemas = ["public"]
extra_search_path = ["public", "extensions"]
max_rows = 321

[db]
port = 54322
major_version = 17

[db.settings]
work_mem = "8MB"
statement_timeout = "45s"

[storage]
enabled = true
file_size_limit = "20MiB"

[auth]
enabled = true
site_url = "https://app.example.com"
additional_redirect_urls = ["https://app.example.com/**", "https://preview.example.com/*"]
jwt_expiry = 1800
enable_refresh_token_rotation = true
refresh_token_reuse_interval = 20
enable_signup = false
enable_anonymous_sign_ins = true
minimum_password_length = 10
password_requirements = "letters_digits"

[auth.rate_limit]
token_refresh = 160
sign_in_sign_ups = 40
token_verifications = 50

[auth.email]
enable_signup = true
double_confirm_changes = true
enable_confirmations = true
secure_password_change = true
max_frequency = "30s"
otp_length = 8
otp_expiry = 1200

[auth.email.smtp]
enabled = true
host = "smtp.example.com"
port = 587
user = "apikey"
pass = "env(TEST_SMTP_PASS)"
admin_email = "admin@example.com"
sender_name = "Admin"

[auth.mfa]
max_enrolled_factors = 5

[auth.mfa.totp]
enroll_enabled = true
verify_enabled = true

[auth.sessions]
timebox = "24h"
inactivity_timeout = "8h"

[auth.external.github]
enabled = true
client_id = "github-client"
secret = "env(TEST_GITHUB_SECRET)"
`;

/** Settings after the push. */
const pushed = {
  site_url: 'https://app.example.com',
  jwt_exp: 1800,
  disable_signup: true,
  external_anonymous_users_enabled: true,
  password_min_length: 10,
  security_refresh_token_reuse_interval: 20,
  rate_limit_token_refresh: 160,
  mailer_otp_exp: 1200,
  mailer_otp_length: 8,
  smtp_host: 'smtp.example.com',
  sessions_timebox: 24,
  sessions_inactivity_timeout: 8,
  external_github_enabled: true,
  external_github_client_id: 'github-client',
};

const secrets = { TEST_SMTP_PASS: 'correct-horse-battery', TEST_GITHUB_SECRET: 'staple-of-the-clients' };

/** The command line tool of the previous generation, if it is installed. */
const previous = join(clients, 'node_modules/supabase-2.99/bin/supabase-go');

async function isPushed(server, ref) {
  const at = (rest) => call(server, 'GET', `/v1/projects/${ref}/${rest}`);
  const auth = (await at('config/auth')).body;
  for (const [name, value] of Object.entries(pushed)) assert.equal(auth[name], value, name);
  assert.match(auth.smtp_pass, /^[0-9a-f]{64}$/);
  assert.equal((await at('postgrest')).body.max_rows, 321);
  assert.equal((await at('config/storage')).body.fileSizeLimit, 20 * 1024 * 1024);
  assert.equal((await at('config/database/postgres')).body.work_mem, '8MB');
}

export default async function (server, tally) {
  const folder = (ref, name) => {
    const dir = join(server.work, name);
    mkdirSync(join(dir, 'supabase'), { recursive: true });
    writeFileSync(join(dir, 'supabase', 'config.toml'), config(ref));
    return dir;
  };
  const ref = await project(server, 'settings');

  await tally.scenario('settings: config push of the CLI', async () => {
    const dir = folder(ref, 'settings-push');
    const push = () => supabase(server, ['config', 'push', `--remote=${ref}`, '--yes', '--workdir', dir], { env: secrets });
    const first = await push();
    assert.equal(first.code, 0, first.all);
    await isPushed(server, ref);
    const again = await push();
    assert.equal(again.code, 0, again.all);
    assert.match(again.all, /up to date/i);
  });
  await tally.scenario('settings: config diff and config pull of the CLI', async () => {
    const dir = folder(ref, 'settings-pull');
    const changed = await call(server, 'PATCH', `/v1/projects/${ref}/config/auth`, { jwt_exp: 900 });
    assert.equal(changed.status, 200);
    const diff = await supabase(server, ['config', 'diff', `--remote=${ref}`, '--workdir', dir], { env: secrets });
    assert.match(diff.all, /jwt_expiry/, diff.all);
    const pull = await supabase(server, ['config', 'pull', `--remote=${ref}`, '--yes', '--workdir', dir], { env: secrets });
    assert.equal(pull.code, 0, pull.all);
    assert.match(readFileSync(join(dir, 'supabase', 'config.toml'), 'utf8'), /jwt_expiry = 900/);
  });
  if (existsSync(previous)) {
    await tally.scenario('settings: config push of the previous CLI', async () => {
      const other = await project(server, 'settings of the previous CLI');
      const dir = folder(other, 'settings-previous');
      const pushed = await run(server, previous, ['config', 'push', '--project-ref', other, '--yes', '--workdir', dir], { ...environment(server), ...secrets });
      assert.equal(pushed.code, 0, pushed.all);
      await isPushed(server, other);
    });
  }
  await tally.scenario('settings: gantry config export, plan, apply', async () => {
    const gantry = (args, env = {}) => run(server, process.env.GANTRY_BIN, ['config', ...args], { GANTRY_URL: server.url, GANTRY_TOKEN: server.token, ...env });
    const works = async (args, env) => {
      const ended = await gantry(args, env);
      assert.equal(ended.code, 0, ended.all);
      return ended;
    };
    const exported = await works(['export', '--project', ref]);
    assert.match(exported.out, /site_url = "https:\/\/app\.example\.com"/);
    assert.doesNotMatch(exported.out, /correct-horse/);
    assert.match(exported.all, /auth\.smtp_pass/);
    const file = join(server.work, 'settings.toml');
    writeFileSync(file, exported.out);
    assert.match((await works(['plan', file, '--project', ref])).out, /^No changes\./);
    writeFileSync(file, `${exported.out.replace(/jwt_exp = \d+/, 'jwt_exp = 70\nsecurity_captcha_secret = "env(CAPTCHA)"')}`);
    const plan = await works(['plan', file, '--project', ref], { CAPTCHA: 'captcha-of-the-clients' });
    assert.match(plan.out, /auth\.jwt_exp: \d+ -> 70/);
    assert.match(plan.out, /auth\.security_captcha_secret: unset -> \(secret\)/);
    const [, hash] = /--hash ([0-9a-f]{64})/.exec(plan.out);
    await call(server, 'PATCH', `/v1/projects/${ref}/config/auth`, { jwt_exp: 901 });
    const refused = await gantry(['apply', file, '--project', ref, '--hash', hash], { CAPTCHA: 'captcha-of-the-clients' });
    assert.equal(refused.code, 1);
    assert.match(refused.all, /409/);
    assert.match((await works(['apply', file, '--project', ref], { CAPTCHA: 'captcha-of-the-clients' })).out, /2 settings changed/);
    const organization = await works(['export', '--org', server.organization, '--json']);
    const document = JSON.parse(organization.out);
    assert.equal(document.members['owner@example.com'], 'owner');
    document.projects = { [ref]: { name: 'settings, renamed', settings: { auth: { jwt_exp: 80 } } } };
    document.members['new@example.com'] = 'developer';
    const whole = join(server.work, 'organization.json');
    writeFileSync(whole, JSON.stringify(document));
    assert.match((await works(['plan', whole, '--org', server.organization])).out, /member new@example\.com: invited as developer/);
    assert.match((await works(['apply', whole, '--org', server.organization])).out, /3 changes applied/);
    const renamed = (await call(server, 'GET', `/v1/projects/${ref}`)).body;
    assert.equal(renamed.name, 'settings, renamed');
  });
  await tally.scenario('settings: no secret is in a file or the log of the server', async () => {
    for (const secret of [...Object.values(secrets), 'captcha-of-the-clients']) {
      const found = await run(server, 'grep', ['-rlF', '--', secret, server.data]);
      assert.equal(found.out.trim(), '', secret);
      assert.ok(!server.log.join('\n').includes(secret));
    }
  });
}
