// PyPI `supabase-management`.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { clients, run } from './harness.mjs';

export default async function (server, tally) {
  await tally.scenario('python: organizations, projects, a query', async () => {
    const script = fileURLToPath(new URL('python.py', import.meta.url));
    const ended = await run(server, join(clients, 'python/bin/python'), [script, server.url, server.token, server.organization]);
    assert.equal(ended.code, 0, ended.all);
  });
}
