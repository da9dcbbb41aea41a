// A soak test: one project under load, while it is restarted, changed, restored, and while Gantry,
// the pooler and the processes of a function are killed. Runs only if it is named.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { bounded, call, project, start } from './harness.mjs';
import { Ledger } from './soak_ledger.mjs';
import {
  CLIENT_PATIENCE, FUNCTION, TIMELINE, caller, closed, connected, counter, hostile, once, reader,
  writer,
} from './soak_load.mjs';

const MINUTES = Number(process.env.GANTRY_SOAK_MINUTES ?? 15);
const SEED = Number(process.env.GANTRY_SOAK_SEED ?? Math.floor(Math.random() * 2 ** 31));
const WRITERS = 40;
const READERS = 3;
const CALLERS = 4;

/** Time from the begin to the first sample that later ones are compared with, in milliseconds. */
const BASELINE = Math.min(120_000, MINUTES * 30_000);
/** Interval of samples of the server's process, in milliseconds. */
const SAMPLE = 5_000;
/** Interval of looks at the status of the project, in milliseconds. */
const LOOK = 700;
/** Longest time until a change of the project is complete, in milliseconds. */
const CHANGE_MAX = 180_000;
/** Pauses between two events, in milliseconds. */
const PAUSE_MIN = 3_000;
const PAUSE_MAX = 9_000;
/** Time after the end of an event in which its errors may still be reported, in milliseconds. */
const AFTER = 1_500;
/** Time after the end of the pooler's process in which clients may notice it, in milliseconds. */
const NOTICED = 1_000;
/** Share of the duration after which Gantry is not killed any more: its last process ages. */
const KILLS_UNTIL = 0.6;
/** Largest growth of the resident memory since the baseline. */
const RSS_GROWTH = 1.5;
/** Largest growth of the number of open descriptors since the baseline, and a margin. */
const DESCRIPTORS_GROWTH = 1.5;
const DESCRIPTORS_MARGIN = 50;
const SUCCESS_MIN = 0.95;

/** Errors of connections whose other end was killed, or that nothing accepts. */
const DATABASE_BROKEN = /^(ECONNREFUSED|ECONNRESET|EPIPE)\b|^Connection terminated/;
const HTTP_BROKEN = /^(ECONNREFUSED|ECONNRESET|EPIPE|UND_ERR_SOCKET)\b/;
const GANTRY_KILLS = [
  'kill gantry', 'kill gantry and services', 'kill gantry in a restart', 'kill gantry in a restore',
];
const whileKilled = (errors) => Object.fromEntries(GANTRY_KILLS.map((kind) => [kind, errors]));
/**
 * The errors that clients may see, by the kind of client and the event in course, of requests that
 * began before Gantry was up again, or before the end of the pooler was noticed. Every other error
 * fails the test. Restarts, changes of settings and restores cause none.
 */
const PERMITTED = {
  pooled: { ...whileKilled(DATABASE_BROKEN), 'kill pooler': DATABASE_BROKEN },
  'data api': whileKilled(HTTP_BROKEN),
  'management api': whileKilled(HTTP_BROKEN),
};

/** Returns a generator of numbers from 0 to 1 (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const seconds = (millis) => (millis / 1000).toFixed(1);
const clock = (millis) => new Date(millis).toISOString().slice(11, 23);

/** Increases the number of a key. */
function count(counts, key, by = 1) {
  counts.set(key, (counts.get(key) ?? 0) + by);
}

/** Returns the keys of a map with their values, in one line. */
function listed(counts) {
  const parts = [...counts].sort().map(([key, n]) => `${key}: ${n}`);
  return parts.join('; ') || 'none';
}

/** Returns the processes whose command line or working directory is below a folder. */
function processesOf(folder) {
  const found = [];
  for (const name of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const command = readFileSync(`/proc/${name}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
      const cwd = readlinkSync(`/proc/${name}/cwd`);
      const isInside = command.includes(`${folder}/`) || cwd.startsWith(`${folder}/`);
      if (isInside) found.push({ pid: Number(name), command });
    } catch {
      // It ended meanwhile.
    }
  }
  return found;
}

/** A project under load, its history, and the counts of what its clients saw. */
class Soak {
  isOver = false;
  ledger;
  events = [];
  errors = [];
  problems = [];
  samples = [];
  calls = [];
  successes = new Map();
  attacks = new Map();
  refusals = new Map();
  waits = new Map();
  audits = 0;
  rows = 0;
  log = [];
  random = generator(SEED);

  constructor(server) {
    this.server = server;
    this.begun = Date.now();
  }

  /** Returns the event in course at a time, with the time after its end. */
  eventAt(at) {
    const last = this.events.findLast(({ begun }) => begun <= at);
    return last && at <= (last.ended ?? Infinity) + AFTER ? last : undefined;
  }

  /** Records the success of a client, and the time that it took. */
  succeeded(client, begun) {
    count(this.successes, client);
    const at = Date.now();
    const key = `${client} in ${this.eventAt(at)?.kind ?? 'no event'}`;
    this.waits.set(key, Math.max(this.waits.get(key) ?? 0, at - begun));
  }

  /** Records an error of a client, and prints it if it is not permitted. */
  failed(client, error, begun = Date.now()) {
    const at = Date.now();
    const inCourse = this.eventAt(at);
    const event = inCourse?.kind ?? 'no event';
    const message = error.message.replace(/ 127\.[\d.:]+$/, '');
    const text = [error.code, message].filter(Boolean).join(' ').slice(0, 300);
    const isKnown = PERMITTED[client][event]?.test(text) ?? false;
    const isPermitted = isKnown && begun <= (inCourse.until ?? Infinity);
    this.errors.push({ client, at, event, text, isPermitted });
    const line = `${client} client failed: ${text} (${event}, after ${seconds(at - begun)} s)`;
    if (isPermitted) this.note(line);
    else this.say(line);
  }

  /** Records the answer to a call of the function. */
  called(begun, { status, text }) {
    const ended = Date.now();
    this.calls.push({ begun, ended, status });
    if (status === 200) return this.succeeded('function', begun);
    const line = `in ${this.eventAt(ended)?.kind ?? 'no event'}, ${status} ${text.slice(0, 120)}`;
    count(this.refusals, line);
    return this.note(`caller failed after ${seconds(ended - begun)} s: ${line}`);
  }

  /** Records the answer to a request with a fault. */
  attacked(way, begun, { status, text }) {
    count(this.attacks, `${way} ${status}`);
    const time = `after ${seconds(Date.now() - begun)} s`;
    if (status === 429) return;
    this.note(`hostile caller ${time}: ${way}, ${status} ${text.slice(0, 120)}`);
  }

  /** Sends a request about the project to the Management API. */
  api(method, path, body) {
    return call(this.server, method, `/v1/projects/${this.ref}${path}`, body);
  }

  /** Runs an event, and compares the table afterwards. A failure is recorded. */
  async run(kind, work) {
    const event = { kind, begun: Date.now() };
    this.events.push(event);
    this.note(`${kind} begins`);
    try {
      await bounded(kind, work(this, event), 2 * CHANGE_MAX);
    } catch (error) {
      this.problem(`${kind} failed: ${error.message}`);
    }
    event.ended = Date.now();
    const note = event.note ? `, ${event.note}` : '';
    this.say(`${kind} took ${seconds(event.ended - event.begun)} s${note}`);
    await this.audit(kind);
  }

  /** Compares the table with the acknowledged commits. */
  async audit(after) {
    const failures = [];
    try {
      const client = await connected(this, 5432, (error) => failures.push(error));
      try {
        const read = async () => {
          const query = { text: 'select n from public.ledger', rowMode: 'array' };
          return (await client.query(query)).rows.map(([n]) => Number(n));
        };
        const { rows, problems } = await this.ledger.compare(read);
        this.audits += 1;
        this.rows = rows;
        for (const problem of problems) this.problem(`after ${after}: ${problem}`);
      } finally {
        await closed(client);
      }
    } catch (error) {
      failures.push(error);
    }
    for (const { message } of failures) this.problem(`no comparison after ${after}: ${message}`);
  }

  /** Adds a line to the log, between those of the server. */
  note(text) {
    this.log.push(`${new Date().toISOString()} SOAK ${text}`);
  }

  /** Adds a line to the log and to the output. */
  say(text) {
    this.note(text);
    console.log(`      ${clock(Date.now())} ${text}`);
  }

  /** Records a difference of the table, or a failed event. */
  problem(text) {
    this.say(text);
    this.problems.push(`${clock(Date.now())} ${text}`);
  }

  /** Returns the value of an expression from the project's server. */
  async value(expression) {
    const query = `select ${expression} as value`;
    const { status, body } = await this.api('POST', '/database/query', { query });
    assert.equal(status, 201, JSON.stringify(body));
    return body[0].value;
  }

  /** Waits until the project runs. */
  healthy() {
    const look = async () => (await this.api('GET', '')).body.status === 'ACTIVE_HEALTHY';
    return once('a project that runs', look, { millis: CHANGE_MAX, every: LOOK });
  }

  /** Kills Gantry, or the services of the project as well, and starts it with the data folder. */
  async killGantry(event, { services = false } = {}) {
    const { server } = this;
    event.down = Date.now();
    const pids = services ? this.instances('') : [];
    await server.kill();
    for (const pid of pids) process.kill(pid, 'SIGKILL');
    this.log.push(...server.log);
    this.server = await start({ dir: server.dir, flags: FLAGS });
    event.up = Date.now();
    event.until = event.up;
    event.note = `down for ${seconds(event.up - event.down)} s`;
  }

  /** Returns the processes of instances, which Gantry's records in their folders name. */
  instances(prefix) {
    const run = join(this.server.data, 'run');
    const names = readdirSync(run).filter((name) => name.startsWith(`${this.ref}.${prefix}`));
    return names.flatMap((name) => {
      try {
        const record = readFileSync(join(run, name, 'launched'), 'utf8').trim().split(' ');
        const [pid, begun] = record.map(Number);
        // The 22nd field is the start time. The second one may contain spaces.
        const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /s, '').split(' ');
        return Number(fields[19]) === begun ? [pid] : [];
      } catch {
        // It ended, and the next one is being started.
        return [];
      }
    });
  }

  /** Kills the process of an instance. */
  async killInstance(prefix) {
    const look = () => {
      const pids = this.instances(prefix);
      return pids[Math.floor(this.random() * pids.length)];
    };
    const pid = await once(`a process of ${prefix}`, look, { millis: 10_000, every: 50 });
    process.kill(pid, 'SIGKILL');
  }

  /** Waits until a requested restore is complete. */
  async exchanged() {
    await this.healthy();
    if (this.ledger.settle(await this.value(TIMELINE))) return;
    const { body } = await this.api('GET', '/health?services=db');
    throw new Error(`the project was not restored: ${JSON.stringify(body)}`);
  }

  /** Requests a restore to a moment of which the numbers are known. Writers go on meanwhile. */
  async requestRestore() {
    const { second, numbers } = await this.ledger.moment();
    const reached = async () => {
      const { body } = await this.api('GET', '/database/backups');
      return body.physical_backup_data.latest_physical_backup_date_unix >= second;
    };
    await once('a window with the moment', reached, { millis: CHANGE_MAX, every: LOOK });
    this.ledger.restoring(numbers);
    const target = { recovery_time_target_unix: second };
    const asked = await this.api('POST', '/database/backups/restore-pitr', target);
    assert.equal(asked.status, 201, JSON.stringify(asked.body));
  }

  /** Notes the memory and the descriptors of the server's process. */
  sample() {
    const pid = Number(readFileSync(join(this.server.data, 'lock'), 'utf8'));
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const rss = Number(/^VmRSS:\s+(\d+) kB/m.exec(status)[1]) / 1024;
    const descriptors = readdirSync(`/proc/${pid}/fd`).length;
    this.samples.push({ at: Date.now() - this.begun, pid, rss, descriptors });
  }

  /** Samples the server's process until the end. */
  async watch() {
    for (; !this.isOver; await pause(SAMPLE)) {
      try {
        this.sample();
      } catch {
        // The server is being started.
      }
    }
  }
}

/** Flags of the server. With them, the log up to a moment is stored after a second. */
const FLAGS = ['--backups-interval', '1'];

/** Restarts the project, with other work after the request was accepted. */
async function restart(soak, meanwhile) {
  const begun = () => soak.value('pg_postmaster_start_time()::text');
  const before = await begun();
  const asked = await soak.api('POST', '/restart');
  assert.equal(asked.status, 200, JSON.stringify(asked.body));
  await meanwhile?.();
  await soak.healthy();
  assert.notEqual(await begun(), before, 'the server was not restarted');
}

/** The events. Each returns when its change is complete. */
const EVENTS = {
  restart: (soak) => restart(soak),
  settings: async (soak, event) => {
    soak.locks = soak.locks === 80 ? 96 : 80;
    const settings = { max_locks_per_transaction: soak.locks, restart_database: true };
    const changed = await soak.api('PATCH', '/config/database/postgres', settings);
    assert.equal(changed.status, 200, JSON.stringify(changed.body));
    await soak.healthy();
    const found = await soak.value("current_setting('max_locks_per_transaction')");
    assert.equal(found, `${soak.locks}`);
    event.note = `max_locks_per_transaction ${soak.locks}`;
  },
  restore: async (soak) => {
    await soak.requestRestore();
    await soak.exchanged();
  },
  undo: async (soak, event) => {
    if (!soak.ledger.replaced) return EVENTS.restore(soak, event);
    const point = await soak.api('GET', '/database/backups/restore-point');
    event.note = point.body.name;
    soak.ledger.undoing();
    const asked = await soak.api('POST', '/database/backups/undo', { name: point.body.name });
    assert.equal(asked.status, 201, JSON.stringify(asked.body));
    await soak.exchanged();
  },
  'kill gantry': async (soak, event) => {
    await soak.killGantry(event);
    await soak.healthy();
  },
  'kill gantry and services': async (soak, event) => {
    await soak.killGantry(event, { services: true });
    await soak.healthy();
  },
  'kill gantry in a restart': (soak, event) =>
    restart(soak, async () => {
      await pause(soak.random() * 400);
      await soak.killGantry(event);
    }),
  'kill gantry in a restore': async (soak, event) => {
    await soak.requestRestore();
    await pause(soak.random() * 2500);
    await soak.killGantry(event);
    await soak.exchanged();
  },
  'kill pooler': async (soak, event) => {
    await soak.killInstance('pooler');
    event.until = Date.now() + NOTICED;
    await pause(3_000);
  },
  'kill function': async (soak) => {
    await soak.killInstance('functions.');
    await pause(1_000);
  },
};
/** Events of a round, which are shuffled. */
const ROUND = [
  ...Object.keys(EVENTS), 'restart', 'settings', 'undo', 'kill pooler', 'kill function',
];

/** Runs events in random order until the time is over. */
async function events(soak) {
  const duration = MINUTES * 60_000;
  // A long test samples its baseline before the first kill.
  const killsFrom = MINUTES > 4 ? BASELINE : 0;
  let round = [];
  for (let passed = 0; passed < duration; passed = Date.now() - soak.begun) {
    if (round.length === 0) {
      const shuffled = ROUND.map((kind) => [soak.random(), kind]).sort(([a], [b]) => a - b);
      round = shuffled.map(([, kind]) => kind);
    }
    const kind = round.pop();
    const mayKill = passed >= killsFrom && passed < duration * KILLS_UNTIL;
    if (GANTRY_KILLS.includes(kind) && !mayKill) continue;
    await pause(PAUSE_MIN + soak.random() * (PAUSE_MAX - PAUSE_MIN));
    await soak.run(kind, EVENTS[kind]);
  }
}

/** Creates the project of the test, and waits for its first backup. */
async function prepared(server) {
  const soak = new Soak(server);
  soak.ref = await project(server, 'soak');
  const table = 'create table public.ledger (n bigint primary key, writer int not null);'
    + ' grant select on public.ledger to anon';
  const made = await soak.api('POST', '/database/query', { query: table });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const called = { slug: 'called', name: 'called', verify_jwt: false, body: FUNCTION };
  assert.equal((await soak.api('POST', '/functions', called)).status, 201);
  const { body: keys } = await soak.api('GET', '/api-keys?reveal=true');
  soak.key = keys.find(({ type, name }) => type === 'publishable' || name === 'anon').api_key;
  const backed = async () => {
    const { body } = await soak.api('GET', '/database/backups');
    return body.physical_backup_data.earliest_physical_backup_date_unix;
  };
  await once('the first backup', backed, { millis: CHANGE_MAX });
  soak.ledger = new Ledger(await soak.value(TIMELINE));
  soak.begun = Date.now();
  return soak;
}

/** Puts the project under load until the end of the events. */
async function load(soak) {
  const many = (n, client) => Array.from({ length: n }, (_, id) => client(soak, id));
  const work = [
    ...many(WRITERS, writer), ...many(READERS, reader), counter(soak),
    ...many(CALLERS, caller), hostile(soak), soak.watch(),
  ];
  try {
    await events(soak);
    await pause(AFTER);
    // One more sample of a server under load.
    soak.sample();
  } finally {
    soak.isOver = true;
    await bounded('the end of all clients', Promise.all(work), 2 * CLIENT_PATIENCE);
  }
  await soak.audit('the end');
}

/** Returns the calls of the function outside of the times in which Gantry was down. */
function callsWhileUp(soak) {
  const downs = soak.events.filter(({ down }) => down);
  const isOutside = ({ begun, ended }, { down, up = Infinity }) =>
    ended < down || begun > up + AFTER;
  return soak.calls.filter((call) => downs.every((down) => isOutside(call, down)));
}

/** Returns the share of these calls that succeeded. */
function share(soak) {
  const calls = callsWhileUp(soak);
  return calls.filter(({ status }) => status === 200).length / calls.length;
}

/** Returns the sample that later ones are compared with, and the last one. */
function resources(soak) {
  const baseline = soak.samples.find(({ at }) => at >= BASELINE) ?? soak.samples[0];
  return [baseline, soak.samples.at(-1)];
}

/** Returns the lines with the counts of a test. */
function summary(soak) {
  const { ledger, events, errors, waits } = soak;
  const kinds = new Map();
  for (const { kind } of events) count(kinds, kind);
  const [permitted, others] = [new Map(), new Map()];
  for (const { client, event, text, isPermitted } of errors) {
    count(isPermitted ? permitted : others, `${client}, ${event}, ${text}`);
  }
  const megabytes = ({ rss, descriptors, at }) =>
    `${rss.toFixed(0)} MB and ${descriptors} descriptors after ${seconds(at)} s`;
  const longest = [...waits].map(([key, millis]) => [key, `${seconds(millis)} s`]);
  const downs = events.filter(({ up }) => up).map(({ down, up }) => up - down);
  const down = downs.reduce((total, millis) => total + millis, 0);
  const [baseline, last] = resources(soak);
  const most = Math.max(...soak.samples.map(({ rss }) => rss));
  return [
    `seed ${SEED}, ${MINUTES} minutes, ${WRITERS} writers`,
    `commits: ${ledger.commits} acknowledged, ${ledger.unanswered.size} without an answer,`
      + ` ${soak.rows} in the table at the end, ${ledger.abandoned} abandoned by restores,`
      + ` ${ledger.broughtBack} brought back; ${soak.audits} comparisons`,
    `events: ${events.length}; ${listed(kinds)}`,
    `Gantry was down ${downs.length} times, ${seconds(down)} s in total`,
    `successes: ${listed(soak.successes)}`,
    `permitted errors: ${listed(permitted)}`,
    `other errors: ${listed(others)}`,
    `longest successful requests: ${listed(new Map(longest))}`,
    `function: ${callsWhileUp(soak).length} calls, ${(share(soak) * 100).toFixed(2)} % succeeded;`
      + ` failures: ${listed(soak.refusals)}`,
    `answers to the hostile caller: ${listed(soak.attacks)}`,
    `memory: ${megabytes(baseline)}, ${megabytes(last)}; at most ${most.toFixed(0)} MB`,
  ];
}

/** Ends the server, and returns the processes that it left behind, which are killed then. */
async function stopped(soak, server) {
  const code = await server.stop();
  soak?.log.push(...server.log);
  const none = () => processesOf(server.dir).length === 0;
  await once('no process', none, { millis: 10_000 }).catch(() => {});
  const left = processesOf(server.dir);
  for (const { pid } of left) process.kill(pid, 'SIGKILL');
  return { code, left };
}

export default async function soak(server, tally) {
  console.log(`      seed ${SEED}, ${MINUTES} minutes`);
  const first = await start({ flags: FLAGS });
  let soak;
  let end;
  try {
    await tally.scenario('soak: the load runs to its end', async () => {
      soak = await prepared(first);
      await load(soak);
    }, soakPatience());
  } finally {
    end = await stopped(soak, soak?.server ?? first);
    const file = process.env.GANTRY_SOAK_LOG;
    if (file && soak) writeFileSync(file, soak.log.sort().join('\n'));
  }
  if (!soak) return;
  for (const line of summary(soak)) console.log(`      ${line}`);
  await tally.scenario('soak: the table has exactly the acknowledged commits', async () =>
    assert.deepEqual(soak.problems, []));
  for (const client of Object.keys(PERMITTED)) {
    await tally.scenario(`soak: ${client} clients see permitted errors only`, async () => {
      const others = soak.errors.filter((error) => error.client === client && !error.isPermitted);
      const lines = others.map(({ at, event, text }) => `${clock(at)} ${event}: ${text}`);
      assert.deepEqual(lines, []);
      assert.ok(soak.successes.get(client) > 0, 'no success');
    });
  }
  await tally.scenario('soak: other callers of a function are served', async () =>
    assert.ok(share(soak) >= SUCCESS_MIN, `${share(soak)}`));
  await tally.scenario('soak: memory and descriptors do not grow', async () => {
    const [baseline, last] = resources(soak);
    assert.ok(last.rss <= baseline.rss * RSS_GROWTH, `${baseline.rss} MB, then ${last.rss} MB`);
    const most = baseline.descriptors * DESCRIPTORS_GROWTH + DESCRIPTORS_MARGIN;
    assert.ok(last.descriptors <= most, `${baseline.descriptors}, then ${last.descriptors}`);
  });
  await tally.scenario('soak: the server stops cleanly, and no process is left', async () =>
    assert.deepEqual(end, { code: 0, left: [] }));
}

/** Returns the longest time of the load, in milliseconds. */
function soakPatience() {
  return MINUTES * 60_000 + 4 * CHANGE_MAX;
}

soak.patience = soakPatience() + CHANGE_MAX;
