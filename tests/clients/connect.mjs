// Commands of the `supabase` CLI that connect to the database, with a temporary login role.
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PASSWORD, call, clients, environment, named, project, run } from './harness.mjs';

export default async function (server, tally) {
  const ref = await project(server, 'to connect to');
  const folder = join(server.work, 'connect');
  mkdirSync(join(folder, 'supabase/migrations'), { recursive: true });
  writeFileSync(join(folder, 'supabase/config.toml'), 'project_id = "connect"\n');
  const pooler = 'pooler.localhost';
  const direct = `db.${ref}.localhost`;
  const works = async (names, args, more = {}) => {
    const ended = await named(server, names, join(clients, 'node_modules/.bin/supabase'), [...args, '--workdir', folder, '--yes'], {
      ...environment(server),
      ...more,
    });
    assert.equal(ended.code, 0, `supabase ${args.join(' ')}: ${ended.all}`);
    return ended.all;
  };
  const on = (...args) => works([pooler], [...args, `--remote=${ref}`]);
  const write = (version, name, sql) => writeFileSync(join(folder, 'supabase/migrations', `${version}_${name}.sql`), sql);
  const applied = async () => (await call(server, 'GET', `/v1/projects/${ref}/database/migrations`)).body.map((row) => row.version);

  await tally.scenario('connect: link', async () => {
    assert.match(await works([pooler], ['link', ref]), new RegExp(`Finished supabase link[^]*${ref}`));
  });
  await tally.scenario('connect: db push and migration list through the name of the pooler, with a login role', async () => {
    write('20260101000000', 'first', 'create table first (id int);\ninsert into first values (7);\n');
    assert.match(await on('db', 'push'), /Finished supabase db push/);
    assert.deepEqual(await applied(), ['20260101000000']);
    assert.match(await on('migration', 'list'), /20260101000000.*20260101000000/);
    const { body } = await call(server, 'POST', `/v1/projects/${ref}/database/query`, {
      query: "select tableowner from pg_tables where tablename = 'first'",
    });
    assert.deepEqual(body, [{ tableowner: 'postgres' }], 'what the login role makes is the owner\'s');
  });
  await tally.scenario('connect: db push through the name of the database', async () => {
    write('20260102000000', 'second', 'create table second (id int);\n');
    assert.match(await works([direct], ['db', 'push', `--remote=${ref}`]), /Finished supabase db push/);
    assert.deepEqual(await applied(), ['20260101000000', '20260102000000']);
  });
  await tally.scenario('connect: db push with the password', async () => {
    write('20260103000000', 'third', 'create table third (id int);\n');
    assert.match(await works([direct], ['db', 'push', `--remote=${ref}`], { SUPABASE_DB_PASSWORD: PASSWORD }), /Finished supabase db push/);
    assert.equal((await applied()).length, 3);
  });
  // pg_dump rejects servers that are newer than itself, and the npm packages of PostgreSQL do not contain it.
  const dumper = Number((await run(server, 'pg_dump', ['--version'])).out.match(/\) (\d+)/)[1]);
  const { body: details } = await call(server, 'GET', `/v1/projects/${ref}`);
  const dumps = dumper >= Number(details.database.postgres_engine);
  if (!dumps) console.log(`SKIPPED connect: db dump with a login role: pg_dump ${dumper} cannot dump PostgreSQL ${details.database.postgres_engine}`);
  if (dumps) await tally.scenario('connect: db dump with a login role', async () => {
    const { status, body } = await call(server, 'POST', `/v1/projects/${ref}/cli/login-role`, { read_only: false });
    assert.equal(status, 201);
    const flags = ['--host', server.host, '--username', `${body.role}.${ref}`, '--role', 'postgres', '--schema', 'public', '--no-password', 'postgres'];
    const ended = await run(server, 'pg_dump', flags, { PGPASSWORD: body.password, PGSSLMODE: 'require' });
    assert.equal(ended.code, 0, ended.all);
    assert.match(ended.out, /CREATE TABLE public\.first[^]*COPY public\.first \(id\) FROM stdin;\n7\n/);
  });
  await tally.scenario('connect: ssl-enforcement get, update; db push still works', async () => {
    assert.match(await on('ssl-enforcement', 'get', '--experimental'), /not|disabled|false/i);
    await on('ssl-enforcement', 'update', '--experimental', '--enable-db-ssl-enforcement');
    assert.equal((await call(server, 'GET', `/v1/projects/${ref}/ssl-enforcement`)).body.currentConfig.database, true);
    write('20260104000000', 'fourth', 'create table fourth (id int);\n');
    assert.match(await on('db', 'push'), /Finished supabase db push/);
  });
  await tally.scenario('connect: network-restrictions get, update; forbidden addresses are rejected', async () => {
    assert.match(await on('network-restrictions', 'get', '--experimental'), /0\.0\.0\.0\/0/);
    await on('network-restrictions', 'update', '--experimental', '--db-allow-cidr', '198.51.100.0/24');
    const told = (await call(server, 'GET', `/v1/projects/${ref}/network-restrictions`)).body.config;
    assert.deepEqual(told.dbAllowedCidrs, ['198.51.100.0/24']);
    const url = `postgresql://postgres.${ref}:${encodeURIComponent(PASSWORD)}@${server.host}:5432/postgres`;
    const ended = await run(server, 'psql', [url, '-c', 'select 1']);
    assert.match(ended.err, /allow list/);
    await on('network-restrictions', 'update', '--experimental', '--db-allow-cidr', '0.0.0.0/0', '--db-allow-cidr', '::/0');
  });
  await tally.scenario('connect: network-bans get, remove', async () => {
    const wrong = `postgresql://postgres.${ref}:wrong@${server.host}:5432/postgres`;
    for (let n = 0; n < 10; n += 1) await run(server, 'psql', [wrong, '-c', 'select 1'], { PGSSLMODE: 'require' });
    assert.match(await on('network-bans', 'get', '--experimental'), /127\.0\.0\.1|127\.\d+\.\d+\.\d+/);
    const { banned_ipv4_addresses: banned } = (await call(server, 'POST', `/v1/projects/${ref}/network-bans/retrieve`)).body;
    assert.equal(banned.length, 1);
    await on('network-bans', 'remove', '--experimental', '--db-unban-ip', banned[0]);
    assert.deepEqual((await call(server, 'POST', `/v1/projects/${ref}/network-bans/retrieve`)).body, { banned_ipv4_addresses: [] });
  });
  await call(server, 'DELETE', `/v1/projects/${ref}`);
}
