// OAuth client libraries in the whole flow: discovery, registration, consent in Chromium, tokens, refresh, revocation.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { browser, look } from './browser.mjs';
import { bounded, call, clients, project, run, signInLink } from './harness.mjs';

const require = createRequire(join(clients, 'package.json'));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const SCOPES = ['organizations:read', 'projects:read', 'database:read'];

/** The redirect URI of an application on this machine. */
async function listener() {
  const answers = [];
  let arrived;
  const server = createServer((request, response) => {
    response.end('You can close this window.');
    if (!request.url.startsWith('/callback')) return;
    answers.push({ url: new URL(request.url, address), referer: request.headers.referer });
    arrived?.();
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = `http://127.0.0.1:${server.address().port}`;
  const next = async () => {
    if (answers.length === 0) await bounded('the answer of the user', new Promise((resolve) => { arrived = resolve; }));
    const { url, referer } = answers.shift();
    assert.equal(referer, undefined, 'the page told where the browser was');
    return url;
  };
  return { redirect: `${address}/callback`, next, close: () => server.close() };
}

/** Opens a signed-in browser that approves requests. */
export async function allow(page, url, { projects = [], name } = {}) {
  await page.goto(String(url));
  if (name) await look(page, name);
  for (const reference of projects) await page.getByRole('checkbox', { name: new RegExp(reference) }).check();
  await page.getByRole('button', { name: 'Authorize' }).click();
}

/** Creates a confidential application of the organization. */
async function register(server, redirect, more = {}) {
  const apps = `/v1/organizations/${server.organization}/oauth/apps`;
  const made = await call(server, 'POST', apps, { name: 'Client under test', redirect_uris: [redirect], scopes: SCOPES, ...more });
  assert.equal(made.status, 201, JSON.stringify(made));
  const secret = await call(server, 'POST', `${apps}/${made.body.id}/secrets`);
  assert.equal(secret.status, 201, JSON.stringify(secret));
  return { id: made.body.id, secret: secret.body.secret };
}

/** Returns the status of an API request with an access token. */
async function projects(server, token) {
  const response = await fetch(`${server.url}/v1/projects`, { headers: { authorization: `Bearer ${token}` } });
  return response.status;
}

async function withOauth4webapi(server, page, waits) {
  const oauth = await load('oauth4webapi');
  const options = { [oauth.allowInsecureRequests]: true };
  const issuer = new URL(server.url);
  const as = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...options }));
  const app = await register(server, waits.redirect);
  const [client, authenticate] = [{ client_id: app.id }, oauth.ClientSecretBasic(app.secret)];
  const [verifier, state] = [oauth.generateRandomCodeVerifier(), oauth.generateRandomState()];
  const url = new URL(as.authorization_endpoint);
  url.search = new URLSearchParams({
    client_id: app.id,
    redirect_uri: waits.redirect,
    response_type: 'code',
    scope: SCOPES.join(' '),
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
  });
  await allow(page, url);
  // The library checks state and iss.
  const parameters = oauth.validateAuthResponse(as, client, await waits.next(), state);
  const answer = await oauth.authorizationCodeGrantRequest(as, client, authenticate, parameters, waits.redirect, verifier, options);
  const tokens = await oauth.processAuthorizationCodeResponse(as, client, answer);
  assert.equal(await projects(server, tokens.access_token), 200);
  const introspected = await oauth.introspectionRequest(as, client, authenticate, tokens.access_token, options);
  assert.equal((await oauth.processIntrospectionResponse(as, client, introspected)).active, true);
  const again = await oauth.refreshTokenGrantRequest(as, client, authenticate, tokens.refresh_token, options);
  const renewed = await oauth.processRefreshTokenResponse(as, client, again);
  assert.notEqual(renewed.refresh_token, tokens.refresh_token);
  await oauth.processRevocationResponse(await oauth.revocationRequest(as, client, authenticate, renewed.refresh_token, options));
  assert.equal(await projects(server, renewed.access_token), 401);
}

async function withOpenidClient(server, page, waits) {
  const client = await load('openid-client');
  const app = await register(server, waits.redirect);
  const config = await client.discovery(new URL(server.url), app.id, app.secret, client.ClientSecretPost(app.secret), {
    algorithm: 'oauth2',
    execute: [client.allowInsecureRequests],
  });
  const [verifier, state] = [client.randomPKCECodeVerifier(), client.randomState()];
  const url = client.buildAuthorizationUrl(config, {
    redirect_uri: waits.redirect,
    scope: SCOPES.join(' '),
    code_challenge: await client.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
  });
  await allow(page, url);
  const tokens = await client.authorizationCodeGrant(config, await waits.next(), { pkceCodeVerifier: verifier, expectedState: state });
  assert.equal(await projects(server, tokens.access_token), 200);
  const renewed = await client.refreshTokenGrant(config, tokens.refresh_token);
  assert.equal((await client.tokenIntrospection(config, renewed.access_token)).active, true);
  await client.tokenRevocation(config, renewed.refresh_token);
  assert.equal(await projects(server, renewed.access_token), 401);
  await assert.rejects(client.refreshTokenGrant(config, renewed.refresh_token), (error) => error.error === 'invalid_grant');
}

async function withSimpleOauth2(server, page, waits) {
  const { AuthorizationCode } = require('simple-oauth2');
  const app = await register(server, waits.redirect);
  // The library has no PKCE: it uses the paths of the contract and the client secret.
  const client = new AuthorizationCode({
    client: { id: app.id, secret: app.secret },
    auth: { tokenHost: server.url, tokenPath: '/v1/oauth/token', authorizePath: '/v1/oauth/authorize', revokePath: '/oauth/revoke' },
  });
  await allow(page, client.authorizeURL({ redirect_uri: waits.redirect, scope: SCOPES, state: 'xyz' }));
  const answer = await waits.next();
  assert.equal(answer.searchParams.get('state'), 'xyz');
  let token = await client.getToken({ code: answer.searchParams.get('code'), redirect_uri: waits.redirect });
  assert.equal(await projects(server, token.token.access_token), 200);
  token = await token.refresh();
  await token.revoke('refresh_token');
  assert.equal(await projects(server, token.token.access_token), 401);
}

async function withMcp(server, page, waits, reference) {
  const { auth } = await load('@modelcontextprotocol/sdk/client/auth.js');
  const kept = {};
  // A public client that registers dynamically and keeps its state in memory.
  const provider = {
    redirectUrl: waits.redirect,
    clientMetadata: {
      client_name: 'Assistant under test',
      redirect_uris: [waits.redirect],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      scope: SCOPES.join(' '),
    },
    state: () => 'state-of-the-assistant',
    clientInformation: () => kept.client,
    saveClientInformation: (client) => { kept.client = client; },
    tokens: () => kept.tokens,
    saveTokens: (tokens) => { kept.tokens = tokens; },
    redirectToAuthorization: (url) => { kept.url = url; },
    saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
    codeVerifier: () => kept.verifier,
    invalidateCredentials: (scope) => { if (scope === 'tokens' || scope === 'all') delete kept.tokens; },
  };
  const serverUrl = server.url;
  assert.equal(await auth(provider, { serverUrl }), 'REDIRECT');
  await allow(page, kept.url, { projects: [reference], name: 'consent-registered-itself' });
  const answer = await waits.next();
  assert.equal(await auth(provider, { serverUrl, authorizationCode: answer.searchParams.get('code') }), 'AUTHORIZED');
  assert.equal(await projects(server, kept.tokens.access_token), 200);
  const before = kept.tokens.refresh_token;
  assert.equal(await auth(provider, { serverUrl }), 'AUTHORIZED');
  assert.notEqual(kept.tokens.refresh_token, before);
  await page.goto('/account/applications');
  await look(page, 'applications-authorized');
  await page.getByRole('button', { name: 'Revoke Assistant under test' }).click();
  await page.getByText('Authorization revoked').waitFor();
  assert.equal(await projects(server, kept.tokens.access_token), 401);
  // The client discards the revoked refresh token and asks for authorization again.
  assert.equal(await auth(provider, { serverUrl }), 'REDIRECT');
  // The API rejects a token whose audience is an MCP server.
  const beside = `${server.url}/mcp`;
  delete kept.tokens;
  assert.equal(await auth(provider, { serverUrl: beside }), 'REDIRECT');
  await allow(page, kept.url, { projects: [reference] });
  const answered = await waits.next();
  assert.equal(await auth(provider, { serverUrl: beside, authorizationCode: answered.searchParams.get('code') }), 'AUTHORIZED');
  assert.equal(await projects(server, kept.tokens.access_token), 401);
}

/** Checks the page of members' authorizations, and revokes those of one application. */
async function authorized(server, page, waits) {
  const app = await register(server, waits.redirect, { bind_to_authorizing_user: true, project_selection: 'optional', name: 'Report' });
  await page.goto(`/v1/oauth/authorize?${new URLSearchParams({ client_id: app.id, redirect_uri: waits.redirect, response_type: 'code' })}`);
  await page.getByRole('checkbox', { name: 'All current and future projects' }).check();
  await page.getByRole('button', { name: 'Authorize' }).click();
  await waits.next();
  await page.goto(`/organizations/${server.organization}/authorized`);
  const report = page.locator('section', { has: page.getByRole('heading', { name: 'Report' }) });
  await report.getByText('Scopes').click();
  await report.getByText('Revoke all', { exact: true }).click();
  await look(page, 'authorized');
  await report.getByRole('button', { name: 'Revoke all authorizations of Report' }).click();
  await page.getByText('Authorization revoked').waitFor();
  assert.equal(await page.getByRole('heading', { name: 'Report' }).count(), 0);
}

/** `script` prints the authorization URL, and reads the redirect URL from its input. */
async function withPython(server, page, waits, library) {
  const app = await register(server, waits.redirect);
  const script = fileURLToPath(new URL('oauth.py', import.meta.url));
  const python = join(clients, 'python/bin/python');
  const begun = await run(server, python, [script, library, 'begin', server.url, app.id, app.secret, waits.redirect]);
  assert.equal(begun.code, 0, begun.all);
  const { url, state, verifier } = JSON.parse(begun.out);
  await allow(page, url);
  const answer = String(await waits.next());
  const ended = await run(server, python, [script, library, 'end', server.url, app.id, app.secret, waits.redirect, state, verifier, answer]);
  assert.equal(ended.code, 0, ended.all);
}

async function consent(server, chrome, page, waits, javaScriptEnabled) {
  const way = javaScriptEnabled ? '' : '-without-js';
  const app = await register(server, waits.redirect, { bind_to_authorizing_user: true, project_selection: 'optional' });
  const ask = () => `/v1/oauth/authorize?${new URLSearchParams({ client_id: app.id, redirect_uri: waits.redirect, response_type: 'code', state: 'xyz' })}`;
  const mine = await chrome.open({ javaScriptEnabled, storageState: await page.context().storageState() });
  try {
    await mine.goto(ask());
    const asked = mine.url();
    await mine.getByRole('heading', { name: 'Authorize Client under test?' }).waitFor();
    // axe needs JavaScript.
    if (javaScriptEnabled) await look(mine, 'consent');
    await mine.getByRole('button', { name: 'Authorize' }).click();
    await mine.getByText('Choose at least one project.').waitFor();
    if (javaScriptEnabled) await look(mine, 'consent-no-project');
    await mine.getByRole('checkbox', { name: 'All current and future projects' }).check();
    await mine.getByRole('button', { name: 'Authorize' }).click();
    assert.ok((await waits.next()).searchParams.get('code'));
    await mine.goto(asked);
    await mine.getByRole('heading', { name: 'Client under test is authorized' }).waitFor();
    if (javaScriptEnabled) await look(mine, 'consent-receipt');

    await mine.goto(ask());
    await mine.getByRole('button', { name: 'Cancel' }).click();
    const refused = await waits.next();
    assert.equal(refused.searchParams.get('error'), 'access_denied', String(refused));

    // A browser of another session, and an unknown request.
    await mine.goto(ask());
    const other = await chrome.open({ javaScriptEnabled, storageState: undefined });
    await other.goto(mine.url());
    await other.getByRole('heading', { name: 'Sign in' }).waitFor();
    await other.context().close();
    await mine.goto('/authorize?auth_id=00000000-0000-4000-8000-000000000000');
    await mine.getByRole('heading', { name: 'This request has expired' }).waitFor();
    if (javaScriptEnabled) await look(mine, 'consent-over');
    await mine.goto('/v1/oauth/authorize?client_id=nobody');
    await mine.getByRole('heading', { name: 'Unknown application' }).waitFor();
    if (javaScriptEnabled) await look(mine, 'consent-unknown');
  } finally {
    await mine.context().close();
  }
}

/** Manages the applications of an organization on its pages. */
async function pages(server, page, waits) {
  await page.goto(`/organizations/${server.organization}/authorized`);
  await look(page, 'authorized-empty');
  await page.goto(`/organizations/${server.organization}/applications`);
  await look(page, 'applications');
  await page.getByRole('link', { name: 'Register an application' }).click();
  await look(page, 'application-new');
  await page.getByLabel('Name').fill('Shop');
  await page.getByLabel('Redirect URIs').fill('http://shop.example/callback');
  await page.getByRole('checkbox', { name: /projects:read/ }).check();
  await page.getByRole('button', { name: 'Register' }).click();
  await page.getByText('must be https').waitFor();
  await look(page, 'application-wrong');
  await page.getByLabel('Redirect URIs').fill(waits.redirect);
  await page.getByRole('button', { name: 'Register' }).click();
  await page.getByText('Application registered').waitFor();
  await page.getByRole('button', { name: 'New client secret' }).click();
  await look(page, 'application-secret');
  assert.match(await page.locator('#secret').innerText(), /^sba_[0-9a-f]{40}$/);
  await page.getByRole('link', { name: 'Done' }).click();
  await look(page, 'application');
  await page.getByRole('link', { name: 'Delete' }).click();
  await look(page, 'application-delete');
  await page.getByRole('button', { name: 'Delete application' }).click();
  await page.getByText('Application deleted').waitFor();
}

export default async function oauth(server, tally) {
  const [chrome, waits] = [await browser(server), await listener()];
  try {
    const page = await chrome.open();
    await tally.scenario('oauth: sign in', async () => {
      await page.goto(await signInLink(server, 'owner@example.com'));
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Projects', exact: true }).waitFor();
    });
    const reference = await project(server, 'For applications');
    await tally.scenario('oauth: manage applications on the pages', () => pages(server, page, waits));
    await tally.scenario('oauth: list and revoke authorizations of members', () => authorized(server, page, waits));
    await tally.scenario('oauth: consent', () => consent(server, chrome, page, waits, true));
    await tally.scenario('oauth: consent without JavaScript', () => consent(server, chrome, page, waits, false));
    await tally.scenario('oauth: oauth4webapi', () => withOauth4webapi(server, page, waits));
    await tally.scenario('oauth: openid-client', () => withOpenidClient(server, page, waits));
    await tally.scenario('oauth: simple-oauth2', () => withSimpleOauth2(server, page, waits));
    await tally.scenario('oauth: the MCP SDK registers, refreshes, and authorizes again after a revocation', () => withMcp(server, page, waits, reference));
    await tally.scenario('oauth: Authlib', () => withPython(server, page, waits, 'authlib'));
    await tally.scenario('oauth: requests-oauthlib', () => withPython(server, page, waits, 'requests-oauthlib'));
  } finally {
    waits.close();
    await chrome.close();
  }
}
