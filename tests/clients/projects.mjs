// A project on the account pages: create, wait until healthy, connect, pause, delete.
import assert from 'node:assert/strict';
import { look } from './browser.mjs';
import { run, signInLink } from './harness.mjs';

const NAME = 'A shop';
const healthy = (page) => page.getByText('Healthy', { exact: true }).waitFor();

async function confirm(page, action, name) {
  await page.getByRole('link', { name: action, exact: true }).click();
  await page.getByLabel("Type the project name to confirm").fill(name);
  await page.getByRole('button', { name: `${action} project` }).click();
}

export default async function projects(server, tally, chrome, page) {
  await tally.scenario('pages: create a project, wait until it is healthy, and connect', async () => {
    await page.goto('/projects');
    await page.getByRole('link', { name: 'New project' }).click();
    await look(page, 'project-new');
    const password = await page.getByLabel('Database password').inputValue();
    await page.getByLabel('Name', { exact: true }).fill('Production');
    await page.getByRole('button', { name: 'Create project' }).click();
    await page.getByText('already exists').waitFor();
    await look(page, 'project-new-wrong');
    assert.equal(await page.getByLabel('Database password').inputValue(), password);
    await page.getByLabel('Name', { exact: true }).fill(NAME);
    await page.getByRole('button', { name: 'Create project' }).click();
    await page.getByText('Project created.').waitFor();
    await healthy(page);
    await look(page, 'project');
    for (const id of ['direct', 'shared']) {
      const string = (await page.locator(`#${id}`).innerText()).replace('[YOUR-PASSWORD]', password);
      const host = new URL(string).hostname;
      const direct = string.replace(host, server.host).concat(`?options=reference%3D${new URL(page.url()).pathname.split('/')[2]}`);
      const ended = await run(server, 'psql', [id === 'direct' ? direct : string.replace(host, server.host), '-Atc', 'select 1']);
      assert.equal(ended.out.trim(), '1', ended.all);
    }
    assert.equal(await page.getByText('sb_secret_').count(), 0);
    await page.getByRole('button', { name: 'Reveal keys' }).click();
    await page.getByText('sb_secret_').waitFor();
    await look(page, 'project-keys');
    await page.getByRole('link', { name: 'Connect an agent' }).click();
    await look(page, 'project-agents');
    assert.match(await page.locator('#address').innerText(), /read_only=true$/);
    await page.getByRole('radio', { name: 'Read and write' }).check();
    await page.getByRole('checkbox', { name: /storage$/ }).check();
    await page.getByRole('button', { name: 'Update address' }).click();
    await page.locator('#address', { hasText: /,storage$/ }).waitFor();
    await look(page, 'project-agents-chosen');
  });

  await tally.scenario('pages: find, change and return to settings without JavaScript', async () => {
    const cookies = await page.context().cookies();
    const other = await chrome.open({ javaScriptEnabled: false });
    await other.context().addCookies(cookies);
    const path = `${new URL(page.url()).pathname.split('/').slice(0, 3).join('/')}/settings`;
    await other.goto(path);
    await look(other, 'settings');
    await other.getByRole('link', { name: 'Auth', exact: true }).click();
    await look(other, 'settings-auth');
    await other.getByLabel('Search').fill('lifetime of access tokens');
    await other.getByRole('button', { name: 'Search' }).click();
    await look(other, 'settings-search');
    const lifetime = () => other.getByLabel('jwt_exp', { exact: true });
    await lifetime().fill('much');
    await other.getByRole('button', { name: 'Review changes' }).click();
    await other.getByText('auth.jwt_exp: Invalid input').waitFor();
    await look(other, 'settings-wrong');
    await lifetime().fill('60');
    await other.getByRole('button', { name: 'Review changes' }).click();
    await other.getByText('Restarts: auth.').waitFor();
    await look(other, 'settings-review');
    await other.getByRole('button', { name: 'Save changes' }).click();
    await other.getByText('Settings saved.').waitFor();
    await other.goto(`${path}?q=jwt_exp`);
    assert.equal(await lifetime().inputValue(), '60');
    await lifetime().fill('90');
    await other.getByRole('button', { name: 'Review changes' }).click();
    await other.getByRole('button', { name: 'Save changes' }).click();
    await other.getByRole('link', { name: 'Earlier versions' }).click();
    await look(other, 'settings-versions');
    await other.getByRole('button', { name: /^Return to version/ }).click();
    await look(other, 'settings-return');
    await other.getByRole('button', { name: 'Save changes' }).click();
    await other.getByText('Settings saved.').waitFor();
    await other.goto(`${path}?q=jwt_exp`);
    assert.equal(await lifetime().inputValue(), '60');
    await other.context().close();
  });

  await tally.scenario('pages: pause, restore and restart a project', async () => {
    await page.goto('/projects');
    await page.getByRole('link', { name: NAME, exact: true }).click();
    await page.getByRole('link', { name: 'Pause', exact: true }).click();
    await look(page, 'project-pause');
    await page.getByLabel("Type the project name to confirm").fill('something else');
    await page.getByRole('button', { name: 'Pause project' }).click();
    await page.getByText('The name does not match.').waitFor();
    await look(page, 'project-pause-wrong');
    await page.getByLabel("Type the project name to confirm").fill(NAME);
    await page.getByRole('button', { name: 'Pause project' }).click();
    await page.getByText('Paused', { exact: true }).waitFor();
    await look(page, 'project-paused');
    await page.getByRole('button', { name: 'Restore' }).click();
    await healthy(page);
    await page.getByRole('link', { name: 'Restart', exact: true }).click();
    await look(page, 'project-restart');
    await page.getByRole('button', { name: 'Restart project' }).click();
    await page.getByText('The project is being restarted.').waitFor();
    await healthy(page);
    await page.getByRole('link', { name: 'Upgrade PostgreSQL', exact: true }).click();
    await page.getByRole('heading', { name: 'Upgrade PostgreSQL' }).waitFor();
    await look(page, 'project-upgrade');
    await page.goBack();
  });

  await tally.scenario('pages: a protected project is not paused without an approval', async () => {
    await page.goto('/projects');
    await page.getByRole('link', { name: NAME, exact: true }).click();
    await page.getByRole('link', { name: 'Approvals', exact: true }).click();
    await page.getByRole('button', { name: 'Protect project' }).click();
    await page.getByText('The project is protected.').waitFor();
    await look(page, 'project-protected');
    await page.getByRole('button', { name: 'End protection' }).click();
    await page.getByText('Your request waits for an approval.').waitFor();
    await page.getByRole('link', { name: 'Sign in again to approve' }).waitFor();
    await look(page, 'project-approval');
    await page.getByRole('button', { name: 'Deny' }).click();
    await page.getByText('Denied.', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'Approvals of' }).click();
    await look(page, 'project-approvals');
    await page.goto(page.url().replace('/approvals', '/pause'));
    await page.getByLabel('Type the project name to confirm').fill(NAME);
    await page.getByRole('button', { name: 'Pause project' }).click();
    await page.getByText('This request pauses the project.').waitFor();
    await page.getByRole('link', { name: 'Approvals of' }).click();
    await page.getByRole('button', { name: 'End protection' }).click();
    await page.getByText('This request ends the protection of the project.').waitFor();
    const approval = page.url();
    await page.goto(await signInLink(server, 'owner@example.com'));
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.goto(approval);
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.getByText('Approved. Send the same request again.').waitFor();
    await page.getByRole('link', { name: 'Approvals of' }).click();
    await page.getByRole('button', { name: 'End protection' }).click();
    await page.getByText('The project is no longer protected.').waitFor();
  });

  await tally.scenario('pages: follow and delete a project without JavaScript', async () => {
    const cookies = await page.context().cookies();
    const other = await chrome.open({ javaScriptEnabled: false });
    await other.context().addCookies(cookies);
    await other.goto('/projects/new');
    await other.getByLabel('Name', { exact: true }).fill('Without a script');
    await other.getByRole('button', { name: 'Create project' }).click();
    await healthy(other);
    await confirm(other, 'Delete', 'Without a script');
    await other.getByText('Project deleted.').waitFor();
    assert.equal(await other.getByRole('link', { name: 'Without a script' }).count(), 0);
    await other.context().close();
    await page.goto('/projects');
    await page.getByRole('link', { name: NAME, exact: true }).click();
    await page.getByRole('link', { name: 'Delete', exact: true }).click();
    await look(page, 'project-delete');
    await page.getByRole('link', { name: 'Cancel' }).click();
    await confirm(page, 'Delete', NAME);
    await page.getByText('Project deleted.').waitFor();
    await look(page, 'home-deleted');
  });
}
