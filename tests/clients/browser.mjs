// Chromium, as people have it: light or dark, narrow or wide, with JavaScript or without; and what holds on every page.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { clients } from './harness.mjs';

const require = createRequire(join(clients, 'package.json'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const shots = new URL('../../target/screenshots/', import.meta.url).pathname;

/** Every way in which each state of a page is looked at. */
const LOOKS = ['light', 'dark'].flatMap((colorScheme) => [320, 1280].map((width) => ({ colorScheme, width })));

/** A browser, and a page in a context of its own for each call of `open`. Close it in the end. */
export async function browser(server) {
  const program = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
  const chrome = await chromium.launch({ executablePath: program, args });
  const open = async (options = {}) => {
    const context = await chrome.newContext({ baseURL: server.url, viewport: { width: 1280, height: 800 }, ...options });
    context.setDefaultTimeout(10_000);
    const page = await context.newPage();
    page.troubles = [];
    // A breach of the policy is said on the console; a page that answers 4xx on purpose as well.
    page.on('console', (message) => {
      if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) page.troubles.push(message.text());
    });
    page.on('pageerror', (error) => page.troubles.push(String(error)));
    return page;
  };
  return { open, close: () => chrome.close() };
}

/**
 * Looks at the state a page is in, light and dark, narrow and wide: no fault that axe finds, nothing wider than the screen,
 * nothing the policy refused. A screenshot of each is kept. One line for each state of each new page.
 */
export async function look(page, name) {
  mkdirSync(shots, { recursive: true });
  const faults = [];
  for (const { colorScheme, width } of LOOKS) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ width, height: width === 320 ? 640 : 800 });
    const way = `${name}-${colorScheme}-${width}`;
    await page.screenshot({ path: `${shots}${way}.png`, fullPage: true });
    // Injected over the debugger, which the policy does not stop.
    const found = await page.evaluate(`${axe}; axe.run({ resultTypes: ['violations'] })`);
    for (const { id, nodes } of found.violations) faults.push(`${way}: ${id}: ${nodes.map((node) => node.html).join(' ')}`);
    const wide = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
    if (wide > 0) faults.push(`${way}: ${wide} px wider than the screen`);
  }
  faults.push(...page.troubles.splice(0));
  if (faults.length > 0) throw new Error(faults.join('\n'));
}
