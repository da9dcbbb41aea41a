// The migration history, which the API and the `supabase` CLI share. The CLI reads and writes it over a database connection.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PASSWORD, call, project, supabase } from './harness.mjs';

export default async function (server, tally) {
  const ref = await project(server, 'for the history');
  const folder = join(server.work, 'history');
  const migrations = join(folder, 'supabase/migrations');
  mkdirSync(migrations, { recursive: true });
  writeFileSync(join(folder, 'supabase/config.toml'), 'project_id = "history"\n');
  const database = `--remote=postgresql://postgres.${ref}:${encodeURIComponent(PASSWORD)}@${server.host}:5432/postgres`;
  const works = async (...args) => {
    const ended = await supabase(server, [...args, database, '--workdir', folder, '--yes']);
    assert.equal(ended.code, 0, `supabase ${args.join(' ')}: ${ended.all}`);
    return ended.all;
  };
  const path = `/v1/projects/${ref}/database/migrations`;
  const listed = async () => (await call(server, 'GET', path)).body;
  const send = async (method, rest, body) => {
    const answer = await fetch(server.url + path + rest, {
      method,
      headers: { authorization: `Bearer ${server.token}`, 'content-type': 'application/json' },
      body: body && JSON.stringify(body),
    });
    assert.equal(answer.status, 200, await answer.text());
  };

  try {
    let version;
    await tally.scenario('history: migration list shows what the API applied', async () => {
      await send('POST', '', { query: 'create table ours (id int);\nselect 1', name: 'ours', rollback: 'drop table ours' });
      [{ version }] = await listed();
      assert.match(await works('migration', 'list'), new RegExp(version));
    });
    await tally.scenario('history: migration fetch writes it to a file', async () => {
      await works('migration', 'fetch');
      assert.deepEqual(readdirSync(migrations), [`${version}_ours.sql`]);
      assert.match(readFileSync(join(migrations, `${version}_ours.sql`), 'utf8'), /create table ours \(id int\);\nselect 1/);
    });
    await tally.scenario('history: db push applies new files, and the API lists them', async () => {
      writeFileSync(join(migrations, '29990101000000_theirs.sql'), 'create table theirs (id int);\ninsert into theirs values (1);\n');
      await works('db', 'push');
      assert.deepEqual(await listed(), [{ version, name: 'ours' }, { version: '29990101000000', name: 'theirs' }]);
      const { body } = await call(server, 'GET', `${path}/29990101000000`);
      assert.deepEqual(body.statements, ['create table theirs (id int)', 'insert into theirs values (1)']);
    });
    await tally.scenario('history: the API applies a migration after one of the CLI', async () => {
      await send('POST', '', { query: 'select 1', name: 'after', rollback: '' });
      assert.equal((await listed()).at(-1).version, '29990101000001');
      await send('DELETE', '?gte=29990101000001');
    });
    await tally.scenario('history: migration repair removes and adds a row', async () => {
      await works('migration', 'repair', '29990101000000', '--status', 'reverted');
      assert.deepEqual(await listed(), [{ version, name: 'ours' }]);
      await works('migration', 'repair', '29990101000000', '--status', 'applied');
      assert.deepEqual((await listed()).map((row) => row.version), [version, '29990101000000']);
    });
    await tally.scenario('history: the API rolls back a migration of the CLI', async () => {
      await send('PATCH', '/29990101000000', { rollback: 'drop table theirs' });
      await send('DELETE', `?gte=${version}`);
      assert.deepEqual(await listed(), []);
      const { body } = await call(server, 'POST', `/v1/projects/${ref}/database/query`, {
        query: "select to_regclass('ours') as ours, to_regclass('theirs') as theirs",
      });
      assert.deepEqual(body, [{ ours: null, theirs: null }]);
    });
  } finally {
    await call(server, 'DELETE', `/v1/projects/${ref}`);
  }
}
