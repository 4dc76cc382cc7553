// Login at an issuer: OpenID Connect's authorization code flow with PKCE (RFC 7636), as a client without a secret.
//
// State, nonce and verifier are in this tab's storage from the way to the issuer until the way back, and never after. The daemon
// checks the signatures of tokens; here is checked that they are the answer to this login.

import { token } from './api.js';

const KEY = 'drover-login';
const ANSWER_MS_MAX = 20_000;

const base64url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
/** Where the issuer sends the browser back to. It is registered there. */
const here = () => `${location.origin}/`;

function claimsOf(jwt) {
  const part = (jwt.split('.')[1] ?? '').replaceAll('-', '+').replaceAll('_', '/');
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(part), (char) => char.charCodeAt(0))));
}

/** Why nobody can log in here; null if they can. */
export function hindrance(login) {
  if (!login.endpoints) return 'its issuer cannot be asked now, or tells no endpoints that can be used';
  // Browsers have it for pages that nobody on the way can change.
  return crypto.subtle ? null : 'the page has to come over HTTPS';
}

/** Goes to the issuer; `look` is what is shown again afterwards. */
export async function logIn(login, look) {
  const [state, nonce, verifier] = [random(), random(), random()];
  const challenge = base64url(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier)));
  sessionStorage.setItem(KEY, JSON.stringify({ state, nonce, verifier, look }));
  const url = new URL(login.endpoints.authorization);
  const asked = {
    response_type: 'code', client_id: login.client_id, redirect_uri: here(), scope: login.scope, state, nonce,
    code_challenge: challenge, code_challenge_method: 'S256',
  };
  Object.entries(asked).forEach(([name, value]) => url.searchParams.set(name, value));
  location.assign(url);
}

/** What a way to the issuer left in this tab: what was looked at, and why nobody is logged in if it failed. */
export async function comeBack(login) {
  const answer = new URLSearchParams(location.search);
  const text = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  const begun = text ? JSON.parse(text) : null;
  // Neither a reload nor the history brings a code again.
  if (location.search) history.replaceState(null, '', `/${begun?.look?.hash ?? location.hash}`);
  const look = begun?.look ?? null;
  if (!answer.has('state') && !answer.has('code') && !answer.has('error')) return { look, error: null };
  try {
    await take(login, answer, begun);
    return { look, error: null };
  } catch (error) {
    return { look, error: `Nobody is logged in: ${error.message}` };
  }
}

async function take(login, answer, begun) {
  if (!login?.endpoints) throw new Error('the daemon knows no issuer, or cannot ask it now');
  if (!begun || answer.get('state') !== begun.state) throw new Error('the answer is to no login of this tab; log in again');
  // RFC 9207: an issuer that tells its name tells the right one.
  if (answer.has('iss') && answer.get('iss') !== login.issuer) throw new Error('the answer is of another issuer');
  if (answer.has('error')) throw new Error(`the issuer says ${answer.get('error_description') ?? answer.get('error')}`);
  keep(login, await ask(login, { grant_type: 'authorization_code', code: answer.get('code'), redirect_uri: here(), code_verifier: begun.verifier }), begun.nonce);
}

async function ask(login, form) {
  const answered = await fetch(login.endpoints.token, {
    method: 'POST', body: new URLSearchParams({ client_id: login.client_id, ...form }), headers: { Accept: 'application/json' },
    credentials: 'omit', redirect: 'error', cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS_MAX),
  }).catch(() => { throw new Error('the issuer gives no token to this page; see that it admits the page\'s origin (CORS)'); });
  const answer = await answered.json().catch(() => ({}));
  if (!answered.ok) throw new Error(`the issuer gives no token: ${answer.error_description ?? answer.error ?? `status ${answered.status}`}`);
  return answer;
}

/** Keeps what the issuer gave, if it is for this page and this login (OpenID Connect Core 1.0, 3.1.3.7 and 12.2). */
function keep(login, answer, nonce, before = {}) {
  if (answer.id_token) {
    const claims = claimsOf(answer.id_token);
    const isOurs = claims.iss === login.issuer && [claims.aud].flat().includes(login.client_id);
    if (!isOurs) throw new Error('the token is not for this page');
    if (nonce !== undefined && claims.nonce !== nonce) throw new Error('the token is of another login');
  } else if (!before.id) {
    throw new Error('the issuer gives no ID token');
  }
  const bearer = answer[login.token];
  if (!bearer) throw new Error(`the issuer gives no ${login.token === 'id_token' ? 'ID' : 'access'} token`);
  token.set(bearer, { id: answer.id_token ?? before.id, refresh: answer.refresh_token ?? before.refresh ?? null });
}

/** Gets a new token without anybody at the keys, where the issuer gave what that takes. */
export async function renew(login) {
  const issued = token.issued();
  if (!issued?.refresh || !login?.endpoints) return false;
  try {
    keep(login, await ask(login, { grant_type: 'refresh_token', refresh_token: issued.refresh }), undefined, issued);
    return true;
  } catch {
    return false;
  }
}

/** Forgets the token, and ends the session at the issuer where that is where it came from. */
export function logOut(login) {
  const issued = token.issued();
  token.set(null);
  if (!issued || !login?.endpoints?.end_session) {
    location.reload();
    return;
  }
  const url = new URL(login.endpoints.end_session);
  const asked = { client_id: login.client_id, id_token_hint: issued.id, post_logout_redirect_uri: here() };
  Object.entries(asked).forEach(([name, value]) => url.searchParams.set(name, value));
  location.assign(url);
}
