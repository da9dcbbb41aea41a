// Custom hostnames and the projects' domain, from DNS records to a verified certificate chain, with each ACME challenge type, and the `supabase` CLI.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { request } from 'node:https';
import { setTimeout as pause } from 'node:timers/promises';
import { Tally, call, project, run, start, supabase } from '../clients/harness.mjs';
import { Network } from './network.mjs';

/** Time limit of a certificate order, in milliseconds. */
const PATIENCE = 90_000;

/** Repeats `get` until it returns a value. */
async function until(what, get, millis = PATIENCE) {
  for (const end = Date.now() + millis; Date.now() < end; await pause(300)) {
    const value = await get();
    if (value) return value;
  }
  throw new Error(`not within ${millis} ms: ${what}`);
}

const network = await Network.start();
// The upstream of all services.
const service = createServer((asked, answer) => answer.end(asked.headers['x-project-ref']));
await once(service.listen(0, '127.0.0.1'), 'listening');
const server = await start({ flags: [...network.flags, '--upstream', `rest=http://127.0.0.1:${service.address().port}`], env: network.env });
const tally = new Tally(server);

/** Sends a request to this name over TLS, verified with the authority's root. Returns the response. */
async function reached(host) {
  const verified = await run(server, 'openssl', [
    's_client', '-connect', '127.0.0.1:443', '-servername', host, '-verify_hostname', host, '-CAfile', network.root, '-verify_return_error', '-brief', '-no_ign_eof',
  ]);
  if (verified.code !== 0 || !verified.all.includes('Verification: OK')) return undefined;
  return new Promise((resolve, reject) => {
    const asked = request({ host: '127.0.0.1', servername: host, headers: { host }, path: '/rest/v1/', ca: network.ca }, async (answer) => {
      let text = '';
      for await (const part of answer) text += part;
      resolve(answer.statusCode === 200 ? text : `status ${answer.statusCode}`);
    });
    asked.on('error', reject).end();
  });
}

const domains = async (ref, command, ...flags) => {
  const ended = await supabase(server, ['domains', command, `--remote=${ref}`, '--experimental', '--yes', ...flags], { env: network.env });
  assert.equal(ended.code, 0, `supabase domains ${command}: ${ended.all}`);
  return ended.all;
};

/** The operations on a project's custom hostname. */
async function hostname(ref, host, { address, prepare = async () => {} }) {
  const at = `/v1/projects/${ref}/custom-hostname`;
  const status = async () => (await call(server, 'GET', at)).body.status;
  await network.lead(address);
  await network.say(`${host}. CNAME ${ref}.projects.test.`);
  const created = await domains(ref, 'create', '--custom-hostname', host);
  const { ownership_verification: proof } = (await call(server, 'GET', at)).body.data.result;
  assert.ok(created.includes(proof.value), `the tool says which record proves it: ${created}`);
  await network.say(`${proof.name}. TXT "${proof.value}"`);
  await prepare((await call(server, 'GET', `${at}/checks`)).body.checks);
  await domains(ref, 'reverify');
  await until('a certificate', async () => {
    // A failed HTTP-01 challenge is reported; TLS-ALPN-01 is tried after reverify.
    if ((await status()) === '2_initiated') await domains(ref, 'reverify');
    return (await status()) === '4_origin_setup_completed';
  });
  assert.match(await domains(ref, 'get'), new RegExp(host));
  await domains(ref, 'activate');
  assert.equal(await until('the project', () => reached(host)), ref);
  await domains(ref, 'delete');
  assert.equal(await reached(host), undefined, 'it is not served any more');
}

try {
  const ref = await project(server, 'shop');
  const other = await project(server, 'other');
  await tally.scenario("the projects' domain has a certificate, by DNS", async () => {
    await until('the certificate', () => reached(`${ref}.projects.test`));
    assert.deepEqual(await Promise.all([ref, other].map((ref) => reached(`${ref}.projects.test`))), [ref, other]);
  });
  await tally.scenario('a hostname is proven over HTTP', () => hostname(ref, 'http.customer.test', { address: '127.0.0.1' }));
  await tally.scenario('a hostname is proven over TLS, where nobody answers on port 80', () =>
    hostname(other, 'tls.customer.test', { address: '127.0.0.3' }));
  await tally.scenario('a hostname is proven by DNS, where nobody answers at all', () =>
    hostname(ref, 'dns.customer.test', {
      address: '127.0.0.4',
      prepare: async (checks) => {
        const { expected } = checks.find(({ name }) => name === 'delegation');
        const [, place, name] = /^CNAME (\S+) at (\S+)$/.exec(expected);
        await network.say(`${name}. CNAME ${place}.`);
      },
    }));
  await tally.scenario('nothing is left in the zone for answers', () => until('an empty zone', async () => (await network.texts()) === 0));
} finally {
  const code = await server.stop();
  await tally.scenario('the server stops cleanly', async () => assert.equal(code, 0, server.log.join('\n')));
  service.close();
  await network.stop();
}
console.log(`${tally.passed} passed, ${tally.failed} failed`);
process.exit(tally.failed === 0 ? 0 : 1);
