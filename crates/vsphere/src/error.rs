use std::error::Error;
use std::fmt;

use drover_disk::DiskError;
use drover_http::{HttpError, HttpErrorKind, Refusal, Why};

/// A failed operation on vSphere: `create snapshot of web01: state does not allow it: ...`.
#[derive(Debug)]
pub struct VsphereError {
    /// What may be done about it.
    pub kind: VsphereErrorKind,
    /// What was being done to what (`create snapshot of web01`).
    pub op: String,
    /// What vSphere said, if it said something.
    pub fault: Option<Box<Fault>>,
    /// The cause below, if there is one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// A fault as vSphere tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Type name (`InvalidPowerState`).
    pub name: String,
    /// The server's words.
    pub message: String,
    /// For `NoPermission`: the privilege that is missing (`VirtualMachine.State.CreateSnapshot`).
    pub privilege: Option<String>,
    /// For `InvalidArgument`: the property that is wrong (`startOffset`).
    pub property: Option<String>,
}

/// What went wrong on vSphere, to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VsphereErrorKind {
    /// User or password is wrong.
    WrongPassword,
    /// The login failed and the user carries no domain, which vCenter needs.
    UserWithoutDomain,
    /// The user may not do this.
    PermissionDenied,
    /// The server's certificate is not trusted, out of its time, or for another name.
    CertificateNotTrusted,
    /// The server's certificate is another one than the given thumbprint says.
    ThumbprintMismatch,
    /// The endpoint is one without TLS.
    Unencrypted,
    /// No connection, or it broke.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// Whatever answers there is no vSphere, or talks nonsense.
    NotVsphere,
    /// The object is not there.
    NotFound,
    /// The API does not answer for the moment, by this status of HTTP: its services restart, or have too much to do.
    Away(u16),
    /// The object is busy with something else; later it may go.
    Busy,
    /// The object's state does not allow it (power state).
    State,
    /// Another fault.
    Fault,
    /// drover cannot do this with such a disk or server.
    Unsupported,
    /// The disk's data cannot be reached.
    Disk,
    /// What changed cannot be told: the change id is not known any more, tracking began anew or is off, or the
    /// answer makes no sense. The whole disk has to be compared.
    ChangesUnknown,
    /// The user asked for the end.
    Stopped,
}

impl VsphereError {
    pub(crate) fn new(
        kind: VsphereErrorKind,
        op: &str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        VsphereError { kind, op: op.to_string(), fault: None, source: Some(source.into()) }
    }

    pub(crate) fn of_fault(op: &str, fault: Fault) -> Self {
        VsphereError {
            kind: fault_kind(&fault),
            op: op.to_string(),
            fault: Some(Box::new(fault)),
            source: None,
        }
    }

    pub(crate) fn of_http(op: &str, error: HttpError) -> Self {
        VsphereError::new(http_kind(&error), op, error)
    }

    /// Of a task that was begun and that the server does not know any more: tasks do not survive a restart of its services. What
    /// became of it is not known, and it may go on at the host.
    pub(crate) fn of_lost_task(op: &str) -> Self {
        let why = "its task is not known to the server any more, whose services restarted";
        VsphereError::new(VsphereErrorKind::Unreachable, op, why)
    }

    /// Whether it is that of a task that was lost.
    pub(crate) fn is_lost_task(&self) -> bool {
        self.kind == VsphereErrorKind::Unreachable && self.fault.is_none() && self.http().is_none()
    }

    /// Whether the same may succeed later without anybody's doing.
    pub fn is_transient(&self) -> bool {
        use VsphereErrorKind as K;
        match self.kind {
            K::Unreachable | K::Timeout | K::Away(_) | K::Busy => true,
            K::Disk => {
                let disk = self.source.as_ref().and_then(|source| source.downcast_ref::<DiskError>());
                disk.is_some_and(|error| error.kind == drover_disk::DiskErrorKind::Transient)
            }
            K::WrongPassword
            | K::UserWithoutDomain
            | K::PermissionDenied
            | K::CertificateNotTrusted
            | K::ThumbprintMismatch
            | K::Unencrypted
            | K::NotVsphere
            | K::NotFound
            | K::State
            | K::Fault
            | K::Unsupported
            | K::ChangesUnknown
            | K::Stopped => false,
        }
    }

    /// Whether it is certain that the server never saw the request.
    pub(crate) fn was_not_sent(&self) -> bool {
        self.http().is_some_and(|error| error.op == drover_http::HttpOp::Connect)
    }

    /// The HTTP error below, which may lie below a disk's error.
    fn http(&self) -> Option<&HttpError> {
        let source = self.source.as_ref()?;
        let below_disk = || source.downcast_ref::<DiskError>()?.source.get_ref()?.downcast_ref::<HttpError>();
        source.downcast_ref::<HttpError>().or_else(below_disk)
    }

    /// Whether it is unknown if the server did what was asked.
    pub(crate) fn is_unclear(&self) -> bool {
        use VsphereErrorKind as K;
        self.fault.is_none()
            && !self.was_not_sent()
            && matches!(self.kind, K::Unreachable | K::Timeout | K::Away(_) | K::NotVsphere)
    }

    /// Whether the API gave no answer, and may give one later: its services restart, or the way to it is cut.
    pub(crate) fn is_away(&self) -> bool {
        use VsphereErrorKind as K;
        let is_cut = || matches!(self.kind, K::Unreachable | K::Timeout) && self.http().is_some();
        self.fault.is_none() && (matches!(self.kind, K::Away(_)) || is_cut())
    }

    /// Whether vSphere itself says that the object is gone. An answer that does not name it is no such word: parts of answers get
    /// lost, and what a user may not see is left out of them.
    pub fn is_gone(&self) -> bool {
        self.is_fault("ManagedObjectNotFound")
    }

    /// Whether vSphere said this: the name of a fault's type.
    pub fn is_fault(&self, name: &str) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.name == name)
    }

    /// What to try, for the operator.
    pub fn advice(&self) -> Option<String> {
        use VsphereErrorKind as K;
        let from_http = || self.http().and_then(HttpError::advice);
        let text = match self.kind {
            K::WrongPassword => "check user and password by logging in to the vSphere web client with them",
            K::UserWithoutDomain => {
                "vCenter wants the user with its domain: user@vsphere.local, user@company.example or COMPANY\\user"
            }
            K::PermissionDenied => {
                let privilege = self.fault.as_ref().and_then(|fault| fault.privilege.as_deref());
                return Some(match privilege {
                    Some(privilege) => {
                        format!("give the user's role the privilege {privilege} on this object")
                    }
                    None => "give the user's role the missing privilege on this object".to_string(),
                });
            }
            K::CertificateNotTrusted | K::ThumbprintMismatch => return from_http(),
            K::Unencrypted => "give the host alone, or a URL with https://",
            K::Unreachable => {
                return from_http().or_else(|| Some("check address, port, route and firewall".to_string()));
            }
            K::Timeout => "check the load of the server and the path to it, then try again",
            K::NotVsphere => {
                "check that the endpoint is a vCenter or an ESXi host, and no proxy sits between"
            }
            K::NotFound => "read the inventory again; it was removed or renamed",
            K::Away(_) => {
                "look at the services of the vCenter or host; when it answers again: `drover resume`"
            }
            K::Busy => "wait for the other task to end, then try again",
            K::State => "check the power state of the VM",
            K::Fault if self.fault.as_ref().is_some_and(|fault| fault.name.contains("Quiesce")) => {
                "look at the guest's tools (and, on Windows, at its VSS writers), or do without quiescing"
            }
            K::Fault | K::Unsupported | K::Disk | K::ChangesUnknown | K::Stopped => return None,
        };
        Some(text.to_string())
    }
}

impl fmt::Display for VsphereError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.kind)?;
        match &self.fault {
            Some(fault) if fault.message.is_empty() => write!(f, " ({})", fault.name),
            Some(fault) => write!(f, " ({}: {})", fault.name, fault.message),
            None => Ok(()),
        }
    }
}

impl Error for VsphereError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for VsphereErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use VsphereErrorKind as K;
        f.write_str(match self {
            K::WrongPassword => "wrong user or password",
            K::UserWithoutDomain => "login refused, and the user has no domain",
            K::PermissionDenied => "permission denied",
            K::CertificateNotTrusted => "the server's certificate is not trusted",
            K::ThumbprintMismatch => "the server's certificate is not the one with the given thumbprint",
            K::Unencrypted => "the connection would not be encrypted",
            K::Unreachable => "no working connection to the server",
            K::Timeout => "no answer in time",
            K::NotVsphere => "the answer is not one of a vSphere server",
            K::NotFound => "not found",
            K::Away(status) => {
                return write!(f, "the vSphere API does not answer for the moment (HTTP {status})");
            }
            K::Busy => "busy",
            K::State => "its state does not allow that",
            K::Fault => "refused by vSphere",
            K::Unsupported => "not supported",
            K::Disk => "the disk's data cannot be read",
            K::ChangesUnknown => "what changed is not known",
            K::Stopped => "stopped as asked",
        })
    }
}

fn fault_kind(fault: &Fault) -> VsphereErrorKind {
    use VsphereErrorKind as K;
    match fault.name.as_str() {
        "InvalidLogin" => K::WrongPassword,
        "NoPermission" | "RestrictedByAdministrator" | "NotAuthenticated" => K::PermissionDenied,
        "ManagedObjectNotFound" | "NotFound" => K::NotFound,
        "TaskInProgress" | "ConcurrentAccess" | "ResourceInUse" | "FileLocked" | "HostCommunication"
        | "HostNotConnected" => K::Busy,
        "InvalidPowerState" | "InvalidState" | "ToolsUnavailable" => K::State,
        "MethodNotFound" | "NotImplemented" | "NotSupported" => K::Unsupported,
        _ => K::Fault,
    }
}

pub(crate) fn http_kind(error: &HttpError) -> VsphereErrorKind {
    use HttpErrorKind as H;
    use VsphereErrorKind as K;
    match &error.kind {
        H::Certificate(Refusal { why: Why::OtherThumbprint, .. }) => K::ThumbprintMismatch,
        H::Certificate(_) | H::BadTrust(_) => K::CertificateNotTrusted,
        H::UnknownHost | H::Refused | H::Unreachable | H::Closed | H::Io | H::BadUrl => K::Unreachable,
        H::Stalled(_) => K::Timeout,
        // Bytes without end, or that are no HTTP, come from something else than a vSphere server.
        H::Endless(_) | H::Tls | H::Protocol(_) | H::TooLong(_) => K::NotVsphere,
        H::Status(401 | 403) => K::PermissionDenied,
        H::Status(404) => K::NotFound,
        H::Status(status @ (429 | 502..=504)) => K::Away(*status),
        H::Status(_) => K::NotVsphere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str) -> VsphereError {
        let fault = Fault { name: name.to_string(), message: "no".to_string(), ..Fault::default() };
        VsphereError::of_fault("power off web01", fault)
    }

    #[test]
    fn says_what_was_done_to_what_and_what_vsphere_said() {
        let text = fault("InvalidPowerState").to_string();
        assert_eq!(text, "power off web01: its state does not allow that (InvalidPowerState: no)");
    }

    #[test]
    fn an_api_that_is_away_is_neither_busy_nor_talks_nonsense() {
        let error = |kind| VsphereError { kind, op: "look at db06".to_string(), fault: None, source: None };
        let away = error(VsphereErrorKind::Away(503));
        assert_eq!(
            away.to_string(),
            "look at db06: the vSphere API does not answer for the moment (HTTP 503)"
        );
        assert!(away.is_away() && away.is_transient() && away.is_unclear());
        assert!(!away.advice().unwrap().contains("task"));
        assert!(!error(VsphereErrorKind::Timeout).is_away(), "a task that takes too long");
        assert!(!fault("TaskInProgress").is_away());
    }

    #[test]
    fn of_a_lost_task_nobody_knows_what_became() {
        let lost = VsphereError::of_lost_task("remove snapshot snapshot-1");
        assert!(lost.is_lost_task() && lost.is_unclear());
        assert!(!lost.is_gone(), "it is the task that is gone");
        assert!(!lost.is_away(), "the API answers");
        assert!(!fault("ManagedObjectNotFound").is_lost_task());
    }

    #[test]
    fn a_missing_privilege_is_named_in_the_advice() {
        let mut error = fault("NoPermission");
        if let Some(fault) = &mut error.fault {
            fault.privilege = Some("VirtualMachine.State.CreateSnapshot".to_string());
        }
        assert!(error.advice().unwrap().contains("VirtualMachine.State.CreateSnapshot"));
        assert!(!error.is_transient() && fault("TaskInProgress").is_transient());
    }
}
