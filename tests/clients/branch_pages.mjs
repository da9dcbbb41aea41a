// The pages of a project's branches: list, one branch with its isolation and runs, and its merge.
import { look } from './browser.mjs';
import { call } from './harness.mjs';

const NAME = 'Production';

export default async function branches(server, tally, page) {
  const { body: all } = await call(server, 'GET', '/v1/projects');
  const { ref } = all.find(({ name }) => name === NAME);
  const send = async (method, path, body) => {
    const answer = await call(server, method, path, body);
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${JSON.stringify(answer.body)}`);
    return answer.body;
  };

  await tally.scenario('pages: a branch with its isolation and its runs, and its merge', async () => {
    await page.goto(`/projects/${ref}/branches`);
    await page.getByText('No branches').waitFor();
    await look(page, 'branches-none');
    const made = await send('POST', `/v1/projects/${ref}/branches`, { branch_name: 'with data', with_data: true });
    await page.goto(`/projects/${ref}/branches`);
    await page.getByText('Healthy', { exact: true }).nth(1).waitFor({ timeout: 60_000 });
    await look(page, 'branches');
    await page.getByRole('link', { name: 'with data' }).click();
    await page.getByRole('heading', { name: 'Isolation' }).waitFor();
    await look(page, 'branch');
    const query = 'create table made_by_a_branch (id int primary key)';
    await send('POST', `/v1/projects/${made.project_ref}/database/migrations`, { name: 'of a branch', query });
    await page.getByRole('link', { name: 'Merge', exact: true }).click();
    await page.getByText('of a branch').waitFor();
    await look(page, 'branch-merge');
    await page.getByRole('button', { name: 'Merge branch' }).click();
    await page.getByText('The merge has begun.').waitFor();
    // The rehearsal starts a server of its own. A restore point needs a base backup, which may not be made yet.
    const merged = /(which a failure undoes|restore point before the merge)[^]*finished/;
    await page.locator('main', { hasText: merged }).waitFor({ timeout: 60_000 });
    await look(page, 'branch-merged');
    await page.goto('/projects');
    await send('DELETE', `/v1/projects/${ref}/branches`);
  });
}
