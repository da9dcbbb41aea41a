// Database drivers through the pooler: node-postgres, postgres.js, psycopg, asyncpg and drizzle-kit, and many clients
// during restarts of the project.
import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PASSWORD, call, clients, project, run } from './harness.mjs';

const require = createRequire(join(clients, 'package.json'));
/** Clients during a restart, of 200 that the smallest compute size has. Closed ones still count for a moment. */
const KEPT = 190;
const ARRIVING = 100;

export default async function (server, tally) {
  const pg = require('pg');
  const postgres = require('postgres');
  const ref = await project(server, 'to pool');
  const target = { host: server.host, port: 6543, user: `postgres.${ref}`, password: PASSWORD, database: 'postgres' };
  const url = (port) => `postgresql://postgres.${ref}:${encodeURIComponent(PASSWORD)}@${server.host}:${port}/postgres`;
  const status = async () => (await call(server, 'GET', `/v1/projects/${ref}`)).body.status;

  await tally.scenario('pool: the announced mode is that of the port', async () => {
    const { body } = await call(server, 'GET', `/v1/projects/${ref}/config/database/pooler`);
    assert.deepEqual([body[0].pool_mode, body[0].db_port], ['transaction', 6543]);
  });
  await tally.scenario('pool: node-postgres with named statements and transactions', async () => {
    const pool = new pg.Pool({ ...target, max: 50 });
    const ask = async (n) => {
      const client = await pool.connect();
      try {
        await client.query('begin');
        const { rows } = await client.query({ name: 'sum', text: 'select $1::int + $2::int as sum', values: [n, 1] });
        await client.query('commit');
        return rows[0].sum;
      } finally {
        client.release();
      }
    };
    const found = await Promise.all(Array.from({ length: 500 }, (_, n) => ask(n)));
    assert.deepEqual(found, Array.from({ length: 500 }, (_, n) => n + 1));
    await pool.end();
  });
  await tally.scenario('pool: postgres.js with its prepared statements', async () => {
    const sql = postgres({ ...target, username: target.user, max: 50 });
    const found = await Promise.all(Array.from({ length: 500 }, (_, n) => sql`select ${n}::int + 1 as sum`));
    assert.deepEqual(found.map(([row]) => row.sum), Array.from({ length: 500 }, (_, n) => n + 1));
    const total = await sql.begin(async (tx) => {
      await tx`create temporary table held on commit drop as select generate_series(1, 10) as n`;
      return tx`select sum(n)::int as total from held`;
    });
    assert.equal(total[0].total, 55);
    await sql.end();
  });
  for (const driver of ['psycopg', 'asyncpg']) {
    await tally.scenario(`pool: ${driver} with prepared statements`, async () => {
      const script = fileURLToPath(new URL('pool.py', import.meta.url));
      const ended = await run(server, join(clients, 'python/bin/python'), [script, driver, url(6543)]);
      assert.equal(ended.code, 0, ended.all);
    });
  }
  await tally.scenario('pool: drizzle-kit push through the session port, and its table through the pooler', async () => {
    const folder = join(server.work, 'drizzle');
    mkdirSync(folder, { recursive: true });
    symlinkSync(join(clients, 'node_modules'), join(folder, 'node_modules'));
    writeFileSync(join(folder, 'schema.ts'), "import { integer, pgTable } from 'drizzle-orm/pg-core';\nexport const drizzled = pgTable('drizzled', { id: integer('id').primaryKey() });\n");
    writeFileSync(join(folder, 'drizzle.config.ts'), `export default { dialect: 'postgresql', schema: './schema.ts', dbCredentials: { url: ${JSON.stringify(url(5432))}, ssl: false } };\n`);
    const kit = join(clients, 'node_modules/drizzle-kit/bin.cjs');
    const config = join(folder, 'drizzle.config.ts');
    const ended = await run(server, 'sh', ['-c', 'cd "$0" && exec "$@"', folder, process.execPath, kit, 'push', '--force', `--config=${config}`]);
    assert.equal(ended.code, 0, ended.all);
    const client = new pg.Client(target);
    await client.connect();
    await client.query('insert into drizzled values (7)');
    assert.deepEqual((await client.query('select id from drizzled')).rows, [{ id: 7 }]);
    await client.end();
  });
  /** Restarts the project three times while clients work, and returns the number of their answers. */
  const restarted = async (count, work) => {
    let answered = 0;
    let over = false;
    const failures = [];
    const ask = async (client) => {
      await client.query('select 1');
      answered += 1;
    };
    const connected = async () => {
      const client = new pg.Client(target);
      client.on('error', (error) => failures.push(error));
      await client.connect();
      return client;
    };
    const restarts = async () => {
      for (let round = 0; round < 3; round += 1) {
        assert.equal((await call(server, 'POST', `/v1/projects/${ref}/restart`)).status, 200);
        do await new Promise((resolve) => setTimeout(resolve, 100)); while ((await status()) !== 'ACTIVE_HEALTHY');
      }
      over = true;
    };
    const clients = Array.from({ length: count }, () => work(() => !over, connected, ask));
    await Promise.all([restarts(), ...clients]).finally(() => (over = true));
    assert.deepEqual(failures, []);
    assert.ok(answered > count, `${answered} answers`);
  };
  await tally.scenario(`pool: ${KEPT} open connections see no error during restarts`, () =>
    restarted(KEPT, async (goesOn, connected, ask) => {
      const client = await connected();
      while (goesOn()) {
        await ask(client);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      await client.end();
    }));
  await tally.scenario(`pool: ${ARRIVING} clients that connect for each query see no error during restarts`, () =>
    restarted(ARRIVING, async (goesOn, connected, ask) => {
      while (goesOn()) {
        const client = await connected();
        await ask(client);
        await client.end();
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }));
  await call(server, 'DELETE', `/v1/projects/${ref}`);
}
