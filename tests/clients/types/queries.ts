// Queries of a typed client: those that should type-check, and, marked, those that should not.
import { createClient } from '@supabase/supabase-js';
import {
  Constants,
  type CompositeTypes,
  type Database,
  type Enums,
  type Json,
  type Tables,
  type TablesInsert,
  type TablesUpdate,
} from './database';

const client = createClient<Database>('https://example.test', 'key');

/** Fails to compile unless the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(..._: Same<A, B> extends true ? [] : [never]): void {}

export async function rows() {
  const { data } = await client.from('customers').select('id, name, address, settings, "weird-name"').single();
  same<typeof data, {
    id: number;
    name: string;
    address: CompositeTypes<'address'> | null;
    settings: Json;
    'weird-name': string | null;
  } | null>();
  const every = await client.from('orders').select();
  const first = every.data?.[0];
  if (first) {
    const state: 'new' | 'in transit' | 'done' = first.state;
    const tax: number | null = first.with_tax;
    // @ts-expect-error: a column that may be null
    const certain: number = first.with_tax;
    // @ts-expect-error: no such column
    first.colour;
    return [state, tax, certain];
  }
  // @ts-expect-error: no such table
  client.from('nowhere');
  // @ts-expect-error: in another schema
  client.from('diary');
  client.schema('private').from('diary').select('mood').eq('mood', 'sad');
  // @ts-expect-error: no such value
  client.schema('private').from('diary').select('mood').eq('mood', 'furious');
}

export async function joins() {
  const orders = await client.from('orders').select('id, customers(name), invoices(sent), lines(article)').single();
  // To one, from one to one, to many.
  same<NonNullable<typeof orders.data>['customers'], { name: string }>();
  same<NonNullable<typeof orders.data>['invoices'], { sent: boolean } | null>();
  same<NonNullable<typeof orders.data>['lines'], { article: string }[]>();
  const wrong = await client.from('orders').select('id, moods(mood)').single();
  // @ts-expect-error: there is no way from orders to moods
  wrong.data?.moods.mood;
}

export async function views() {
  const open = await client.from('open_orders').select('id, customers(name), invoices(sent), lines(article)').single();
  // A view refers to what its table refers to, and is referred to by what refers to its table.
  same<NonNullable<typeof open.data>['customers'], { name: string } | null>();
  same<NonNullable<typeof open.data>['invoices'], { sent: boolean } | null>();
  same<NonNullable<typeof open.data>['lines'], { article: string }[]>();
  const customers = await client.from('customers').select('name, open_orders(total), top(best)').single();
  same<NonNullable<typeof customers.data>['open_orders'], { total: number | null }[]>();
  same<NonNullable<typeof customers.data>['top'], { best: number | null }[]>();
  const lines = await client.from('lines').select('article, open_orders(total)').single();
  same<NonNullable<typeof lines.data>['open_orders'], { total: number | null }>();
  // Through a view of a view, under other names.
  const waiting = await client.from('waiting').select('buyer, customers(name), invoices(sent)').single();
  same<NonNullable<typeof waiting.data>['customers'], { name: string } | null>();
  same<NonNullable<typeof waiting.data>['invoices'], { sent: boolean } | null>();
  // A key of two columns, from and to views.
  const articles = await client.from('articles').select('article, returns(reason), open_orders(total)').single();
  same<NonNullable<typeof articles.data>['returns'], { reason: string | null }[]>();
  same<NonNullable<typeof articles.data>['open_orders'], { total: number | null } | null>();
  const top = await client.from('top').select('best, invoices(sent)').single();
  // @ts-expect-error: the view does not show which order it was
  top.data?.invoices.sent;
  const parties = await client.from('parties').select('id, orders(total)').single();
  // @ts-expect-error: a union's columns are nobody's
  parties.data?.orders.total;
}

export async function writes() {
  await client.from('orders').insert({ customer_id: 1, total: 2, state: 'in transit', states: ['new', 'done'] });
  await client.from('orders').update({ total: 3 }).eq('id', 'x');
  await client.from('open_orders').update({ total: 3 });
  await client.from('lines').upsert([{ order_id: 'x', line: 1, article: 'a' }]);
  // @ts-expect-error: total is missing
  await client.from('orders').insert({ customer_id: 1 });
  // @ts-expect-error: no such value
  await client.from('orders').insert({ customer_id: 1, total: 2, state: 'lost' });
  // @ts-expect-error: generated always
  await client.from('customers').insert({ id: 1, email: 'a@b', name: 'a' });
  // @ts-expect-error: a generated column
  await client.from('orders').update({ with_tax: 1 });
  // @ts-expect-error: not null
  await client.from('orders').update({ total: null });
  // @ts-expect-error: a view that cannot be written
  await client.from('totals').insert({ total: 1 });
  // @ts-expect-error: nor a materialized one
  await client.from('top').update({ best: 1 });
}

export async function functions() {
  const sum = await client.rpc('add', { a: 1 });
  same<typeof sum.data, number | null>();
  const joined = await client.rpc('add', { a: 'a', b: 'b' });
  same<typeof joined.data, string | null>();
  const day = await client.rpc('statistics', { since: '2026-01-01' });
  same<typeof day.data, { day: string; count: number }[] | null>();
  const now = await client.rpc('now_utc');
  same<typeof now.data, string | null>();
  const orders = await client.rpc('orders_of', { customer: 1 }).select('id, customers(name)');
  same<NonNullable<typeof orders.data>[number]['customers'], { name: string }>();
  const split = await client.rpc('split_name', { full_name: 'a b' });
  same<typeof split.data, { first: string; last: string } | null>();
  // @ts-expect-error: no such function
  client.rpc('touch');
  // @ts-expect-error: without names nobody can call it
  client.rpc('unnamed');
  // @ts-expect-error: of another type
  client.rpc('orders_of', { customer: 'x' });
}

export const shorthands = () => {
  same<Tables<'invoices'>, { order_id: string; sent: boolean }>();
  same<Tables<'totals'>['total'], number | null>();
  same<Tables<{ schema: 'private' }, 'diary'>['id'], number>();
  same<TablesInsert<'invoices'>, { order_id: string; sent?: boolean }>();
  same<TablesUpdate<'invoices'>, { order_id?: string; sent?: boolean }>();
  same<Enums<'order_state'>, 'new' | 'in transit' | 'done'>();
  same<Enums<{ schema: 'private' }, 'mood'>, 'sad' | 'glad'>();
  same<(typeof Constants)['public']['Enums']['order_state'], readonly ['new', 'in transit', 'done']>();
  // @ts-expect-error: no such table
  type Nowhere = Tables<'nowhere'>;
  // @ts-expect-error: not in that schema
  type Elsewhere = Tables<{ schema: 'private' }, 'orders'>;
  return {} as [Nowhere, Elsewhere];
};
