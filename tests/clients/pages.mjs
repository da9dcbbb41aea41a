// The account pages in Chromium: first visit, sign-in with and without JavaScript, and the layout of every state.
import assert from 'node:assert/strict';
import branches from './branch_pages.mjs';
import { browser, look } from './browser.mjs';
import { call, run } from './harness.mjs';
import login from './login.mjs';
import organizations from './organizations.mjs';
import passkeys from './passkeys.mjs';
import projects from './projects.mjs';
import watching from './watching.mjs';

const EMAIL = 'owner@example.com';
const PASSWORD = 'violin fjord lantern 9';

async function signIn(page, password = PASSWORD) {
  await page.getByLabel('Email address').fill(EMAIL);
  await page.getByLabel('Password', { exact: true }).fill(password);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
}

async function setPassword(page, current, password, again = password) {
  if (current) await page.getByLabel('Current password').fill(current);
  await page.getByLabel('New password', { exact: true }).fill(password);
  await page.getByLabel('Confirm new password').fill(again);
  await page.getByRole('button', { name: /^(Set|Change) password$/ }).click();
}

const heading = (page, name) => page.getByRole('heading', { name, exact: true }).waitFor();

export default async function pages(server, tally) {
  const chrome = await browser(server);
  const page = await chrome.open();
  try {
    await tally.scenario('pages: the first visit sets a password', async () => {
      await page.goto(server.signIn);
      await look(page, 'link');
      await page.getByRole('button', { name: 'Sign in', exact: true }).click();
      await heading(page, 'Projects');
      await look(page, 'home-empty');
      await page.goto('/account');
      await look(page, 'account-without-password');
      await setPassword(page, undefined, 'password');
      await page.getByText('too easy to guess').waitFor();
      await look(page, 'account-weak-password');
      await setPassword(page, undefined, PASSWORD);
      await page.getByRole('status').waitFor();
      await look(page, 'account-password-set');
      await page.goto(server.signIn);
      await heading(page, 'Page not found');
      await look(page, 'error-404');
    });

    await tally.scenario('pages: projects are listed with their state', async () => {
      for (const name of ['Production', 'A staging project with a long name that has to be wrapped somewhere']) {
        const created = await call(server, 'POST', '/v1/projects', { name, organization_slug: server.organization, db_pass: PASSWORD });
        assert.equal(created.status, 201);
      }
      await page.goto('/');
      assert.equal(new URL(page.url()).pathname, '/projects');
      await page.getByText('Production').waitFor();
      // The state after all changes are complete.
      while (await page.getByText('Starting').count() > 0) await page.reload();
      await look(page, 'home');
      await page.locator('summary').click();
      await page.getByRole('button', { name: 'Sign out' }).waitFor();
      await look(page, 'menu');
      await page.keyboard.press('Escape');
      assert.equal(await page.getByRole('button', { name: 'Sign out' }).isVisible(), false);
    });

    await tally.scenario('pages: create, use and revoke a scoped token', async () => {
      const { body: projects } = await call(server, 'GET', '/v1/projects');
      const [reached, other] = [projects.find(({ name }) => name === 'Production').ref, projects.find(({ name }) => name !== 'Production').ref];
      await page.goto('/account/tokens');
      await look(page, 'tokens');
      await page.getByRole('link', { name: 'New token' }).click();
      await look(page, 'token-new');
      await page.getByRole('button', { name: 'Review' }).last().click();
      await page.getByText('Choose at least one permission.').waitFor();
      await look(page, 'token-new-wrong');
      await page.getByLabel('Name', { exact: true }).fill('Deployments of the shop');
      await page.getByRole('checkbox', { name: /^Production/ }).check();
      await page.getByLabel('Search permissions').fill('migr');
      assert.equal(await page.getByRole('radiogroup').count(), 1);
      await page.getByRole('radiogroup', { name: 'Migrations' }).getByRole('radio', { name: 'Write' }).check();
      await look(page, 'token-new-search');
      await page.getByLabel('Search permissions').fill('no such thing');
      await page.getByText('No permissions match').waitFor();
      await page.getByLabel('Search permissions').fill('');
      await page.getByRole('radiogroup', { name: 'Project settings' }).getByRole('radio', { name: 'Read' }).check();
      await look(page, 'token-new-filled');
      await page.getByRole('button', { name: 'Review' }).last().click();
      await heading(page, 'Review token');
      await look(page, 'token-review');
      await page.getByRole('link', { name: 'Edit' }).click();
      assert.equal(await page.getByLabel('Name', { exact: true }).inputValue(), 'Deployments of the shop');
      await page.getByRole('button', { name: 'Review' }).last().click();
      await page.getByRole('button', { name: 'Create token' }).click();
      const token = await page.locator('#secret').innerText();
      assert.match(token, /^sbp_fc[0-9a-f]{38}$/);
      await look(page, 'token-revealed');
      // The command exactly as shown, as a user would paste it.
      const curl = await page.locator('#curl').innerText();
      const ended = await run(server, 'sh', ['-c', `${curl} -s -o /dev/null -w '%{http_code}'`]);
      assert.equal(ended.out, '200', ended.all);
      const status = async (path) => (await fetch(server.url + path, { headers: { authorization: `Bearer ${token}` } })).status;
      assert.equal(await status(`/v1/projects/${reached}/database/migrations`), 200);
      assert.equal(await status(`/v1/projects/${reached}/database/context`), 403);
      assert.equal(await status(`/v1/projects/${other}`), 404);
      const shown = page.url();
      await page.reload();
      assert.equal(await page.locator('#secret').count(), 0);
      await page.goto('/account/tokens');
      await page.goBack();
      assert.equal(await page.locator('#secret').count(), 0);
      await look(page, 'token');
      await page.goto('/account/tokens');
      await look(page, 'tokens-two');
      const id = new URL(shown).pathname.split('/').pop();
      const child = await call(server, 'POST', `/v1/tokens/${id}/children`, { name: 'Agent', expires_in_minutes: 30 });
      assert.equal(child.status, 201);
      await page.goto('/account/tokens');
      await page.getByText('Child of Deployments of the shop').waitFor();
      await look(page, 'tokens-child');
      await page.goto(shown);
      await heading(page, 'Children');
      await look(page, 'token-children');
      await page.getByRole('link', { name: 'Revoke', exact: true }).click();
      await heading(page, 'Revoke this token?');
      await look(page, 'token-revoke');
      await page.getByRole('button', { name: 'Revoke token' }).click();
      await page.getByText('Token revoked.').waitFor();
      assert.equal(await status(`/v1/projects/${reached}`), 401);
    });

    await tally.scenario('pages: create a token without JavaScript', async () => {
      const other = await chrome.open({ javaScriptEnabled: false });
      await other.goto('/account/tokens/new');
      await signIn(other);
      await heading(other, 'New access token');
      await other.getByLabel('Name', { exact: true }).fill('Without a script');
      await other.getByRole('radio', { name: 'Whole account' }).check();
      await other.getByRole('checkbox', { name: /^I confirm access/ }).check();
      await other.getByRole('button', { name: 'Full access' }).click();
      await heading(other, 'New access token');
      assert.equal(await other.getByLabel('Name', { exact: true }).inputValue(), 'Without a script');
      await other.getByLabel('Search permissions').fill('members');
      await other.getByRole('button', { name: 'Search' }).click();
      assert.equal(await other.getByRole('radiogroup').count(), 1);
      await other.getByRole('button', { name: 'Review' }).last().click();
      await heading(other, 'Review token');
      await other.getByRole('button', { name: 'Create token' }).click();
      assert.match(await other.locator('#secret').innerText(), /^sbp_fc/);
      await other.getByRole('link', { name: 'Revoke' }).click();
      await other.getByRole('button', { name: 'Revoke' }).click();
      await other.getByText('Token revoked.').waitFor();
      // Later scenarios count the sessions.
      await other.locator('summary').click();
      await other.getByRole('button', { name: 'Sign out' }).click();
      await other.getByText('You have been signed out.').waitFor();
    });

    await projects(server, tally, chrome, page);
    await watching(server, tally, chrome, page);
    await branches(server, tally, page);
    await organizations(server, tally, chrome, page);
    await passkeys(server, tally, chrome, signIn);
    await login(server, tally, page);

    for (const javaScriptEnabled of [true, false]) {
      const how = javaScriptEnabled ? 'with JavaScript' : 'without JavaScript';
      await tally.scenario(`pages: sign in and end another session, ${how}`, async () => {
        const other = await chrome.open({ javaScriptEnabled });
        await other.goto('/account/sessions');
        if (javaScriptEnabled) await look(other, 'sign-in');
        await signIn(other, 'a wrong one');
        await other.getByRole('alert').waitFor();
        if (javaScriptEnabled) await look(other, 'sign-in-wrong');
        await signIn(other);
        await heading(other, 'Sessions');
        assert.equal(new URL(other.url()).pathname, '/account/sessions');
        if (javaScriptEnabled) await look(other, 'sessions');
        await other.getByRole('button', { name: /^Sign out .*, / }).first().click();
        await other.getByText('Session signed out.').waitFor();
        if (javaScriptEnabled) await look(other, 'sessions-ended');
        await page.goto('/account');
        await heading(page, 'Sign in to Gantry');
        await signIn(page);
        await heading(page, 'Account');
        await other.getByRole('button', { name: 'Sign out everywhere' }).click();
        await other.getByText('You have been signed out everywhere.').waitFor();
        if (javaScriptEnabled) await look(other, 'sign-in-out');
        await page.goto('/account');
        await signIn(page);
        await heading(page, 'Account');
      });
    }

    await tally.scenario('pages: sign in with the keyboard alone and visible focus', async () => {
      const other = await chrome.open();
      await other.goto('/sign-in');
      await other.keyboard.type(EMAIL);
      await other.keyboard.press('Tab');
      await other.keyboard.type(PASSWORD);
      await other.keyboard.press('Enter');
      await heading(other, 'Projects');
      await other.keyboard.press('Tab');
      const skip = await other.evaluate('[document.activeElement.className, getComputedStyle(document.activeElement).outlineStyle]');
      assert.deepEqual(skip, ['skip', 'solid']);
      await other.keyboard.press('Enter');
      assert.equal(await other.evaluate('document.activeElement.id'), 'main');
    });

    await tally.scenario('pages: forced colours and double text size hide nothing', async () => {
      const other = await chrome.open({ forcedColors: 'active', viewport: { width: 640, height: 400 } });
      await other.goto('/sign-in');
      await signIn(other);
      await heading(other, 'Projects');
      await other.goto('/account/sessions');
      await look(other, 'forced-colors');
    });

    await tally.scenario('pages: too many sign-in attempts are delayed', async () => {
      const other = await chrome.open();
      await other.goto('/sign-in');
      for (let tries = 0; tries < 7; tries += 1) await signIn(other, 'a wrong one');
      await other.getByText('Too many attempts').waitFor();
      await look(other, 'sign-in-held');
    });
  } finally {
    await chrome.close();
  }
}
