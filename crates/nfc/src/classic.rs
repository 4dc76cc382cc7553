//! Classic messages: 264 bytes each, a type and a body, until both sides have sent type 52.

use crate::error::{NfcError, NfcErrorKind};
use crate::frame::u32_at;

/// Bytes of a message; a few have extra bytes behind.
pub const MESSAGE_BYTES: usize = 264;

/// The longest text of an error.
const TEXT_BYTES_MAX: u32 = 64 << 10;

/// What we say we are.
pub const CLIENT: &str = "drover";
const OPERATION: &str = "nbdmode";

/// The version that we say, and the oldest host's with AIO.
const VERSION: u32 = 11;
const VERSION_MIN: u32 = 3;

/// Types.
mod kind {
    pub const SESSION_COMPLETE: u32 = 4;
    pub const ERROR: u32 = 20;
    pub const PARAMETERS: u32 = 33;
    pub const STATUS: u32 = 36;
    pub const CLIENT_RANDOM: u32 = 43;
    pub const VERSION: u32 = 51;
    pub const OPEN_AIO: u32 = 52;
    pub const NAMES: u32 = 54;
    pub const FEATURES: u32 = 55;
}

/// A message.
pub type Message = Box<[u8; MESSAGE_BYTES]>;

fn message(kind: u32) -> Message {
    let mut bytes = Box::new([0; MESSAGE_BYTES]);
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes
}

fn put(message: &mut Message, at: usize, number: u32) {
    message[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// The last message of a session.
pub fn session_complete() -> Message {
    message(kind::SESSION_COMPLETE)
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send these, each in a record of its own.
    Send(Vec<Vec<u8>>),
    /// Receive a message.
    Receive,
    /// Receive this many bytes more, the text of the error.
    ReceiveText(usize),
    /// From here on there are AIO frames only.
    Done,
}

/// The client's side of the exchange; decides only.
#[derive(Debug, Default)]
pub struct Negotiation {
    sent_names: bool,
    sent_first: bool,
    status_seen: bool,
    version: Option<u32>,
    error: Option<(u32, u32)>,
    done: bool,
    outgoing: Vec<Vec<u8>>,
}

impl Negotiation {
    /// `tag` as it was told by THUMBPRINT_SHA2, if it was.
    pub fn new(tag: Option<&str>) -> Negotiation {
        let mut outgoing = Vec::new();
        if let Some(tag) = tag {
            let mut random = message(kind::CLIENT_RANDOM);
            random[4..4 + tag.len()].copy_from_slice(tag.as_bytes());
            outgoing.push(random.to_vec());
        }
        outgoing.push(message(kind::PARAMETERS).to_vec());
        let mut version = message(kind::VERSION);
        put(&mut version, 4, VERSION);
        outgoing.push(version.to_vec());
        Negotiation { outgoing, ..Negotiation::default() }
    }

    /// The host's version, once told.
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    pub fn next(&mut self) -> Step {
        if !self.sent_first {
            self.sent_first = true;
            return Step::Send(std::mem::take(&mut self.outgoing));
        }
        if let Some((_, length)) = self.error {
            return Step::ReceiveText(length as usize);
        }
        if self.done {
            return Step::Done;
        }
        // Some hosts send the status before the version, some after it.
        if self.status_seen && self.version.is_some() && !self.sent_names {
            self.sent_names = true;
            return Step::Send(last_messages());
        }
        Step::Receive
    }

    /// Takes a message of the host's.
    pub fn on_message(&mut self, bytes: &[u8; MESSAGE_BYTES]) -> Result<(), NfcError> {
        let refuse = |kind, text: String| Err(NfcError::new(kind, "opening the NFC session", text));
        match u32_at(bytes, 0) {
            kind::STATUS if !self.status_seen => self.status_seen = true,
            kind::VERSION if self.version.is_none() => {
                let version = u32_at(bytes, 4);
                if version < VERSION_MIN {
                    let text = format!(
                        "the host's NFC version {version} has no AIO; drover reads vSphere 6.5 and later"
                    );
                    return refuse(NfcErrorKind::Unsupported, text);
                }
                self.version = Some(version);
            }
            kind::OPEN_AIO if self.sent_names => self.done = true,
            kind::ERROR => {
                let (code, length) = (u32_at(bytes, 8), u32_at(bytes, 12));
                if length > TEXT_BYTES_MAX {
                    return refuse(NfcErrorKind::Protocol, format!("an error with a text of {length} bytes"));
                }
                self.error = Some((code, length));
            }
            kind::SESSION_COMPLETE => {
                return refuse(NfcErrorKind::Tag, "the host ends the session at once".to_string());
            }
            other => {
                return refuse(
                    NfcErrorKind::Protocol,
                    format!("a message of type {other} that is not its turn"),
                );
            }
        }
        Ok(())
    }

    /// Takes the text of an error; what it means.
    pub fn on_text(&mut self, text: &[u8]) -> NfcError {
        let (code, _) = self.error.unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let text = drover_stream::printable(text.trim_end_matches('\0'));
        NfcError::of_host("opening the NFC session", code.into(), &text).or_kind(NfcErrorKind::Tag)
    }
}

fn last_messages() -> Vec<Vec<u8>> {
    let mut names = message(kind::NAMES);
    put(&mut names, 4, CLIENT.len() as u32);
    put(&mut names, 8, OPERATION.len() as u32);
    let mut features = message(kind::FEATURES);
    put(&mut features, 4, 3);
    let extra = [CLIENT.as_bytes(), OPERATION.as_bytes()].concat();
    vec![names.to_vec(), extra, features.to_vec(), message(kind::OPEN_AIO).to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_host(kind: u32, words: &[(usize, u32)]) -> Message {
        let mut bytes = message(kind);
        words.iter().for_each(|(at, word)| put(&mut bytes, *at, *word));
        bytes
    }

    fn sent(step: Step) -> Vec<u32> {
        let Step::Send(messages) = step else { panic!("{step:?}") };
        messages.iter().filter(|it| it.len() == MESSAGE_BYTES).map(|it| u32_at(it, 0)).collect()
    }

    #[test]
    fn both_orders_of_status_and_version_lead_to_aio() {
        let (status, version) = (from_host(36, &[(16, 1)]), from_host(51, &[(4, 9)]));
        for order in [[&status, &version], [&version, &status]] {
            let mut talk = Negotiation::new(Some("PlainText"));
            assert_eq!(sent(talk.next()), [43, 33, 51]);
            for message in order {
                assert_eq!(talk.next(), Step::Receive);
                talk.on_message(message).unwrap();
            }
            assert_eq!(sent(talk.next()), [54, 55, 52]);
            assert_eq!(talk.next(), Step::Receive);
            talk.on_message(&from_host(52, &[])).unwrap();
            assert_eq!((talk.next(), talk.version()), (Step::Done, Some(9)));
        }
    }

    #[test]
    fn without_a_tag_there_is_no_message_for_it() {
        assert_eq!(sent(Negotiation::new(None).next()), [33, 51]);
    }

    #[test]
    fn refusals_are_told_apart() {
        let after = |message: &Message| {
            let mut talk = Negotiation::new(Some("tag"));
            talk.next();
            talk.on_message(message).map(|()| talk)
        };
        assert_eq!(after(&from_host(4, &[])).unwrap_err().kind, NfcErrorKind::Tag);
        assert_eq!(after(&from_host(51, &[(4, 2)])).unwrap_err().kind, NfcErrorKind::Unsupported);
        assert_eq!(after(&from_host(52, &[])).unwrap_err().kind, NfcErrorKind::Protocol);
        assert_eq!(after(&from_host(20, &[(12, 1 << 20)])).unwrap_err().kind, NfcErrorKind::Protocol);
        let mut talk = after(&from_host(20, &[(8, 7), (12, 4)])).unwrap();
        assert_eq!(talk.next(), Step::ReceiveText(4));
        let error = talk.on_text(b"no!\0");
        assert!(error.to_string().contains("no!") && error.kind == NfcErrorKind::Tag, "{error}");
    }
}
