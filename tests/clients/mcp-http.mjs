// The built-in MCP server at /mcp, with the official client and the conformance suite.
import assert from 'node:assert/strict';
import { createServer, request as send } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { conformance } from './conformance.mjs';
import { clients, project, soon } from './harness.mjs';
import { Tools, scenarios as published } from './mcp.mjs';

/** Scenarios of the suite that need no tools, prompts or resources made for it. Those of `server-stateless` call some. */
const SCENARIOS = {
  '2025-06-18': ['server-initialize', 'ping', 'tools-list', 'resources-list'],
  '2026-07-28': ['tools-list', 'resources-list', 'sep-2164-resource-not-found', 'http-header-validation'],
};

const sdk = (file) => import(pathToFileURL(join(clients, 'node_modules/@modelcontextprotocol/sdk/dist/esm/client', file)));

/** Connects the official client to the server with this query. */
async function connect(server, query = '') {
  const { Client } = await sdk('index.js');
  const { StreamableHTTPClientTransport } = await sdk('streamableHttp.js');
  const client = new Client({ name: 'gantry-tests', version: '1.0.0' });
  const requestInit = { headers: { authorization: `Bearer ${server.token}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${server.url}/mcp${query}`), { requestInit }));
  return client;
}

/** Calls of the tools of the published server, to this one. */
class HttpTools extends Tools {
  constructor(server) {
    super();
    this.url = `${server.url}/mcp?features=account,database,debugging,development,functions,branching,storage`;
    this.headers = {
      authorization: `Bearer ${server.token}`,
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
    };
  }

  async request(method, params) {
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });
    const response = await fetch(this.url, { method: 'POST', headers: this.headers, body });
    const message = await response.json();
    assert.ok(!message.error, JSON.stringify(message));
    return message.result;
  }
}

async function text(client, name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, `${name}: ${result.content[0].text}`);
  return result.content[0].text;
}

/** Starts a proxy that adds the token, which the suite cannot send. */
async function withToken(server) {
  const proxy = createServer((incoming, response) => {
    const { hostname, port } = new URL(server.url);
    const headers = { ...incoming.headers, authorization: `Bearer ${server.token}` };
    const outgoing = send({ hostname, port, method: incoming.method, path: incoming.url, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    outgoing.on('error', (error) => response.destroy(error));
    incoming.pipe(outgoing);
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${proxy.address().port}/mcp`, close: () => proxy.close() };
}

export default async function suite(server, tally) {
  await tally.scenario('mcp-http: the official client works on a project', async () => {
    const client = await connect(server);
    const { tools } = await client.listTools();
    assert.ok(tools.some((tool) => tool.name === 'execute_sql' && tool.annotations.destructiveHint));
    const made = JSON.parse(await text(client, 'create_project', { name: 'agent', organization_id: server.organization }));
    const id = made.ref;
    await soon(async () => JSON.parse(await text(client, 'get_project', { id })).status, /ACTIVE_HEALTHY/);
    const own = await connect(server, `?project_ref=${id}`);
    await text(own, 'apply_migration', { name: 'notes', query: 'create table notes (id bigint primary key, body text)' });
    assert.match(await text(own, 'execute_sql', { query: 'insert into notes values (1, $$a$$) returning body' }), /body.{1,5}:.{1,5}a/);
    assert.match(await text(own, 'list_tables'), /notes/);
    const reader = await connect(server, `?project_ref=${id}&read_only=true`);
    const refused = await reader.callTool({ name: 'execute_sql', arguments: { query: 'drop table notes' } });
    assert.ok(refused.isError && /read-only/.test(refused.content[0].text), JSON.stringify(refused));
    const { resources } = await own.listResources();
    const schema = resources.find((resource) => resource.uri.endsWith('/schema'));
    assert.ok((await own.readResource({ uri: schema.uri })).contents[0].text.length > 2);
    for (const each of [client, own, reader]) await each.close();
  });
  await tally.scenario('mcp-http: edge functions are deployed and read', async () => {
    const ref = await project(server, 'agent functions');
    const client = await connect(server, `?project_ref=${ref}`);
    const files = [{ name: 'index.ts', content: 'Deno.serve(() => new Response("hello"));' }];
    await text(client, 'deploy_edge_function', { name: 'hello', files });
    const found = JSON.parse(await text(client, 'get_edge_function', { function_slug: 'hello' }));
    assert.equal(found.slug, 'hello');
    assert.match(JSON.stringify(found.files), /Deno.serve/);
    await client.close();
  });
  // What an assistant does with the published server, it does with this one.
  await published(server, tally, new HttpTools(server));
  const proxy = await withToken(server);
  try {
    for (const [revision, scenarios] of Object.entries(SCENARIOS)) {
      for (const scenario of scenarios) {
        await tally.scenario(`mcp-http: conformance ${revision} ${scenario}`, async () => {
          const args = ['server', '--url', proxy.url, '--scenario', scenario, '--spec-version', revision];
          const ended = await conformance(server, args);
          assert.equal(ended.code, 0, ended.all);
        });
      }
    }
  } finally {
    proxy.close();
  }
}
