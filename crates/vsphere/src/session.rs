use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use drover_http::{Client, Head, Request, Response, thumbprint_of};
use drover_log::log;
use drover_types::Secret;
use drover_types::inventory::About;

use crate::error::{Fault, VsphereError, VsphereErrorKind};
use crate::outage::{Outage, Patience};
use crate::soap::{self, Answer, Moref};
use crate::xml::Element;
use crate::{Thumbprint, Timeouts, Trust};

/// Where to log in, and as whom.
#[derive(Clone)]
pub struct ConnectOptions {
    /// `host[:port]` or an https URL.
    pub endpoint: String,
    /// User, with its domain for a vCenter (`administrator@vsphere.local`).
    pub user: String,
    /// Password.
    pub password: Secret,
    /// Whose certificate to believe.
    pub trust: Trust,
    /// How long to wait for the server.
    pub timeouts: Timeouts,
}

/// A login at a vCenter or an ESXi host. Shared between threads; renews itself when it expires, once per
/// expiry, however many threads notice. A clone is the same session; it logs out when the last one is gone.
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub client: Client,
    pub options: ConnectOptions,
    pub content: Content,
    auth: Mutex<Auth>,
    /// Held while logging in, so that other threads wait for the new cookie instead of logging in too.
    renewal: Mutex<Option<Refusal>>,
    warnings: Mutex<Vec<String>>,
    /// Names by id, for messages.
    names: Mutex<HashMap<String, String>>,
    /// Tells whether the user asked for the end.
    stop: OnceLock<StopAsked>,
    /// Whether the API answers, and how long one that does not is waited for.
    pub outage: Outage,
    /// Logins at ESXi hosts for reading disks, by address and user.
    pub hosts: Mutex<HashMap<(String, String), Weak<Inner>>>,
    /// The manager of NFC tickets, once it was looked for.
    pub nfc: Mutex<Option<Moref>>,
}

/// Tells whether the user asked for the end.
pub type StopAsked = Arc<dyn Fn() -> bool + Send + Sync>;

/// A piece of work that a stop breaks off, unless it began after the stop was asked for: then it undoes something,
/// and is carried to its end.
pub(crate) struct Work<'a> {
    session: &'a Inner,
    began_stopped: bool,
}

impl Work<'_> {
    /// Whether the stop was asked for while this went on.
    pub fn is_broken_off(&self) -> bool {
        !self.began_stopped && self.session.is_stopped()
    }

    /// Whether the stop was asked for before this began: it undoes something.
    pub fn began_stopped(&self) -> bool {
        self.began_stopped
    }

    /// An error if the stop was asked for while this went on.
    pub fn check(&self, op: &str) -> Result<(), VsphereError> {
        match self.is_broken_off() {
            false => Ok(()),
            true => Err(VsphereError {
                kind: VsphereErrorKind::Stopped,
                op: op.to_string(),
                fault: None,
                source: None,
            }),
        }
    }
}

/// What the server says of itself: where its managers are.
pub(crate) struct Content {
    pub about: About,
    pub root: Moref,
    pub collector: Moref,
    pub views: Moref,
    pub sessions: Moref,
    /// Absent where there is no history of events.
    pub events: Option<Moref>,
    /// Absent where no performance counters are kept.
    pub performance: Option<Moref>,
    /// Absent where nobody can be asked what a user may do.
    pub authorization: Option<Moref>,
    /// Absent where nothing can be looked for by its UUID.
    pub search: Option<Moref>,
    /// Value of the SOAPAction header, which asks for a version of the API.
    pub action: &'static str,
}

#[derive(Clone, Default)]
pub(crate) struct Auth {
    /// `vmware_soap_session=...`; empty when logged out.
    pub cookie: String,
    /// The value in it; absent when logged out.
    value: Option<Secret>,
    /// The session's own name, which is no secret and no cookie.
    pub key: String,
    /// Grows with each login.
    pub version: u64,
}

impl Auth {
    pub fn of(cookie: String, key: String) -> Auth {
        let value = cookie.split_once('=').map_or("", |(_, value)| value).trim_matches('"');
        Auth { value: Some(Secret::new(value)), cookie, key, version: 0 }
    }
}

/// A login that was refused. It is not tried again for a while: a changed password and many threads would
/// get the account locked.
struct Refusal {
    at: Instant,
    kind: VsphereErrorKind,
    op: String,
    fault: Option<Box<Fault>>,
}

/// A call of a method.
pub(crate) struct Call<'a> {
    /// What is being done, for messages.
    pub op: &'a str,
    pub method: &'a str,
    pub this: &'a Moref,
    /// XML.
    pub arguments: &'a str,
    /// It only reads, so it may be sent again after a failure.
    pub is_read: bool,
}

const SOAP_PATH: &str = "/sdk";
const READ_TRIES_MAX: u32 = 3;
/// vCenter locks a user after five failures within three minutes, by default.
const REFUSAL_TIME: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const WARNINGS_MAX: usize = 100;

impl Session {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Wrong password, user without its domain, a certificate that is not trusted, and a host that cannot be reached
    /// have kinds of their own.
    pub fn connect(options: ConnectOptions) -> Result<Session, VsphereError> {
        Ok(Session { inner: Arc::new(Inner::connect(options)?) })
    }

    /// From when `asked` says so, whatever goes on is broken off: waits, and questions that take many answers. What
    /// begins later is not, because it undoes something. Counts once for a session.
    pub fn stop_when(&self, asked: StopAsked) {
        // A second one is of the same run.
        let _ = self.inner.stop.set(asked);
    }

    /// From now on an API that does not answer for the moment is waited for, so long at most since it answered last. What is asked
    /// after a stop is not held up by that. Counts once for a session.
    pub fn outlast(&self, patience: Duration) {
        self.inner.outage.outlast(patience);
    }

    /// What does not answer for the moment, and why (`vc.lab:443: HTTP 503`), if that is so for some seconds.
    pub fn away(&self) -> Option<String> {
        self.inner.outage.why().map(|why| format!("{}: {why}", self.endpoint_authority()))
    }

    /// Calls that had no answer so far.
    pub fn missed(&self) -> u64 {
        self.inner.outage.missed()
    }

    /// Host and port of the endpoint.
    pub fn endpoint_authority(&self) -> String {
        self.inner.client.endpoint().authority()
    }

    /// The account.
    pub fn user(&self) -> &str {
        &self.inner.options.user
    }

    /// Whether the user asked for the end.
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    /// What answers at the endpoint.
    pub fn about(&self) -> &About {
        &self.inner.content.about
    }

    /// What went wrong without being fatal (tags that could not be read), oldest first.
    pub fn warnings(&self) -> Vec<String> {
        lock(&self.inner.warnings).clone()
    }

    /// SHA-1 thumbprint of the endpoint's certificate, which is verified as for every other connection. VDDK wants
    /// it, whatever the certificate is verified by here.
    ///
    /// # Errors
    /// When the endpoint cannot be reached or is not trusted (any more).
    pub fn thumbprint(&self) -> Result<Thumbprint, VsphereError> {
        let options = &self.inner.options;
        if let Trust::Thumbprint(known @ Thumbprint::Sha1(_)) = options.trust {
            return Ok(known);
        }
        thumbprint_of(self.inner.client.endpoint(), &options.trust, &options.timeouts)
            .map_err(|error| VsphereError::of_http("look at the certificate", error))
    }

    /// The session's cookie, for other programs that are to work in this session: the value of `vmware_soap_session`.
    /// The session is alive: one that has expired is renewed first. It is a secret.
    ///
    /// # Errors
    /// When the endpoint cannot be reached, or does not let us in any more.
    pub fn cookie(&self) -> Result<Secret, VsphereError> {
        // A question to which only who is logged in gets an answer.
        self.inner.read("look whether the session is alive", &self.inner.content.root, &["name"])?;
        Ok(self.inner.auth().value.unwrap_or_else(|| Secret::new("")))
    }

    /// Logs out. Later calls log in again.
    ///
    /// # Errors
    /// When the server cannot be reached; the session then ends by itself, usually after 30 minutes.
    pub fn logout(&self) -> Result<(), VsphereError> {
        self.inner.logout()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} at {})", self.inner.options.user, self.inner.client.endpoint())
    }
}

impl Inner {
    pub fn new(client: Client, options: ConnectOptions, content: Content) -> Self {
        Inner {
            client,
            options,
            content,
            auth: Mutex::default(),
            renewal: Mutex::default(),
            warnings: Mutex::default(),
            names: Mutex::default(),
            stop: OnceLock::new(),
            outage: Outage::default(),
            hosts: Mutex::default(),
            nfc: Mutex::default(),
        }
    }

    /// Calls a method under the session, logging in again if it has expired.
    pub fn call(&self, call: &Call<'_>) -> Result<Element, VsphereError> {
        self.call_with(call, self.patience())
    }

    /// The same, with this patience.
    pub fn call_with(&self, call: &Call<'_>, mut patience: Patience<'_>) -> Result<Element, VsphereError> {
        let mut renewed = false;
        let mut tries = 1;
        loop {
            let auth = self.auth();
            let (error, may_be_repeated) = match self.call_once(call, &auth.cookie) {
                Err(error) if error.is_fault("NotAuthenticated") && !renewed => {
                    log!("vsphere", "{}: the session has ended, logging in again", call.method);
                    match self.renew(auth.version) {
                        Ok(()) => {
                            renewed = true;
                            continue;
                        }
                        // The call itself was refused, so it is made once.
                        Err(error) => (error, true),
                    }
                }
                Err(error) => {
                    let may_be_repeated = call.is_read || error.was_not_sent();
                    (error, may_be_repeated)
                }
                done => return done,
            };
            if !may_be_repeated {
                return Err(error);
            }
            if call.is_read && error.is_transient() && tries < READ_TRIES_MAX {
                patience.work.check(call.op)?;
                log!("vsphere", "{}: try {tries} failed, again: {error}", call.method);
                thread::sleep(FIRST_PAUSE * 4u32.pow(tries - 1));
                tries += 1;
                continue;
            }
            patience.wait(call.op, error)?;
            // Its services were away: the session may have gone with them.
            renewed = false;
        }
    }

    /// Begins something that is tried again for as long as the API does not answer.
    pub fn patience(&self) -> Patience<'_> {
        Patience::new(self)
    }

    fn call_once(&self, call: &Call<'_>, cookie: &str) -> Result<Element, VsphereError> {
        let done = exchange(&self.client, self.content.action, call, cookie).map(|(element, _)| element);
        self.outage.heard(done.as_ref().err());
        done
    }

    fn is_stopped(&self) -> bool {
        self.stop.get().is_some_and(|asked| asked())
    }

    /// Begins something that a stop breaks off.
    pub fn begin(&self) -> Work<'_> {
        Work { session: self, began_stopped: self.is_stopped() }
    }

    pub fn auth(&self) -> Auth {
        lock(&self.auth).clone()
    }

    /// Logs in again, unless another thread has done so since `version`.
    pub fn renew(&self, version: u64) -> Result<(), VsphereError> {
        let mut refused = lock(&self.renewal);
        if self.auth().version != version {
            return Ok(());
        }
        if let Some(Refusal { kind, op, fault, .. }) =
            refused.as_ref().filter(|it| it.at.elapsed() < REFUSAL_TIME)
        {
            return Err(VsphereError { kind: *kind, op: op.clone(), fault: fault.clone(), source: None });
        }
        let done = self.login();
        self.outage.heard(done.as_ref().err());
        let auth = done.inspect_err(|error| *refused = Refusal::of(error))?;
        *lock(&self.auth) = Auth { version: version + 1, ..auth };
        Ok(())
    }

    fn logout(&self) -> Result<(), VsphereError> {
        // What is hidden in it stays so for as long as it is used.
        let (cookie, _value) = {
            let mut auth = lock(&self.auth);
            (std::mem::take(&mut auth.cookie), auth.value.take())
        };
        if cookie.is_empty() {
            return Ok(());
        }
        let call = Call {
            op: "log out",
            method: "Logout",
            this: &self.content.sessions,
            arguments: "",
            is_read: false,
        };
        match self.call_once(&call, &cookie) {
            Err(error) if !error.is_fault("NotAuthenticated") => Err(error),
            _ => Ok(()),
        }
    }

    pub fn warn(&self, text: String) {
        let mut warnings = lock(&self.warnings);
        if warnings.len() < WARNINGS_MAX && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    pub fn learn_name(&self, id: &str, name: &str) {
        lock(&self.names).insert(id.to_string(), name.to_string());
    }

    /// The name of an object for messages, or its id as long as the name is not known.
    pub fn name_of(&self, id: &str) -> String {
        lock(&self.names).get(id).cloned().unwrap_or_else(|| id.to_string())
    }
}

impl Refusal {
    /// Only what a password decides: other failures may pass at any moment.
    fn of(error: &VsphereError) -> Option<Self> {
        let by_password =
            matches!(error.kind, VsphereErrorKind::WrongPassword | VsphereErrorKind::UserWithoutDomain);
        let refusal = || Refusal {
            at: Instant::now(),
            kind: error.kind,
            op: error.op.clone(),
            fault: error.fault.clone(),
        };
        by_password.then(refusal)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Idle sessions count against a limit of the server, but it ends them by itself if this fails.
        let _ = self.logout();
    }
}

/// One exchange: the response element and the head of the HTTP response around it.
pub(crate) fn exchange(
    client: &Client,
    action: &str,
    call: &Call<'_>,
    cookie: &str,
) -> Result<(Element, Head), VsphereError> {
    let began = Instant::now();
    let done = exchange_quietly(client, action, call, cookie);
    if drover_log::is_on() {
        let end = done.as_ref().map_or_else(|error| error.to_string(), |_| "answered".into());
        let ms = began.elapsed().as_millis();
        // Objects of a session bear its key in brackets.
        let this = call.this.id.split('[').next().unwrap_or_default();
        log!("vsphere", "{} of {this} ({}): {end}, {ms} ms", call.method, call.op);
    }
    done
}

fn exchange_quietly(
    client: &Client,
    action: &str,
    call: &Call<'_>,
    cookie: &str,
) -> Result<(Element, Head), VsphereError> {
    let text = soap::envelope(call.method, call.this, call.arguments);
    let mut request = Request::post(SOAP_PATH, text)
        .with_header("Content-Type", "text/xml; charset=utf-8")
        .with_header("SOAPAction", format!("\"{action}\""));
    if !cookie.is_empty() {
        request = request.with_header("Cookie", cookie);
    }
    request.idempotent = call.is_read;
    let Response { head, body } =
        client.send(&request).map_err(|error| VsphereError::of_http(call.op, error))?;
    let answer =
        String::from_utf8(body).map_err(|error| error.to_string()).and_then(|text| soap::open(&text));
    match answer {
        Ok(Answer::Returned(element)) if element.name == format!("{}Response", call.method) => {
            Ok((element, head))
        }
        Ok(Answer::Returned(element)) => Err(not_vsphere(call.op, &head, &format!("'{}'", element.name))),
        Ok(Answer::Failed(fault)) => Err(VsphereError::of_fault(call.op, fault)),
        Err(why) => Err(not_vsphere(call.op, &head, &why)),
    }
}

fn not_vsphere(op: &str, head: &Head, why: &str) -> VsphereError {
    let kind = match head.status {
        // What comes with it is the page of a proxy, or nothing.
        status @ (429 | 502..=504) => {
            let (kind, op) = (VsphereErrorKind::Away(status), op.to_string());
            return VsphereError { kind, op, fault: None, source: None };
        }
        401 | 403 => VsphereErrorKind::PermissionDenied,
        _ => VsphereErrorKind::NotVsphere,
    };
    VsphereError::new(kind, op, format!("HTTP {}, {why}", head.status_line()))
}

/// Nothing here is left half done by a panic, so a poisoned lock is as good as another.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
