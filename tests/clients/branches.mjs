// Branches by the `supabase` CLI, by the Go CLI of its version 2.99, and by the calls of Terraform's branch resource, whose provider
// is not available from a package registry. The tools of the MCP server are in mcp.mjs.
import assert from 'node:assert/strict';
import { chmodSync } from 'node:fs';
import { join } from 'node:path';
import { call, clients, environment, project, run, supabase } from './harness.mjs';

const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

/** Repeats a look until it is satisfied. The scenario has a time limit. */
async function until(look, done) {
  for (;;) {
    const seen = await look();
    if (done(seen)) return seen;
    await pause(300);
  }
}

/** Runs every `branches` command with one version of the CLI. */
async function commands(server, tally, name, cli) {
  const ref = await project(server, `branches by ${name}`);
  const works = async (...args) => {
    const ended = await cli(ref, args);
    assert.equal(ended.code, 0, `branches ${args.join(' ')}: ${ended.all}`);
    return ended;
  };
  const list = async () => JSON.parse((await works('list', '-o', 'json')).out);
  const named = async (wanted) => (await list()).find((branch) => branch.name === wanted);
  const sql = (project, query) => call(server, 'POST', `/v1/projects/${project}/database/query`, { query });
  const migrate = { name: 'pets', query: 'create table pets (id int)' };
  assert.equal((await call(server, 'POST', `/v1/projects/${ref}/database/migrations`, migrate)).status, 200);
  assert.equal((await sql(ref, 'insert into pets values (1)')).status, 201);
  try {
    await tally.scenario(`branches: ${name}: create with the schema and with data, list`, async () => {
      await works('create', 'feature/one');
      await works('create', 'copy', '--with-data', '--persistent', '--notify-url', 'http://127.0.0.1:9/');
      await until(list, (found) => found.length === 3 && found.every(({ status }) => status === 'FUNCTIONS_DEPLOYED'));
      const found = await list();
      const told = found.map((branch) => [branch.name, branch.is_default, branch.persistent, branch.with_data]);
      assert.deepEqual(told.sort(), [['copy', false, true, true], ['feature/one', false, false, false], ['main', true, true, false]]);
      for (const [branch, rows] of [['feature/one', 0], ['copy', 1]]) {
        const { project_ref } = await named(branch);
        assert.deepEqual((await sql(project_ref, 'select count(*)::int as n from pets')).body, [{ n: rows }]);
      }
    });
    await tally.scenario(`branches: ${name}: get, also as variables of an environment`, async () => {
      assert.match((await works('get', 'feature/one')).all, /ACTIVE_HEALTHY/);
      const { project_ref } = await named('feature/one');
      const variables = (await works('get', 'feature/one', '-o', 'env')).out;
      assert.match(variables, /POSTGRES_URL/);
      assert.match(variables, /SUPABASE_ANON_KEY="?eyJ/);
      assert.ok(variables.includes(project_ref), variables);
      const { body } = await call(server, 'GET', `/v1/branches/${project_ref}`);
      assert.ok(variables.includes(`:${body.db_pass}@`), 'the generated password is in the address');
    });
    await tally.scenario(`branches: ${name}: pause and unpause`, async () => {
      const { project_ref } = await named('feature/one');
      const status = async () => (await call(server, 'GET', `/v1/branches/${project_ref}`)).body.status;
      await works('pause', 'feature/one');
      await until(status, (found) => found === 'INACTIVE');
      await works('unpause', 'feature/one');
      await until(status, (found) => found === 'ACTIVE_HEALTHY');
    });
    await tally.scenario(`branches: ${name}: update, and delete, which a persistent branch refuses`, async () => {
      const refused = await cli(ref, ['delete', 'copy']);
      assert.notEqual(refused.code, 0);
      assert.match(refused.all, /Cannot delete persistent branch/);
      await works('update', 'copy', '--name', 'renamed', '--persistent=false', '--git-branch', 'a/b');
      const renamed = await named('renamed');
      assert.deepEqual([renamed.persistent, renamed.git_branch], [false, 'a/b']);
      await works('delete', 'renamed');
      assert.equal(await named('renamed'), undefined);
    });
    await tally.scenario(`branches: ${name}: disable`, async () => {
      await works('disable');
      assert.match((await cli(ref, ['list'])).all, /Preview branching is not enabled for this project/);
    });
  } finally {
    await call(server, 'DELETE', `/v1/projects/${ref}/branches`);
    await call(server, 'DELETE', `/v1/projects/${ref}`);
  }
}

/** Makes the calls of Terraform's provider 1.11 for the resource `supabase_branch`, in their order. */
async function terraform(server, tally) {
  const ref = await project(server, 'branches by Terraform');
  const of = async (method, path, body, status) => {
    const answer = await call(server, method, path, body);
    assert.equal(answer.status, status, `${method} ${path}: ${JSON.stringify(answer.body)}`);
    return answer.body;
  };
  const branches = `/v1/projects/${ref}/branches`;
  let branch;
  await tally.scenario('branches: terraform: create enables branching and waits until all services are healthy', async () => {
    await of('GET', branches, undefined, 422);
    await of('POST', branches, { branch_name: 'Production', is_default: true }, 201);
    branch = await of('POST', branches, { branch_name: 'feature', git_branch: 'feature', region: 'us-east-1', persistent: true }, 201);
    // A branch is no project for this operation, by which the provider tells the two apart.
    const missing = await of('GET', `/v1/projects/${branch.project_ref}`, undefined, 404);
    assert.equal(missing.message, 'Project not found');
    const pending = ['ACTIVE_UNHEALTHY', 'RESTORING', 'COMING_UP', 'UPGRADING', 'PAUSING', 'RESIZING', 'RESTARTING', 'UNKNOWN'];
    const ready = await until(
      () => of('GET', `/v1/branches/${branch.id}`, undefined, 200),
      ({ status }) => !pending.includes(status),
    );
    assert.equal(ready.status, 'ACTIVE_HEALTHY');
    const health = await of('GET', `/v1/projects/${branch.project_ref}/health?services=db`, undefined, 200);
    assert.deepEqual(health.map(({ status }) => status), ['ACTIVE_HEALTHY']);
  });
  await tally.scenario('branches: terraform: read, update, and delete after it is no longer persistent', async () => {
    const read = await of('GET', `/v1/branches/${branch.id}`, undefined, 200);
    assert.equal(read.ref, branch.project_ref);
    assert.ok((await of('GET', branches, undefined, 200)).some(({ id }) => id === branch.id));
    const update = { branch_name: 'other', git_branch: 'other', persistent: true };
    const changed = await of('PATCH', `/v1/branches/${branch.id}`, update, 200);
    assert.deepEqual([changed.name, changed.git_branch], ['other', 'other']);
    await of('DELETE', `/v1/branches/${branch.id}`, undefined, 422);
    await of('PATCH', `/v1/branches/${branch.id}`, { persistent: false }, 200);
    await of('DELETE', `/v1/branches/${branch.id}`, undefined, 200);
    await of('GET', `/v1/branches/${branch.id}`, undefined, 404);
  });
  await call(server, 'DELETE', branches);
  await call(server, 'DELETE', `/v1/projects/${ref}`);
}

export default async function branches(server, tally) {
  await commands(server, tally, 'cli', (ref, args) => supabase(server, ['branches', ...args, `--remote=${ref}`, '--yes']));
  const program = join(clients, 'node_modules/supabase-2.99/bin/supabase-go');
  chmodSync(program, 0o755);
  await commands(server, tally, 'cli 2.99', (ref, args) =>
    run(server, program, ['branches', ...args, '--project-ref', ref, '--experimental', '--yes'], environment(server)),
  );
  await terraform(server, tally);
}
