// npm `supabase`: the command line tool.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { call, project, run, soon, supabase as cli } from './harness.mjs';

export default async function (server, tally) {
  const supabase = (...args) => cli(server, args);
  const works = async (...args) => {
    const ended = await supabase(...args);
    assert.equal(ended.code, 0, `supabase ${args.join(' ')}: ${ended.all}`);
    return ended;
  };
  const json = async (...args) => JSON.parse((await works(...args)).out);

  await tally.scenario('cli: whoami', async () => {
    assert.match((await works('whoami')).out, /owner@example\.com/);
  });
  await tally.scenario('cli: orgs list', async () => {
    const organizations = await json('orgs', 'list', '-o', 'json');
    assert.ok(organizations.some(({ id, slug }) => id === server.organization && slug === server.organization));
  });
  await tally.scenario('cli: orgs create', async () => {
    await works('orgs', 'create', 'Made by the CLI', '--yes');
    assert.ok((await json('orgs', 'list', '-o', 'json')).some(({ name }) => name === 'Made by the CLI'));
  });

  let ref;
  await tally.scenario('cli: projects create, projects list', async () => {
    const flags = ['--org-id', server.organization, '--db-password', "it's a secret", '--region', 'eu-central-1', '--yes'];
    await works('projects', 'create', 'made by the CLI', ...flags);
    const [project] = (await json('projects', 'list', '-o', 'json')).filter(({ name }) => name === 'made by the CLI');
    assert.equal(project.region, 'eu-central-1');
    assert.match(project.ref, /^[a-z]{20}$/);
    ref = project.ref;
  });
  await tally.scenario('cli: projects create again with the same name', async () => {
    const flags = ['--org-id', server.organization, '--db-password', 'x', '--region', 'eu-central-1', '--yes'];
    const ended = await supabase('projects', 'create', 'made by the CLI', ...flags);
    assert.equal(ended.code, 1);
    assert.match(ended.all, /already exists in this organization/);
  });
  // A missing project fails this scenario only once.
  ref ??= await project(server, 'for the CLI');
  await tally.scenario('cli: db query --remote', async () => {
    const query = (sql, ...flags) => works('db', 'query', `--remote=${ref}`, '--output-format', 'json', ...flags, sql);
    await query('create table pets (id int8 primary key, name text); insert into pets values (9007199254740991, \'Rex\')', '--yes');
    const pets = JSON.parse((await query('select * from pets', '--read-only')).out);
    assert.deepEqual(pets, [{ id: 9007199254740991, name: 'Rex' }]);
  });
  await tally.scenario('cli: db query shows the error of PostgreSQL', async () => {
    const ended = await supabase('db', 'query', `--remote=${ref}`, '--yes', 'select * from nowhere');
    assert.equal(ended.code, 1);
    assert.match(ended.all, /42P01: relation \\"nowhere\\" does not exist/);
  });
  await tally.scenario('cli: logs shows a recent SQL error', async () => {
    const flags = ['--service', 'postgres', '--level', 'error', '--search', 'nowhere', '--since', '10m'];
    const logs = async (...more) => (await works('logs', `--remote=${ref}`, '--output-format', 'json', ...more)).out;
    await soon(() => logs(...flags), /relation \\"nowhere\\" does not exist/);
    const sql = "select event_message, log_attributes['parsed.sql_state_code'] as code from logs where source = 'postgres_logs' and event_message ilike '%nowhere%' limit 5";
    assert.match(await logs('--sql', sql), /42P01/);
  });
  await tally.scenario('cli: db advisors', async () => {
    const query = 'create table advised (id int)';
    assert.equal((await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query })).status, 201);
    assert.match((await works('db', 'advisors', `--remote=${ref}`, '--level', 'info')).all, /no_primary_key|does not have a primary key/);
  });
  await tally.scenario('cli: gen types', async () => {
    assert.match((await works('gen', 'types', `--remote=${ref}`, '--lang', 'typescript')).out, /export type Database = \{/);
  });
  await tally.scenario('cli: projects api-keys', async () => {
    const keys = await json('projects', 'api-keys', `--remote=${ref}`, '-o', 'json');
    assert.deepEqual(keys.map(({ name, type }) => [type, name]), [
      ['legacy', 'anon'], ['legacy', 'service_role'], ['publishable', 'default'], ['secret', 'default'],
    ]);
    assert.match(keys[2].api_key, /^sb_publishable_[\w-]{22}_[\w-]{8}$/);
    const [header, claims] = keys[0].api_key.split('.').slice(0, 2).map((part) => JSON.parse(Buffer.from(part, 'base64url')));
    assert.deepEqual([header.alg, claims.role, claims.ref], ['HS256', 'anon', ref]);
  });
  await tally.scenario('cli: postgres-config update, get, delete', async () => {
    const config = (command, ...flags) => works('--experimental', 'postgres-config', command, `--remote=${ref}`, '--yes', ...flags);
    await config('update', '--config', 'work_mem=8MB', '--config', 'statement_timeout=45s');
    assert.match((await config('get')).all, /statement_timeout[^]*45s[^]*work_mem[^]*8MB/);
    const query = { query: "select current_setting('work_mem') as work_mem" };
    assert.deepEqual((await call(server, 'POST', `/v1/projects/${ref}/database/query`, query)).body, [{ work_mem: '8MB' }]);
    await config('delete', '--config', 'work_mem');
    assert.doesNotMatch((await config('get')).all, /work_mem/);
  });
  await tally.scenario('cli: vanity-subdomains check-availability, activate, get, delete', async () => {
    const remote = [`--remote=${ref}`, '--experimental', '--yes'];
    const name = ['--desired-subdomain', 'made-by-the-cli'];
    assert.match((await works('vanity-subdomains', 'check-availability', ...name, ...remote)).all, /available: true/i);
    assert.match((await works('vanity-subdomains', 'activate', ...name, ...remote)).all, /made-by-the-cli\.localhost/);
    assert.match((await works('vanity-subdomains', 'get', ...remote)).all, /made-by-the-cli\.localhost/);
    await works('vanity-subdomains', 'delete', ...remote);
  });
  await tally.scenario('cli: domains get, reverify, activate, delete', async () => {
    const remote = [`--remote=${ref}`, '--yes'];
    // `domains create` queries a public resolver first, so it is tested in tests/network.
    const host = 'cli.gantry-clients.dev';
    const made = await call(server, 'POST', `/v1/projects/${ref}/custom-hostname/initialize`, { custom_hostname: host });
    assert.equal(made.status, 201, JSON.stringify(made));
    const record = made.body.data.result.ownership_verification;
    for (const command of ['get', 'reverify']) {
      const told = (await works('domains', command, ...remote)).all;
      assert.ok(told.includes(host) && told.includes(record.name) && told.includes(record.value), told);
    }
    const early = await supabase('domains', 'activate', ...remote);
    assert.ok(early.code === 1 && early.all.includes('Verification has not been completed.'), early.all);
    await works('domains', 'delete', ...remote);
    assert.ok((await supabase('domains', 'get', ...remote)).all.includes('No custom hostname configuration found.'));
  });
  await tally.scenario('cli: link', async () => {
    assert.match((await works('link', ref, '--yes')).all, new RegExp(`Finished supabase link[^]*${ref}`));
  });
  await tally.scenario('cli: snippets list, snippets download', async () => {
    const file = join(server.work, 'pets.sql');
    writeFileSync(file, 'select name from pets;\n');
    const flags = ['--owner', 'owner@example.com', '--project', ref, '--name', 'All pets', '--data-dir', server.data, '--output', 'json'];
    const added = await run(server, process.env.GANTRY_BIN, ['snippet', 'add', ...flags, file]);
    assert.equal(added.code, 0, added.all);
    assert.match((await works('snippets', 'list', `--remote=${ref}`)).all, /All pets/);
    assert.match((await works('snippets', 'download', JSON.parse(added.out).id, `--remote=${ref}`)).out, /^select name from pets;/m);
  });
  await tally.scenario('cli: secrets set, list, unset', async () => {
    await works('secrets', 'set', `--remote=${ref}`, '--yes', 'GREETING=hello there', 'OTHER=1');
    const digest = createHash('sha256').update('hello there').digest('hex');
    assert.match((await works('secrets', 'list', `--remote=${ref}`)).all, new RegExp(`GREETING[^]*${digest}`));
    await works('secrets', 'unset', `--remote=${ref}`, '--yes', 'GREETING', 'OTHER');
    assert.doesNotMatch((await works('secrets', 'list', `--remote=${ref}`)).all, /GREETING/);
  });
  await tally.scenario('cli: functions deploy, list, download, delete', async () => {
    const folder = join(server.work, 'supabase/functions/hello');
    mkdirSync(folder, { recursive: true });
    const source = "Deno.serve(() => new Response('hello'));\n";
    writeFileSync(join(folder, 'index.ts'), source);
    await works('functions', 'deploy', 'hello', `--remote=${ref}`, '--use-api', '--yes');
    assert.match((await works('functions', 'list', `--remote=${ref}`)).all, /hello[^]*ACTIVE/);
    rmSync(folder, { recursive: true });
    await works('functions', 'download', 'hello', `--remote=${ref}`, '--use-api', '--yes');
    assert.equal(readFileSync(join(folder, 'index.ts'), 'utf8'), source);
    await works('functions', 'delete', 'hello', `--remote=${ref}`, '--yes');
    assert.doesNotMatch((await works('functions', 'list', `--remote=${ref}`)).all, /hello/);
  });
  await tally.scenario('cli: backups list', async () => {
    await soon(async () => (await works('backups', 'list', `--remote=${ref}`)).all, /PHYSICAL *\| COMPLETED/);
  });
  await tally.scenario('cli: branches list without a branch', async () => {
    const ended = await supabase('branches', 'list', `--remote=${ref}`);
    assert.match(ended.all, /Preview branching is not enabled for this project/);
  });
  await tally.scenario('cli: branches create, list, get, update, delete', async () => {
    const remote = `--remote=${ref}`;
    await works('branches', 'create', 'feature/one', remote, '--yes');
    const list = async () => (await works('branches', 'list', remote, '-o', 'json')).out;
    const ready = () => list().then(JSON.parse).then((found) => found.every(({ status }) => status === 'FUNCTIONS_DEPLOYED'));
    for (let look = 0; look < 10 && !(await ready()); look += 1) await soon(ready, /true/).catch(() => {});
    assert.ok(await ready());
    const branches = JSON.parse(await list());
    assert.deepEqual(branches.map(({ name, is_default }) => [name, is_default]), [['main', true], ['feature/one', false]]);
    const [, branch] = branches;
    await soon(async () => (await works('branches', 'get', 'feature/one', remote)).all, /ACTIVE_HEALTHY/);
    await works('branches', 'update', 'feature/one', remote, '--name', 'renamed', '--yes');
    assert.ok(JSON.parse(await list()).some(({ name }) => name === 'renamed'));
    await works('branches', 'delete', 'renamed', remote, '--yes');
    assert.ok(JSON.parse(await list()).every(({ project_ref }) => project_ref !== branch.project_ref));
  });
  await tally.scenario('cli: projects delete', async () => {
    assert.match((await works('projects', 'delete', ref, '--yes')).all, /Deleted project/);
    assert.ok((await json('projects', 'list', '-o', 'json')).every((project) => project.ref !== ref));
    assert.equal((await call(server, 'GET', `/v1/projects/${ref}`)).body.message, 'Resource has been removed');
  });
  await tally.scenario('cli: a wrong token is rejected with a message', async () => {
    const ended = await cli(server, ['orgs', 'list'], { token: `sbp_${'0'.repeat(40)}`, home: 'stranger' });
    assert.equal(ended.code, 1);
    assert.match(ended.all, /Unauthorized/);
  });
}
