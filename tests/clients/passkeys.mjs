// Passkeys on the account pages, with a virtual authenticator of Chromium.
import assert from 'node:assert/strict';
import { look } from './browser.mjs';

const NAME = 'The key on the chain of the one who is always late';

export default async function passkeys(server, tally, chrome, signIn) {
  await tally.scenario('pages: add a passkey, sign in with it alone, and remove it', async () => {
    const signOut = async (page) => {
      await page.locator('summary').first().click();
      await page.getByRole('button', { name: 'Sign out' }).click();
      await page.getByText('You have been signed out.').waitFor();
    };
    // Passkeys need a domain name; an IP address has none.
    const numbers = await chrome.open();
    await numbers.goto('/account');
    await signIn(numbers);
    await numbers.getByText('Passkeys require a host name').waitFor();
    await look(numbers, 'account-no-passkeys-here');
    // Later scenarios count the sessions.
    await signOut(numbers);
    await numbers.context().close();

    const page = await chrome.open({ baseURL: server.url.replace('127.0.0.1', 'localhost') });
    const devtools = await page.context().newCDPSession(page);
    await devtools.send('WebAuthn.enable');
    const options = { protocol: 'ctap2', transport: 'internal', hasResidentKey: true, hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true };
    const { authenticatorId } = await devtools.send('WebAuthn.addVirtualAuthenticator', { options });
    await page.goto('/account');
    await signIn(page);
    await page.getByLabel('Name', { exact: true }).fill(NAME);
    await page.getByRole('button', { name: 'Add passkey' }).click();
    await page.getByText('Passkey added.').waitFor();
    await page.getByText(NAME).waitFor();
    await look(page, 'account-passkey');
    await page.getByRole('button', { name: 'Add passkey' }).click();
    await page.getByText('This device already has a passkey for this account.').waitFor();
    await look(page, 'account-passkey-again');

    await signOut(page);
    await page.goto('/sign-in?next=/account/tokens');
    await page.getByRole('button', { name: 'Sign in with a passkey' }).waitFor();
    await look(page, 'sign-in-passkey');
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.getByRole('heading', { name: 'Access tokens', exact: true }).waitFor();

    await devtools.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified: false });
    await signOut(page);
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.getByText('The request was cancelled. Try again.').waitFor();
    await devtools.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified: true });
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.getByRole('heading', { name: 'Projects', exact: true }).waitFor();

    await page.goto('/account');
    await page.getByRole('button', { name: /^Remove the passkey/ }).click();
    await page.getByText('Passkey removed.').waitFor();
    await signOut(page);
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.getByText('This passkey is not registered.').waitFor();
    await look(page, 'sign-in-passkey-unknown');
    assert.equal((await page.context().cookies()).length, 0);
    await page.context().close();
  });
}
