// npm `supabase` with a scoped token: permitted resources, and messages about missing permissions.
import assert from 'node:assert/strict';
import { call, project, supabase as cli } from './harness.mjs';

export default async function (server, tally) {
  const [reached, other] = [await project(server, 'reached'), await project(server, 'not reached')];
  const created = await call(server, 'POST', '/v1/tokens', {
    name: 'one project, to read',
    project_refs: [reached],
    permissions: ['projects_read', 'project_admin_read', 'database_read', 'organizations_read'],
    expires_in_days: 1,
  });
  assert.equal(created.status, 201, JSON.stringify(created.body));
  const { id, token } = created.body;
  assert.match(token, /^sbp_fc[0-9a-f]{38}$/);

  const supabase = (...args) => cli(server, args, { token, home: 'scoped' });
  const query = (ref, sql, ...flags) => supabase('db', 'query', `--remote=${ref}`, '--output-format', 'json', '--yes', ...flags, sql);

  await tally.scenario('scoped: projects list shows permitted projects', async () => {
    const ended = await supabase('projects', 'list', '-o', 'json');
    assert.equal(ended.code, 0, ended.all);
    assert.deepEqual(JSON.parse(ended.out).map(({ ref, id }) => ref ?? id), [reached]);
  });
  await tally.scenario('scoped: db query reads a permitted project', async () => {
    const ended = await query(reached, 'select 1 as one', '--read-only');
    assert.equal(ended.code, 0, ended.all);
    assert.deepEqual(JSON.parse(ended.out), [{ one: 1 }]);
  });
  await tally.scenario('scoped: a writing db query names the missing permission', async () => {
    const ended = await query(reached, 'create table t (id int)');
    assert.equal(ended.code, 1);
    assert.match(ended.all, /database_write/);
  });
  await tally.scenario('scoped: another project is not found', async () => {
    const ended = await query(other, 'select 1', '--read-only');
    assert.equal(ended.code, 1);
    assert.match(ended.all, /Not Found|404/i);
  });
  await tally.scenario('scoped: a revoked token is rejected at once', async () => {
    assert.ok((await call(server, 'DELETE', `/v1/tokens/${id}`)).status < 300);
    const ended = await supabase('projects', 'list', '-o', 'json');
    assert.equal(ended.code, 1);
    assert.match(ended.all, /Unauthorized|401|token/i);
  });
}
