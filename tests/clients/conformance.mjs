// The conformance suite of the Model Context Protocol: scenarios for authorization servers.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { browser } from './browser.mjs';
import { bounded, call, clients, signInLink } from './harness.mjs';
import { allow } from './oauth.mjs';

/** All scenarios of the suite for authorization servers, with the expected outcome. */
const EXPECTED = {
  'authorization-server-metadata-endpoint': { 'authorization-server-metadata': 'SUCCESS' },
  'authorization-code-grant': { 'authorization-code-grant': 'SUCCESS' },
};
/** Client id metadata documents are a SHOULD in the specification, and not built. */
const DOCUMENTS = 'authorization-server-metadata-cimd';

/** Runs a command of the suite. Calls `seen` with each line of output. */
export function conformance(server, args, seen = () => {}) {
  // The suite needs a newer Node.js than these tests.
  const program = join(clients, 'node_modules/node/bin/node');
  const child = spawn(program, [join(clients, 'node_modules/@modelcontextprotocol/conformance/dist/index.js'), ...args], {
    cwd: server.work,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, HOME: server.home, NO_COLOR: '1' },
  });
  const lines = [];
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on('line', (line) => lines.push(line) && seen(line));
  const ended = new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, lines, all: lines.join('\n') }));
  });
  return bounded(`conformance ${args.join(' ')}`, ended).finally(() => child.kill('SIGKILL'));
}

async function freePort() {
  const probe = createServer();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Returns the results that the suite wrote: for each scenario, its checks and their outcomes. */
function results(folder) {
  const files = readdirSync(folder, { recursive: true }).filter((file) => file.endsWith('checks.json'));
  return files.flatMap((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')).map(({ id, status, errorMessage }) => ({ id, status, errorMessage })));
}

/** Runs the suite as a public client, for a revision of the protocol. */
async function passes(server, page, revision) {
  const port = await freePort();
  const apps = `/v1/organizations/${server.organization}/oauth/apps`;
  const redirect = 'http://127.0.0.1/callback';
  const made = await call(server, 'POST', apps, { name: `Conformance ${revision}`, redirect_uris: [redirect], scopes: ['projects:read'], public: true });
  assert.equal(made.status, 201, JSON.stringify(made));
  const folder = mkdtempSync(join(server.work, 'conformance-'));
  const asked = [];
  const args = ['authorization', '--url', server.url, '--client-id', made.body.id, '--port', String(port)];
  args.push('--resource', `${server.url}/mcp`, '--spec-version', revision, '--output-dir', folder);
  const ended = await conformance(server, args, (line) => {
    const url = line.trim();
    if (url.startsWith(`${server.url}/v1/oauth/authorize?`)) asked.push(allow(page, url));
  });
  await Promise.all(asked);
  assert.equal(ended.code, 0, ended.all);
  const found = results(folder);
  const documents = found.find(({ id }) => id === DOCUMENTS);
  assert.ok(documents === undefined || documents.status === 'WARNING', `${DOCUMENTS}: expect it, now that it is built\n${ended.all}`);
  const rest = found.filter(({ id }) => id !== DOCUMENTS).map(({ id, status }) => [id, status]);
  const expected = Object.values(EXPECTED).flatMap(Object.entries);
  assert.deepEqual(rest.sort(), expected.sort(), ended.all);
}

export default async function suite(server, tally) {
  const chrome = await browser(server);
  try {
    const page = await chrome.open();
    await tally.scenario('conformance: sign in', async () => {
      await page.goto(await signInLink(server, 'owner@example.com'));
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Projects', exact: true }).waitFor();
    });
    await tally.scenario('conformance: the list of scenarios is complete', async () => {
      const { lines, all } = await conformance(server, ['list', '--authorization']);
      const names = lines.map((line) => /^ +- ([\w-]+) /.exec(line)?.[1]).filter(Boolean);
      assert.deepEqual(names.sort(), Object.keys(EXPECTED).sort(), all);
    });
    // The oldest revision, and the newest, which has more requirements.
    for (const revision of ['2025-03-26', '2026-07-28']) {
      await tally.scenario(`conformance: authorization servers by ${revision}`, () => passes(server, page, revision));
    }
  } finally {
    await chrome.close();
  }
}
