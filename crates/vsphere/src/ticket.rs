use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drover_http::{Authorise, Credentials, HttpError, HttpErrorKind, HttpOp};

use crate::error::VsphereError;
use crate::session::{Call, Inner};
use crate::soap::{Moref, tag};

/// Credentials of data requests: the session's own cookie.
pub(crate) struct SessionCookie(pub Arc<Inner>);

impl Authorise for SessionCookie {
    fn credentials(&self, _method: &str, _path: &str) -> Result<Credentials, HttpError> {
        let mut auth = self.0.auth();
        if auth.cookie.is_empty() {
            // Logged out in between.
            self.0.renew(auth.version).map_err(|error| http_error(&self.0, error))?;
            auth = self.0.auth();
        }
        Ok(Credentials { headers: vec![("Cookie".to_string(), auth.cookie)], version: auth.version })
    }

    fn refresh(&self, version: u64, _status: u16) -> Result<(), HttpError> {
        self.0.renew(version).map_err(|error| http_error(&self.0, error))
    }
}

/// Credentials of data requests at a host we have no login for: a ticket from the vCenter, good for one request
/// within half a minute.
pub(crate) struct Tickets {
    session: Arc<Inner>,
    /// `https://esx1:443`.
    origin: String,
    version: AtomicU64,
}

impl Tickets {
    pub fn new(session: Arc<Inner>, origin: String) -> Self {
        Tickets { session, origin, version: AtomicU64::new(1) }
    }

    fn acquire(&self, method: &str, path: &str) -> Result<String, VsphereError> {
        let op = "acquire a ticket";
        let method = if method == "HEAD" { "httpHead" } else { "httpGet" };
        let spec = tag("method", method) + &tag("url", &format!("{}{path}", self.origin));
        let arguments = format!("<spec xsi:type=\"SessionManagerHttpServiceRequestSpec\">{spec}</spec>");
        let this: &Moref = &self.session.content.sessions;
        let call =
            Call { op, method: "AcquireGenericServiceTicket", this, arguments: &arguments, is_read: true };
        let answer = self.session.call(&call)?;
        let id = answer.at("returnval/id").map(|id| id.text.clone()).filter(|id| !id.is_empty());
        id.ok_or_else(|| {
            VsphereError::new(crate::VsphereErrorKind::NotVsphere, op, "no ticket in the answer")
        })
    }
}

impl Authorise for Tickets {
    fn credentials(&self, method: &str, path: &str) -> Result<Credentials, HttpError> {
        let version = self.version.load(Ordering::Relaxed);
        let ticket = self.acquire(method, path).map_err(|error| http_error(&self.session, error))?;
        Ok(Credentials {
            headers: vec![("Cookie".to_string(), format!("vmware_cgi_ticket={ticket}"))],
            version,
        })
    }

    fn refresh(&self, version: u64, _status: u16) -> Result<(), HttpError> {
        // The next request gets a ticket of its own anyway.
        let _ = self.version.compare_exchange(version, version + 1, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }
}

/// What the failure of a login or a ticket means for the data request that needed it.
fn http_error(session: &Inner, error: VsphereError) -> HttpError {
    let kind = if error.is_transient() { HttpErrorKind::Closed } else { HttpErrorKind::Status(403) };
    HttpError::other(kind, HttpOp::Connect, &session.client.endpoint().authority(), error)
}
