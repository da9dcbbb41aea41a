// Log files, log drains and backups in an S3 server of moto. boto3 lists the objects.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { SUITE_PATIENCE, bounded, call, clients, folder, run, start } from './harness.mjs';

/** Lines are written to files after one minute. */
const FILED = 110_000;

/** Returns a free port. */
function free() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Repeats `look` until it returns a value. */
async function until(what, look) {
  for (let left = FILED; left > 0; left -= 500) {
    const found = await look();
    if (found) return found;
    await pause(500);
  }
  throw new Error(`not in time: ${what}`);
}

/** Starts the S3 server. It keeps objects in memory. */
async function store(port) {
  const moto = spawn(join(clients, 'python/bin/moto_server'), ['-H', '127.0.0.1', '-p', `${port}`], { stdio: 'ignore' });
  const kill = async () => {
    moto.kill('SIGKILL');
    await bounded('the end of moto', new Promise((resolve) => (moto.exitCode ?? moto.signalCode) === null ? moto.once('exit', resolve) : resolve()));
  };
  await until('a store that listens', () => fetch(`http://127.0.0.1:${port}`).then(() => true, () => false));
  return { kill };
}

/** Runs SQL in a project and returns the rows. */
async function sql(gantry, ref, query) {
  const answer = await call(gantry, 'POST', `/v1/projects/${ref}/database/query`, { query });
  assert.equal(answer.status, 201, JSON.stringify(answer.body));
  return answer.body;
}

/** Waits until the log of a project is stored up to this second. */
function stored(gantry, ref, second) {
  return until('the log in the store', async () => {
    await sql(gantry, ref, 'select pg_logical_emit_message(true, \'test\', \'\')');
    return (await window(gantry, ref))?.latest_physical_backup_date_unix > second;
  });
}

/** Returns the times between which a project can be restored, if its backups can be read at the moment. */
async function window(gantry, ref) {
  const { body } = await call(gantry, 'GET', `/v1/projects/${ref}/database/backups`);
  return body.physical_backup_data;
}

/** Waits until a project runs. */
function running(gantry, ref) {
  return until('a project that runs', async () => (await call(gantry, 'GET', `/v1/projects/${ref}`)).body.status === 'ACTIVE_HEALTHY');
}

/** Sends batches of lines, and returns the messages of all lines. */
async function ingest(gantry, key, name, batches) {
  const headers = { 'x-api-key': key, 'content-type': 'application/json' };
  const sent = [];
  for (let batch = 0; batch < batches; batch += 1) {
    const lines = Array.from({ length: 25 }, (_, n) => ({ event_message: `${name}-${batch}-${n}`, timestamp: new Date().toISOString() }));
    const answer = await fetch(`${gantry.url}/api/logs?source_name=auth_logs`, { method: 'POST', headers, body: JSON.stringify(lines) });
    assert.equal(answer.status, 200);
    sent.push(...lines.map((line) => line.event_message));
  }
  return sent;
}

export default async function (server, tally) {
  const port = await free();
  const endpoint = `http://127.0.0.1:${port}`;
  let moto = await store(port);
  const boto = async (...args) => {
    const ended = await run(server, join(clients, 'python/bin/python'), [fileURLToPath(new URL('s3.py', import.meta.url)), endpoint, ...args]);
    assert.equal(ended.code, 0, ended.all);
    return JSON.parse(ended.out);
  };
  const secret = join(server.work, 's3-secret');
  writeFileSync(secret, 'correct-horse\n');
  const flags = ['--logs-url', 's3://lines/of/gantry', '--logs-s3-endpoint', endpoint];
  flags.push('--logs-s3-access-key-id', 'AKIDEXAMPLE', '--logs-s3-secret-access-key', secret);
  try {
    await tally.scenario('s3: a missing bucket is rejected at start', async () => {
      const refused = start({ flags }).then((started) => started.stop(), (error) => error.message);
      assert.match(await refused, /has no bucket lines: make it, or check --logs-url/);
    });
    await tally.scenario('s3: a log drain writes every acknowledged line over kill -9 of gantry and of the store', async () => {
      await boto('make');
      const drains = ['--outbound-networks', '127.0.0.0/8'];
      let gantry = await start({ flags: drains });
      try {
        const made = await call(gantry, 'POST', '/v1/projects', { name: 'd', organization_slug: gantry.organization, db_pass: 'x'.repeat(20) });
        const { ref } = made.body;
        const { body } = await call(gantry, 'POST', `/v1/projects/${ref}/analytics/ingest-keys`, { name: 'x' });
        const config = { s3_bucket: 'lines', storage_region: 'us-east-1', access_key_id: 'AKIDEXAMPLE', secret_access_key: 'correct-horse', endpoint, batch_timeout: 200 };
        const attributes = { name: 's3', backend_type: 's3', config };
        const drain = await call(gantry, 'POST', `/v2/projects/${ref}/analytics/log-drains`, { data: { type: 'log_drain', attributes } });
        assert.equal(drain.status, 201, JSON.stringify(drain.body));
        const arrived = (sent) => async () => {
          const there = new Set(await boto('drained'));
          return sent.every((message) => there.has(message));
        };
        const before = await ingest(gantry, body.key, 'before', 20);
        await gantry.kill();
        gantry = await start({ flags: drains, dir: gantry.dir });
        const after = await ingest(gantry, body.key, 'after', 20);
        await until('every line in an object', arrived([...before, ...after]));
        await moto.kill();
        const meanwhile = await ingest(gantry, body.key, 'meanwhile', 20);
        await gantry.kill();
        gantry = await start({ flags: drains, dir: gantry.dir });
        moto = await store(port);
        await boto('make');
        await until('every line sent without a store in an object', arrived(meanwhile));
      } finally {
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
    }, SUITE_PATIENCE);
    await tally.scenario('s3: a project is restored to a moment, and the installation on an empty machine', async () => {
      const backups = ['--logs-s3-endpoint', endpoint, '--logs-s3-access-key-id', 'AKIDEXAMPLE', '--logs-s3-secret-access-key', secret];
      const options = ['--backups-url', 's3://lines/backups', '--backups-interval', '1', ...backups];
      const key = join(server.work, 'key.json');
      const passphrase = join(server.work, 'passphrase');
      writeFileSync(passphrase, 'four random words here\n');
      const program = async (...args) => {
        const ended = await run(server, process.env.GANTRY_BIN, args);
        assert.equal(ended.code, 0, ended.all);
        return ended.out;
      };
      let gantry = await start({ flags: options });
      let ref;
      try {
        const made = await call(gantry, 'POST', '/v1/projects', { name: 'p', organization_slug: gantry.organization, db_pass: 'x'.repeat(20) });
        ({ ref } = made.body);
        await until('the first backup', async () => (await window(gantry, ref))?.earliest_physical_backup_date_unix);
        await sql(gantry, ref, 'create table notes (body text); insert into notes values (\'kept\')');
        const [{ moment }] = await sql(gantry, ref, 'select extract(epoch from now())::bigint + 1 as moment');
        await stored(gantry, ref, moment);
        await sql(gantry, ref, 'insert into notes values (\'undone\')');
        const restore = await call(gantry, 'POST', `/v1/projects/${ref}/database/backups/restore-pitr`, { recovery_time_target_unix: moment });
        assert.equal(restore.status, 201, JSON.stringify(restore.body));
        await running(gantry, ref);
        assert.deepEqual(await sql(gantry, ref, 'select body from notes'), [{ body: 'kept' }]);
        await sql(gantry, ref, 'insert into notes values (\'after\')');
        await stored(gantry, ref, Math.ceil(Date.now() / 1000));
        await program('key', 'export', '--out', key, '--passphrase-file', passphrase, '--data-dir', gantry.data);
        const at = ['--data-dir', gantry.data, '--backups-url', 's3://lines/backups', ...backups];
        // The server itself may be writing one.
        await until('a snapshot', async () => (await run(server, process.env.GANTRY_BIN, ['backup', 'now', ...at])).code === 0);
        await program('backup', 'verify', ...at);
      } finally {
        // Removes its folder, too: all that is left is in the store.
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
      const dir = folder();
      const place = ['--data-dir', join(dir, 'data')];
      await program('engine', 'install', 'debian-17', ...place);
      const from = ['--from', 's3://lines/backups', '--key', key, '--passphrase-file', passphrase];
      const report = await program('recover', ...from, ...backups, ...place, '--no-wait', '--output', 'json');
      assert.deepEqual(JSON.parse(report).active, [ref], report);
      gantry = await start({ flags: options, dir });
      try {
        await running(gantry, ref);
        assert.deepEqual(await sql(gantry, ref, 'select body from notes order by body'), [{ body: 'after' }, { body: 'kept' }]);
      } finally {
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
    }, SUITE_PATIENCE);
    await tally.scenario('s3: lines are stored as objects and queried', async () => {
      const gantry = await start({ flags });
      try {
        const made = await call(gantry, 'POST', '/v1/projects', { name: 'p', organization_slug: gantry.organization, db_pass: 'x'.repeat(20) });
        const { ref } = made.body;
        const { body } = await call(gantry, 'POST', `/v1/projects/${ref}/analytics/ingest-keys`, { name: 'x' });
        const line = { event_message: 'hello', timestamp: new Date().toISOString() };
        const headers = { 'x-api-key': body.key, 'content-type': 'application/json' };
        const sent = await fetch(`${gantry.url}/api/logs?source_name=auth_logs`, { method: 'POST', headers, body: JSON.stringify(line) });
        assert.equal(sent.status, 200);
        const keys = await until('objects', async () => {
          const there = (await boto('list')).filter((key) => key.startsWith('of/'));
          return there.some((key) => key.startsWith(`of/gantry/${ref}/`)) && there;
        });
        assert.ok(keys.every((key) => /^of\/gantry\/[a-z]{20}\/\d{4}-\d\d-\d\d\/[0-9a-f]{32}-0\.[^/]+\.parquet$/.test(key)), `${keys}`);
        const sql = encodeURIComponent("select event_message from logs where source = 'auth_logs'");
        const ask = () => call(gantry, 'GET', `/v1/projects/${ref}/analytics/endpoints/logs?sql=${sql}&iso_timestamp_start=${new Date(Date.now() - 3_600_000).toISOString()}`);
        assert.deepEqual((await ask()).body, { result: [{ event_message: 'hello' }] });
        await moto.kill();
        assert.match((await ask()).body.error, /cannot be read at the moment/);
        assert.equal((await call(gantry, 'GET', '/v1/organizations')).status, 200);
      } finally {
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
    });
  } finally {
    await moto.kill();
  }
}
