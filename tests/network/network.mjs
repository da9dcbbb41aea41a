// A network on this machine: name servers of four zones (knot), a resolver (unbound), a certificate authority (pebble), and
// the DNS-over-HTTPS server that the `supabase` CLI queries for CNAME records.
import { execFileSync, spawn } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Resolver } from 'node:dns/promises';
import { once } from 'node:events';
import { createServer, get } from 'node:https';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

const KEY = 'hmac-sha256:acme:c2l4dGVlbiBieXRlcyBhbmQgc2l4dGVlbiBtb3JlLi4=';
/** Address of the zones' name servers. Gantry queries name servers on port 53. */
const KNOT = '127.0.0.2';
const ZONES = {
  'acme.test': '',
  'customer.test': '',
  // Names below match the zone's wildcard.
  'projects.test': '* A 127.0.0.1\n_acme-challenge CNAME own.acme.test.\n',
};

export class Network {
  #dir = mkdtempSync('/tmp/gantry-network-');
  #children = [];
  #said = {};

  static async start() {
    const network = new Network();
    try {
      await network.#begin();
    } catch (error) {
      await network.stop();
      throw error;
    }
    return network;
  }

  async #begin() {
    chmodSync(this.#dir, 0o755);
    this.#certify();
    this.#serveZones();
    this.#resolve();
    await this.#answers();
    await this.#authority();
    await this.#overHttps();
    const key = this.#write('key', `${KEY}\n`);
    // 127.0.0.1 has both ports, 127.0.0.3 only HTTPS, 127.0.0.4 none.
    this.flags = [
      ['--project-domain', 'projects.test'],
      ['--edge-https-listen', '127.0.0.1:443,127.0.0.3:443'],
      ['--edge-http-listen', '127.0.0.1:80'],
      ['--dns-resolver', '127.0.0.1:53'],
      ['--acme-directory', 'https://localhost:14000/dir'],
      ['--acme-root', join(this.#dir, 'ca.pem')],
      ['--acme-dns-zone', 'acme.test'],
      ['--acme-dns-server', `${KNOT}:53`],
      ['--acme-dns-key', key],
      '--edge-acme-wildcard',
    ].flat();
    this.env = { SSL_CERT_FILE: join(this.#dir, 'ca.pem'), NODE_EXTRA_CA_CERTS: join(this.#dir, 'ca.pem') };
    this.root = this.#write('root.pem', await this.#fetchRoot());
    this.ca = readFileSync(this.root);
  }

  #write(name, text) {
    const file = join(this.#dir, name);
    writeFileSync(file, text);
    return file;
  }

  #spawn(name, args, env = {}) {
    const child = spawn(name, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { PATH: process.env.PATH, ...env } });
    this.#said[name] = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (this.#said[name] += text));
    this.#children.push(child);
  }

  /** Returns the output of a program. */
  said(name) {
    return this.#said[name];
  }

  /** Creates a certificate authority for the TLS servers of this network. */
  #certify() {
    const file = (name) => join(this.#dir, name);
    const openssl = (...args) => execFileSync('openssl', args, { stdio: 'ignore' });
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    openssl('req', '-x509', ...key, '-keyout', file('ca.key'), '-out', file('ca.pem'), '-subj', '/CN=network');
    const extensions = this.#write('extensions', 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:1.1.1.1\n');
    openssl('req', ...key, '-keyout', file('leaf.key'), '-out', file('leaf.csr'), '-subj', '/CN=localhost');
    const by = ['-CA', file('ca.pem'), '-CAkey', file('ca.key'), '-CAcreateserial', '-extfile', extensions, '-days', '2'];
    openssl('x509', '-req', '-in', file('leaf.csr'), '-out', file('leaf.pem'), ...by);
  }

  #serveZones() {
    const zones = Object.entries(ZONES).map(([name, records]) => {
      this.#write(name, `$ORIGIN ${name}.\n$TTL 0\n@ SOA ns hostmaster 1 3600 600 86400 0\n@ NS ns\nns A ${KNOT}\n${records}`);
      return `  - domain: ${name}.\n    storage: ${this.#dir}\n    file: ${name}\n    acl: all\n    journal-content: none\n    zonefile-sync: -1\n    zonefile-load: whole\n`;
    });
    const config = this.#write('knot.conf', `server:
  listen: ${KNOT}@53
  rundir: ${this.#dir}
database:
  storage: ${this.#dir}
key:
  - id: acme
    algorithm: hmac-sha256
    secret: ${KEY.split(':')[2]}
acl:
  - id: all
    key: acme
    action: [update, transfer]
zone:
${zones.join('')}`);
    this.#spawn('knotd', ['-c', config]);
  }

  #resolve() {
    const stubs = Object.keys(ZONES).map((name) => `stub-zone:\n  name: "${name}."\n  stub-addr: ${KNOT}@53\n`);
    const config = this.#write('unbound.conf', `server:
  interface: 127.0.0.1@53
  interface: 1.1.1.1@53
  access-control: 0.0.0.0/0 allow
  do-not-query-localhost: no
  do-ip6: no
  local-zone: "test." nodefault
  module-config: "iterator"
  cache-max-ttl: 0
  cache-max-negative-ttl: 0
  chroot: ""
  username: ""
  pidfile: ""
  use-syslog: no
  directory: "${this.#dir}"
remote-control:
  control-enable: no
${stubs.join('')}`);
    this.#spawn('unbound', ['-d', '-p', '-c', config]);
  }

  async #answers() {
    const resolver = new Resolver({ timeout: 500, tries: 1 });
    resolver.setServers(['127.0.0.1']);
    for (const end = Date.now() + 20_000; Date.now() < end; await pause(100)) {
      const found = await resolver.resolve4('x.projects.test').catch(() => []);
      if (found.length > 0) return;
    }
    throw new Error(`no name server answers:\n${this.said('knotd')}\n${this.said('unbound')}`);
  }

  async #authority() {
    const config = this.#write('pebble.json', JSON.stringify({
      pebble: {
        listenAddress: '127.0.0.1:14000', managementListenAddress: '127.0.0.1:15000', httpPort: 80, tlsPort: 443,
        certificate: join(this.#dir, 'leaf.pem'), privateKey: join(this.#dir, 'leaf.key'), ocspResponderURL: '', externalAccountBindingRequired: false,
      },
    }));
    this.#spawn('pebble', ['-config', config, '-dnsserver', '127.0.0.1:53'], { PEBBLE_VA_NOSLEEP: '1', PEBBLE_AUTHZREUSE: '100' });
  }

  async #fetchRoot() {
    const ask = () => new Promise((resolve, reject) => {
      get('https://127.0.0.1:15000/roots/0', { ca: readFileSync(join(this.#dir, 'ca.pem')) }, async (answer) => {
        let text = '';
        for await (const part of answer) text += part;
        resolve(text);
      }).on('error', reject);
    });
    for (const end = Date.now() + 20_000; Date.now() < end; await pause(100)) {
      const root = await ask().catch(() => '');
      if (root.includes('BEGIN CERTIFICATE')) return root;
    }
    throw new Error(`no authority:\n${this.said('pebble')}`);
  }

  /** Serves CNAME records over HTTPS, in the JSON format of `https://1.1.1.1/dns-query?name=…`. */
  async #overHttps() {
    const resolver = new Resolver();
    resolver.setServers(['1.1.1.1']);
    const options = { key: readFileSync(join(this.#dir, 'leaf.key')), cert: readFileSync(join(this.#dir, 'leaf.pem')) };
    this.https = createServer(options, async (asked, answer) => {
      const name = new URL(asked.url, 'https://1.1.1.1').searchParams.get('name') ?? '';
      const found = await resolver.resolveCname(name).catch(() => []);
      answer.setHeader('content-type', 'application/dns-json');
      answer.end(JSON.stringify({ Status: 0, Answer: found.map((data) => ({ name, type: 5, TTL: 0, data: `${data}.` })) }));
    });
    await once(this.https.listen(443, '1.1.1.1'), 'listening');
  }

  async #update(zone, ...lines) {
    const text = [`server ${KNOT} 53`, `origin ${zone}.`, `zone ${zone}.`, 'ttl 0', ...lines, 'send', ''].join('\n');
    execFileSync('knsupdate', ['-y', KEY], { input: text });
  }

  /** Adds a record to the customer's zone: `<name>. <type> <data>`. */
  async say(record) {
    await this.#update('customer.test', `add ${record.replace(' ', ' 0 ')}`);
  }

  /** Points the projects' domain to another address. */
  async lead(address) {
    await this.#update('projects.test', 'del *.projects.test. A', `add *.projects.test. 0 A ${address}`);
  }

  /** Returns the number of TXT records in the zone for challenges. */
  async texts() {
    const zone = execFileSync('kdig', ['-y', KEY, `@${KNOT}`, '+tcp', '+short', 'acme.test', 'AXFR']).toString();
    if (!zone.includes('hostmaster')) throw new Error(`no transfer of the zone: ${zone}`);
    return zone.split('\n').filter((line) => line.startsWith('"')).length;
  }

  async stop() {
    this.https?.close();
    for (const child of this.#children) {
      const ended = child.exitCode ?? once(child, 'exit');
      child.kill('SIGTERM');
      await ended;
    }
    rmSync(this.#dir, { recursive: true, force: true });
  }
}
