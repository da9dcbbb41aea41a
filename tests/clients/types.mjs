// TypeScript and `@supabase/supabase-js` against the types of a project.
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { call, clients, project, run } from './harness.mjs';

const here = new URL('types/', import.meta.url).pathname;

export default async function (server, tally) {
  const ref = await project(server, 'for types');
  const folder = join(server.work, 'types');
  const compile = (file) => {
    const flags = ['--strict', '--noEmit', '--skipLibCheck', '--target', 'es2022', '--module', 'esnext', '--moduleResolution', 'bundler'];
    return run(server, join(clients, 'node_modules/.bin/tsc'), [...flags, join(folder, file)]);
  };
  await tally.scenario('types: the generated file compiles', async () => {
    const query = readFileSync(join(here, 'shop.sql'), 'utf8');
    const made = await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query });
    assert.equal(made.status, 201, JSON.stringify(made.body));
    const { body } = await call(server, 'GET', `/v1/projects/${ref}/types/typescript?included_schemas=public,private`);
    mkdirSync(folder);
    writeFileSync(join(folder, 'database.ts'), body.types);
    symlinkSync(join(clients, 'node_modules'), join(folder, 'node_modules'));
    const ended = await compile('database.ts');
    assert.equal(ended.code, 0, ended.all);
  });
  await tally.scenario('types: a typed client accepts valid values and rejects others', async () => {
    copyFileSync(join(here, 'queries.ts'), join(folder, 'queries.ts'));
    const ended = await compile('queries.ts');
    assert.equal(ended.code, 0, ended.all);
  });
  await call(server, 'DELETE', `/v1/projects/${ref}`);
}
