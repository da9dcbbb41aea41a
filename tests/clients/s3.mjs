// Log files and log drains in an S3 server of moto. boto3 lists the objects.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { bounded, call, clients, run, start } from './harness.mjs';

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

export default async function (server, tally) {
  const port = await free();
  const endpoint = `http://127.0.0.1:${port}`;
  const moto = spawn(join(clients, 'python/bin/moto_server'), ['-H', '127.0.0.1', '-p', `${port}`], { stdio: 'ignore' });
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
    await until('a store that listens', () => fetch(endpoint).then(() => true, () => false));

    await tally.scenario('s3: a missing bucket is rejected at start', async () => {
      const refused = start({ flags }).then((started) => started.stop(), (error) => error.message);
      assert.match(await refused, /has no bucket lines: make it, or check --logs-url/);
    });
    await tally.scenario('s3: a log drain writes every acknowledged line', async () => {
      await boto('make');
      const gantry = await start({ flags: ['--log-drain-networks', '127.0.0.0/8'] });
      try {
        const made = await call(gantry, 'POST', '/v1/projects', { name: 'd', organization_slug: gantry.organization, db_pass: 'x'.repeat(20) });
        const { ref } = made.body;
        const { body } = await call(gantry, 'POST', `/v1/projects/${ref}/analytics/ingest-keys`, { name: 'x' });
        const config = { s3_bucket: 'lines', storage_region: 'us-east-1', access_key_id: 'AKIDEXAMPLE', secret_access_key: 'correct-horse', endpoint, batch_timeout: 200 };
        const attributes = { name: 's3', backend_type: 's3', config };
        const drain = await call(gantry, 'POST', `/v2/projects/${ref}/analytics/log-drains`, { data: { type: 'log_drain', attributes } });
        assert.equal(drain.status, 201, JSON.stringify(drain.body));
        const headers = { 'x-api-key': body.key, 'content-type': 'application/json' };
        const sent = [];
        for (let batch = 0; batch < 20; batch += 1) {
          const lines = Array.from({ length: 25 }, (_, n) => ({ event_message: `line-${batch}-${n}`, timestamp: new Date().toISOString() }));
          const answer = await fetch(`${gantry.url}/api/logs?source_name=auth_logs`, { method: 'POST', headers, body: JSON.stringify(lines) });
          assert.equal(answer.status, 200);
          sent.push(...lines.map((line) => line.event_message));
        }
        const all = async () => {
          const there = new Set(await boto('drained'));
          return sent.every((message) => there.has(message));
        };
        await until('every line in an object', all);
      } finally {
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
    });
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
        moto.kill('SIGKILL');
        await bounded('the end of moto', new Promise((resolve) => moto.once('exit', resolve)));
        assert.match((await ask()).body.error, /cannot be read at the moment/);
        assert.equal((await call(gantry, 'GET', '/v1/organizations')).status, 200);
      } finally {
        assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
      }
    });
  } finally {
    moto.kill('SIGKILL');
  }
}
