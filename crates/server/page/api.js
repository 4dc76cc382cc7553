// The API: one token, kept for this tab, and one stream of events.

const KEY = 'drover-token';
const ISSUED = 'drover-issued';
const RECONNECT_MS = [500, 1000, 2000, 5000, 10000];
const PAGE = 1000;
const PAGES_MAX = 100;

const keep = (key, text) => (text ? sessionStorage.setItem(key, text) : sessionStorage.removeItem(key));

export const token = {
  get: () => sessionStorage.getItem(KEY),
  /** What else an issuer gave with it; null of one that was typed in. */
  issued: () => JSON.parse(sessionStorage.getItem(ISSUED) ?? 'null'),
  set: (text, issued = null) => {
    keep(KEY, text);
    keep(ISSUED, text && issued ? JSON.stringify(issued) : null);
  },
};

/** What is done about a token that counts no more: `renew` gets another if it can, and `ended` is told where it cannot. */
export const session = { renew: async () => false, ended: () => {} };

/** What the daemon said no with. */
export class Refused extends Error {
  constructor(problem, status) {
    super(problem.detail ?? `the daemon answered with status ${status}`);
    this.problem = problem;
    this.status = status;
  }
}

function fields(more = {}) {
  const text = token.get();
  return text ? { Authorization: `Bearer ${text}`, ...more } : more;
}

async function send(path, options = {}) {
  const used = token.get();
  const ask = () => fetch(path, { ...options, headers: fields(options.headers) });
  let response = await ask();
  if (response.status === 401 && used && await renewed(used)) response = await ask();
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401 && used) session.ended();
  throw new Refused(problem, response.status);
}

let renewing = null;

/** Whether there is another token now than the one that was refused. Requests that were refused together ask for one. */
async function renewed(used) {
  if (token.get() !== used) return token.get() !== null;
  renewing ??= session.renew().finally(() => { renewing = null; });
  return renewing;
}

export async function get(path) {
  return (await send(path)).json();
}

export async function getText(path) {
  return (await send(path)).text();
}

/** Orders something once, however often the network makes it be sent. */
export async function post(path, body) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': key };
  return (await send(path, { method: 'POST', headers, body: JSON.stringify(body) })).json();
}

/** All items of a list, page by page; `each` gets every page as it comes. */
export async function all(path, each = () => {}) {
  const items = [];
  let cursor = '';
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const sign = path.includes('?') ? '&' : '?';
    const got = await get(`${path}${sign}limit=${PAGE}${cursor}`);
    items.push(...got.items);
    each(got.items);
    if (!got.next) break;
    cursor = `&cursor=${encodeURIComponent(got.next)}`;
  }
  return items;
}

export const planPath = (plan, rest = '') => `/v1/plans/${encodeURIComponent(plan)}${rest}`;

/** Watches the daemon; `take` gets each event, `state` whether there is a stream. It comes again by itself. */
export function watch(take, state) {
  const control = new AbortController();
  run(control.signal, take, state);
  return () => control.abort();
}

async function run(signal, take, state) {
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      const response = await send('/v1/events', { signal });
      await read(response.body.getReader(), (kind, data) => {
        tries = 0;
        if (kind === 'hello') state(true, null);
        take(kind, data);
      });
    } catch (error) {
      if (signal.aborted) return;
      state(false, error);
      if (error instanceof Refused && error.status === 401) return;
    }
    await new Promise((done) => { setTimeout(done, RECONNECT_MS[Math.min(tries, RECONNECT_MS.length - 1)]); });
  }
}

async function read(reader, take) {
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const lines = text.slice(0, end).split('\n');
      text = text.slice(end + 2);
      const field = (name) => lines.find((line) => line.startsWith(name))?.slice(name.length);
      const [kind, data] = [field('event: '), field('data: ')];
      if (kind) take(kind, data ? JSON.parse(data) : {});
    }
  }
}
