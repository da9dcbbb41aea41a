// npm `supabase-management-js`: the typed client.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { clients, project, soon } from './harness.mjs';

export default async function (server, tally) {
  const module = join(clients, 'node_modules/supabase-management-js/dist/index.mjs');
  const { SupabaseManagementAPI } = await import(pathToFileURL(module));
  const client = new SupabaseManagementAPI({ accessToken: server.token, baseUrl: server.url });
  const organization_slug = server.organization;

  /** Returns the body of a successful response. */
  const ask = async (method, ...args) => (await client[method](...args)).data;
  /** Returns the error of a failed call. */
  const refusal = (promise) =>
    promise.then(
      (answer) => assert.fail(`was to be refused: ${JSON.stringify(answer)}`),
      (error) => error,
    );

  await tally.scenario('js: listAllOrganizations, getAnOrganization, listOrganizationMembers', async () => {
    assert.ok((await ask('listAllOrganizations')).some(({ id }) => id === organization_slug));
    assert.equal((await ask('getAnOrganization', organization_slug)).id, organization_slug);
    const members = await ask('listOrganizationMembers', organization_slug);
    assert.deepEqual(members.map(({ email, role_name }) => [email, role_name]), [['owner@example.com', 'Owner']]);
  });
  await tally.scenario('js: createAnOrganization', async () => {
    assert.equal((await ask('createAnOrganization', { name: 'Made by JS' })).name, 'Made by JS');
  });
  await tally.scenario('js: getAvailableRegions', async () => {
    const regions = await ask('getAvailableRegions', { organization_slug });
    assert.ok(regions.all.specific.length > 0, JSON.stringify(regions));
  });

  let ref;
  await tally.scenario('js: createAProject, listAllProjects, getAllProjectsForOrganization', async () => {
    // The older spelling of the field, which older scripts send.
    const body = { name: 'made by JS', organization_id: organization_slug, db_pass: 'x', region: 'us-east-1' };
    ref = (await ask('createAProject', body)).ref;
    assert.ok((await ask('listAllProjects')).some((project) => project.ref === ref));
    const page = await ask('getAllProjectsForOrganization', organization_slug, { limit: 1, search: 'made by JS' });
    assert.deepEqual(page.projects.map((project) => project.ref), [ref]);
  });
  // A missing project fails this scenario only once.
  ref ??= await project(server, 'for JS');
  await tally.scenario('js: runAQuery, readOnlyQuery', async () => {
    assert.deepEqual(await ask('runAQuery', ref, { query: 'select $1::int + 1 as n', parameters: ['41'] }), [{ n: 42 }]);
    assert.deepEqual(await ask('readOnlyQuery', ref, { query: 'select 1 as one' }), [{ one: 1 }]);
    const error = await refusal(client.readOnlyQuery(ref, { query: 'create table no ()' }));
    assert.equal(error.status, 400);
    assert.match(error.message, /25006|42501/);
  });
  await tally.scenario('js: getProject, getServicesHealth, updateAProject', async () => {
    const project = await ask('getProject', ref);
    assert.deepEqual([project.id, project.status], [ref, 'ACTIVE_HEALTHY']);
    const [db] = await ask('getServicesHealth', ref, { services: ['db'] });
    assert.deepEqual([db.name, db.healthy, db.status], ['db', true, 'ACTIVE_HEALTHY']);
    assert.equal((await ask('updateAProject', ref, { name: 'renamed' })).name, 'renamed');
  });
  await tally.scenario('js: applyAMigration, listMigrationHistory', async () => {
    await ask('applyAMigration', ref, { query: 'create schema zoo; create table zoo.pets ()', name: 'zoo_create' });
    const history = await ask('listMigrationHistory', ref);
    assert.deepEqual(history.map(({ name }) => name), ['zoo_create']);
  });
  await tally.scenario('js: getDatabaseMetadata', async () => {
    const { databases } = await ask('getDatabaseMetadata', ref);
    const schemas = databases.find(({ name }) => name === 'postgres').schemas.map(({ name }) => name);
    assert.ok(schemas.includes('zoo') && schemas.includes('public'), schemas.join());
  });
  await tally.scenario('js: getProjectLogs returns a recent SQL error', async () => {
    await refusal(client.runAQuery(ref, { query: 'select * from nowhere_for_js' }));
    const sql = "select event_message from postgres_logs where event_message like '%nowhere_for_js%' limit 10";
    await soon(async () => JSON.stringify(await ask('getProjectLogs', ref, { sql })), /relation .*nowhere_for_js.* does not exist/);
  });
  await tally.scenario('js: getProjectUsageApiCount, getProjectUsageRequestCount', async () => {
    const counts = await ask('getProjectUsageApiCount', ref, { interval: '1day' });
    assert.deepEqual([counts.result.length, counts.result[0].total_rest_requests], [24, 0]);
    assert.deepEqual((await ask('getProjectUsageRequestCount', ref)).result, [{ count: 0 }]);
  });
  await tally.scenario('js: initialize, get and delete a custom hostname', async () => {
    const asked = await ask('updateHostnameConfig', ref, { custom_hostname: 'api.gantry-clients.dev' });
    assert.deepEqual([asked.status, asked.custom_hostname], ['2_initiated', 'api.gantry-clients.dev']);
    // The domain does not exist, and the machine may be offline.
    const looked = await ask('verifyDnsConfig', ref);
    assert.equal(looked.status, '2_initiated');
    assert.equal(looked.data.result.ownership_verification.type, 'txt');
    await client.deleteHostnameConfig(ref);
    const error = await refusal(client.deleteHostnameConfig(ref));
    assert.equal(error.status, 400);
    assert.match(error.message, /Custom hostname not configured for project/);
  });
  await tally.scenario('js: getVanitySubdomainConfig', async () => {
    assert.deepEqual(await ask('getVanitySubdomainConfig', ref), { status: 'not-used' });
  });
  await tally.scenario('js: deleteAProject', async () => {
    assert.equal((await ask('deleteAProject', ref)).ref, ref);
    const error = await refusal(client.getProject(ref));
    assert.equal(error.status, 400);
    assert.match(error.message, /Resource has been removed/);
  });
  await tally.scenario('js: a user without access gets 404', async () => {
    assert.equal((await refusal(client.getProject('a'.repeat(20)))).status, 404);
  });
}
