// One VM: where it stands, what it waits for, its phases, disks and concerns.

import { get, planPath } from './api.js';
import { byId, bytes, el, rate, seconds, when, words } from './dom.js';

const EVENTS_SHOWN_MAX = 100;

export const table = (caption, heads, rows) => el('table', {},
  el('caption', { class: 'visually-hidden' }, caption),
  el('thead', {}, el('tr', {}, heads.map((head) => el('th', { scope: 'col' }, head)))),
  el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell) => el('td', {}, cell))))));

/** What it waits for now, in words. */
export function waitsFor(vm, live) {
  if (vm.state === 'queued') return vm.waits ?? 'its turn';
  if (live?.waits) return live.waits;
  if (vm.waits) return vm.waits;
  if (vm.next_ms && vm.next_ms > Date.now()) return `next pass at ${when(vm.next_ms)}`;
  return vm.state === 'running' && vm.phase ? words(vm.phase) : '--';
}

/** Opens the sheet of a VM; `orders` are buttons for it. */
export async function openVm(plan, vm, live, orders) {
  const side = byId('side');
  const body = el('div', {}, el('p', {}, 'loading'));
  side.replaceChildren(
    el('h2', { id: 'side-title' }, vm.name),
    el('p', {}, `${words(vm.state)}${vm.phase ? ` in ${words(vm.phase)}` : ''}; waits for ${waitsFor(vm, live)}`),
    el('div', { class: 'buttons' }, orders, el('button', { type: 'button', onclick: () => side.close() }, 'Close')),
    body,
  );
  if (!side.open) side.showModal();
  try {
    body.replaceChildren(...parts(await get(planPath(plan, `/vms/${encodeURIComponent(vm.id)}`))));
  } catch (error) {
    body.replaceChildren(el('p', { class: 'problem' }, error.message));
  }
}

function parts(details) {
  const { vm } = details;
  const list = [];
  if (vm.error) list.push(el('p', { class: 'problem' }, vm.error), el('p', {}, vm.advice ? `Try: ${vm.advice}` : ''));
  list.push(el('h3', {}, 'Timeline'), table('Phases', ['Phase', 'Began', 'Took'], details.phases.map((phase, at) => [
    words(phase.phase), when(phase.started_ms),
    phase.ended_ms ? seconds((phase.ended_ms - phase.started_ms) / 1000) : vm.state === 'running' && at === details.phases.length - 1 ? 'at work' : 'did not end',
  ])));
  list.push(el('h3', {}, 'Disks'), table('Disks', ['Disk', 'Size', 'Rate', 'Equal'], details.disks.map((disk) => [
    disk.label ?? '--', bytes(disk.size), rate(disk.read_rate), disk.equal === null || disk.equal === undefined ? 'not checked' : disk.equal ? 'yes' : 'NO',
  ])));
  if (details.warm) {
    list.push(el('h3', {}, 'Passes'), table('Passes', ['Pass', 'Kind', 'Changed', 'Began'], details.warm.passes.map((pass) => [
      pass.number, words(pass.kind), bytes(pass.changed_bytes), when(pass.began_ms),
    ])));
  }
  if (details.concerns.length > 0) {
    list.push(el('h3', {}, 'To know'), table('Concerns', ['Weight', 'What', 'What to do'], details.concerns.map((it) => [
      words(it.severity), it.message, it.advice,
    ])));
  }
  const events = details.events.slice(-EVENTS_SHOWN_MAX).reverse();
  list.push(el('h3', {}, 'Events'), table('Events', ['When', 'Phase', 'What'], events.map((event) => [
    when(event.at_ms), event.phase ? words(event.phase) : '', `${event.kind} ${event.text}`.trim(),
  ])));
  return list;
}

