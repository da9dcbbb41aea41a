// Edge Functions and secrets with three command line tools, called with `@supabase/supabase-js`.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { call, clients, environment, project, run } from './harness.mjs';
import { fetchOf } from './rest.mjs';

/** The tools: their program, the flag that names a project, and those of a deployment of several functions. */
const TOOLS = {
  'cli 3.1': { program: 'node_modules/.bin/supabase', of: (ref) => [`--remote=${ref}`, '--yes'], several: ['--jobs', '2'] },
  'cli 2.99': { program: 'node_modules/supabase-2.99/bin/supabase', of: (ref) => ['--project-ref', ref, '--yes'], several: [] },
  'cli 2.99 (Go)': { program: 'node_modules/supabase-2.99/bin/supabase-go', of: (ref) => ['--project-ref', ref], several: ['--jobs', '2'] },
};

const SHARED = 'export const greet = (name: string) => `hello ${name}`;\n';
const source = (slug) => `import { greet } from '../_shared/greet.ts';
Deno.serve(async (request) => {
  const body = request.method === 'POST' ? await request.json() : {};
  return Response.json({ slug: '${slug}', text: greet(body.name ?? Deno.env.get('GREETING') ?? 'nobody') });
});
`;

export default async function (server, tally) {
  const module = join(clients, 'node_modules/@supabase/supabase-js/dist/index.mjs');
  const { createClient } = await import(pathToFileURL(module));
  const ref = await project(server, 'for functions');
  const { body: keys } = await call(server, 'GET', `/v1/projects/${ref}/api-keys?reveal=true`);
  const client = ({ api_key: key }) =>
    createClient(`https://${ref}.localhost`, key, {
      auth: { persistSession: false, autoRefreshToken: false },
      // Node.js before 22 has none, and nothing here opens one.
      realtime: { transport: class {} },
      global: { fetch: fetchOf(server) },
    });
  const invoke = async (key, slug, body) => {
    const { data, error } = await client(key).functions.invoke(slug, { body });
    assert.equal(error, null, `${error?.message}: ${await error?.context?.text?.()}`);
    return data;
  };
  const folder = join(server.work, 'supabase/functions');
  const write = (slug) => {
    mkdirSync(join(folder, slug), { recursive: true });
    writeFileSync(join(folder, slug, 'index.ts'), source(slug));
  };

  for (const [name, { program, of, several }] of Object.entries(TOOLS)) {
    const works = async (...args) => {
      const ended = await run(server, join(clients, program), [...args, ...of(ref)], environment(server, { home: name.replace(/\W/g, '') }));
      assert.equal(ended.code, 0, `${name}: ${args.join(' ')}: ${ended.all}`);
      return ended.all;
    };
    rmSync(join(server.work, 'supabase'), { recursive: true, force: true });
    mkdirSync(join(folder, '_shared'), { recursive: true });
    writeFileSync(join(folder, '_shared/greet.ts'), SHARED);
    await tally.scenario(`${name}: functions deploy of one`, async () => {
      write('one');
      await works('functions', 'deploy', 'one', '--use-api');
      for (const key of keys) {
        assert.deepEqual(await invoke(key, 'one', { name: 'you' }), { slug: 'one', text: 'hello you' }, key.name);
      }
    });
    await tally.scenario(`${name}: functions deploy of several at once`, async () => {
      for (const slug of ['two', 'three']) write(slug);
      await works('functions', 'deploy', '--use-api', ...several);
      for (const slug of ['one', 'two', 'three']) assert.equal((await invoke(keys[0], slug, {})).slug, slug);
      const { body: functions } = await call(server, 'GET', `/v1/projects/${ref}/functions`);
      assert.deepEqual(functions.map(({ slug }) => slug).sort(), ['one', 'three', 'two']);
    });
    await tally.scenario(`${name}: functions list`, async () => assert.match(await works('functions', 'list'), /one[^]*ACTIVE/));
    await tally.scenario(`${name}: functions download`, async () => {
      rmSync(join(folder, 'one'), { recursive: true });
      await works('functions', 'download', 'one', '--use-api');
      assert.equal(readFileSync(join(folder, 'one/index.ts'), 'utf8'), source('one'));
      assert.ok(existsSync(join(folder, '_shared/greet.ts')));
    });
    await tally.scenario(`${name}: secrets set, list, unset`, async () => {
      await works('secrets', 'set', 'GREETING=world', 'OTHER=1');
      const digest = createHash('sha256').update('world').digest('hex');
      assert.match(await works('secrets', 'list'), new RegExp(`GREETING[^]*${digest}`));
      // In the environment of the next call.
      assert.equal((await invoke(keys[0], 'one', {})).text, 'hello world');
      await works('secrets', 'unset', 'GREETING', 'OTHER');
      assert.doesNotMatch(await works('secrets', 'list'), /GREETING/);
      assert.equal((await invoke(keys[0], 'one', {})).text, 'hello nobody');
    });
    await tally.scenario(`${name}: functions delete`, async () => {
      for (const slug of ['one', 'two', 'three']) await works('functions', 'delete', slug);
      const { error } = await client(keys[0]).functions.invoke('one');
      assert.equal(error.context.status, 404);
      assert.deepEqual((await call(server, 'GET', `/v1/projects/${ref}/functions`)).body, []);
    });
  }
  await tally.scenario('supabase-js: a function that requires a token refuses a wrong key', async () => {
    const metadata = { slug: 'guarded', name: 'guarded', body: "Deno.serve(() => new Response('in'))" };
    assert.equal((await call(server, 'POST', `/v1/projects/${ref}/functions`, metadata)).status, 201);
    const { error } = await client({ api_key: 'sb_publishable_wrong' }).functions.invoke('guarded');
    assert.equal(error.context.status, 401);
  });
}
