// The clients of the soak test: pooled writers, readers, and callers of a function.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { PASSWORD, bounded, call, clients } from './harness.mjs';

const pg = createRequire(join(clients, 'package.json'))('pg');

/** Longest time that a client waits for a connection or an answer, in milliseconds. */
export const CLIENT_PATIENCE = 30_000;
/** Longest time until a client has closed its connection, in milliseconds. */
const CLOSE_MAX = 5_000;
/** Pauses of clients between two requests, in milliseconds. Those of writers vary by half. */
const WRITER_PAUSE = 80;
const READER_PAUSE = 500;
const QUERY_PAUSE = 3_000;
const CALLER_PAUSE = 300;
const HOSTILE_PAUSE = 700;
const FAILED_PAUSE = 250;

/** Returns a number from its own server, which tells the cluster of the commit. */
export const TIMELINE = 'left(pg_walfile_name(pg_current_wal_lsn()), 8)';
const INSERT = {
  name: 'insert',
  text: `insert into public.ledger (n, writer) values ($1, $2) returning ${TIMELINE} as timeline`,
};

/**
 * The function that is called. `exit` and `throw` end the process. `reject` must not: an unhandled
 * rejection is only logged.
 */
export const FUNCTION = `Deno.serve((request) => {
  const { pathname } = new URL(request.url);
  if (pathname.endsWith('/exit')) Deno.exit(3);
  if (pathname.endsWith('/throw')) {
    setTimeout(() => { throw new Error('of a test'); });
    return new Promise(() => {});
  }
  if (pathname.endsWith('/reject')) Promise.reject(new Error('of a test'));
  return Response.json({ ok: true });
});
`;
const HOSTILE_WAYS = ['exit', 'throw', 'reject'];

/** Repeats a look until it returns a true value, and returns that. */
export async function once(what, look, { millis = 60_000, every = 500 } = {}) {
  for (const end = Date.now() + millis; Date.now() < end; await pause(every)) {
    const found = await look();
    if (found) return found;
  }
  throw new Error(`not within ${millis} ms: ${what}`);
}

/** Opens a connection to the project on a port. `failed` gets the errors between queries. */
export async function connected(soak, port, failed) {
  const client = new pg.Client({
    host: soak.server.host,
    port,
    user: `postgres.${soak.ref}`,
    password: PASSWORD,
    database: 'postgres',
    connectionTimeoutMillis: CLIENT_PATIENCE,
    query_timeout: CLIENT_PATIENCE,
  });
  client.on('error', failed);
  await client.connect();
  return client;
}

/** Closes a connection, which may already be broken. */
export function closed(client) {
  return bounded('a closed connection', client.end(), CLOSE_MAX).catch(() => {});
}

/** Inserts numbers until the end. Keeps its connection, or opens one for each number. */
export async function writer(soak, id) {
  const keeps = id % 2 === 0;
  // The connection, whether a request is in progress on it, and whether it failed.
  let session;
  const open = async () => {
    const opened = { busy: true, broken: false };
    opened.client = await connected(soak, 6543, (error) => {
      // A query in progress fails with the same error.
      if (!opened.busy && !opened.broken) soak.failed('pooled', error);
      opened.broken = true;
    });
    return opened;
  };
  const insert = async () => {
    const begun = Date.now();
    let number;
    try {
      session ??= await open();
      // The moment of a restore may have begun while the client connected.
      if (soak.ledger.isClosed) return;
      session.busy = true;
      number = soak.ledger.take();
      const { rows } = await session.client.query({ ...INSERT, values: [number, id] });
      soak.ledger.acknowledge(number, rows[0].timeline);
      soak.succeeded('pooled', begun);
    } catch (error) {
      if (number !== undefined) soak.ledger.fail(number);
      soak.failed('pooled', error, begun);
      if (session) session.broken = true;
      await pause(FAILED_PAUSE);
    } finally {
      if (session) session.busy = false;
    }
  };
  const leave = async () => {
    const left = session;
    session = undefined;
    if (left) await closed(left.client);
  };
  while (!soak.isOver) {
    if (soak.ledger.isClosed) {
      await pause(5);
      continue;
    }
    if (session?.broken) await leave();
    await insert();
    if (!keeps) await leave();
    await pause(WRITER_PAUSE * (0.5 + Math.random()));
  }
  await leave();
}

/** Sends a request to a service of the project, from a loopback address. */
export function service(soak, path, { headers = {}, from = '127.0.0.1' } = {}) {
  const { server, ref } = soak;
  const hostname = `${ref}.localhost`;
  const options = {
    host: '127.0.0.1',
    port: server.servicesPort,
    localAddress: from,
    servername: hostname,
    ca: soak.authority ??= readFileSync(join(server.data, 'db-ca.pem')),
    headers: { host: hostname, ...headers },
    path,
    agent: false,
    timeout: CLIENT_PATIENCE,
  };
  return new Promise((resolve, reject) => {
    const sent = request(options, (answer) => {
      let text = '';
      answer.setEncoding('utf8').on('data', (part) => (text += part));
      answer.on('error', reject);
      answer.on('end', () => resolve({ status: answer.statusCode, text }));
    });
    sent.on('timeout', () => sent.destroy(new Error('no answer in time')));
    sent.on('error', reject);
    sent.end();
  });
}

/** Reads the last number by the Data API until the end. */
export async function reader(soak) {
  const path = '/rest/v1/ledger?select=n&order=n.desc&limit=1';
  for (; !soak.isOver; await pause(READER_PAUSE)) {
    const begun = Date.now();
    try {
      const { status, text } = await service(soak, path, { headers: { apikey: soak.key } });
      if (status !== 200) throw new Error(`${status} ${text}`);
      if (JSON.parse(text).length > 1) throw new Error(`more than one row: ${text}`);
      soak.succeeded('data api', begun);
    } catch (error) {
      soak.failed('data api', error, begun);
    }
  }
}

/** Counts the rows by the Management API until the end. */
export async function counter(soak) {
  const query = 'select count(*)::int as count from public.ledger';
  for (; !soak.isOver; await pause(QUERY_PAUSE)) {
    const begun = Date.now();
    try {
      const asked = call(soak.server, 'POST', `/v1/projects/${soak.ref}/database/query`, { query });
      const { status, body } = await bounded('an answer', asked, CLIENT_PATIENCE);
      if (status !== 201) throw new Error(`${status} ${JSON.stringify(body)}`);
      soak.succeeded('management api', begun);
    } catch (error) {
      soak.failed('management api', error.cause ?? error, begun);
    }
  }
}

/** Returns the failure of a request in the form of an answer. */
const failure = (error) => ({ status: error.code ?? error.message, text: '' });

/** Calls the function until the end, from an address of its own. */
export async function caller(soak, id) {
  // Callers are not in step.
  for (; !soak.isOver; await pause(CALLER_PAUSE * (0.5 + Math.random()))) {
    const begun = Date.now();
    const asked = service(soak, '/functions/v1/called', { from: `127.0.0.${10 + id}` });
    const answer = await asked.catch(failure);
    soak.called(begun, answer);
  }
}

/** Sends requests with faults until the end, from one address. Most end the process. */
export async function hostile(soak) {
  for (let round = 0; !soak.isOver; round += 1) {
    const begun = Date.now();
    const way = HOSTILE_WAYS[round % HOSTILE_WAYS.length];
    const asked = service(soak, `/functions/v1/called/${way}`, { from: '127.0.0.2' });
    const answer = await asked.catch(failure);
    soak.attacked(way, begun, answer);
    await pause(HOSTILE_PAUSE);
  }
}
