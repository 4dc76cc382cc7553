// Login of the daemon's page at an issuer, in a headless Chromium: by code and PKCE, what is refused, a token that ends, and logout.
//
//   node login.mjs MODULES URL ISSUER ENDED-TOKEN      ends with 1 if something is wrong

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [modules, url, issuer, ended] = process.argv.slice(2);
const require = createRequire(join(modules, 'package.json'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'drover-login-'));
const kept = (page) => page.evaluate(() => Object.keys(sessionStorage).sort());
const dialog = (page) => page.locator('#dialog');

const context = await chromium.launchPersistentContext(folder, {
  executablePath: process.env.DROVER_CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  bypassCSP: false,
  viewport: { width: 1280, height: 720 },
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

try {
  const page = context.pages()[0] ?? await context.newPage();
  page.setDefaultTimeout(20_000);
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  await accessible(page);
  await nobody(page);
  await expires(page);
  await renews(page);
  await leaves(page);
  assert.deepEqual(errors, []);
} finally {
  await context.close();
  rmSync(folder, { recursive: true, force: true });
}

/** To the issuer, and back by one of its links. */
async function logIn(page, link) {
  await dialog(page).getByRole('button', { name: 'Log in at' }).click();
  await page.waitForURL(`${issuer}/authorize**`);
  await page.getByRole('link', { name: link, exact: true }).click();
  await page.waitForURL(`${url}/**`);
  await page.waitForFunction(() => location.search === '');
}

async function signedIn(page) {
  await page.locator('#caller').getByText('ann of').waitFor();
  await page.locator('#connection', { hasText: 'live' }).waitFor();
}

/** The token has ended, and whoever looks does something. */
async function end(page) {
  await page.evaluate((text) => sessionStorage.setItem('drover-token', text), ended);
  await page.locator('#tab-report').click();
}

async function accessible(page) {
  await page.goto(url);
  await dialog(page).getByRole('button', { name: 'Log in at' }).waitFor();
  await dialog(page).getByLabel('Token').waitFor();
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ['violations'] })).violations);
  assert.deepEqual(found.filter((it) => ['serious', 'critical'].includes(it.impact)).map((it) => it.id), []);
}

/** What lets nobody in. */
async function nobody(page) {
  await page.goto(`${url}/?code=code-0&state=forged`);
  await dialog(page).getByText('the answer is to no login of this tab').waitFor();
  assert.equal(await page.evaluate(() => location.search), '');
  await logIn(page, 'Another state');
  await dialog(page).getByText('the answer is to no login of this tab').waitFor();
  await logIn(page, 'Deny');
  await dialog(page).getByText('the issuer says not today').waitFor();
  await logIn(page, 'Another nonce');
  await dialog(page).getByText('the token is of another login').waitFor();
  assert.deepEqual(await kept(page), [], 'nothing of it stays');
}

async function expires(page) {
  await logIn(page, 'Continue');
  await signedIn(page);
  assert.deepEqual(await kept(page), ['drover-issued', 'drover-token'], 'state, nonce and verifier are gone');
  // The policy admits the issuer's endpoint for tokens, and nothing else of it.
  const asked = (path) => page.evaluate((it) => fetch(it).then(() => 'answered', () => 'refused'), `${issuer}${path}`);
  assert.equal(await asked('/open'), 'refused');
  await page.locator('[data-plan="three"]').click();
  await page.locator('.count', { hasText: '200 of 200 VMs' }).waitFor();
  await page.getByLabel('Search VMs and hosts').fill('web7');
  await page.getByLabel('State').selectOption('running');
  await end(page);
  await dialog(page).getByText('The login has ended').waitFor();
  await logIn(page, 'Continue');
  await signedIn(page);
  await page.locator('#tab-report[aria-selected="true"]').waitFor();
  await page.locator('#plan-name', { hasText: 'three' }).waitFor();
  await page.locator('#tab-vms').click();
  assert.equal(await page.getByLabel('Search VMs and hosts').inputValue(), 'web7');
  assert.equal(await page.getByLabel('State').inputValue(), 'running');
}

async function renews(page) {
  await page.locator('#sign').click();
  await dialog(page).getByRole('button', { name: 'Log in at' }).waitFor();
  assert.deepEqual(await kept(page), []);
  await logIn(page, 'Continue and stay');
  await signedIn(page);
  await page.waitForFunction(() => document.querySelector('#plan-name').textContent);
  await end(page);
  await page.waitForFunction((old) => sessionStorage.getItem('drover-token') !== old, ended);
  await page.locator('#panel pre', { hasText: 'report' }).waitFor();
  assert.equal(await page.locator('#dialog[open]').count(), 0);
}

async function leaves(page) {
  // Its only refresh token was used, and the next one that ends asks for a login.
  await page.evaluate((text) => sessionStorage.setItem('drover-token', text), ended);
  await page.evaluate(() => sessionStorage.removeItem('drover-issued'));
  await page.locator('#tab-concerns').click();
  await dialog(page).getByText('The login has ended').waitFor();
}
