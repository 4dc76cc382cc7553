//! JWTs of an OpenID Connect issuer: which of its keys sign them, whom they are for, and what their bearers may do here; and where
//! the page logs in for one.
//!
//! Only asymmetric signatures count, each with a key of its own kind. Keys are looked up at the issuer when they are old or a token
//! names one that is not known, and not more often than every ten seconds, whatever is sent. An issuer that is away
//! hinders nobody whose key is known.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::auth::{Caller, Denied, Grant};
use crate::jwt::{Jwt, Key, subject};

/// A JWT is not longer.
const JWT_CHARS_MAX: usize = 16 << 10;
/// Bytes of a document of the issuer's.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// The URL of an endpoint is not longer.
const URL_CHARS_MAX: usize = 2_048;
/// Keys of an issuer that are kept.
const KEYS_MAX: usize = 64;
/// The issuer is not asked again before that.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// Older keys are looked up anew, beside the requests.
const OLD_AFTER: Duration = Duration::from_secs(10 * 60);
/// Older keys do not count: the issuer was away all the time, and may have withdrawn them.
const DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How an issuer is asked. It blocks, for some seconds at most.
pub trait IssuerDocuments: Debug + Send + Sync {
    /// The document at a URL, of at most so many bytes.
    ///
    /// # Errors
    /// Why there is none.
    fn get(&self, url: &str, bytes_max: usize) -> Result<Vec<u8>, String>;
}

/// An issuer, and what its tokens are good for.
#[derive(Clone, Debug)]
pub struct OidcOptions {
    /// Its URL, exactly as tokens name it in `iss`.
    pub issuer: String,
    /// What tokens name in `aud`: the client id.
    pub audience: String,
    /// The claim with groups or roles; dots lead into objects.
    pub claim: String,
    /// What each of its values grants.
    pub roles: Vec<(String, Grant)>,
    /// The client that the page logs in as; absent: the page takes tokens only.
    pub client: Option<LoginClient>,
    /// How it is asked.
    pub documents: Arc<dyn IssuerDocuments>,
}

/// The page as a client of the issuer's. It has no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginClient {
    /// The client's id.
    pub id: String,
    /// Scopes that are asked for, with spaces between; `openid` is among them.
    pub scope: String,
}

/// How the page logs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Login {
    issuer: String,
    client_id: String,
    scope: String,
    /// Which of the issuer's tokens counts here.
    token: Bearer,
    /// Absent while the issuer tells none that can be used.
    endpoints: Option<Endpoints>,
}

/// A token of the issuer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bearer {
    /// Its `aud` is the client.
    IdToken,
    /// Its `aud` is whom it is for.
    AccessToken,
}

/// Where a browser logs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Endpoints {
    authorization: String,
    token: String,
    end_session: Option<String>,
}

/// An issuer and its keys.
#[derive(Debug)]
pub(crate) struct Oidc {
    options: OidcOptions,
    known: Mutex<Known>,
    /// Held by who asks the issuer.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Known {
    keys: Vec<Key>,
    /// When the keys came.
    came: Option<Instant>,
    /// When the issuer was asked last.
    asked: Option<Instant>,
    /// Why it gave no keys then.
    error: Option<String>,
    /// Where a browser logs in, as the issuer told last.
    endpoints: Option<Endpoints>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    end_session_endpoint: Option<String>,
}

/// Keys one by one: one that this program cannot read must not hide the others.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Oidc {
    pub(crate) fn new(options: OidcOptions) -> Oidc {
        Oidc { options, known: Mutex::default(), asking: Arc::default() }
    }

    /// Whether a token may be one of an issuer's, and not one of the daemon's.
    pub(crate) fn takes(token: &str) -> bool {
        token.len() <= JWT_CHARS_MAX && token.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Who has this token.
    ///
    /// # Errors
    /// Why it is nobody.
    pub(crate) async fn caller(self: &Arc<Self>, token: &str, now: Instant) -> Result<Caller, Denied> {
        let jwt = Jwt::parse(token).ok_or(Denied::Unknown)?;
        if let Some(key) = self.key(&jwt, now) {
            self.renew(now);
            return self.judge(&jwt, &key);
        }
        self.ask(now).await;
        let none = || self.error().map_or(Denied::Unknown, Denied::Issuer);
        self.judge(&jwt, &self.key(&jwt, now).ok_or_else(none)?)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key for a token. A token that names none is for the only key of its kind.
    fn key(&self, jwt: &Jwt<'_>, now: Instant) -> Option<Key> {
        let known = self.known();
        known.came.filter(|came| now.saturating_duration_since(*came) < DEAD_AFTER)?;
        let mut fitting = known.keys.iter().filter(|key| key.is_for(jwt));
        let key = fitting.next()?;
        (jwt.id().is_some() || fitting.next().is_none()).then(|| key.clone())
    }

    /// Looks the keys up, unless that was tried a moment ago. One asks, and the others wait for it.
    pub(crate) async fn ask(self: &Arc<Self>, now: Instant) {
        let asking = self.asking.clone().lock_owned().await;
        if let Some(asked) = self.begin(asking, now)
            && let Err(error) = asked.await
        {
            self.known().error = Some(error.to_string());
        }
    }

    /// Looks keys up that are old. Nobody waits for it.
    fn renew(self: &Arc<Self>, now: Instant) {
        let came = self.known().came;
        if came.is_some_and(|came| now.saturating_duration_since(came) >= OLD_AFTER)
            && let Ok(asking) = self.asking.clone().try_lock_owned()
        {
            drop(self.begin(asking, now));
        }
    }

    /// Asks on a thread that holds the lock until it has the answer, whether or not somebody still waits for that.
    fn begin(self: &Arc<Self>, asking: OwnedMutexGuard<()>, now: Instant) -> Option<JoinHandle<()>> {
        let is_early = |asked: Instant| now.saturating_duration_since(asked) < ASK_AFTER;
        if self.known().asked.is_some_and(is_early) {
            return None;
        }
        self.known().asked = Some(now);
        let oidc = self.clone();
        Some(spawn_blocking(move || {
            let found = look_up(&oidc.options);
            let mut known = oidc.known();
            match found {
                Ok((keys, endpoints)) => {
                    (known.keys, known.came, known.error) = (keys, Some(now), None);
                    known.endpoints = endpoints;
                }
                Err(why) => known.error = Some(format!("issuer {}: {why}", oidc.options.issuer)),
            }
            drop(asking);
        }))
    }

    /// Why the issuer gave no keys when it was asked last.
    pub(crate) fn error(&self) -> Option<String> {
        self.known().error.clone()
    }

    /// How the page logs in, if it does. Where the issuer has told nothing yet, it is asked.
    pub(crate) async fn login(self: &Arc<Self>, now: Instant) -> Option<Login> {
        let client = self.options.client.as_ref()?;
        let is_told = self.known().endpoints.is_some();
        match is_told {
            true => self.renew(now),
            false => self.ask(now).await,
        }
        Some(Login {
            issuer: self.options.issuer.clone(),
            client_id: client.id.clone(),
            scope: client.scope.clone(),
            token: if client.id == self.options.audience { Bearer::IdToken } else { Bearer::AccessToken },
            endpoints: self.known().endpoints.clone(),
        })
    }

    /// The only address beside the daemon's that the page may ask.
    pub(crate) fn token_endpoint(&self) -> Option<String> {
        self.options.client.as_ref()?;
        let known = self.known();
        // A policy names paths without their queries.
        Some(known.endpoints.as_ref()?.token.split('?').next()?.to_string())
    }

    /// A token whose signature is right was not guessed, and its bearer is told what is wrong with it.
    fn judge(&self, jwt: &Jwt<'_>, key: &Key) -> Result<Caller, Denied> {
        let claims = jwt.claims(key).ok_or(Denied::Unknown)?;
        let OidcOptions { issuer, audience, claim, .. } = &self.options;
        let now_s = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let subject = subject(&claims, issuer, audience, now_s).map_err(Denied::Invalid)?;
        let name = format!("{subject} of {issuer}");
        let grants = self.grants(&claims);
        match grants.is_empty() {
            true => Err(Denied::NoRole(format!("`{claim}` of '{name}' gives it no role here"))),
            false => Ok(Caller { name, grants }),
        }
    }

    /// What the values of the claim grant: the highest role for each project.
    fn grants(&self, claims: &Value) -> Vec<Grant> {
        let values = match claim(claims, &self.options.claim) {
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(value)) => vec![value.as_str()],
            _ => Vec::new(),
        };
        let mut roles = BTreeMap::new();
        for (value, grant) in &self.options.roles {
            if values.contains(&value.as_str()) {
                let role = roles.entry(grant.project.clone()).or_insert(grant.role);
                *role = grant.role.max(*role);
            }
        }
        roles.into_iter().map(|(project, role)| Grant { role, project }).collect()
    }
}

/// A claim by its name, or by the names of objects down to it.
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    let below = |at: usize| claim(claims.get(&name[..at])?, &name[at + 1..]);
    claims.get(name).or_else(|| name.match_indices('.').find_map(|(at, _)| below(at)))
}

impl Endpoints {
    /// Those of a discovery document, if all that a login needs can be used. Ones that anybody on the way could answer for are
    /// as if they were not there.
    fn of(found: &Discovery) -> Option<Endpoints> {
        let usable = |url: &Option<String>| url.clone().filter(|url| is_for_browsers(url));
        Some(Endpoints {
            authorization: usable(&found.authorization_endpoint)?,
            token: usable(&found.token_endpoint)?,
            end_session: usable(&found.end_session_endpoint),
        })
    }
}

/// Whether a browser may be sent to a URL, and a policy may name it: it is HTTPS, but for this machine, and has no character that
/// means something else in a policy (Content Security Policy 3, 2.3.1).
fn is_for_browsers(url: &str) -> bool {
    let (rest, is_https) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (rest, true),
        (None, Some(rest)) => (rest, false),
        (None, None) => return false,
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let is_safe = is_https || ["localhost", "127.0.0.1"].contains(&host);
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'*,;<>\\#".contains(&byte);
    let is_named = !host.is_empty() && !authority.contains('@');
    is_safe && is_named && url.len() <= URL_CHARS_MAX && url.bytes().all(is_plain)
}

/// The keys of an issuer and where a browser logs in, by its discovery document (OpenID Connect Discovery 1.0, 4).
fn look_up(options: &OidcOptions) -> Result<(Vec<Key>, Option<Endpoints>), String> {
    let url = format!("{}/.well-known/openid-configuration", options.issuer.trim_end_matches('/'));
    let read =
        |url: &str| options.documents.get(url, DOCUMENT_BYTES_MAX).map_err(|why| format!("{url}: {why}"));
    let found: Discovery = serde_json::from_slice(&read(&url)?)
        .map_err(|error| format!("{url}: no discovery document: {error}"))?;
    if found.issuer != options.issuer {
        return Err(format!(
            "{url}: it is of the issuer {:?}; set `oidc.issuer` to what is right",
            found.issuer
        ));
    }
    let set: KeySet = serde_json::from_slice(&read(&found.jwks_uri)?)
        .map_err(|error| format!("{}: no set of keys: {error}", found.jwks_uri))?;
    let keys: Vec<Key> = set.keys.into_iter().take(KEYS_MAX).filter_map(Key::of_jwk).collect();
    match keys.is_empty() {
        true => Err(format!("{}: no key for RS256, ES256 or EdDSA", found.jwks_uri)),
        false => Ok((keys, Endpoints::of(&found))),
    }
}

#[cfg(test)]
mod tests;
