// Pages of a project: logs, usage, ingest keys, webhooks, and custom hostname.
import assert from 'node:assert/strict';
import { look } from './browser.mjs';
import { call, soon } from './harness.mjs';

const NAME = 'Production';

async function open(page, link) {
  await page.goto('/projects');
  await page.getByRole('link', { name: NAME, exact: true }).click();
  await page.getByRole('link', { name: link, exact: true }).click();
}

export default async function watching(server, tally, chrome, page) {
  const { body: all } = await call(server, 'GET', '/v1/projects');
  const { ref } = all.find(({ name }) => name === NAME);

  await tally.scenario('pages: logs show an SQL error, and the log query form shows its own', async () => {
    await call(server, 'POST', `/v1/projects/${ref}/database/query`, { query: 'select * from nowhere_for_pages' });
    await open(page, 'Logs');
    await look(page, 'logs');
    await page.getByLabel('Source').selectOption('postgres_logs');
    await page.getByLabel('Preset').selectOption({ label: 'Errors' });
    const found = async () => {
      await page.getByRole('button', { name: 'Run' }).click();
      return page.getByRole('main').innerText();
    };
    await soon(found, /relation "nowhere_for_pages" does not exist/);
    await look(page, 'logs-found');
    await page.getByLabel('Preset').selectOption({ label: 'Custom SQL' });
    await page.getByLabel('SQL', { exact: true }).fill('select nothing from logs');
    assert.match(await found(), /Field "nothing" does not exist/);
    await look(page, 'logs-wrong');
    await page.getByLabel('SQL', { exact: true }).fill('select a.id, b.id as other from logs as a cross join logs as b cross join logs as c');
    assert.match(await found(), /Only the first 1000 rows are shown/);
  });

  await tally.scenario('pages: query logs without JavaScript', async () => {
    const other = await chrome.open({ javaScriptEnabled: false });
    await other.context().addCookies(await page.context().cookies());
    await other.goto(`/projects/${ref}/logs`);
    await other.getByLabel('Source').selectOption('management_logs');
    await other.getByRole('button', { name: 'Run' }).click();
    await other.getByRole('cell', { name: /v1\/projects/ }).first().waitFor();
    await other.context().close();
  });

  await tally.scenario('pages: usage charts have tables of numbers', async () => {
    await open(page, 'Usage');
    await look(page, 'usage');
    await page.getByRole('table').waitFor();
    await page.getByRole('navigation', { name: 'Time range' }).getByRole('link').last().click();
    await page.getByRole('table').waitFor();
  });

  await tally.scenario('pages: calls of the database', async () => {
    await open(page, 'Database calls');
    await look(page, 'database-calls-none');
  });

  await tally.scenario('pages: create an ingest key, add a line, delete the key', async () => {
    await open(page, 'Ingest keys');
    await look(page, 'ingest-keys-none');
    await page.getByLabel('Name', { exact: true }).fill('A collector');
    await page.getByRole('button', { name: 'Create key' }).click();
    const key = await page.locator('#key').innerText();
    await look(page, 'ingest-keys-made');
    const body = JSON.stringify([{ event_message: 'a line of a collector', metadata: {} }]);
    const headers = { 'content-type': 'application/json', 'x-api-key': key };
    const add = () => fetch(`${server.url}/api/logs?source_name=gotrue.logs.prod`, { method: 'POST', headers, body });
    assert.equal((await add()).status, 200);
    await page.goto(`/projects/${ref}/ingest-keys`);
    await look(page, 'ingest-keys');
    await page.getByRole('button', { name: /^Delete/ }).click();
    await page.getByText('Ingest key deleted.').waitFor();
    assert.equal((await add()).status, 401);
    const sql = "select event_message from logs where source = 'auth_logs'";
    const said = await call(server, 'GET', `/v1/projects/${ref}/analytics/endpoints/logs?sql=${encodeURIComponent(sql)}`);
    assert.deepEqual(said.body.result, [{ event_message: 'a line of a collector' }]);
  });

  await tally.scenario('pages: create a webhook, test it, look at its delivery, delete it', async () => {
    await open(page, 'Webhooks');
    await look(page, 'webhooks-none');
    await page.getByLabel('URL').fill('http://127.0.0.1:9/');
    await page.getByRole('button', { name: 'Create endpoint' }).click();
    await page.getByRole('alert').waitFor();
    await look(page, 'webhooks-rejected');
    await page.getByLabel('URL').fill('http://localhost:9/hook');
    await page.getByRole('button', { name: 'Create endpoint' }).click();
    await page.getByText('Endpoint created.').waitFor();
    await look(page, 'webhook-created');
    await page.getByRole('button', { name: 'Send test' }).click();
    await page.getByText('Test queued.').waitFor();
    const found = async () => {
      await page.reload();
      return page.getByRole('main').innerText();
    };
    await soon(found, /Failed/);
    await look(page, 'webhook-failed');
    await page.getByRole('region', { name: 'Deliveries' }).getByRole('link').first().click();
    await page.getByRole('button', { name: 'Send again' }).waitFor();
    await look(page, 'webhook-delivery');
    await page.goBack();
    await page.getByRole('button', { name: 'Delete endpoint' }).click();
    await page.getByText('Webhook deleted.').waitFor();
  });

  await tally.scenario('pages: required DNS records of a custom hostname are shown', async () => {
    const asked = await call(server, 'POST', `/v1/projects/${ref}/custom-hostname/initialize`, { custom_hostname: 'api.a-shop-of-gantry.com' });
    assert.equal(asked.status, 201, JSON.stringify(asked.body));
    await page.goto(`/projects/${ref}`);
    await page.getByRole('link', { name: 'Check', exact: true }).click();
    await page.getByText('Expected:').first().waitFor();
    await look(page, 'hostname');
    await call(server, 'DELETE', `/v1/projects/${ref}/custom-hostname`);
  });
}
