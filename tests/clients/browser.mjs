// Pages in Chromium, light and dark, narrow and wide, with and without JavaScript, and the checks of every page.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { clients } from './harness.mjs';

const require = createRequire(join(clients, 'package.json'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const shots = new URL('../../target/screenshots/', import.meta.url).pathname;

/** The displays in which each state of a page is checked. */
const LOOKS = ['light', 'dark'].flatMap((colorScheme) => [320, 1280].map((width) => ({ colorScheme, width })));

/** Starts a browser. Each call of `open` returns a page in a new context. The caller closes it. */
export async function browser(server) {
  const program = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
  const chrome = await chromium.launch({ executablePath: program, args });
  const open = async (options = {}) => {
    const context = await chrome.newContext({ baseURL: server.url, viewport: { width: 1280, height: 800 }, ...options });
    context.setDefaultTimeout(10_000);
    const page = await context.newPage();
    page.troubles = [];
    // The console reports violations of the content security policy, and also pages that answer 4xx intentionally.
    page.on('console', (message) => {
      if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) page.troubles.push(message.text());
    });
    page.on('pageerror', (error) => page.troubles.push(String(error)));
    if (options.javaScriptEnabled === false) page.withScripts = () => open();
    return page;
  };
  return { open, close: () => chrome.close() };
}

/** Shows the content of a page without JavaScript in one with it: axe waits for timers, which never end without it. */
async function scripted(page) {
  const copy = await page.withScripts();
  const body = await page.content();
  await copy.route(page.url(), (route) => route.fulfill({ body, contentType: 'text/html; charset=utf-8' }));
  await copy.goto(page.url());
  return copy;
}

/**
 * Checks the current state of a page in each display: axe finds no problem, no element is wider than the screen, and the
 * content security policy rejects nothing. Saves a screenshot of each. Each state of each new page needs one call.
 */
export async function look(page, name) {
  if (page.withScripts) {
    const copy = await scripted(page);
    await look(copy, name);
    await copy.context().close();
    return;
  }
  mkdirSync(shots, { recursive: true });
  const faults = [];
  for (const { colorScheme, width } of LOOKS) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ width, height: width === 320 ? 640 : 800 });
    const way = `${name}-${colorScheme}-${width}`;
    await page.screenshot({ path: `${shots}${way}.png`, fullPage: true });
    // Injected by the debugger, to which the policy does not apply.
    const found = await page.evaluate(`${axe}; axe.run({ resultTypes: ['violations'] })`);
    for (const { id, nodes } of found.violations) faults.push(`${way}: ${id}: ${nodes.map((node) => node.html).join(' ')}`);
    const wide = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
    if (wide > 0) faults.push(`${way}: ${wide} px wider than the screen`);
  }
  faults.push(...page.troubles.splice(0));
  if (faults.length > 0) throw new Error(faults.join('\n'));
}
