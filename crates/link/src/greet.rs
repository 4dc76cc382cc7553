//! What both sides say first on a connection.

use std::io;
use std::time::Instant;

use drover_wire::{Greeting, Hello, Refusal, RefusalCode, Welcome, greeting_bytes};

use crate::error::{LinkError, LinkErrorKind};
use crate::identity;
use crate::tls::Tls;

/// Why there is no connection.
#[derive(Debug)]
pub enum Failure {
    /// It may be there the next time.
    Passing(LinkError),
    /// It will not be there the next time either.
    Final(LinkError),
}

/// An error of a socket or of TLS.
pub fn io_failure(what: &str, error: &io::Error) -> LinkError {
    match identity::refusal(error) {
        Some(text) => LinkError::new(LinkErrorKind::Refused, text),
        None => LinkError::new(LinkErrorKind::Unreachable, format!("{what}: {error}")),
    }
}

/// Says hello, and hears the answer.
pub fn introduce(tls: &mut Tls, hello: Hello, until: Instant) -> Result<Welcome, Failure> {
    let lost = |error: io::Error| Failure::Passing(io_failure("greeting", &error));
    let (versions, joins) = (hello.versions, hello.join.is_some());
    tls.write_all(&Greeting::Hello(hello).encode(), until).map_err(lost)?;
    match read(tls, until).map_err(lost)? {
        Greeting::Welcome(welcome) if (versions.lowest..=versions.highest).contains(&welcome.version) => {
            Ok(welcome)
        }
        Greeting::Refusal(Refusal { code, text }) => {
            let kind = match code {
                RefusalCode::Version => LinkErrorKind::Version,
                RefusalCode::Identity => LinkErrorKind::Refused,
                RefusalCode::Session => LinkErrorKind::Lost,
                RefusalCode::Busy => LinkErrorKind::Unreachable,
                RefusalCode::Protocol => LinkErrorKind::Protocol,
            };
            let error = LinkError::new(kind, text);
            Err(if code == RefusalCode::Busy && joins {
                Failure::Passing(error)
            } else {
                Failure::Final(error)
            })
        }
        Greeting::Welcome(_) | Greeting::Hello(_) => {
            let text = "the peer answered the greeting with something else";
            Err(Failure::Final(LinkError::new(LinkErrorKind::Protocol, text)))
        }
    }
}

/// Reads a greeting.
pub fn read(tls: &mut Tls, until: Instant) -> io::Result<Greeting> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut prefix = [0; 8];
    tls.read_exact(&mut prefix, until)?;
    let mut rest = vec![0; greeting_bytes(&prefix).map_err(wrong)?];
    tls.read_exact(&mut rest, until)?;
    Greeting::decode(&prefix, &rest).map_err(wrong)
}

/// Says no.
pub fn refuse(tls: &mut Tls, code: RefusalCode, text: &str, until: Instant) -> io::Result<()> {
    let text = text.to_string();
    tls.write_all(&Greeting::Refusal(Refusal { code, text }).encode(), until)
}
