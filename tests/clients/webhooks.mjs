// npm `standardwebhooks` and PyPI `standardwebhooks` verify requests of platform webhooks.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bounded, call, clients, run, start } from './harness.mjs';

const SECRETS = { base64: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', raw: 'a secret of plain text' };

/** Starts a receiver. `next` resolves to the header fields and the body of the next request. */
async function receiver() {
  const waiting = [];
  const server = createServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray());
    response.writeHead(204).end();
    waiting.shift()?.({ headers: request.headers, body: body.toString() });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://localhost:${server.address().port}/hook`,
    next: () => bounded('a webhook', new Promise((resolve) => waiting.push(resolve))),
    stop: () => server.close(),
  };
}

export default async function (_, tally) {
  const { Webhook } = createRequire(join(clients, 'package.json'))('standardwebhooks');
  const gantry = await start({ flags: ['--outbound-networks', '127.0.0.0/8'] });
  const target = await receiver();
  const base = `/v2/organizations/${gantry.organization}/webhooks`;

  /** Creates an endpoint, and returns the request of a test. */
  async function tested(secret) {
    const attributes = { url: target.url, event_types: [{ type: '*' }], signing_secret: secret };
    const made = await call(gantry, 'POST', `${base}/endpoints`, { data: { type: 'endpoint', attributes } });
    assert.equal(made.status, 201, JSON.stringify(made.body));
    const arrived = target.next();
    const sent = await call(gantry, 'POST', `${base}/endpoints/${made.body.data.id}/test`);
    assert.equal(sent.status, 201, JSON.stringify(sent.body));
    return { id: made.body.data.id, ...(await arrived) };
  }

  try {
    for (const [format, secret] of Object.entries(SECRETS)) {
      await tally.scenario(`webhooks: libraries verify a request signed with a ${format} secret`, async () => {
        const { headers, body } = await tested(secret);
        const webhook = new Webhook(secret, format === 'raw' ? { format } : {});
        assert.equal(webhook.verify(body, headers).payload.is_test, true);
        assert.throws(() => webhook.verify(`${body} `, headers));
        const script = fileURLToPath(new URL('webhooks.py', import.meta.url));
        const key = format === 'raw' ? Buffer.from(secret).toString('base64') : secret;
        const args = [script, key, JSON.stringify(headers), body];
        const ended = await run(gantry, join(clients, 'python/bin/python'), args);
        assert.equal(ended.code, 0, ended.all);
      });
    }
    await tally.scenario('webhooks: the former and the new secret verify during a rotation', async () => {
      const { id } = await tested(SECRETS.base64);
      const next = `whsec_${Buffer.from('the second secret of the endpoint').toString('base64')}`;
      const attributes = { signing_secret: next, signing_secret_overlap_secs: 3600 };
      const changed = await call(gantry, 'PATCH', `${base}/endpoints/${id}`, { data: { type: 'endpoint', attributes } });
      assert.equal(changed.status, 200, JSON.stringify(changed.body));
      const arrived = target.next();
      assert.equal((await call(gantry, 'POST', `${base}/endpoints/${id}/test`)).status, 201);
      const { headers, body } = await arrived;
      for (const secret of [SECRETS.base64, next]) new Webhook(secret).verify(body, headers);
      assert.throws(() => new Webhook('whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA').verify(body, headers));
    });
  } finally {
    target.stop();
    assert.equal(await gantry.stop(), 0, gantry.log.join('\n'));
  }
}
