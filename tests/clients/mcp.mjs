// npm `@supabase/mcp-server-supabase` over stdio, with the calls of an assistant.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { bounded, call, clients, project, soon } from './harness.mjs';

/** Calls of tools. Subclasses send the requests. */
export class Tools {
  /** Returns the answer of a tool, parsed if it is JSON. */
  async tool(name, args = {}) {
    const result = await this.request('tools/call', { name, arguments: args });
    const text = result.content[0].text;
    assert.ok(!result.isError, `${name}: ${text}`);
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }

  async refusal(name, args) {
    const result = await this.request('tools/call', { name, arguments: args });
    assert.ok(result.isError, `${name} was to be refused: ${result.content[0].text}`);
    return result.content[0].text;
  }
}

/** A JSON-RPC client: one message per line. */
class Session extends Tools {
  #pending = new Map();
  #last = 0;

  constructor(server, program) {
    super();
    // The feature `docs` is left out: listing its tools needs the network.
    const features = 'account,database,debugging,development,functions,branching,storage';
    const args = ['--access-token', server.token, '--api-url', server.url, '--features', features];
    this.child = spawn(process.execPath, [join(clients, 'node_modules', program), ...args], {
      stdio: ['pipe', 'pipe', 'ignore'],
      env: { PATH: process.env.PATH, HOME: server.home },
    });
    createInterface({ input: this.child.stdout }).on('line', (line) => {
      const message = JSON.parse(line);
      this.#pending.get(message.id)?.(message);
      this.#pending.delete(message.id);
    });
  }

  send(message) {
    this.child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  }

  async request(method, params) {
    this.#last += 1;
    const id = this.#last;
    const answer = new Promise((resolve) => this.#pending.set(id, resolve));
    this.send({ id, method, params });
    const message = await bounded(`${method} ${JSON.stringify(params)}`, answer, 60_000);
    assert.ok(!message.error, JSON.stringify(message.error));
    return message.result;
  }
}

/** Runs the scenarios with one of the installed versions. */
export const mcp = (program) => async (server, tally) => {
  const session = new Session(server, program);
  try {
    await session.request('initialize', {
      protocolVersion: '2025-06-18',
      capabilities: {},
      clientInfo: { name: 'gantry-tests', version: '1' },
    });
    session.send({ method: 'notifications/initialized' });
    await scenarios(server, tally, session);
  } finally {
    session.child.kill('SIGKILL');
  }
};

export async function scenarios(server, tally, session) {
  const organization_id = server.organization;
  await tally.scenario('mcp: tools/list', async () => {
    const { tools } = await session.request('tools/list', {});
    assert.ok(tools.length > 25, `${tools.length} tools`);
  });
  await tally.scenario('mcp: list_organizations, get_organization', async () => {
    const { organizations } = await session.tool('list_organizations');
    assert.ok(organizations.some(({ id }) => id === organization_id));
    assert.equal((await session.tool('get_organization', { id: organization_id })).id, organization_id);
  });

  let project_id;
  await tally.scenario('mcp: get_cost, confirm_cost, create_project', async () => {
    const cost = await session.tool('get_cost', { type: 'project', organization_id });
    assert.equal(cost.amount, 0, JSON.stringify(cost));
    const { confirmation_id } = await session.tool('confirm_cost', cost);
    const made = await session.tool('create_project', {
      // Names are unique, and other versions run on the same server.
      name: `made by MCP ${randomUUID()}`,
      region: 'us-east-1',
      organization_id,
      confirm_cost_id: confirmation_id,
    });
    assert.match(made.id, /^[a-z]{20}$/);
    project_id = made.id;
  });
  await tally.scenario('mcp: list_projects, get_project', async () => {
    const { projects } = await session.tool('list_projects');
    assert.ok(projects.some(({ id }) => id === project_id));
    // The query waits until the project is ready.
    await session.tool('execute_sql', { project_id, query: 'select 1' });
    assert.equal((await session.tool('get_project', { id: project_id })).status, 'ACTIVE_HEALTHY');
  });
  // A missing project fails this scenario only once.
  project_id ??= await project(server, 'for MCP');

  await tally.scenario('mcp: execute_sql', async () => {
    const { result } = await session.tool('execute_sql', { project_id, query: "select 9007199254740991::int8 as big, 'Rex' as name" });
    assert.match(result, /\[\{"big":9007199254740991,"name":"Rex"\}\]/);
  });
  await tally.scenario('mcp: apply_migration, list_migrations', async () => {
    const query = 'create table pets (id bigint generated always as identity primary key, name text not null); alter table pets enable row level security';
    await session.tool('apply_migration', { project_id, name: 'pets_create', query });
    const { migrations } = await session.tool('list_migrations', { project_id });
    assert.deepEqual(migrations.map(({ name }) => name), ['pets_create']);
    assert.match(migrations[0].version, /^\d{14}$/);
  });
  await tally.scenario('mcp: a failing apply_migration changes nothing', async () => {
    const query = 'create table half (); select * from nowhere';
    assert.match(await session.refusal('apply_migration', { project_id, name: 'broken', query }), /42P01/);
    const { migrations } = await session.tool('list_migrations', { project_id });
    assert.equal(migrations.length, 1);
  });
  await tally.scenario('mcp: get_logs returns a recent SQL error', async () => {
    await soon(async () => JSON.stringify(await session.tool('get_logs', { project_id, service: 'postgres' })), /nowhere/);
  });
  const { tools } = await session.request('tools/list', {});
  if (tools.some(({ name }) => name === 'query_logs')) {
    await tally.scenario('mcp: query_logs runs a statement', async () => {
      const query = "select event_message, log_attributes['parsed.sql_state_code'] as code from logs where source = 'postgres_logs' and severity_text = 'ERROR' order by timestamp desc limit 10";
      const { inputSchema } = tools.find(({ name }) => name === 'query_logs');
      const named = 'sql' in inputSchema.properties ? { sql: query } : { query };
      assert.match(JSON.stringify(await session.tool('query_logs', { project_id, ...named })), /42P01/);
    });
  }
  await tally.scenario('mcp: list_tables', async () => {
    const { tables } = await session.tool('list_tables', { project_id, schemas: ['public'], verbose: true });
    assert.deepEqual(tables.map(({ name }) => name), ['public.pets']);
    assert.equal(tables[0].rls_enabled, true);
    assert.equal(typeof tables[0].rows, 'number');
    assert.deepEqual(tables[0].columns.map(({ name }) => name), ['id', 'name']);
  });
  await tally.scenario('mcp: list_extensions', async () => {
    const { extensions } = await session.tool('list_extensions', { project_id });
    assert.ok(extensions.some(({ name }) => name === 'plpgsql'), JSON.stringify(extensions));
  });
  await tally.scenario('mcp: get_advisors', async () => {
    const names = async (type) => JSON.stringify(await session.tool('get_advisors', { project_id, type }));
    assert.match(await names('security'), /rls_enabled_no_policy/);
    assert.doesNotMatch(await names('performance'), /no_primary_key.*pets/);
  });
  await tally.scenario('mcp: generate_typescript_types', async () => {
    assert.match((await session.tool('generate_typescript_types', { project_id })).types, /pets: \{\n\s+Row: \{/);
  });
  await tally.scenario('mcp: get_publishable_keys', async () => {
    const keys = JSON.stringify(await session.tool('get_publishable_keys', { project_id }));
    assert.match(keys, /sb_publishable_/);
    assert.match(keys, /eyJ/);
    assert.doesNotMatch(keys, /sb_secret_|service_role/);
  });
  await tally.scenario('mcp: deploy_edge_function, list_edge_functions, get_edge_function', async () => {
    const content = "Deno.serve(() => new Response('hello'));\n";
    await session.tool('deploy_edge_function', {
      project_id,
      name: 'hello',
      entrypoint_path: 'index.ts',
      verify_jwt: false,
      files: [{ name: 'index.ts', content }],
    });
    const listed = JSON.stringify(await session.tool('list_edge_functions', { project_id }));
    assert.match(listed, /"slug":"hello"/);
    const found = JSON.stringify(await session.tool('get_edge_function', { project_id, function_slug: 'hello' }));
    assert.match(found, /new Response/);
  });
  await tally.scenario('mcp: list_storage_buckets', async () => {
    assert.deepEqual(await session.tool('list_storage_buckets', { project_id }), { buckets: [] });
  });
  await tally.scenario('mcp: create_branch, list_branches, merge_branch, rebase_branch, reset_branch, delete_branch', async () => {
    const cost = await session.tool('get_cost', { type: 'branch', organization_id });
    const { confirmation_id } = await session.tool('confirm_cost', cost);
    const made = await session.tool('create_branch', { project_id, name: 'assistant', confirm_cost_id: confirmation_id });
    const branches = async () => [await session.tool('list_branches', { project_id })].flatMap((found) => found.branches ?? found);
    const idle = async () => {
      const ended = ({ run_steps }) => run_steps.some(({ name, status }) => status === 'DEAD' || (name === 'deploy' && status === 'EXITED'));
      for (let look = 0; look < 120; look += 1) {
        const runs = await Promise.all([project_id, made.project_ref].map((ref) => call(server, 'GET', `/v1/projects/${ref}/actions`)));
        if (runs.every(({ body }) => body.every(ended))) return;
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
      throw new Error('a run did not end');
    };
    await idle();
    assert.deepEqual((await branches()).map(({ name }) => name), ['main', 'assistant']);
    await session.tool('apply_migration', { project_id: made.project_ref, name: 'toys_create', query: 'create table toys (id bigint primary key)' });
    for (const tool of ['merge_branch', 'rebase_branch', 'reset_branch']) {
      await session.tool(tool, { branch_id: made.id });
      await idle();
    }
    for (const id of [project_id, made.project_ref]) {
      const { migrations } = await session.tool('list_migrations', { project_id: id });
      assert.deepEqual(migrations.map(({ name }) => name), ['pets_create', 'toys_create']);
    }
    await session.tool('delete_branch', { branch_id: made.id });
    assert.deepEqual((await branches()).map(({ name }) => name), ['main']);
  });
  await tally.scenario('mcp: pause_project, restore_project', async () => {
    const settles = async (wanted) => {
      for (;;) {
        const { status } = (await call(server, 'GET', `/v1/projects/${project_id}`)).body;
        if (status === wanted) return;
        await new Promise((resume) => setTimeout(resume, 100));
      }
    };
    await session.tool('pause_project', { project_id });
    await settles('INACTIVE');
    await session.tool('restore_project', { project_id });
    await settles('ACTIVE_HEALTHY');
  });
  await call(server, 'DELETE', `/v1/projects/${project_id}`);
}
