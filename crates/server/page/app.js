// The page: plans on the left, one of them with its VMs, times, concerns, report and orders.

import { Refused, all, get, getText, planPath, post, session, token, watch } from './api.js';
import { RateChart, gantt } from './chart.js';
import { byId, bytes, el, rate, say, seconds, setText, when, words } from './dom.js';
import { limitsForm } from './limits.js';
import { VirtualList, stateColumn, textColumn } from './list.js';
import { comeBack, hindrance, logIn, logOut, renew } from './login.js';
import { STATES } from './states.js';
import { openVm, waitsFor } from './vm.js';

const DRAW_MS = 250;
const DRAFT_CHARS_MAX = 1_000_000;
/** What VMs wait for, waves and resources are asked for again so often. */
const LOOK_MS = 10_000;
/** Lines of a report that are laid out together; `app.css` has their height. */
const PART_LINES = 100;
const VIEWS = [['vms', 'VMs'], ['waves', 'Waves'], ['time', 'Timeline'], ['resources', 'Resources'], ['concerns', 'Concerns'], ['report', 'Report'], ['audit', 'Audit']];

const app = {
  role: null, seesAll: false, plans: [], plan: null, view: 'vms', vms: [], byName: new Map(), live: new Map(), planLive: null,
  filter: noFilter(), loading: 0, dirty: false, stop: null, greeted: false,
  login: null, following: null, look: null, sheet: null, draft: null, signing: false, ended: false,
};

function noFilter() {
  return { state: '', phase: '', wave: '', search: '' };
}

const may = (role) => ({ viewer: 0, operator: 1, admin: 2 })[app.role] >= ({ viewer: 0, operator: 1, admin: 2 })[role];
const chart = new RateChart(byId('rates'));

// ---- Drawing: data changes as it comes, the page a few times a second.

function touch() {
  if (app.dirty) return;
  app.dirty = true;
  setTimeout(() => requestAnimationFrame(() => { app.dirty = false; draw(); }), DRAW_MS);
}

function draw() {
  drawPlans();
  const plan = current();
  byId('plan').hidden = !plan;
  byId('empty').hidden = Boolean(plan);
  if (!plan) return;
  setText(byId('plan-name'), plan.name);
  setText(byId('plan-facts'), `${words(plan.state)}, project ${plan.project}, began ${when(plan.started_ms)}${plan.ended_ms ? `, ended ${when(plan.ended_ms)}` : ''}`);
  drawError(plan);
  drawOrders(plan);
  drawTiles(plan);
  views[app.view].draw?.();
}

const current = () => app.plans.find((plan) => plan.name === app.plan);

function drawPlans() {
  const wanted = byId('plan-filter').value.toLowerCase();
  const plans = app.plans.filter((plan) => plan.name.toLowerCase().includes(wanted));
  const list = byId('plans');
  const seen = JSON.stringify(plans.map((plan) => [plan.name, plan.state, plan.vms, plan.name === app.plan]));
  if (list.dataset.seen === seen) return;
  list.dataset.seen = seen;
  const focused = document.activeElement?.dataset?.plan;
  list.replaceChildren(...plans.map((plan) => el('li', {}, el('button', {
    type: 'button', 'data-plan': plan.name, 'aria-current': plan.name === app.plan ? 'true' : null, onclick: () => choose(plan.name),
  }, plan.name, el('small', {}, el('span', { class: `state ${plan.state}` }, words(plan.state)), ` ${plan.vms.done + plan.vms.not_cleaned_up} of ${plan.vms.all}`)))));
  if (focused) list.querySelector(`[data-plan="${CSS.escape(focused)}"]`)?.focus();
}

function drawError(plan) {
  const lines = plan.problems.map((it) => `${it.line ? `line ${it.line}: ` : ''}${it.path ? `${it.path}: ` : ''}${it.message}${it.advice ? ` (${it.advice})` : ''}`);
  const text = [plan.error, plan.advice ? `Try: ${plan.advice}` : null, ...(plan.error ? lines : [])].filter(Boolean).join('\n');
  const node = byId('plan-error');
  node.hidden = !text;
  setText(node, text);
}

function drawTiles(plan) {
  const counts = app.vms.length > 0 ? tally() : plan.vms;
  const tiles = [['VMs', counts.all], ...STATES.filter((state) => counts[state] > 0 || ['queued', 'running', 'done', 'failed'].includes(state)).map((state) => [words(state), counts[state]])];
  if (app.planLive) {
    if (plan.foreseen_ms) tiles.push(['foreseen end', when(plan.foreseen_ms[1])]);
    tiles.push(['rate', rate(app.planLive.rate)], ['read', bytes(app.planLive.read_bytes)], ['all copied in', seconds(app.planLive.eta_s)], ['retries', app.planLive.retries]);
  }
  const node = byId('tiles');
  if (node.children.length !== tiles.length) node.replaceChildren(...tiles.map(() => el('div', {}, el('dt'), el('dd'))));
  tiles.forEach(([name, value], at) => {
    setText(node.children[at].children[0], name);
    setText(node.children[at].children[1], String(value));
  });
}

function tally() {
  const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const vm of app.vms) counts[vm.state] += 1;
  return { ...counts, all: app.vms.length };
}

// ---- Orders.

const ORDERS = [
  { order: 'cutover', title: 'Cut over', states: ['running'], text: 'All VMs that are being copied while they run move over now: each is shut down at the source.', warm: true },
  { order: 'retry', title: 'Try failed again', states: ['running'], text: 'All VMs that failed are tried again, each in its turn, while the plan goes on. What was copied is kept.', failed: true },
  { order: 'pause', title: 'Pause', states: ['running', 'checking'], text: 'The plan stops after what is being flushed. It can be resumed.' },
  { order: 'resume', title: 'Resume', states: ['paused', 'incomplete', 'refused', 'queued'], text: 'The plan goes on with all VMs that have not arrived, also with those that failed.' },
  { order: 'limits', title: 'Limits', states: ['running', 'checking', 'pausing', 'paused', 'incomplete'], open: askLimits },
  { order: 'cancel', title: 'Cancel', states: ['running', 'checking', 'pausing', 'paused', 'incomplete', 'refused', 'queued'], danger: true,
    text: 'The plan stops, and what was begun is undone: images of VMs that have not arrived are removed, and what drover switched off is switched on again.' },
];

/** Orders about one VM. */
const OF_ONE = {
  cutover: (name) => `${name} moves over now: it is shut down at the source, and its last changes are copied.`,
  retry: (name) => `${name} is tried again, in its turn, while the plan goes on. What was copied is kept.`,
  cancel: (name) => `${name} is given up while the plan goes on: its images are removed, and if drover switched it off, it is switched on again.`,
};

function drawOrders(plan) {
  const node = byId('orders');
  node.hidden = !may('operator');
  if (node.hidden) return;
  if (node.children.length === 0) {
    node.append(...ORDERS.map((it) => el('button', { type: 'button', class: it.danger ? 'danger' : null, onclick: () => (it.open ?? confirmOrder)(it) }, it.title)));
  }
  ORDERS.forEach((it, at) => {
    node.children[at].disabled = !it.states.includes(plan.state) || (it.warm && !app.vms.some((vm) => vm.warm && !vm.ended_ms)) || (it.failed && !app.vms.some((vm) => vm.state === 'failed'));
  });
}

function confirmOrder(order, vm = null) {
  const plan = app.plan;
  const name = vm ? vm.name : plan;
  const typed = order.danger ? el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false' }) : null;
  const text = vm ? OF_ONE[order.order](vm.name) : order.text;
  ask(`${order.title}: ${name}`, [el('p', {}, text), typed ? el('label', { class: 'field' }, `Type ${plan} to confirm`, typed) : null], order.title, async () => {
    if (typed && typed.value !== plan) throw new Error(`type ${plan} to confirm`);
    const ordered = await post(planPath(plan, '/orders'), { order: order.order, vm: vm ? vm.name : null });
    say(`${order.title}: plan ${plan} is ${words(ordered.after)}`);
    await loadPlans();
  }, order.danger);
}

/** A question with one answer that does something. */
function ask(title, content, action, act, danger = false) {
  const dialog = byId('dialog');
  const problem = el('p', { class: 'problem', role: 'alert' });
  const go = el('button', { type: 'submit', class: danger ? 'danger' : 'main' }, action);
  const form = el('form', { method: 'dialog' }, el('h2', { id: 'dialog-title' }, title), content, problem,
    el('div', { class: 'buttons' }, el('button', { type: 'button', onclick: () => dialog.close() }, 'Back'), go));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    go.disabled = true;
    setText(problem, '');
    try {
      if (await act() !== false) dialog.close();
    } catch (error) {
      const list = (error.problem?.problems ?? []).map((it) => `line ${it.line ?? '?'}: ${it.path}: ${it.message}`);
      setText(problem, [error.message, error.problem?.advice, ...list].filter(Boolean).join('\n'));
    }
    go.disabled = false;
  });
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
}

/** Shows what came of something, until it is closed. */
function tell(title, text, name = null) {
  const dialog = byId('dialog');
  const close = el('button', { type: 'button', class: 'main', 'aria-describedby': 'dialog-told', onclick: () => dialog.close() }, 'Close');
  dialog.replaceChildren(el('h2', { id: 'dialog-title' }, title), el('p', { id: 'dialog-told', class: name }, text), el('div', { class: 'buttons' }, close));
  if (!dialog.open) dialog.showModal();
  close.focus();
}

/** Shows the limits of the plan, and orders others. */
async function askLimits({ order, title: name }) {
  const plan = app.plan;
  const title = `${name}: ${plan}`;
  const limits = await get(planPath(plan, '/limits')).catch((error) => error);
  if (app.plan !== plan || byId('dialog').open) return;
  if (limits instanceof Error) {
    tell(title, [limits.message, limits.problem?.advice].filter(Boolean).join('\n'), 'problem');
    return;
  }
  const form = limitsForm(limits);
  ask(title, form.content, 'Change', async () => {
    try {
      const ordered = await post(planPath(plan, '/orders'), { order, limits: form.changed() });
      const hold = ordered.after === 'running' ? 'They hold within two seconds.' : 'They hold once the plan runs.';
      const text = `Limits of plan ${plan}: ${ordered.limits.changed || 'as they were'}. ${hold}`;
      say(text);
      if (form.isOpen()) tell(title, text);
      return false;
    } catch (error) {
      if (!form.refuse(error)) throw error;
      return false;
    }
  });
}

function askPlan() {
  const keepDraft = () => { app.draft = { text: text.value, project: project.value }; };
  const text = el('textarea', { required: true, spellcheck: 'false', oninput: keepDraft }, app.draft?.text ?? '');
  const project = el('input', { value: app.draft?.project ?? 'default', required: true, oninput: keepDraft });
  const found = el('pre', { hidden: true, tabindex: '0', 'aria-label': 'What the check found' });
  const body = () => ({ text: text.value, project: project.value });
  const check = el('button', { type: 'button', onclick: async () => {
    found.hidden = false;
    setText(found, 'asking the source');
    try {
      const checked = await post('/v1/check', body());
      const lines = [...checked.problems.map((it) => `${it.severity}: ${it.path}: ${it.message}`), ...checked.concerns.map((it) => `${it.severity}: ${it.subject}: ${it.message}`)];
      setText(found, [`${checked.vms} VMs; ${checked.ok ? 'the plan is fine' : 'the plan has errors'}`, ...lines].join('\n'));
    } catch (error) {
      setText(found, error.message);
    }
  } }, 'Check it, changing nothing');
  ask('New plan', [el('label', { class: 'field' }, 'Plan file', text), el('label', { class: 'field' }, 'Project', project), check, found], 'Run it', async () => {
    const plan = await post('/v1/plans', body());
    app.draft = null;
    await loadPlans();
    choose(plan.name);
  });
}

// ---- Who looks.

function askToken(why = null) {
  const input = el('input', { type: 'password', autocomplete: 'off', required: true });
  const text = app.login ? 'Or a token of `drover serve token add`, or a JWT of the issuer.' : 'A token of `drover serve token add`, or a JWT of the issuer.';
  ask('Sign in', [why ? el('p', { class: 'problem', role: 'alert' }, why) : null, app.login ? issuerButton() : null,
    el('p', {}, `${text} It is kept for this tab only.`), el('label', { class: 'field' }, 'Token', input)], 'Sign in', async () => {
    token.set(input.value.trim());
    try {
      app.look ??= lookNow();
      await begin();
    } catch (error) {
      token.set(null);
      throw error;
    }
  });
  Object.assign(app, { signing: true, ended: false });
}

function issuerButton() {
  const why = hindrance(app.login);
  const problem = el('span', { role: 'alert' }, why ? ` It cannot be done: ${why}.` : '');
  const go = el('button', { type: 'button', class: 'main', disabled: Boolean(why), onclick: async () => {
    go.disabled = true;
    try {
      await logIn(app.login, app.look ?? lookNow());
    } catch (error) {
      setText(problem, ` ${error.message}`);
      go.disabled = false;
    }
  } }, `Log in at ${new URL(app.login.issuer).host}`);
  return el('p', { class: 'issuer' }, go, problem);
}

/** What is shown again after a login. A draft that is too long for the tab's storage stays behind. */
function lookNow() {
  const draft = app.draft && app.draft.text.length < DRAFT_CHARS_MAX ? app.draft : null;
  return { hash: location.hash, view: app.view, filter: app.filter, sheet: app.sheet, draft };
}

/** The token counts no more, and no new one can be had: whoever looks is asked to sign in, after what is open now. */
function sessionEnded() {
  if (!app.role || app.signing) return;
  app.ended = true;
  if (!byId('dialog').open) askToken('The login has ended. What is shown now is shown again afterwards.');
}

// ---- Views of a plan.

const shown = () => {
  const search = app.filter.search.toLowerCase();
  return app.vms.filter((vm) => (!app.filter.state || vm.state === app.filter.state) && (!app.filter.phase || vm.phase === app.filter.phase)
    && (!app.filter.wave || vm.wave === app.filter.wave)
    && (!search || vm.name.toLowerCase().includes(search) || (vm.host ?? '').toLowerCase().includes(search)));
};

const openRow = (vm) => {
  app.sheet = vm.name;
  const mayEnd = !['done', 'not_cleaned_up', 'cancelled'].includes(vm.state) && current()?.state === 'running';
  const fits = { cutover: vm.warm && !vm.ended_ms, retry: vm.state === 'failed', cancel: mayEnd };
  const can = may('operator') ? ORDERS.filter((it) => fits[it.order] && it.states.includes(current()?.state)) : [];
  const title = (it) => ({ retry: 'Try again', cancel: 'Give up' }[it.order] ?? it.title);
  openVm(app.plan, vm, app.live.get(vm.name), can.map((it) => el('button', { type: 'button', onclick: () => { byId('side').close(); confirmOrder({ ...it, title: title(it) }, vm); } }, title(it))));
};

const progressOf = (vm) => {
  const live = app.live.get(vm.name);
  if (live) return live.size > 0 ? live.done / live.size : 0;
  return vm.state === 'done' || vm.state === 'not_cleaned_up' ? 1 : 0;
};

function fillProgress(cell, vm) {
  if (!cell.firstChild) cell.append(el('span', { class: 'progress' }, el('span')));
  const share = progressOf(vm);
  cell.firstChild.firstChild.style.transform = `scaleX(${share.toFixed(3)})`;
  const text = `${Math.floor(share * 100)} %`;
  if (cell.getAttribute('aria-label') !== text) { cell.setAttribute('aria-label', text); cell.title = text; }
}

function choice(label, values, take, now = '') {
  return el('label', { class: 'field' }, label, el('select', { onchange: (event) => take(event.target.value) },
    el('option', { value: '' }, 'all'), values.map((value) => el('option', { value, selected: value === now }, words(value)))));
}

const vmList = new VirtualList({
  label: 'VMs', name: 'vms', open: openRow,
  columns: [
    textColumn('VM', (vm) => vm.name), textColumn('Host', (vm) => vm.host ?? '--'),
    stateColumn('State', (vm) => vm.state, (vm) => words(vm.state)), textColumn('Phase', (vm) => (vm.phase ? words(vm.phase) : '--')),
    { title: 'Progress', fill: fillProgress }, textColumn('Rate', (vm) => rate(app.live.get(vm.name)?.rate), { class: 'num' }),
    textColumn('Waits for', (vm) => waitsFor(vm, app.live.get(vm.name))), textColumn('Size', (vm) => bytes(vm.size_bytes), { class: 'num' }),
  ],
});
const timeList = gantt(openRow);
const count = el('p', { class: 'count', role: 'status' });

const views = {
  vms: {
    open: (panel) => {
      const refresh = (key) => (value) => { app.filter[key] = value; views.vms.draw(); };
      const phases = [...new Set(app.vms.map((vm) => vm.phase).filter(Boolean))].sort();
      const waves = [...new Set(app.vms.map((vm) => vm.wave).filter(Boolean))].sort();
      const { state, phase, wave, search: text } = app.filter;
      if (phase && !phases.includes(phase)) phases.push(phase);
      if (wave && !waves.includes(wave)) waves.push(wave);
      const search = el('input', { type: 'search', autocomplete: 'off', value: text, oninput: (event) => refresh('search')(event.target.value) });
      panel.replaceChildren(el('div', { class: 'filters' }, el('label', { class: 'field' }, 'Search VMs and hosts', search),
        choice('State', STATES, refresh('state'), state), choice('Phase', phases, refresh('phase'), phase),
        waves.length > 0 ? choice('Wave', waves, refresh('wave'), wave) : null, count), vmList.node);
      views.vms.draw();
    },
    draw: () => {
      const list = shown();
      setText(count, `${list.length} of ${app.vms.length} VMs${app.loading ? ', loading' : ''}`);
      vmList.show(list);
    },
  },
  time: {
    open: (panel) => { panel.replaceChildren(timeList.list.node); views.time.draw(); },
    draw: () => timeList.show(app.vms),
  },
  waves: { open: openWaves },
  resources: { open: openResources },
  concerns: { open: openConcerns },
  report: { open: openReport },
  audit: { open: openAudit },
};

/** Asks again and again while a view is open; `show` gets each answer. */
async function follow(panel, name, path, show) {
  const plan = app.plan;
  const isOpen = () => app.view === name && app.plan === plan && app.following === turn;
  const turn = app.following = {};
  while (isOpen()) {
    if (!document.hidden) {
      const answer = await get(path()).catch((error) => error);
      if (!isOpen()) return;
      panel.querySelector(':scope > .problem')?.remove();
      if (answer instanceof Error) panel.prepend(el('p', { class: 'problem', role: 'alert' }, answer.message));
      else show(answer);
    }
    await new Promise((done) => { setTimeout(done, LOOK_MS); });
  }
}

const windowOf = ({ windows, freezes, from_ms: from, until_ms: until }) => [...windows, from ? `from ${when(from)}` : null, until ? `until ${when(until)}` : null, ...freezes.map((it) => `not in ${it}`)]
  .filter(Boolean).join(', ') || 'always';

/** A wave's VMs are a click away, and a word where later waves wait for it. */
function openWaves(panel) {
  const list = new VirtualList({
    label: 'Waves', name: 'waves', open: (wave) => { app.filter = { ...noFilter(), wave: wave.name }; app.view = 'vms'; drawTabs(); },
    columns: [textColumn('Wave', (it) => it.name), stateColumn('State', (it) => it.state, (it) => words(it.state)), textColumn('After', (it) => it.after.join(', ') || '--'),
      textColumn('VMs', (it) => String(it.vms), { class: 'num' }), textColumn('Done', (it) => String(it.done), { class: 'num' }), textColumn('Failed', (it) => String(it.failed), { class: 'num' }),
      textColumn('Cancelled', (it) => String(it.cancelled), { class: 'num' }), textColumn('Skipped', (it) => String(it.skipped), { class: 'num' }),
      textColumn('Left', (it) => String(it.left + it.running), { class: 'num' }), textColumn('Window', (it) => windowOf(it.window)), textColumn('Began', (it) => when(it.began_ms)), textColumn('Ended', (it) => when(it.ended_ms))],
  });
  const proceed = el('div', { class: 'filters', role: 'group', 'aria-label': 'Waves that others wait for' });
  const total = el('p', { class: 'count', role: 'status' });
  panel.replaceChildren(el('div', { class: 'filters' }, proceed, total), list.node);
  follow(panel, 'waves', () => planPath(app.plan, '/waves'), ({ items }) => {
    const holds = (wave) => wave.failed > 0 && !wave.may_go_on && wave.if_failed === 'wait' && items.some((it) => it.after.includes(wave.name) && it.state === 'queued');
    const names = may('operator') ? items.filter(holds).map((wave) => wave.name) : [];
    if (proceed.dataset.seen !== names.join('\n')) {
      proceed.dataset.seen = names.join('\n');
      proceed.replaceChildren(...names.map((name) => el('button', { type: 'button', onclick: () => confirmProceed(name) }, `Proceed after ${name}`)));
    }
    setText(total, items.length > 0 ? `${items.length} waves` : 'The plan has no waves.');
    list.show(items);
  });
}

function confirmProceed(wave) {
  const plan = app.plan;
  ask(`Proceed: ${wave}`, [el('p', {}, `VMs of wave ${wave} failed. The waves after it go on all the same.`)], 'Proceed', async () => {
    const ordered = await post(planPath(plan, '/orders'), { order: 'proceed', wave });
    say(`Waves that go on: ${ordered.vms.join(', ')}`);
    if (app.view === 'waves' && app.plan === plan) drawTabs();
  });
}

/** What VMs wait for, by the kinds of the API. */
const WAITS = {
  host_vms: 'VM slots of their hosts', host_disks: 'disk slots of their hosts', longest: 'the longest VM of their host', datastore_disks: 'disk slots of a datastore',
  disks: 'disk slots in all', own_vms: 'VM slots of their plan', own_disks: 'disk slots of their plan', turn: 'their turn', window: 'a window', wave: 'an earlier wave',
  wave_failed: 'a word to proceed', wave_hooks: 'what is called before a wave', retry: 'their next try', host: 'a host that failed', datastore: 'a datastore that failed', anti_affinity: 'a VM that they never run beside',
  stage: 'an earlier stage', together: 'others of their group', cutovers: 'cutover slots', own_cutovers: 'cutover slots of their plan', elsewhere: 'slots that other processes have',
  room: 'room at their targets that others may need',
};

/** What VMs of all plans share. */
function openResources(panel) {
  const of = (now, most) => `${now} of ${most ?? 'any'}`;
  const share = (now, most) => (most ? `${Math.round((100 * now) / most)} %` : '--');
  const list = new VirtualList({
    label: 'Hosts', name: 'resources',
    columns: [textColumn('Host', (it) => it.host), textColumn('VMs', (it) => of(it.vms, it.vms_max), { class: 'num' }), textColumn('In use', (it) => share(it.vms, it.vms_max), { class: 'num' }),
      textColumn('Disks', (it) => of(it.disks, it.disks_max), { class: 'num' }), textColumn('In use', (it) => share(it.disks, it.disks_max), { class: 'num' }), textColumn('VMs that wait', (it) => String(it.waiting), { class: 'num' })],
  });
  const facts = el('p');
  panel.replaceChildren(facts, list.node);
  follow(panel, 'resources', () => '/v1/resources', (now) => {
    const waits = Object.entries(now.waits).sort((one, two) => two[1] - one[1]).map(([what, count]) => `${count} for ${WAITS[what] ?? words(what)}`);
    setText(facts, `Disks of all plans: ${of(now.disks, now.disks_max)}. VMs that wait: ${waits.join(', ') || 'none'}.`);
    list.show([...now.hosts].sort((one, two) => two.waiting - one.waiting));
  });
}

async function openConcerns(panel) {
  const state = { weight: '', kind: '' };
  const found = [];
  const list = new VirtualList({
    label: 'Concerns', name: 'concerns', open: (it) => { const vm = app.byName.get(it.vm); if (vm) openRow(vm); },
    columns: [textColumn('Weight', (it) => words(it.severity)), textColumn('VM', (it) => it.subject), textColumn('Kind', (it) => it.id),
      textColumn('What, and what to do', (it) => `${it.message} (${it.advice})`)],
  });
  const refresh = () => list.show(found.filter((it) => (!state.weight || it.severity === state.weight) && (!state.kind || it.id === state.kind)));
  const filters = el('div', { class: 'filters' });
  panel.replaceChildren(filters, list.node);
  await guarded(panel, async () => {
    found.push(...await all(planPath(app.plan, '/concerns')));
    filters.replaceChildren(choice('Weight', ['blocks', 'warning', 'info'], (value) => { state.weight = value; refresh(); }),
      choice('Kind', [...new Set(found.map((it) => it.id))].sort(), (value) => { state.kind = value; refresh(); }),
      el('p', { class: 'count' }, `${found.length} concerns`));
    refresh();
  });
}

async function openReport(panel) {
  const plan = app.plan;
  const save = (form, ending, type) => el('button', { type: 'button', onclick: () => guarded(panel, async () => {
    const text = await getText(planPath(plan, `/report?format=${form}`));
    const link = el('a', { href: URL.createObjectURL(new Blob([text], { type })), download: `${plan}.${ending}` });
    link.click();
    URL.revokeObjectURL(link.href);
  }) }, `Save as ${ending.toUpperCase()}`);
  const text = el('section', { class: 'report', tabindex: '0', 'aria-label': 'Report' }, el('pre', {}, 'loading'));
  panel.replaceChildren(el('div', { class: 'filters' }, save('html', 'html', 'text/html'), save('json', 'json', 'application/json')), text);
  await guarded(panel, async () => text.replaceChildren(...parts(await getText(planPath(plan, '/report?format=text')))));
}

/** A long text in parts: the browser lays out only those that are seen. */
function parts(text) {
  const lines = text.split('\n');
  const found = [];
  for (let at = 0; at < lines.length; at += PART_LINES) found.push(el('pre', {}, lines.slice(at, at + PART_LINES).join('\n')));
  return found;
}

async function openAudit(panel) {
  const list = new VirtualList({
    label: 'Orders', name: 'audit',
    columns: [textColumn('When', (it) => when(it.at_ms)), textColumn('Who', (it) => it.who), textColumn('Order', (it) => it.action), textColumn('Plan', (it) => it.plan ?? '--'),
      textColumn('VM', (it) => it.vm ?? '--'), textColumn('Before', (it) => it.before ?? '--'), textColumn('After', (it) => it.after ?? '--'), textColumn('Outcome', (it) => it.outcome)],
  });
  panel.replaceChildren(list.node);
  await guarded(panel, async () => list.show(await all('/v1/audit')));
}

async function guarded(panel, work) {
  try {
    await work();
  } catch (error) {
    panel.prepend(el('p', { class: 'problem', role: 'alert' }, error.message));
  }
}

function drawTabs() {
  const open = (name) => { app.view = name; drawTabs(); byId(`tab-${name}`).focus(); };
  const names = VIEWS.filter(([name]) => (name !== 'audit' || may('admin')) && (name !== 'resources' || app.seesAll));
  byId('tabs').replaceChildren(...names.map(([name, title], at) => el('button', {
    type: 'button', role: 'tab', id: `tab-${name}`, 'aria-selected': String(name === app.view), 'aria-controls': 'panel', tabindex: name === app.view ? '0' : '-1',
    onclick: () => open(name),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) open(names[(at + step + names.length) % names.length][0]);
    },
  }, title)));
  const panel = byId('panel');
  panel.setAttribute('aria-labelledby', `tab-${app.view}`);
  views[app.view].open(panel);
}

// ---- Data.

async function loadPlans() {
  app.plans = await all('/v1/plans');
  touch();
}

async function choose(name, filter = noFilter()) {
  app.plan = name;
  app.filter = filter;
  location.hash = encodeURIComponent(name);
  Object.assign(app, { vms: [], byName: new Map(), live: new Map(), planLive: null });
  chart.set([]);
  drawTabs();
  draw();
  await loadVms(name);
}

/** What VMs wait for is told by no event: while some wait, all are looked at again. */
async function lookAgain() {
  const name = app.plan;
  if (document.hidden || app.loading || !['running', 'pausing'].includes(current()?.state) || !app.vms.some((vm) => vm.waits || vm.state === 'queued')) return;
  const vms = await all(planPath(name, '/vms')).catch(() => null);
  if (!vms || app.plan !== name || app.loading) return;
  // The same objects: lists know their rows by them.
  setVms(vms.map((vm) => Object.assign(app.byName.get(vm.name) ?? {}, vm)));
  touch();
}

function setVms(vms) {
  app.vms = vms;
  app.byName = new Map(vms.map((vm) => [vm.name, vm]));
}

async function loadVms(name) {
  const turn = app.loading = Date.now();
  const vms = [];
  const isOld = () => app.plan !== name || app.loading !== turn;
  try {
    await all(planPath(name, '/vms'), (page) => {
      if (isOld()) return;
      vms.push(...page);
      setVms([...vms]);
      touch();
    });
    const rates = await get(planPath(name, '/rates'));
    if (isOld()) return;
    app.loading = 0;
    chart.set(rates.items);
    if (app.view === 'vms') views.vms.open(byId('panel'));
  } catch (error) {
    connection(false, error);
  }
  touch();
}

const EVENTS = {
  phase_started: (vm, event, at) => Object.assign(vm, { state: 'running', phase: event.phase, started_ms: vm.started_ms ?? at, ended_ms: null, next_ms: null, waits: null }),
  vm_ended: (vm, event, at) => Object.assign(vm, { state: event.state, error: event.error, advice: event.advice, ended_ms: at, waits: null }),
  vm_retried: (vm) => Object.assign(vm, { state: 'queued', error: null, advice: null, ended_ms: null, waits: null }),
  pass_waits: (vm, event) => Object.assign(vm, { next_ms: event.next_ms }),
};

function take(kind, data) {
  const isFirst = kind === 'hello' && !app.greeted;
  if (isFirst) app.greeted = true;
  else if (kind === 'reset' || kind === 'hello') {
    loadPlans().catch((error) => connection(false, error));
    if (app.plan) loadVms(app.plan);
  } else if (kind === 'plan') {
    const at = app.plans.findIndex((plan) => plan.name === data.name);
    if (at >= 0) app.plans[at] = data; else app.plans.unshift(data);
    if (data.name === app.plan) {
      if (data.exit !== null) { app.planLive = null; app.live.clear(); }
      if (data.vms.all !== app.vms.length || data.exit !== null) loadVms(app.plan);
    }
  } else if (kind === 'event' && data.plan === app.plan) {
    const vm = app.byName.get(data.event.vm);
    const change = EVENTS[data.event.event];
    if (vm && change) change(vm, data.event, data.at_ms);
    else if (data.event.event === 'plan_started' && app.vms.length === 0) loadVms(app.plan);
  } else if (kind === 'live' && data.plan === app.plan) {
    takeLive(data);
  }
  touch();
}

function takeLive(data) {
  app.planLive = data;
  app.live = new Map();
  for (const disk of data.disks) {
    const sum = app.live.get(disk.vm) ?? { done: 0, size: 0, rate: 0, waits: null };
    sum.done += disk.done_bytes;
    sum.size += disk.size_bytes;
    sum.rate += disk.rate_bytes_per_s ?? 0;
    if (disk.waits_for) sum.waits = `${disk.waits_for} ${Math.round((disk.waits_for_share ?? 0) * 100)} %`;
    else if (disk.activity === 'queued') sum.waits ??= 'a slot';
    app.live.set(disk.vm, sum);
  }
  chart.add(Date.now(), data.rate ?? 0);
}

// ---- Beginning.

function connection(is, error) {
  const node = byId('connection');
  node.classList.toggle('bad', !is);
  setText(node, is ? 'live' : error instanceof Refused ? error.message : 'not connected; trying again');
}

async function begin() {
  const about = await get('/v1/about');
  app.role = about.caller.role;
  const { name, grants } = about.caller;
  app.seesAll = grants.some(({ project }) => project === null);
  const roles = grants.map(({ role, project }) => `${role}${project ? ` of ${project}` : ''}`).join(', ');
  setText(byId('caller'), `${name}, ${roles}, drover ${about.version}`);
  setText(byId('sign'), token.get() ? 'Sign out' : 'Sign in');
  byId('submit').hidden = !may('operator');
  byId('orders').replaceChildren();
  await loadPlans();
  drawTabs();
  app.stop?.();
  app.greeted = false;
  app.stop = watch(take, connection);
  const look = app.look;
  app.look = null;
  const wanted = decodeURIComponent(location.hash.slice(1));
  const first = app.plans.find((plan) => plan.name === wanted) ?? app.plans[0];
  if (first) await choose(first.name, show(look));
  draw();
  const vm = look?.sheet && app.byName.get(look.sheet);
  if (vm) openRow(vm);
}

/** Shows what was looked at before a login; gives its filter. */
function show(look) {
  if (!look) return noFilter();
  app.draft = look.draft;
  const isFor = { audit: may('admin'), resources: app.seesAll };
  if (VIEWS.some(([name]) => name === look.view) && (isFor[look.view] ?? true)) app.view = look.view;
  return { ...noFilter(), ...look.filter };
}

async function start() {
  app.login = (await get('/v1/login').catch(() => ({ oidc: null }))).oidc;
  session.renew = () => renew(app.login);
  session.ended = sessionEnded;
  const { look, error } = await comeBack(app.login);
  app.look = look;
  try {
    await begin();
  } catch (refused) {
    connection(false, refused);
    setText(byId('empty'), 'Sign in to see plans.');
    if (refused instanceof Refused && refused.status === 401) askToken(error);
    return;
  }
  if (error) askToken(error);
}

byId('plan-filter').addEventListener('input', drawPlans);
byId('submit').addEventListener('click', askPlan);
byId('sign').addEventListener('click', () => {
  if (token.get()) logOut(app.login); else askToken();
});
byId('dialog').addEventListener('close', () => {
  app.signing = false;
  if (app.ended) askToken('The login has ended. What is shown now is shown again afterwards.');
});
byId('side').addEventListener('close', () => { app.sheet = null; });
byId('theme').addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  localStorage.setItem('drover-theme', document.documentElement.dataset.theme);
});
const theme = localStorage.getItem('drover-theme');
if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;

setInterval(lookAgain, LOOK_MS);
// What a browser kept while somebody was at the issuer begins anew.
addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
start();
