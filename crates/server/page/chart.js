// Rates over time, and when each VM was at work and was foreseen to arrive.

import { el, rate, setText, when, words } from './dom.js';
import { VirtualList, stateColumn } from './list.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 1000;
const HEIGHT = 50;
const POINTS_MAX = 900;

/** The chart of a plan's rates. */
export class RateChart {
  constructor(figure) {
    this.figure = figure;
    this.points = [];
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute('preserveAspectRatio', 'none');
    this.svg.setAttribute('role', 'img');
    this.path = document.createElementNS(SVG, 'path');
    this.svg.append(this.path);
    figure.append(this.svg);
  }

  set(points) {
    this.points = points.slice(-POINTS_MAX);
    this.draw();
  }

  add(atMs, value) {
    this.points.push({ at_ms: atMs, read_rate: value });
    if (this.points.length > POINTS_MAX) this.points.shift();
    this.draw();
  }

  draw() {
    this.figure.hidden = this.points.length < 2;
    if (this.figure.hidden) return;
    const most = Math.max(1, ...this.points.map((point) => point.read_rate));
    const [first, last] = [this.points[0].at_ms, this.points.at(-1).at_ms];
    const x = (at) => ((at - first) / Math.max(1, last - first)) * WIDTH;
    const y = (value) => HEIGHT - 1 - (value / most) * (HEIGHT - 4);
    const steps = this.points.map((point, at) => `${at === 0 ? 'M' : 'L'}${x(point.at_ms).toFixed(1)} ${y(point.read_rate).toFixed(1)}`);
    this.path.setAttribute('d', steps.join(''));
    const text = `Bytes read per second: now ${rate(this.points.at(-1).read_rate)}, at most ${rate(most)}, since ${when(first)}`;
    this.svg.setAttribute('aria-label', text);
    setText(this.figure.querySelector('figcaption'), text);
  }
}

/** When each VM was at work, as bars, and between which moments it was foreseen to arrive, as frames. */
export function gantt(open) {
  const bounds = { first: 0, last: 1, now: 1 };
  const place = (cell, vm) => {
    if (!cell.firstChild) cell.append(el('div', { class: 'track' }, el('span'), el('span', { class: 'foreseen' })));
    const [bar, foreseen] = cell.firstChild.children;
    const share = (at) => ((at - bounds.first) / Math.max(1, bounds.last - bounds.first)) * 100;
    const span = (node, from, to) => {
      node.style.left = `${share(from).toFixed(2)}%`;
      node.style.width = `${Math.max(0, share(to) - share(from)).toFixed(2)}%`;
    };
    bar.hidden = !vm.started_ms;
    foreseen.hidden = !vm.foreseen_ms;
    if (!bar.hidden) {
      bar.className = vm.state;
      span(bar, vm.started_ms, vm.ended_ms ?? Math.max(vm.started_ms, bounds.now));
    }
    if (!foreseen.hidden) span(foreseen, vm.foreseen_ms[0], vm.foreseen_ms[2]);
    const was = vm.started_ms ? `${when(vm.started_ms)} to ${vm.ended_ms ? when(vm.ended_ms) : 'now'}` : 'not begun';
    const text = `${vm.name}: ${was}${vm.foreseen_ms ? `; foreseen to arrive between ${when(vm.foreseen_ms[0])} and ${when(vm.foreseen_ms[2])}` : ''}`;
    if (cell.title !== text) {
      cell.title = text;
      cell.setAttribute('aria-label', text);
    }
  };
  const list = new VirtualList({
    label: 'When each VM was at work',
    name: 'gantt',
    open,
    columns: [
      { title: 'VM', fill: (cell, vm) => setText(cell, vm.name) },
      stateColumn('State', (vm) => vm.state, (vm) => words(vm.state)),
      { title: 'Time', fill: place },
    ],
  });
  const show = (vms) => {
    const known = vms.filter((vm) => vm.started_ms || vm.foreseen_ms);
    const isAtWork = known.some((vm) => vm.started_ms && !vm.ended_ms);
    bounds.now = isAtWork ? Date.now() : 0;
    bounds.first = known.reduce((first, vm) => Math.min(first, vm.started_ms ?? vm.foreseen_ms[0]), Infinity);
    bounds.last = known.reduce((last, vm) => Math.max(last, vm.ended_ms ?? bounds.now, vm.foreseen_ms?.[2] ?? 0), 0);
    const begins = (vm) => vm.started_ms ?? Infinity;
    const ends = (vm) => vm.foreseen_ms?.[1] ?? Infinity;
    list.show([...known].sort((one, two) => (begins(one) === begins(two) ? ends(one) - ends(two) || 0 : begins(one) - begins(two))));
  };
  return { list, show, bounds };
}
