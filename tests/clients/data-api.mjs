// npm `@supabase/supabase-js` over the service proxy: each kind of call with each kind of key.
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';

const SCHEMA = `
create table public.authors (id int primary key, name text not null);
create table public.books (id int primary key, author int references public.authors, title text unique, pages int);
create table public.private (id int primary key, owner text);
alter table public.private enable row level security;
create policy own on public.private to authenticated using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
create schema hidden; create table hidden.things (id int);
create function public.plus(a int, b int) returns int language sql immutable as 'select a + b';
create function public.titles() returns setof text language sql stable as 'select title from public.books order by id';
grant select, insert, update, delete on public.authors, public.books to anon, authenticated, service_role;
grant select on public.private to anon, authenticated, service_role;`;

/** Rows before each round of calls. */
const ROWS = `
truncate public.books, public.authors, public.private;
insert into public.authors values (1, 'Ada'), (2, 'Grace');
insert into public.books select n, 1 + n % 2, 'Book ' || n, n * 10 from generate_series(1, 30) n;
insert into public.private values (1, 'me'), (2, 'you');`;

/** Signs a token of a user with the legacy secret. */
export function token(secret, claims) {
  const text = [{ alg: 'HS256', typ: 'JWT' }, claims]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .join('.');
  return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`;
}

const ok = ({ data, error, count }) => {
  assert.equal(error, null, JSON.stringify(error));
  return data ?? count;
};
const ids = (answer) => ok(answer).map(({ id }) => id);
const refused = async (call, status, code) => {
  const { error, status: given } = await call;
  assert.deepEqual([given, error.code], [status, code], JSON.stringify(error));
};

/** The calls. `role` is that of the key, `user` a client with the same key and the token of a user. */
const CALLS = {
  select: async ({ db }) => assert.equal(ok(await db.from('books').select()).length, 30),
  'columns and aliases': async ({ db }) =>
    assert.deepEqual(ok(await db.from('books').select('name:title').eq('id', 3)), [{ name: 'Book 3' }]),
  'filters eq, gt, in, like, or': async ({ db }) => {
    assert.deepEqual(ids(await db.from('books').select('id').gt('pages', 280).order('id')), [29, 30]);
    assert.deepEqual(ids(await db.from('books').select('id').in('id', [4, 5]).order('id')), [4, 5]);
    assert.deepEqual(ids(await db.from('books').select('id').like('title', '%9').order('id')), [9, 19, 29]);
    assert.deepEqual(ids(await db.from('books').select('id').or('id.eq.1,pages.eq.20').order('id')), [1, 2]);
  },
  'filter with reserved characters': async ({ db }) =>
    assert.deepEqual(ids(await db.from('books').select('id').eq('title', 'a,b.(c)"&=?')), []),
  'order and limit': async ({ db }) =>
    assert.deepEqual(ids(await db.from('books').select('id').order('id', { ascending: false }).limit(2)), [30, 29]),
  range: async ({ db }) => assert.deepEqual(ids(await db.from('books').select('id').order('id').range(10, 12)), [11, 12, 13]),
  'range past the end': async ({ db }) => refused(db.from('books').select('id', { count: 'exact' }).range(100, 110), 416, 'PGRST103'),
  'count exact': async ({ db }) => assert.equal((await db.from('books').select('*', { count: 'exact', head: true })).count, 30),
  'count planned': async ({ db }) => assert.equal(typeof (await db.from('books').select('*', { count: 'planned', head: true })).count, 'number'),
  csv: async ({ db }) => assert.match(ok(await db.from('authors').select('id,name').order('id').csv()), /^id,name\n1,Ada\n2,Grace/),
  single: async ({ db }) => assert.equal(ok(await db.from('books').select().eq('id', 7).single()).title, 'Book 7'),
  'single without a row': async ({ db }) => refused(db.from('books').select().eq('id', 700).single(), 406, 'PGRST116'),
  'maybeSingle without a row': async ({ db }) => {
    const { data, error } = await db.from('books').select().eq('id', 700).maybeSingle();
    assert.deepEqual([data, error], [null, null]);
  },
  embedding: async ({ db }) =>
    assert.deepEqual(ok(await db.from('books').select('id,authors(name)').eq('id', 3)), [{ id: 3, authors: { name: 'Grace' } }]),
  'insert one row': async ({ db }) => assert.deepEqual(ids(await db.from('books').insert({ id: 31, title: 'New' }).select()), [31]),
  'insert rows': async ({ db }) => assert.deepEqual(ids(await db.from('books').insert([{ id: 32 }, { id: 33 }]).select()), [32, 33]),
  'insert a duplicate': async ({ db }) => refused(db.from('books').insert({ id: 1 }), 409, '23505'),
  upsert: async ({ db }) => {
    assert.equal(ok(await db.from('books').upsert({ id: 31, title: 'Newer' }).select())[0].title, 'Newer');
    ok(await db.from('books').upsert({ id: 34, title: 'Newer' }, { onConflict: 'title', ignoreDuplicates: true }));
  },
  update: async ({ db }) => assert.deepEqual(ids(await db.from('books').update({ pages: 1 }).eq('id', 32).select()), [32]),
  delete: async ({ db }) => assert.deepEqual(ids(await db.from('books').delete().gt('id', 30).select()).sort(), [31, 32, 33]),
  'rpc by POST and GET': async ({ db }) => {
    assert.equal(ok(await db.rpc('plus', { a: 20, b: 22 })), 42);
    assert.equal(ok(await db.rpc('plus', { a: 1, b: 2 }, { get: true })), 3);
    assert.equal(ok(await db.rpc('titles').limit(2)).length, 2);
  },
  'row level security by role and by user': async ({ db, user, role }) => {
    assert.deepEqual(ids(await db.from('private').select('id').order('id')), role === 'service_role' ? [1, 2] : []);
    assert.deepEqual(ids(await user.from('private').select('id')), [1]);
  },
  refusals: async ({ db }) => {
    const absent = await db.from('absent').select();
    assert.equal(absent.status, 404);
    await refused(db.schema('hidden').from('things').select(), 406, 'PGRST106');
    await refused(db.from('books').select('id').filter('id', 'nonsense', 1), 400, 'PGRST100');
    await refused(db.from('books').insert({ nonsense: 1 }), 400, 'PGRST204');
  },
};

/** Runs every call with every key. `client(key, bearer)` makes a client, `sql` executes a statement. */
export async function dataApi(tally, { keys, client, sql, secret }) {
  await sql(SCHEMA);
  // PostgREST reads a changed schema when it is told of the change, after the answer to the change.
  const [{ key: first }] = Object.values(keys);
  const isKnown = async () => (await client(first).rpc('plus', { a: 1, b: 2 })).error === null;
  for (let look = 0; look < 100 && !(await isKnown()); look += 1) await setTimeout(100);
  assert.equal(Object.keys(CALLS).length, 23);
  for (const [name, { key, role }] of Object.entries(keys)) {
    await sql(ROWS);
    const user = client(key, token(secret, { role: 'authenticated', sub: 'me', exp: 4e9 }));
    for (const [call, run] of Object.entries(CALLS)) {
      await tally.scenario(`supabase-js: ${call}, with the ${name} key`, () => run({ db: client(key), user, role }));
    }
  }
}
