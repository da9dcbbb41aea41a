// Starts a server for a run, runs scenarios in order, and counts their outcomes.
import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** Time limits of one scenario and of all scenarios of a client, in milliseconds. */
const PATIENCE = 120_000;
export const SUITE_PATIENCE = 900_000;

export const clients = process.env.GANTRY_CLIENTS;

/** Returns the result of `work`, or an error that names it after the time limit. */
export function bounded(what, work, millis = PATIENCE) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${millis} ms: ${what}`)), millis);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

/** Returns the result of `ask` once it matches. Events are in the logs within two seconds. */
export async function soon(ask, wanted) {
  for (let look = 0; ; look += 1) {
    const said = await ask();
    if (wanted.test(said)) return said;
    if (look === 4) throw new Error(`${wanted} is not in ${said}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

/** Number of servers started in this run. */
let servers = 0;

/** Makes the temporary folder of a server. */
export function folder() {
  const dir = mkdtempSync('/tmp/gantry-clients-');
  // PostgreSQL runs under other user ids, which must be able to enter the folder.
  chmodSync(dir, 0o711);
  mkdirSync(join(dir, 'home'));
  mkdirSync(join(dir, 'work'));
  return dir;
}

/**
 * Starts `gantry dev` in a temporary folder, or in the folder of a killed server, with additional flags and variables.
 * Resolves when the server is ready.
 */
export async function start({ flags: more = [], env, dir = folder() } = {}) {
  const data = join(dir, 'data');
  // Clients require the default port of PostgreSQL. A loopback address for this server alone keeps it free.
  servers += 1;
  const host = `127.${100 + (process.pid % 100)}.${(process.pid >> 8) % 256}.${servers}`;
  const flags = ['--data-dir', data, '--listen', '127.0.0.1:0', '--db-listen', `${host}:5432,${host}:6543`, ...more];
  // An unreachable provider. It is only contacted at sign-in.
  const secret = join(dir, 'client-secret');
  writeFileSync(secret, 'secret');
  const provider = ['issuer=http://127.0.0.1:9', 'client-id=gantry', `client-secret=${secret}`, 'email-domains=example.com', 'name=Example ID'];
  flags.push(...provider.map((option) => `--oidc-${option}`));
  const child = spawn(process.env.GANTRY_BIN, ['dev', ...flags], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  });
  const log = [];
  createInterface({ input: child.stderr }).on('line', (line) => log.push(line));
  const ended = new Promise((resolve) => child.once('exit', resolve));
  const said = [];
  const ready = new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', (line) => said.push(line) && line.startsWith('Ctrl-C') && resolve());
    ended.then((code) => reject(new Error(`gantry ended with ${code}:\n${log.join('\n')}`)));
  });
  const stop = async () => {
    child.kill('SIGINT');
    const code = await bounded('the end of gantry', ended);
    rmSync(dir, { recursive: true, force: true });
    return code;
  };
  /** Ends the server with SIGKILL. Its folder and its databases stay. */
  const kill = async () => {
    child.kill('SIGKILL');
    await bounded('the end of gantry', ended);
  };
  try {
    await bounded('a ready server', ready);
  } catch (error) {
    await stop();
    throw error;
  }
  const variables = Object.fromEntries(
    readFileSync(join(data, 'dev.env'), 'utf8').trim().split('\n').map((line) => line.split(/=(.*)/s)),
  );
  return {
    url: variables.GANTRY_URL,
    token: variables.GANTRY_TOKEN,
    organization: variables.GANTRY_ORG,
    data,
    host,
    profile: join(data, 'profile.yaml'),
    // Port of the HTTPS listener of projects' services.
    servicesPort: said.map((line) => /^ +Services +https:.*?:(\d+)\//.exec(line)?.[1]).find(Boolean),
    // A one-time sign-in link of the first user.
    signIn: said.map((line) => /^ +Pages +(\S+)/.exec(line)?.[1]).find(Boolean),
    home: join(dir, 'home'),
    work: join(dir, 'work'),
    log,
    stop,
    kill,
    dir,
  };
}

/** Returns a one-time sign-in link for a user, created by the operator's command. */
export async function signInLink(server, email) {
  const ended = await run(server, process.env.GANTRY_BIN, ['user', 'sign-in-link', '--email', email, '--data-dir', server.data]);
  if (ended.code !== 0) throw new Error(ended.all);
  return new URL(/\/sign-in\/link\/\S+/.exec(ended.out)[0], server.url).href;
}

/** Runs a program with an environment that selects the server and prevents other network access. */
export function run(server, program, args, env = {}) {
  const child = spawn(program, args, {
    cwd: server.work,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, HOME: server.home, NO_COLOR: '1', ...env },
  });
  const said = { out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (text) => (said.out += text));
  child.stderr.setEncoding('utf8').on('data', (text) => (said.err += text));
  const ended = new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, ...said, all: said.out + said.err }));
  });
  return bounded(`${program} ${args.join(' ')}`, ended).finally(() => child.kill('SIGKILL'));
}

/**
 * Runs a program with a private /etc/hosts that contains `names`, because not every system resolves names below
 * `localhost`. Needs root; other users get the /etc/hosts of the system.
 */
export function named(server, names, program, args, env) {
  if (process.getuid() !== 0) return run(server, program, args, env);
  const hosts = join(server.work, 'hosts');
  writeFileSync(hosts, `127.0.0.1 localhost\n${server.host} ${names.join(' ')}\n`);
  const script = 'mount --bind "$0" /etc/hosts && exec "$@"';
  return run(server, 'unshare', ['--mount', 'sh', '-c', script, hosts, program, ...args], env);
}

/** The environment of the `supabase` CLI: server, token, and no use of other networks or of the keyring. */
export function environment(server, { token = server.token, home = 'supabase' } = {}) {
  return {
    SUPABASE_PROFILE: server.profile,
    SUPABASE_ACCESS_TOKEN: token,
    SUPABASE_HOME: join(server.home, home),
    SUPABASE_TELEMETRY_DISABLED: '1',
    DO_NOT_TRACK: '1',
    SUPABASE_NO_UPDATE_NOTIFIER: '1',
    SUPABASE_NO_KEYRING: '1',
    // Failures are reported without retries.
    SUPABASE_API_MAX_RETRIES: '0',
  };
}

/** Runs the `supabase` CLI as the first user, or with another token and a separate home folder. */
export function supabase(server, args, who) {
  return run(server, join(clients, 'node_modules/.bin/supabase'), args, { ...environment(server, who), ...who?.env });
}

/** Sends a request that prepares a scenario. */
export async function call(server, method, path, body) {
  const response = await fetch(server.url + path, {
    method,
    headers: { authorization: `Bearer ${server.token}`, 'content-type': 'application/json' },
    body: body && JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, body: text === '' ? undefined : JSON.parse(text) };
}

/** The database password of projects created by `project`. */
export const PASSWORD = 'correct horse battery staple';

/** Creates a project and waits until it answers a query. */
export async function project(server, name) {
  const created = await call(server, 'POST', '/v1/projects', {
    name,
    organization_slug: server.organization,
    db_pass: PASSWORD,
  });
  if (created.status !== 201) throw new Error(`no project: ${JSON.stringify(created)}`);
  const { ref } = created.body;
  const answered = await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query: 'select 1' });
  if (answered.status !== 201) throw new Error(`the project does not answer: ${JSON.stringify(answered)}`);
  return ref;
}

/** Runs scenarios one after the other. A failure does not stop the others. */
export class Tally {
  passed = 0;
  failed = 0;

  constructor(server) {
    this.server = server;
  }

  /** Returns the result of `work`, or undefined if it failed. */
  async scenario(name, work, millis = PATIENCE) {
    const seen = this.server.log.length;
    try {
      const value = await bounded(name, work(), millis);
      this.passed += 1;
      console.log(`ok    ${name}`);
      return value;
    } catch (error) {
      this.failed += 1;
      const place = String(error.stack).split('\n').find((line) => line.includes('/tests/clients/')) ?? '';
      console.log(`FAIL  ${name}\n      ${`${error.message}\n${place.trim()}`.replaceAll('\n', '\n      ')}`);
      for (const line of this.server.log.slice(seen).slice(-10)) console.log(`      server: ${line}`);
      return undefined;
    }
  }
}
