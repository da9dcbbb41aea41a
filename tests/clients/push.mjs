// Files as people have them, pushed by the `supabase` CLI and through the API: transactions, statements outside of
// transactions, seeds and repaired histories.
import assert from 'node:assert/strict';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { call, clients, environment, named, project } from './harness.mjs';

const FILES = {
  '20260101000000_first.sql': `BEGIN;
create table pets (id bigint generated always as identity primary key, name text not null);
COMMIT;

begin;
insert into pets (name) values ('it''s; a cat');
commit;
`,
  '20260102000000_index.sql': 'create index concurrently if not exists pets_name on pets (name);\n',
  '20260103000000_kinds.sql': `create type kind as enum ('cat');
alter type kind add value if not exists 'dog';
create function how_many() returns bigint language sql begin atomic select count(*) from public.pets; end;
do $$ begin perform 'a; b'; end; $$;
`,
};

export default async function (server, tally) {
  const ref = await project(server, 'to push to');
  const folder = join(server.work, 'push');
  mkdirSync(join(folder, 'supabase/migrations'), { recursive: true });
  writeFileSync(join(folder, 'supabase/config.toml'), 'project_id = "push"\n\n[db.seed]\nenabled = true\nsql_paths = ["./seed.sql"]\n');
  const tried = (...args) =>
    named(server, ['pooler.localhost'], join(clients, 'node_modules/.bin/supabase'), [...args, '--workdir', folder, '--yes'], environment(server));
  const works = async (...args) => {
    const ended = await tried(...args);
    assert.equal(ended.code, 0, `supabase ${args.join(' ')}: ${ended.all}`);
    return ended.all;
  };
  const remote = `--remote=${ref}`;
  const write = (name, sql) => writeFileSync(join(folder, 'supabase', name), sql);
  const path = `/v1/projects/${ref}/database/migrations`;
  const versions = async () => (await call(server, 'GET', path)).body.map((row) => row.version);
  const rows = async (query) => (await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query })).body;

  try {
    await tally.scenario('push: link', async () => {
      assert.match(await works('link', ref), /Finished supabase link/);
    });
    await tally.scenario('push: db push of transactions, a concurrent index, and enum additions', async () => {
      for (const [name, sql] of Object.entries(FILES)) write(`migrations/${name}`, sql);
      assert.match(await works('db', 'push', remote), /Finished supabase db push/);
      assert.deepEqual(await versions(), ['20260101000000', '20260102000000', '20260103000000']);
      assert.deepEqual(await rows("select name, how_many(), (select indisvalid from pg_index where indexrelid = 'pets_name'::regclass) as valid from pets"), [
        { name: "it's; a cat", how_many: 1, valid: true },
      ]);
    });
    await tally.scenario('push: db push --include-seed runs seed.sql', async () => {
      write('seed.sql', "insert into pets (name) values ('seeded');\nbegin;\ninsert into pets (name) values ('seeded too');\ncommit;\n");
      assert.match(await works('db', 'push', '--include-seed', remote), /Finished supabase db push/);
      assert.deepEqual(await rows("select count(*) as n from pets where name like 'seeded%'"), [{ n: 2 }]);
    });
    await tally.scenario('push: migration list, and repair of the history', async () => {
      assert.match(await works('migration', 'list', remote), /20260102000000.*20260102000000/);
      await works('migration', 'repair', '20260103000000', '--status', 'reverted', remote);
      assert.deepEqual(await versions(), ['20260101000000', '20260102000000']);
      await works('migration', 'repair', '20260103000000', '--status', 'applied', remote);
      assert.equal((await versions()).length, 3);
    });
    await tally.scenario('push: the API applies files of the same kinds, and the CLI lists them', async () => {
      const query = 'begin;\ncreate table toys (id int);\ncommit;\ncreate index concurrently toys_id on toys (id);\nvacuum toys;\n';
      const send = async () => {
        const answer = await fetch(server.url + path, {
          method: 'POST',
          headers: { authorization: `Bearer ${server.token}`, 'content-type': 'application/json', 'idempotency-key': 'toys' },
          body: JSON.stringify({ query, name: 'toys' }),
        });
        assert.equal(answer.status, 200, await answer.text());
      };
      await send();
      await send();
      const [version] = (await versions()).slice(-1);
      assert.equal((await versions()).length, 4);
      assert.deepEqual((await call(server, 'GET', `${path}/${version}`)).body.statements, [query]);
      write(`migrations/${version}_toys.sql`, query);
      assert.match(await works('db', 'push', remote), /up to date/i);
    });
    await tally.scenario('push: a failing file is reported with its statement', async () => {
      write('migrations/29990101000000_bad.sql', 'create table half ();\nselect nope;\n');
      const ended = await tried('db', 'push', remote);
      assert.notEqual(ended.code, 0);
      assert.match(ended.all, /42703/);
      assert.equal((await versions()).length, 4);
      rmSync(join(folder, 'supabase/migrations/29990101000000_bad.sql'));
    });
    await tally.scenario('push: db lint and db query', async () => {
      assert.match(await works('db', 'lint', remote), /No schema errors found/);
      assert.match(await works('db', 'query', 'select 41 + 1 as answer', remote), /42/);
    });
    await tally.scenario('push: db reset drops the objects, then applies migrations and the seed', async () => {
      await rows('create table leftover (id int)');
      await works('db', 'reset', remote);
      assert.equal((await versions()).length, 4);
      assert.deepEqual(await rows("select to_regclass('leftover') as gone, (select count(*) from pets) as n, to_regclass('toys') is not null as toys"), [
        { gone: null, n: 3, toys: true },
      ]);
    });
  } finally {
    await call(server, 'DELETE', `/v1/projects/${ref}`);
  }
}
