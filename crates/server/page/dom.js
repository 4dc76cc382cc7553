// Elements without markup: whatever a name holds, it becomes text.

/** An element with attributes, listeners (`onclick`) and children, which are elements or text. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'class') node.className = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only if it changed, so that nothing is laid out anew for it, and keeps the node that holds it. */
export function setText(node, text) {
  const held = node.firstChild;
  if (held instanceof Text && !held.nextSibling) {
    if (held.data !== text) held.data = text;
  } else if (node.textContent !== text) node.textContent = text;
}

/** Tells a screen reader. */
export function say(text) {
  setText(byId('said'), text);
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(count) {
  if (count === null || count === undefined) return '--';
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(perSecond) {
  if (!perSecond) return '--';
  for (const [size, unit] of [[1e9, 'GB/s'], [1e6, 'MB/s'], [1e3, 'kB/s']]) {
    if (perSecond >= size) return `${(perSecond / size).toFixed(perSecond / size >= 100 ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(perSecond)} B/s`;
}

export function seconds(total) {
  if (total === null || total === undefined || !Number.isFinite(total)) return '--';
  const whole = Math.round(total);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (hours > 0) return `${hours} h ${String(minutes).padStart(2, '0')} min`;
  return minutes > 0 ? `${minutes} min ${String(rest).padStart(2, '0')} s` : `${rest} s`;
}

export function when(ms) {
  if (!ms) return '--';
  const time = new Date(ms);
  const two = (number) => String(number).padStart(2, '0');
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export const words = (state) => String(state).replaceAll('_', ' ');
