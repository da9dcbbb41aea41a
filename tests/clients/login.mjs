// npm `supabase login`: the CLI in a pseudo-terminal, the page in Chromium.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { look } from './browser.mjs';
import { bounded, clients, environment, supabase } from './harness.mjs';

/** Runs the CLI in a pseudo-terminal and answers its prompts. */
function terminal(server, args) {
  // Without a width, the CLI breaks lines after each character.
  const command = ['stty cols 200 rows 50;', join(clients, 'node_modules/.bin/supabase'), ...args].join(' ');
  const { SUPABASE_ACCESS_TOKEN: _, ...settings } = environment(server, { home: 'login' });
  const child = spawn('script', ['--quiet', '--return', '--command', command, '/dev/null'], {
    cwd: server.work,
    stdio: ['pipe', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH,
      HOME: server.home,
      TERM: 'xterm',
      ...settings,
    },
  });
  let said = '';
  const waiting = new Set();
  child.stdout.setEncoding('utf8').on('data', (text) => {
    // Removes escape sequences.
    said += text.replaceAll(/\x1b\[[0-9;?]*[A-Za-z]/g, '');
    for (const look of waiting) look();
  });
  const ended = new Promise((resolve) => child.once('close', resolve));
  const says = (pattern) => bounded(`the tool to say ${pattern}`, new Promise((resolve) => {
    const look = () => {
      const found = pattern.exec(said.replaceAll(/[\r\n]/g, ''));
      if (!found) return;
      waiting.delete(look);
      resolve(found);
    };
    waiting.add(look);
    look();
  })).catch((error) => { throw new Error(`${error.message}; it said: ${said}`); });
  const type = (line) => { said = ''; child.stdin.write(`${line}\r`); };
  return { says, type, ended: () => bounded('the end of the tool', ended), stop: () => child.kill('SIGKILL') };
}

/** Signs in with the CLI. `page` is signed in. */
export default async function login(server, tally, page) {
  await tally.scenario('login: the CLI signs in with the code of the page, after a wrong code', async () => {
    const tool = terminal(server, ['login', '--no-browser', '--name', 'laptop']);
    try {
      const [, query] = await tool.says(/\/cli\/login\?(session_id=[\w-]+&token_name=laptop&public_key=04[0-9a-f]{128})/);
      await page.goto(`/dashboard/cli/login?${query}`);
      await look(page, 'cli-login');
      await page.getByRole('button', { name: 'Authorize' }).click();
      const code = await page.locator('#code').innerText();
      await look(page, 'cli-login-code');
      assert.match(code, /^[0-9a-f]{8}$/);
      await tool.says(/Enter your verification code/);
      tool.type(code === '00000000' ? '11111111' : '00000000');
      // The CLI reads input only after it repeated the prompt.
      await tool.says(/Error status 404.*verification code/);
      tool.type(code);
      await tool.says(/You are now logged in/);
      assert.equal(await tool.ended(), 0);
      const session = /session_id=([\w-]+)/.exec(query)[1];
      assert.equal((await fetch(`${server.url}/platform/cli/login/${session}?device_code=${code}`)).status, 404);
    } finally {
      tool.stop();
    }
    const listed = await supabase(server, ['projects', 'list', '-o', 'json'], { token: '', home: 'login' });
    assert.equal(listed.code, 0, listed.all);
    assert.ok(JSON.parse(listed.out).length > 0);
    await page.reload();
    await page.getByText('already used').waitFor();
    await look(page, 'cli-login-used');
  });
}
