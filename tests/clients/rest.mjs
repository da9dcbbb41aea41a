// npm `@supabase/supabase-js` over the service proxy: the Data API that Gantry runs itself.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { dataApi, token } from './data-api.mjs';
import { clients, project } from './harness.mjs';

/** Defines what the platform's SQL gives to newer projects, where it is absent. */
const AUTH = `
create schema if not exists auth;
grant usage on schema auth to anon, authenticated, service_role;
do $do$ begin
  if to_regprocedure('auth.uid()') is null then
    create function auth.uid() returns uuid language sql stable as $sql$
      select (nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub')::uuid
    $sql$;
  end if;
end $do$;`;

const SCHEMA = `
create table public.notes (id int generated always as identity primary key, owner uuid, text text not null);
alter table public.notes enable row level security;
create policy own on public.notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
create policy open on public.notes for select to anon using (owner is null);
grant select on public.notes to anon;
grant select, insert, update, delete on public.notes to authenticated, service_role;
create function public.add(a int, b int) returns int language sql as 'select a + b';`;

/** Returns a `fetch` that trusts the server's authority and finds it without DNS. */
export function fetchOf(server) {
  const ca = readFileSync(join(server.data, 'db-ca.pem'));
  return async (input, init) => {
    const asked = new Request(input, init);
    const { hostname, pathname, search } = new URL(asked.url);
    const body = Buffer.from(await asked.arrayBuffer());
    const headers = { ...Object.fromEntries(asked.headers), host: hostname };
    if (body.length > 0) headers['content-length'] = body.length;
    const options = { host: '127.0.0.1', port: server.servicesPort, servername: hostname, ca, headers };
    return new Promise((resolve, reject) => {
      const sent = request({ ...options, path: pathname + search, method: asked.method }, (answer) => {
        const chunks = [];
        answer.on('data', (chunk) => chunks.push(chunk));
        answer.on('error', reject);
        answer.on('end', () => {
          const { statusCode: status, headers } = answer;
          const text = [101, 204, 205, 304].includes(status) ? null : Buffer.concat(chunks);
          resolve(new Response(text, { status, headers: Object.entries(headers).map(([name, value]) => [name, `${value}`]) }));
        });
      });
      sent.on('error', reject);
      sent.end(body);
    });
  };
}

export default async function (server, tally) {
  const module = join(clients, 'node_modules/@supabase/supabase-js/dist/index.mjs');
  const { createClient } = await import(pathToFileURL(module));
  const began = performance.now();
  const ref = await project(server, 'for the Data API');
  const call = async (method, path, body) => {
    const response = await fetch(`${server.url}/v1/projects/${ref}${path}`, {
      method,
      headers: { authorization: `Bearer ${server.token}`, 'content-type': 'application/json' },
      body: body && JSON.stringify(body),
    });
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${await response.clone().text()}`);
    return response.json();
  };
  const sql = (query) => call('POST', '/database/query', { query });
  await sql(AUTH);
  await sql(SCHEMA);
  const keys = await call('GET', '/api-keys?reveal=true');
  const key = (field, value) => keys.find((each) => each[field] === value).api_key;
  const { jwt_secret: secret } = await call('GET', '/postgrest');
  const [one, two] = ['11111111-1111-4111-8111-111111111111', '22222222-2222-4222-8222-222222222222'];
  const client = (apiKey, bearer) =>
    createClient(`https://${ref}.localhost`, apiKey, {
      auth: { persistSession: false, autoRefreshToken: false },
      // Node.js before 22 has none, and nothing here opens one.
      realtime: { transport: class {} },
      global: { fetch: fetchOf(server), ...(bearer && { headers: { Authorization: `Bearer ${bearer}` } }) },
    });
  const texts = ({ data, error }) => {
    assert.equal(error, null, JSON.stringify(error));
    return data.map(({ text }) => text);
  };

  const [publishable, secretKey] = [key('type', 'publishable'), key('type', 'secret')];
  await tally.scenario('supabase-js: first row of a new project', async () => {
    assert.deepEqual(texts(await client(secretKey).from('notes').insert({ text: 'first' }).select()), ['first']);
    // The goal is two seconds on a quiet machine, with an optimized build.
    console.log(`      ${Math.round(performance.now() - began)} ms after the request that creates the project`);
    await sql('delete from public.notes');
  });
  await tally.scenario('supabase-js: insert with the secret key', async () => {
    const rows = [{ text: 'open' }, { owner: one, text: 'of one' }, { owner: two, text: 'of two' }];
    assert.deepEqual(texts(await client(secretKey).from('notes').insert(rows).select()), ['open', 'of one', 'of two']);
  });
  for (const [name, apiKey, expected] of [
    ['publishable', publishable, ['open']],
    ['secret', secretKey, ['open', 'of one', 'of two']],
    ['anon', key('id', 'anon'), ['open']],
    ['service_role', key('id', 'service_role'), ['open', 'of one', 'of two']],
  ]) {
    await tally.scenario(`supabase-js: select, count, rpc with the ${name} key`, async () => {
      const notes = client(apiKey).from('notes');
      assert.deepEqual(texts(await notes.select().order('id')), expected);
      const { count } = await notes.select('*', { count: 'exact', head: true });
      assert.equal(count, expected.length);
      const { data, error } = await client(apiKey).rpc('add', { a: 20, b: 22 });
      assert.equal(data, 42, JSON.stringify(error));
    });
  }
  await tally.scenario('supabase-js: a user sees and writes rows of auth.uid() only', async () => {
    const user = (sub) => client(publishable, token(secret, { role: 'authenticated', sub, exp: 4e9 })).from('notes');
    assert.deepEqual(texts(await user(one).select()), ['of one']);
    const { error } = await user(one).insert({ owner: two, text: 'foreign' });
    assert.equal(error.code, '42501');
    assert.deepEqual(texts(await user(one).insert({ owner: one, text: 'new' }).select()), ['new']);
    assert.deepEqual(texts(await user(two).update({ text: 'changed' }).eq('owner', one).select()), []);
    assert.deepEqual(texts(await user(one).delete().eq('text', 'new').select()), ['new']);
  });
  await tally.scenario('supabase-js: refusals', async () => {
    const wrong = await client('sb_publishable_wrong').from('notes').select();
    assert.deepEqual([wrong.status, wrong.error.message], [401, 'Invalid API key']);
    const expired = await client(publishable, token(secret, { role: 'authenticated', exp: 1 })).from('notes').select();
    assert.equal(expired.error.code, 'PGRST301');
    const absent = await client(publishable).from('absent').select();
    assert.equal(absent.status, 404);
  });
  const kinds = {
    publishable: { key: publishable, role: 'anon' },
    secret: { key: secretKey, role: 'service_role' },
    anon: { key: key('id', 'anon'), role: 'anon' },
    service_role: { key: key('id', 'service_role'), role: 'service_role' },
  };
  await dataApi(tally, { keys: kinds, client, sql, secret });
}
