// A list of any length: only the rows that are seen exist.

import { el, setText } from './dom.js';

const ROW = 30;
const HEAD = 32;
const SPARE = 6;
let lists = 0;

/**
 * `columns` are { title, class, fill(cell, item) }; `open(item)` is called for a click or Enter.
 * Rows are made once and filled anew as they come into sight.
 */
export class VirtualList {
  constructor({ label, name, columns, open }) {
    this.columns = columns;
    this.open = open;
    this.items = [];
    this.active = -1;
    this.rows = [];
    this.height = 0;
    this.id = `list-${lists += 1}`;
    const head = el('div', { role: 'row', class: `head cols-${name}` },
      columns.map((column) => el('span', { role: 'columnheader', class: column.class }, column.title)));
    this.space = el('div', { class: 'space', role: 'rowgroup' });
    this.node = el('div', { class: 'grid', role: 'grid', 'aria-label': label, tabindex: '0', 'aria-readonly': 'true' },
      el('div', { role: 'rowgroup', class: 'heads' }, head), this.space);
    this.name = name;
    this.node.addEventListener('scroll', () => this.later(), { passive: true });
    this.node.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => { this.height = this.node.clientHeight - HEAD; this.later(); }).observe(this.node);
  }

  /** Shows these items. */
  show(items) {
    const kept = this.items[this.active];
    this.items = items;
    this.active = kept ? items.indexOf(kept) : -1;
    this.node.setAttribute('aria-rowcount', String(items.length + 1));
    this.space.style.height = `${items.length * ROW}px`;
    this.later();
  }

  /** Fills what is seen at the next frame. */
  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.draw(); });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW) - SPARE);
    const count = Math.ceil(this.height / ROW) + 2 * SPARE;
    const last = Math.min(this.items.length, first + count);
    while (this.rows.length < last - first) this.rows.push(this.make());
    this.turn(first);
    this.rows.forEach((row, number) => {
      const index = first + number;
      row.node.hidden = index >= last;
      if (row.node.hidden) return;
      const item = this.items[index];
      if (row.index !== index) {
        row.index = index;
        row.node.style.top = `${index * ROW}px`;
        row.node.setAttribute('aria-rowindex', String(index + 2));
        row.node.id = `${this.id}-${index}`;
      }
      row.node.classList.toggle('active', index === this.active);
      this.columns.forEach((column, at) => column.fill(row.cells[at], item));
    });
    // A row that is out of sight is in no document.
    if (this.active >= first && this.active < last) this.node.setAttribute('aria-activedescendant', `${this.id}-${this.active}`);
    else this.node.removeAttribute('aria-activedescendant');
  }

  /** Brings rows that went out of sight at one end to the other, so that those still seen stay what they are. */
  turn(first) {
    const gone = first - (this.first ?? first);
    this.first = first;
    if (Math.abs(gone) >= this.rows.length) return;
    for (let count = gone; count > 0; count -= 1) {
      const row = this.rows.shift();
      this.rows.push(row);
      this.space.append(row.node);
    }
    for (let count = gone; count < 0; count += 1) {
      const row = this.rows.pop();
      this.rows.unshift(row);
      this.space.prepend(row.node);
    }
  }

  make() {
    const cells = this.columns.map((column) => el('span', { role: 'gridcell', class: column.class }));
    const row = { index: -1, cells };
    row.node = el('div', { role: 'row', class: `row cols-${this.name}`, onclick: () => { this.activate(row.index); this.openActive(); } }, cells);
    this.space.append(row.node);
    return row;
  }

  activate(index) {
    this.active = Math.max(0, Math.min(index, this.items.length - 1));
    const top = this.active * ROW;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top + ROW > this.node.scrollTop + this.height) this.node.scrollTop = top + ROW - this.height;
    this.draw();
  }

  openActive() {
    const item = this.items[this.active];
    if (item && this.open) this.open(item);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.height / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps && this.items.length > 0) this.activate(Math.max(0, this.active) + steps[event.key]);
    else if (event.key === 'Enter' || event.key === ' ') this.openActive();
    else return;
    event.preventDefault();
  }
}

/** A column of plain text. */
export const textColumn = (title, text, more = {}) => ({ title, fill: (cell, item) => setText(cell, text(item)), ...more });

/** A column with a state in its colour and sign. */
export const stateColumn = (title, state, text) => ({
  title,
  fill: (cell, item) => {
    const name = `state ${state(item)}`;
    if (cell.className !== name) cell.className = name;
    setText(cell, text(item));
  },
});
