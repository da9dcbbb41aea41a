// Organizations on the account pages: invitations, roles, and the audit log.
import assert from 'node:assert/strict';
import { look } from './browser.mjs';
import { call, run, signInLink } from './harness.mjs';

const NAME = 'Anastasia Wolfeschlegelsteinhausenbergerdorff';
const EMAIL = 'anastasia.wolfeschlegelsteinhausenbergerdorff@department-of-long-addresses.example.com';

const heading = (page, name) => page.getByRole('heading', { name, exact: true }).waitFor();

/** Opens a browser signed in as a user, by a one-time link of the operator. */
async function newcomer(server, chrome) {
  const made = await run(server, process.env.GANTRY_BIN, ['user', 'create', '--email', EMAIL, '--username', NAME, '--data-dir', server.data]);
  assert.equal(made.code, 0, made.all);
  const link = await signInLink(server, EMAIL);
  const page = await chrome.open();
  return { page, signIn: async () => { await page.goto(link); await page.getByRole('button', { name: 'Sign in', exact: true }).click(); } };
}

/** Sends a form without the session's CSRF token. */
async function foreign(page, path) {
  await page.goto(path);
  await page.evaluate("document.querySelectorAll('main [name=form_token]').forEach((field) => field.remove())");
  await page.locator('main form button').first().click();
}

export default async function organizations(server, tally, chrome, page) {
  const other = await newcomer(server, chrome);
  const organization = `/organizations/${server.organization}`;

  await tally.scenario('pages: an invited user signs in and becomes a member', async () => {
    await page.goto('/projects');
    await page.getByRole('main').getByRole('heading', { level: 2 }).getByRole('link').first().click();
    await heading(page, 'Members');
    await look(page, 'members');
    await page.getByRole('link', { name: 'Invite' }).click();
    await heading(page, 'Open invitations');
    await look(page, 'invitations-empty');
    await page.getByLabel('Email address').fill('owner@example.com');
    await page.getByRole('button', { name: 'Create invitation' }).click();
    await page.getByText('is a member already').waitFor();
    await look(page, 'invitations-wrong');
    await page.getByLabel('Email address').fill(EMAIL);
    await page.getByLabel('Role', { exact: true }).selectOption('read-only');
    await page.getByRole('button', { name: 'Create invitation' }).click();
    await heading(page, 'Invitation created');
    await look(page, 'invitation-made');
    const link = await page.locator('#invitation-link').innerText();
    await page.getByRole('link', { name: 'Back to invitations' }).click();
    await page.getByText(EMAIL).waitFor();
    await look(page, 'invitations');
    // The invitation is bound to an email address.
    await page.goto(link);
    await heading(page, 'Invitation not found');
    await look(page, 'invitation-not-mine');

    await other.page.goto(link);
    await heading(other.page, 'Sign in to Gantry');
    assert.equal(new URL(other.page.url()).searchParams.get('next'), new URL(link).pathname);
    await other.signIn();
    await heading(other.page, 'You are not a member of any organization');
    await look(other.page, 'home-nowhere');
    await other.page.goto('/projects/new');
    await look(other.page, 'project-new-nowhere');
    await other.page.goto(link);
    await heading(other.page, 'You have been invited');
    await look(other.page, 'invitation');
    await other.page.getByRole('button', { name: 'Accept' }).click();
    await other.page.getByText('You joined the organization.').waitFor();
    await look(other.page, 'members-joined');
  });

  await tally.scenario('pages: forbidden actions are disabled with the reason', async () => {
    for (const [path, name] of [[`${organization}/invitations`, 'invitations-above'], ['/projects/new', 'project-new-above']]) {
      await other.page.goto(path);
      await other.page.getByText('Requires the Administrator role. Your role is Read-only.').first().waitFor();
      await look(other.page, name);
    }
    await other.page.goto(organization);
    await other.page.getByRole('link', { name: NAME }).click();
    await other.page.getByText('Requires the Owner role. Your role is Read-only.').first().waitFor();
    await look(other.page, 'member-above');
    await other.page.goto(`${organization}/audit`);
    await look(other.page, 'audit-read-only');
    await other.page.goto('/account/tokens');
    await heading(other.page, 'No access tokens');
    await look(other.page, 'tokens-empty');
    await other.page.goto('/account/tokens/new');
    assert.ok(await other.page.getByRole('radio', { name: 'Write', disabled: true }).count() > 10);
    await look(other.page, 'token-new-greyed');
    await other.page.getByRole('radio', { name: 'Selected organizations' }).check();
    await other.page.getByRole('radio', { name: 'Custom' }).check();
    await other.page.getByLabel('Expiration date').waitFor();
    await look(other.page, 'token-new-organizations');
  });

  await tally.scenario('pages: change roles, keep the last owner, remove a member', async () => {
    await page.goto(organization);
    await page.getByRole('link', { name: NAME }).click();
    await heading(page, NAME);
    await look(page, 'member');
    await page.getByLabel('Role', { exact: true }).selectOption('no-access');
    await page.getByRole('button', { name: 'Change role' }).click();
    await page.getByText('Role updated.').waitFor();
    await page.getByLabel('Project role', { exact: true }).selectOption('developer');
    await page.getByRole('button', { name: 'Assign role' }).click();
    await page.getByText('Developer on 1 project').waitFor();
    await look(page, 'member-on-project');
    await other.page.goto(organization);
    await other.page.getByText('You have no role here').waitFor();
    await look(other.page, 'members-hidden');
    await other.page.goto(`${organization}/audit`);
    await heading(other.page, 'You do not have access to the audit log');
    await look(other.page, 'audit-hidden');
    await page.getByRole('link', { name: 'Remove from organization' }).click();
    await look(page, 'member-remove');
    await page.getByRole('button', { name: 'Remove member' }).click();
    await page.getByText('Member removed.').waitFor();
    await other.page.goto(organization);
    await heading(other.page, 'Page not found');
    await page.getByRole('main').getByRole('list').getByRole('link').first().click();
    await page.getByRole('link', { name: 'Leave organization' }).click();
    await page.getByRole('button', { name: 'Leave organization' }).click();
    await page.getByText('Make another member an owner first.').waitFor();
    await look(page, 'member-last-owner');
  });

  await tally.scenario('pages: read, filter and export the audit log', async () => {
    await page.goto(`${organization}/audit`);
    await heading(page, 'Entries');
    await page.locator('summary', { hasText: 'Remove a member' }).filter({ hasText: 'Succeeded' }).click();
    await page.getByText('Before', { exact: true }).first().waitFor();
    await look(page, 'audit');
    const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Export' }).click()]);
    const checked = await run(server, process.env.GANTRY_BIN, ['audit', 'verify', await file.path()]);
    assert.equal(checked.code, 0, checked.all);
    await page.getByLabel('Operation').fill('no-such-operation');
    await page.getByRole('button', { name: 'Apply', exact: true }).click();
    await page.getByText('No entries match').waitFor();
    await look(page, 'audit-nothing');
  });

  await tally.scenario('pages: an expired token is marked', async () => {
    const name = 'A token that has expired long before anybody thought of renewing it';
    const expires_at = new Date(Date.now() + 1_000).toISOString();
    const made = await call(server, 'POST', '/v1/tokens', { name, expires_at, permissions: ['projects_read'] });
    assert.equal(made.status, 201, JSON.stringify(made));
    await page.goto('/account/tokens');
    while (await page.getByText('Expired', { exact: true }).count() === 0) await page.reload();
    await look(page, 'tokens-expired');
    await page.getByRole('link', { name }).click();
    await look(page, 'token-expired');
  });

  await tally.scenario('pages: errors have the layout of pages', async () => {
    await foreign(other.page, '/account/sessions');
    await heading(other.page, 'This form has expired');
    await look(other.page, 'error-403');
    for (let asked = 0; asked < 120; asked += 1) await other.page.request.get('/account/sessions');
    await other.page.goto('/account/sessions');
    await heading(other.page, 'Too many requests');
    await look(other.page, 'error-429');
    const socket = `${server.data}/run/control`;
    const psql = async (sql) => {
      const ended = await run(server, 'psql', ['-h', socket, '-U', 'gantry', '-d', 'gantry', '-c', sql], { PGCONNECT_TIMEOUT: '5' });
      assert.equal(ended.code, 0, ended.all);
    };
    await psql('alter table passwords rename to gone');
    await other.page.goto('/account');
    await heading(other.page, 'Something went wrong');
    await look(other.page, 'error-500');
    await psql('alter table gone rename to passwords');
    const nobody = await chrome.open();
    await nobody.goto('/sign-in');
    await nobody.getByRole('link', { name: 'Continue with Example ID' }).click();
    await heading(nobody, 'Service unavailable');
    await look(nobody, 'error-503');
    await nobody.context().close();
  });
  await other.page.context().close();
}
