use drover_http::{Client, Endpoint};
use drover_types::inventory::About;

use crate::error::{VsphereError, VsphereErrorKind};
use crate::session::{Auth, Call, ConnectOptions, Content, Inner, exchange};
use crate::soap::{Moref, tag};
use crate::xml::Element;

/// The oldest API we speak; every server since 6.0 knows it.
const ACTION_FIRST: &str = "urn:vim25/6.0";

impl Inner {
    pub fn connect(options: ConnectOptions) -> Result<Self, VsphereError> {
        let op = format!("connect to {}", options.endpoint);
        let endpoint = secure_endpoint(&op, &options.endpoint)?;
        let client = Client::new(endpoint, &options.trust, options.timeouts)
            .map_err(|error| VsphereError::of_http(&op, error))?;
        let content = service_content(&client, &op)?;
        let session = Inner::new(client, options, content);
        session.renew(0)?;
        Ok(session)
    }

    /// Logs in, and gives back the session's cookie and key.
    pub(crate) fn login(&self) -> Result<Auth, VsphereError> {
        let user = &self.options.user;
        let op = format!("log in as {user} at {}", self.client.endpoint().authority());
        let arguments = tag("userName", user) + &tag("password", self.options.password.reveal());
        let call = Call {
            op: &op,
            method: "Login",
            this: &self.content.sessions,
            arguments: &arguments,
            // Not reading, but a second login does no harm.
            is_read: true,
        };
        let (answer, head) =
            exchange(&self.client, self.content.action, &call, "").map_err(|error| self.explain(error))?;
        let cookie = head.header_all("set-cookie").find(|value| value.starts_with("vmware_soap_session="));
        let cookie = cookie.and_then(|value| value.split(';').next()).map(str::to_string);
        let cookie = cookie.ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::NotVsphere, &op, "no session cookie in the answer")
        })?;
        Ok(Auth::of(cookie, answer.string_at("returnval/key")))
    }

    fn explain(&self, mut error: VsphereError) -> VsphereError {
        let without_domain = !self.options.user.contains(['@', '\\']);
        if error.kind == VsphereErrorKind::WrongPassword && without_domain && self.content.about.is_vcenter {
            error.kind = VsphereErrorKind::UserWithoutDomain;
        }
        error
    }
}

/// The endpoint that a text names, if what is said there is encrypted: the first thing said is a password.
pub(crate) fn secure_endpoint(op: &str, text: &str) -> Result<Endpoint, VsphereError> {
    let endpoint: Endpoint = text.parse().map_err(|error| VsphereError::of_http(op, error))?;
    if !endpoint.https {
        let why = format!("{endpoint} is not encrypted, and would show the password to everyone on the line");
        return Err(VsphereError::new(VsphereErrorKind::Unencrypted, op, why));
    }
    Ok(endpoint)
}

fn service_content(client: &Client, op: &str) -> Result<Content, VsphereError> {
    let instance = Moref::new("ServiceInstance", "ServiceInstance");
    let arguments = "";
    let call = Call { op, method: "RetrieveServiceContent", this: &instance, arguments, is_read: true };
    let (answer, _) = exchange(client, ACTION_FIRST, &call, "")?;
    let content = answer.child("returnval").and_then(content_of);
    content.ok_or_else(|| VsphereError::new(VsphereErrorKind::NotVsphere, op, "incomplete service content"))
}

fn content_of(content: &Element) -> Option<Content> {
    let about = about_of(content.child("about")?);
    let reference = |name| content.child(name).map(Moref::of);
    Some(Content {
        root: reference("rootFolder")?,
        collector: reference("propertyCollector")?,
        views: reference("viewManager")?,
        sessions: reference("sessionManager")?,
        events: reference("eventManager"),
        performance: reference("perfManager"),
        authorization: reference("authorizationManager"),
        search: reference("searchIndex"),
        action: action_for(&about.api_version),
        about,
    })
}

fn about_of(about: &Element) -> About {
    About {
        product: about.string_at("name"),
        version: about.string_at("version"),
        api_version: about.string_at("apiVersion"),
        build: about.string_at("build"),
        is_vcenter: about.text_at("apiType") == Some("VirtualCenter"),
        instance_uuid: about.string_at("instanceUuid"),
    }
}

/// The newest API that both sides know. All we use is in 6.7; a server refuses versions it does not know.
fn action_for(api_version: &str) -> &'static str {
    let mut numbers = api_version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    match (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) {
        version if version >= (6, 7) => "urn:vim25/6.7",
        version if version >= (6, 5) => "urn:vim25/6.5",
        _ => ACTION_FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_the_newest_version_both_sides_know() {
        for (server, action) in
            [("8.0.2.0", "6.7"), ("6.7.3", "6.7"), ("6.5", "6.5"), ("6.0", "6.0"), ("x", "6.0")]
        {
            assert_eq!(action_for(server), format!("urn:vim25/{action}"));
        }
    }

    #[test]
    fn nothing_is_said_to_an_endpoint_without_tls() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let options = ConnectOptions {
            endpoint: format!("http://{}/sdk", listener.local_addr().unwrap()),
            user: "root".into(),
            password: drover_types::Secret::new("hunter2"),
            trust: crate::Trust::Insecure,
            timeouts: crate::Timeouts { stall: std::time::Duration::from_millis(50), ..Default::default() },
        };
        let error = Inner::connect(options).map(drop).unwrap_err();
        assert_eq!(error.kind, VsphereErrorKind::Unencrypted);
        assert!(error.advice().unwrap().contains("https://"));
        assert_eq!(listener.accept().map(drop).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn service_content_without_managers_is_refused() {
        let text = "<returnval><rootFolder type=\"Folder\">group-d1</rootFolder><about><name>x</name></about></returnval>";
        assert!(content_of(&crate::xml::parse(text).unwrap()).is_none());
    }
}
