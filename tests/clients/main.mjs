// Runs the scenarios of the clients named on the command line, or of all.
import { SUITE_PATIENCE, Tally, start } from './harness.mjs';
import branches from './branches.mjs';
import cli from './cli.mjs';
import conformance from './conformance.mjs';
import connect from './connect.mjs';
import functions from './functions.mjs';
import histories from './histories.mjs';
import history from './history.mjs';
import js from './js.mjs';
import { mcp } from './mcp.mjs';
import mcpHttp from './mcp-http.mjs';
import oauth from './oauth.mjs';
import pages from './pages.mjs';
import pool from './pool.mjs';
import push from './push.mjs';
import python from './python.mjs';
import rest from './rest.mjs';
import s3 from './s3.mjs';
import scoped from './scoped.mjs';
import settings from './settings.mjs';
import soak from './soak.mjs';
import types from './types.mjs';
import webhooks from './webhooks.mjs';

const suites = {
  branches,
  cli,
  conformance,
  connect,
  functions,
  histories,
  history,
  mcp: mcp('@supabase/mcp-server-supabase/dist/cli.js'),
  // A version that older set-ups of assistants still use.
  'mcp-0.7': mcp('mcp-server-supabase-0.7/dist/transports/stdio.js'),
  'mcp-http': mcpHttp,
  js,
  oauth,
  pages,
  pool,
  push,
  python,
  rest,
  s3,
  scoped,
  settings,
  types,
  webhooks,
};
/** Suites that run only if they are named. */
const long = { soak };
const all = { ...suites, ...long };
const names = process.argv.slice(2);
const unknown = names.filter((name) => !(name in all));
if (unknown.length > 0) {
  console.error(`unknown: ${unknown.join(', ')}; known: ${Object.keys(all).join(', ')}`);
  process.exit(2);
}

// Webhooks of pages are sent to this machine.
const server = await start({ flags: ['--outbound-networks', '127.0.0.0/8'] });
const tally = new Tally(server);
try {
  for (const name of names.length > 0 ? names : Object.keys(suites)) {
    const patience = all[name].patience ?? SUITE_PATIENCE;
    await tally.scenario(`${name}: all scenarios ran`, () => all[name](server, tally), patience);
  }
} finally {
  const code = await server.stop();
  await tally.scenario('the server stops cleanly', async () => {
    if (code !== 0) throw new Error(`exit code ${code}\n${server.log.join('\n')}`);
  });
}
console.log(`${tally.passed} passed, ${tally.failed} failed`);
process.exitCode = tally.failed === 0 ? 0 : 1;
