//! The text lines on port 902, before NFC.
//!
//! ```text
//! <- 220 VMware Authentication Daemon Version 1.10: SSL Required, ..., NFCSSL supported/t, SHA256 supported
//! TLS
//! -> SESSION <id>           no answer
//! -> BANNER                 <- 220 ...
//! -> THUMBPRINT_SHA2 <tag>  <- 200 ...     where the greeting says SHA256
//! -> PROXY <service>        <- 200 Connect ...
//! ```

use crate::error::{NfcError, NfcErrorKind};

/// What the greeting says that the host can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// It answers THUMBPRINT_SHA2, and takes the tag in the classic messages.
    pub sha256: bool,
    /// NFC through TLS.
    pub nfcssl: bool,
}

impl Greeting {
    pub fn parse(line: &str) -> Result<Greeting, NfcError> {
        let Some(text) = line.strip_prefix("220 ") else {
            let what = format!("the host greets with '{line}'; is this the port of its NFC server (902)?");
            return Err(NfcError::new(NfcErrorKind::Protocol, "greeting", what));
        };
        let mut greeting = Greeting::default();
        for feature in text.split_once(": ").map_or("", |(_, list)| list).split(',') {
            match feature.split('/').next().unwrap_or_default().trim() {
                "SHA256 supported" => greeting.sha256 = true,
                "NFCSSL supported" => greeting.nfcssl = true,
                _ => {}
            }
        }
        Ok(greeting)
    }
}

/// Checks a line that answers `command`, whose answer is good if it starts with `code`.
pub fn check(command: &str, code: &str, line: &str) -> Result<(), NfcError> {
    if line.starts_with(code) {
        return Ok(());
    }
    let kind = match line.get(..3) {
        Some("530") => NfcErrorKind::Ticket,
        Some("501") => NfcErrorKind::Protocol,
        _ => NfcErrorKind::Refused,
    };
    Err(NfcError::new(kind, command, format!("the host answers '{line}'")))
}

/// The service that PROXY asks for.
pub fn service(ticket: &str, encrypted: bool) -> String {
    format!("{ticket}{}", if encrypted { "ssl" } else { "" })
}

/// A word of the host's or a ticket's that goes into a line: it must not end the line or add to it.
pub fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESXI_8: &str = "220 VMware Authentication Daemon Version 1.10: SSL Required, ServerDaemonProtocol:SOAP, \
                          MKSDisplayProtocol:VNC , VMXARGS supported, NFCSSL supported/t, SHA256 supported";

    #[test]
    fn the_greeting_tells_what_the_host_can_do() {
        assert_eq!(Greeting::parse(ESXI_8).unwrap(), Greeting { sha256: true, nfcssl: true });
        let old = ESXI_8.replace(", SHA256 supported", "");
        assert_eq!(Greeting::parse(&old).unwrap(), Greeting { sha256: false, nfcssl: true });
        assert_eq!(Greeting::parse("220 hello").unwrap(), Greeting::default());
        assert!(Greeting::parse("SSH-2.0-OpenSSH_9").is_err());
    }

    #[test]
    fn answers_have_their_kinds() {
        assert!(check("PROXY", "200", "200 Connect ha-nfcssl").is_ok());
        let kind = |line| check("PROXY", "200", line).unwrap_err().kind;
        assert_eq!(kind("530 Login incorrect"), NfcErrorKind::Ticket);
        assert_eq!(kind("530 Please login with USER and PASS"), NfcErrorKind::Ticket);
        assert_eq!(kind("501 Invalid arguments"), NfcErrorKind::Protocol);
        assert_eq!(kind("550 no such service"), NfcErrorKind::Refused);
        assert_eq!(kind(""), NfcErrorKind::Refused);
    }

    #[test]
    fn words_cannot_add_lines() {
        assert!(is_word("52ab-cd") && is_word("vpxa-nfc"));
        assert!(!is_word("a b") && !is_word("a\r\nPROXY x") && !is_word("") && !is_word(&"a".repeat(257)));
    }
}
