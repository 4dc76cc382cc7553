// The daemon's page in a headless Chromium: what it shows, its orders, keys, colours, accessibility, and 5,000 VMs.
//
//   node page.mjs MODULES URL TOKEN [FOLDER FOR SCREENSHOTS]      prints a line of JSON with what was measured; ends with 1 if something is wrong
//
// `cargo test --workspace --test api people_see_and_order -- --nocapture` runs it and shows that line. The goal with 5,000 VMs: no task of the
// page takes more than 100 ms while it loads (`signIn`, `load`), scrolls (`scroll`), is filtered (`filter`) and is updated (`update`).

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [modules, url, token, shots] = process.argv.slice(2);
const require = createRequire(join(modules, 'package.json'));
const { chromium } = require('playwright-core');
const axe = require.resolve('axe-core/axe.min.js');
const VMS = 5000;
const folder = mkdtempSync(join(tmpdir(), 'drover-page-'));
const measured = {};
const wrong = [];

const context = await chromium.launchPersistentContext(folder, {
  executablePath: process.env.DROVER_CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  bypassCSP: false,
  viewport: { width: 1280, height: 720 },
  colorScheme: 'light',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

// Long tasks of the page, since they were last told.
await context.addInitScript(() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ entryTypes: ['longtask'] });
});

// Four hours after the plans of the test began, so that the timeline is one of hours.
const BEGAN_MS = 1_760_000_000_000;
await context.addInitScript((ahead) => {
  const now = Date.now.bind(Date);
  Date.now = () => now() - ahead;
}, Date.now() - BEGAN_MS - 4 * 3_600_000);

try {
  const page = context.pages()[0] ?? await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on('pageerror', (error) => wrong.push(`error: ${error.message}`));
  page.on('console', (message) => { if (message.type() === 'error' && !/status of 4\d\d/.test(message.text())) wrong.push(`console: ${message.text()}`); });
  page.on('request', (request) => { if (!request.url().startsWith(url) && !request.url().startsWith('data:') && !request.url().startsWith('blob:')) wrong.push(`a request to ${request.url()}`); });
  page.on('dialog', (dialog) => { wrong.push('a script of a VM name ran'); dialog.dismiss(); });
  for (const step of [signIn, load, vms, hostile, keys, live, orders, limits, retries, waves, resources, lists]) {
    await step(page);
    await tellLong(page, step.name);
  }
  await accessible(page, 'light');
  await page.emulateMedia({ colorScheme: 'dark' });
  await accessible(page, 'dark');
  await page.locator('#tab-vms').click();
  await counted(page, `${VMS} of ${VMS} VMs`);
  // What the checks took is no work of the page.
  await longTasks(page);
  for (const step of [scroll, filter, update]) {
    await step(page);
    await tellLong(page, step.name);
  }
  assert.deepEqual(wrong, []);
  console.log(JSON.stringify(measured));
} finally {
  await context.close();
  rmSync(folder, { recursive: true, force: true });
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: join(shots, `${name}.png`) });
}

async function signIn(page) {
  await page.goto(url);
  const field = page.getByLabel('Token');
  await field.fill('wrong');
  await page.locator('#dialog').getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('the token is not known').first().waitFor();
  await field.fill(token);
  await page.locator('#dialog').getByRole('button', { name: 'Sign in' }).click();
  await page.locator('#caller').getByText('admin').first().waitFor();
  await page.locator('#connection', { hasText: 'live' }).waitFor();
}

function counted(page, text) {
  return page.locator('.count', { hasText: text }).waitFor();
}

async function load(page) {
  await page.locator('[data-plan="one"]').click();
  await counted(page, `${VMS} of ${VMS} VMs`);
  await page.locator('.count', { hasText: 'loading' }).waitFor({ state: 'detached' });
}

async function vms(page) {
  const rows = await page.locator('.grid .row').count();
  assert.ok(rows < 80, `${rows} rows are in the document`);
  assert.equal(await page.getByRole('grid').getAttribute('aria-rowcount'), String(VMS + 1));
  await shot(page, 'vms');
  await page.getByLabel('Search VMs and hosts').fill('web4999');
  await counted(page, `1 of ${VMS} VMs`);
  await page.getByLabel('Search VMs and hosts').fill('');
  await page.getByLabel('State').selectOption('failed');
  await counted(page, `100 of ${VMS} VMs`);
  await page.getByLabel('State').selectOption('');
}

async function hostile(page) {
  await page.getByLabel('Search VMs and hosts').fill('<img');
  await counted(page, `1 of ${VMS} VMs`);
  await page.waitForFunction(() => document.querySelector('.row:not([hidden])').children[0].textContent === '<img src=x onerror=alert(1)>');
  await page.locator('.row:visible').first().click();
  await page.locator('#side-title', { hasText: '<img src=x' }).waitFor();
  await page.locator('#side').getByText('Timeline').waitFor();
  assert.equal(await page.locator('main img, #side img').count(), 0);
  await shot(page, 'vm');
  await page.locator('#side').getByRole('button', { name: 'Close' }).click();
  await page.getByLabel('Search VMs and hosts').fill('');
}

async function keys(page) {
  await page.getByRole('grid').focus();
  await page.keyboard.press('End');
  await page.locator(`.row.active[aria-rowindex="${VMS + 1}"]`).waitFor();
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowDown');
  await page.locator('.row.active[aria-rowindex="3"]').waitFor();
  await page.keyboard.press('Enter');
  await page.locator('#side[open]').waitFor();
  await page.keyboard.press('Escape');
  await page.locator('#side[open]').waitFor({ state: 'detached' });
  await page.locator('#tab-vms').focus();
  await page.keyboard.press('ArrowRight');
  await page.locator('#tab-waves[aria-selected="true"]').waitFor();
  await page.keyboard.press('ArrowRight');
  await page.locator('#tab-time[aria-selected="true"]').waitFor();
  await page.getByRole('grid', { name: 'When each VM was at work' }).waitFor();
  await page.locator('#tab-vms').click();
}

async function live(page) {
  // The server behind this test tells without end that web7 goes from phase to phase, and rates of its disk.
  await page.getByLabel('Search VMs and hosts').fill('web7 ');
  await page.waitForFunction(() => document.querySelector('.row:not([hidden])')?.children[3].textContent === 'verify');
  await page.waitForFunction(() => document.querySelector('.row:not([hidden])')?.children[5].textContent.endsWith('MB/s'));
  // The phase goes on meanwhile, and with it what a cell tells.
  await page.waitForFunction(() => /source 71 %/.test(document.querySelector('.row:not([hidden])')?.children[6].textContent));
  await page.waitForFunction(() => document.querySelectorAll('#rates path')[0]?.getAttribute('d')?.length > 10);
  await page.getByLabel('Search VMs and hosts').fill('');
}

async function orders(page) {
  const dialog = page.locator('#dialog');
  await page.locator('#orders').getByRole('button', { name: 'Pause' }).click();
  await dialog.getByText('It can be resumed').waitFor();
  await shot(page, 'order');
  await dialog.getByRole('button', { name: 'Back' }).click();
  await page.locator('#orders').getByRole('button', { name: 'Pause' }).click();
  await dialog.getByRole('button', { name: 'Pause' }).click();
  await page.locator('#said', { hasText: 'plan one is pausing' }).waitFor({ state: 'attached' });
  await page.locator('#orders').getByRole('button', { name: 'Cancel' }).click();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await dialog.locator('.problem', { hasText: 'to confirm' }).waitFor();
  await dialog.getByLabel('Type one to confirm').fill('one');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await page.locator('#dialog[open]').waitFor({ state: 'detached' });
}

async function limits(page) {
  const dialog = page.locator('#dialog');
  const disks = dialog.getByLabel('disks');
  const change = dialog.getByRole('button', { name: 'Change' });
  const open = async (expected) => {
    await page.locator('#orders').getByRole('button', { name: 'Limits' }).click();
    await disks.waitFor();
    const rows = await dialog.locator('tbody tr').evaluateAll((rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent)));
    assert.deepEqual(rows, [['rate_limit', '12MiB', '12MiB'], ['disks', expected, '200'], ['vms_per_host', '20', '20']]);
    assert.equal(await disks.inputValue(), expected);
  };
  const refused = async (value, why) => {
    await disks.fill(value);
    await change.click();
    await dialog.locator('#limit-disks-why', { hasText: why }).waitFor();
    assert.deepEqual(await disks.evaluate((field) => [field.getAttribute('aria-invalid'), document.activeElement === field]), ['true', true]);
  };
  await open('200');
  // The daemon refuses the one, and the page the other.
  await refused('0', "disks: '0' is not a number from 1 to 1000");
  await refused('many', "disks: 'many' is not a whole number");
  await shot(page, 'limits');
  await disks.fill('200');
  await change.click();
  await dialog.locator('.problem', { hasText: 'no limit is changed' }).waitFor();
  assert.equal(await dialog.locator('#limit-disks-why').textContent(), '');
  assert.equal(await disks.getAttribute('aria-invalid'), null);
  await disks.fill('8');
  await disks.press('Enter');
  await dialog.locator('#dialog-told', { hasText: 'Limits of plan one: disks 200 -> 8.' }).waitFor();
  await page.locator('#said', { hasText: 'Limits of plan one: disks 200 -> 8.' }).waitFor({ state: 'attached' });
  await page.waitForFunction(() => document.activeElement?.textContent === 'Close');
  await page.keyboard.press('Enter');
  await page.locator('#dialog[open]').waitFor({ state: 'detached' });
  await open('8');
  await dialog.getByLabel('rate_limit').fill('50MiB,\n 08:00-18:00=2MiB');
  await change.click();
  await dialog.locator('#dialog-told', { hasText: 'rate_limit 12MiB -> 50MiB, 08:00-18:00=2MiB' }).waitFor();
  await dialog.getByRole('button', { name: 'Close' }).click();
  await page.locator('#dialog[open]').waitFor({ state: 'detached' });
}

async function retries(page) {
  const dialog = page.locator('#dialog');
  await page.locator('#orders').getByRole('button', { name: 'Try failed again' }).click();
  await dialog.getByText('All VMs that failed are tried again').waitFor();
  await dialog.getByRole('button', { name: 'Back' }).click();
  // One that has not failed has no such button.
  await page.getByLabel('Search VMs and hosts').fill('web2 ');
  await counted(page, `1 of ${VMS} VMs`);
  await page.locator('.row:visible').first().click();
  await page.locator('#side').getByText('Timeline').waitFor();
  assert.equal(await page.locator('#side').getByRole('button', { name: 'Try again' }).count(), 0);
  await page.locator('#side').getByRole('button', { name: 'Close' }).click();
  await page.getByLabel('Search VMs and hosts').fill('web53 ');
  await counted(page, `1 of ${VMS} VMs`);
  await page.locator('.row:visible').first().click();
  await page.locator('#side').getByRole('button', { name: 'Try again' }).click();
  await dialog.getByText('is tried again, in its turn').waitFor();
  await shot(page, 'retry');
  await dialog.getByRole('button', { name: 'Try again' }).click();
  await page.locator('#dialog[open]').waitFor({ state: 'detached' });
  await page.getByLabel('Search VMs and hosts').fill('');
}

async function waves(page) {
  const dialog = page.locator('#dialog');
  await page.locator('#tab-waves').click();
  await counted(page, '2 waves');
  await page.getByRole('button', { name: 'Proceed after pilot' }).click();
  await dialog.getByText('VMs of wave pilot failed').waitFor();
  await dialog.getByRole('button', { name: 'Proceed' }).click();
  await page.locator('#dialog[open]').waitFor({ state: 'detached' });
  await page.getByRole('grid', { name: 'Waves' }).getByText('Sat 22:00-06:00 Europe/Berlin').first().waitFor();
  await page.getByRole('grid', { name: 'Waves' }).getByText('pilot').first().click();
  await counted(page, `${VMS / 2} of ${VMS} VMs`);
  assert.equal(await page.getByLabel('Wave').inputValue(), 'pilot');
  await page.getByLabel('Wave').selectOption('');
  // Each VM says what it waits for, and when it was foreseen to arrive.
  await page.getByLabel('Search VMs and hosts').fill('web2 ');
  await page.waitForFunction(() => document.querySelector('.row:not([hidden])')?.children[6].textContent === 'esx1.lab: 20 of 20 VMs at once');
  await page.getByLabel('Search VMs and hosts').fill('');
  await page.locator('#tab-time').click();
  await page.locator('.row:visible [aria-label*="foreseen to arrive between"]').first().waitFor();
  assert.ok(await page.locator('.row:visible .foreseen:visible').count() > 0, 'frames of the forecast');
}

async function resources(page) {
  await page.locator('#tab-resources').click();
  const hosts = page.getByRole('grid', { name: 'Hosts' });
  await hosts.getByText('20 of 20').first().waitFor();
  await hosts.getByText('7 of any').first().waitFor();
  await page.getByText('VMs that wait: 60 for VM slots of their hosts').waitFor();
}

// However long a list is, the page holds what is seen of it: only then does no step take longer with more VMs.
async function lists(page) {
  for (const [view, rows] of [['vms', VMS], ['time', 100], ['concerns', VMS], ['audit', 0]]) {
    await page.locator(`#tab-${view}`).click();
    const grid = page.locator('#panel .grid');
    await page.waitForFunction((rows) => Number(document.querySelector('#panel .grid')?.getAttribute('aria-rowcount')) > rows, rows);
    await grid.focus();
    await page.keyboard.press('End');
    await page.locator('#panel .row.active').waitFor();
    const held = await page.locator('#panel .row').count();
    assert.ok(held > 0 && held < 80, `${held} rows of ${view} are in the document`);
  }
  await page.locator('#tab-report').click();
  await page.waitForFunction((vms) => document.querySelectorAll('.report pre').length >= vms * 4 / 100, VMS);
  const told = await page.evaluate(() => [...document.querySelectorAll('.report pre')].map((part) => ({
    lines: part.textContent.split('\n').length, visibility: getComputedStyle(part).contentVisibility,
  })));
  assert.ok(told.every((part) => part.lines <= 100 && part.visibility === 'auto'), JSON.stringify(told.slice(0, 3)));
  assert.equal(told.reduce((sum, part) => sum + part.lines, 0), VMS * 4 + 2);
  await page.evaluate(() => { const report = document.querySelector('.report'); report.scrollTop = report.scrollHeight; });
  await page.waitForFunction((last) => [...document.querySelectorAll('.report pre')].at(-1).checkVisibility({ contentVisibilityAuto: true })
    && document.querySelector('.report').textContent.includes(last), `web${VMS - 1}  arrived`);
}

// Told and not asserted: it depends on the machine.
async function tellLong(page, step) {
  const long = await longTasks(page);
  measured.long_tasks ??= {};
  measured.long_tasks[step] = { count: long.length, over_100_ms: long.filter((ms) => ms > 100).length, longest_ms: Math.round(Math.max(0, ...long)) };
}

// Those since they were last taken. The browser tells of one a while after it has ended.
async function longTasks(page) {
  await page.waitForTimeout(300);
  return page.evaluate(() => window.longTasks.splice(0));
}

async function accessible(page, scheme) {
  for (const view of ['vms', 'waves', 'time', 'resources', 'concerns', 'report', 'audit']) {
    await page.locator(`#tab-${view}`).click();
    await page.waitForTimeout(400);
    await check(page, `${view}, ${scheme}`);
    if (scheme === 'dark' || view === 'time') await shot(page, `${view}-${scheme}`);
  }
  await page.locator('#tab-vms').click();
  await page.locator('.row:visible').first().click();
  await page.locator('#side').getByText('Timeline').waitFor();
  await check(page, `a VM, ${scheme}`);
  await page.keyboard.press('Escape');
  await page.locator('#submit').click();
  await check(page, `a new plan, ${scheme}`);
  await page.keyboard.press('Escape');
  await page.locator('#orders').getByRole('button', { name: 'Limits' }).click();
  await page.locator('#dialog').getByLabel('disks').waitFor();
  await check(page, `limits, ${scheme}`);
  await page.keyboard.press('Escape');
}

async function check(page, what) {
  if (!await page.evaluate(() => Boolean(window.axe))) await page.evaluate((await import('node:fs')).readFileSync(axe, 'utf8'));
  const found = await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ['violations'] })).violations);
  const serious = found.filter((it) => ['serious', 'critical'].includes(it.impact)).map((it) => `${it.id}: ${it.nodes[0].html} ${it.nodes[0].failureSummary}`);
  measured.axe_other = [...new Set([...(measured.axe_other ?? []), ...found.filter((it) => !['serious', 'critical'].includes(it.impact)).map((it) => it.id)])];
  assert.deepEqual(serious, [], what);
}

// Frames are told and not asserted: they depend on the machine.
async function scroll(page) {
  const figures = await page.evaluate(async () => {
    const view = document.querySelector('.grid');
    const frames = [];
    let last = performance.now();
    for (let step = 0; step < 240; step += 1) {
      view.scrollTop = (view.scrollHeight - view.clientHeight) * Math.abs(Math.sin(step / 20));
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      frames.push(now - last);
      last = now;
    }
    frames.sort((one, two) => one - two);
    return { frame_ms_p50: frames[120], frame_ms_p99: frames[237], rows: document.querySelectorAll('.row').length };
  });
  Object.assign(measured, figures);
}

async function filter(page) {
  await page.evaluate(async () => {
    const field = document.querySelector('.filters input');
    for (const text of ['w', 'we', 'web', 'web4', 'web', '']) {
      field.value = text;
      field.dispatchEvent(new Event('input', { bubbles: true }));
      await new Promise(requestAnimationFrame);
    }
  });
  await counted(page, `${VMS} of ${VMS} VMs`);
}

// The server behind this test tells without end of VMs and of 400 disks.
async function update(page) {
  await page.waitForTimeout(3000);
}
