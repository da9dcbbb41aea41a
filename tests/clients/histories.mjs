// The histories of tests/it/platform_database/histories, pushed by the `supabase` CLI, each to a project of its own.
// Those with `.api` in their name use a new value of an enum in the file that adds it, which the CLI cannot.
// GANTRY_CLIENTS_ENGINE is the folder of the programs of a PostgreSQL with more extensions than the machine's.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { call, clients, environment, named, project, start } from './harness.mjs';

const HISTORIES = new URL('../it/platform_database/histories/', import.meta.url);
const SEPARATOR = '\n-- migration\n';

export default async function (shared, tally) {
  const engine = process.env.GANTRY_CLIENTS_ENGINE;
  const server = engine ? await start({ flags: ['--postgres-bin', engine] }) : shared;
  try {
    for (const file of readdirSync(HISTORIES).sort()) {
      if (file.includes('.api.')) continue;
      const ref = await project(server, file);
      const query = async (text) => (await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query: text })).body;
      try {
        const [{ major, extensions }] = await query(
          "select current_setting('server_version_num')::int / 10000 as major, array(select name::text from pg_available_extensions) as extensions",
        );
        const needs = file.split('.').slice(1, -1);
        const missing = needs.filter((need) => (/^\d+$/.test(need) ? major < Number(need) : !extensions.includes(need)));
        if (missing.length > 0) {
          console.log(`SKIPPED histories: ${file} needs ${missing.join(', ')}`);
          continue;
        }
        const folder = join(server.work, file);
        mkdirSync(join(folder, 'supabase/migrations'), { recursive: true });
        writeFileSync(join(folder, 'supabase/config.toml'), 'project_id = "history"\n');
        const migrations = readFileSync(new URL(file, HISTORIES), 'utf8').split(SEPARATOR);
        migrations.forEach((sql, number) => writeFileSync(join(folder, 'supabase/migrations', `2026010100000${number}_step.sql`), sql));
        await tally.scenario(`histories: db push of ${file}`, async () => {
          const supabase = (...args) =>
            named(server, ['pooler.localhost'], join(clients, 'node_modules/.bin/supabase'), [...args, '--workdir', folder, '--yes'], environment(server));
          const linked = await supabase('link', ref);
          assert.equal(linked.code, 0, linked.all);
          const pushed = await supabase('db', 'push', `--remote=${ref}`);
          assert.equal(pushed.code, 0, pushed.all);
          const { body } = await call(server, 'GET', `/v1/projects/${ref}/database/migrations`);
          assert.equal(body.length, migrations.length);
        });
      } finally {
        await call(server, 'DELETE', `/v1/projects/${ref}`);
      }
    }
  } finally {
    if (engine) await server.stop();
  }
}
