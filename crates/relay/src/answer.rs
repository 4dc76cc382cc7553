//! What a channel of a paired relay begins with, each way. Pure.
//!
//! Towards the target: the opening, `{"service":"connect","to":"HOST:PORT"}`, then the client's bytes, at once. With
//! `"pieces":true`, which only an agent is told that announces it, both ways go in pieces (`drover_pack::pieces`); the
//! answer stands before them. With `"takes_over":true` what another session of the same peer left connected there makes way.
//! Back: an answer, then the target's bytes, if there are any:
//!
//! ```text
//! 0  1  what became of it, see `Word`
//! 1  1  zero
//! 2  2  bytes of the text, little endian, at most 512
//! 4     why not, UTF-8
//! ```

use serde::{Deserialize, Serialize};

use crate::linked::Form;

/// Bytes of the text, at most.
pub(crate) const TEXT_BYTES_MAX: usize = 512;
const HEAD_BYTES: usize = 4;

/// What became of a connection that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The target is there.
    Connected,
    /// The agent does not allow it.
    Denied,
    /// The target refused.
    Refused,
    /// The target did not answer in time.
    Silent,
    /// The target could not be reached for another reason.
    Unreachable,
    /// The agent has as many as it may have.
    TooMany,
    /// It is no host and port.
    Unreadable,
}

const WORDS: [Word; 7] = [
    Word::Connected,
    Word::Denied,
    Word::Refused,
    Word::Silent,
    Word::Unreachable,
    Word::TooMany,
    Word::Unreadable,
];

/// The answer as bytes. What is too long of the text is left out.
pub(crate) fn answer(word: Word, text: &str) -> Vec<u8> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = vec![WORDS.iter().position(|it| *it == word).unwrap_or(0) as u8, 0];
    bytes.extend((end as u16).to_le_bytes());
    bytes.extend(&text.as_bytes()[..end]);
    bytes
}

/// What of an answer has come.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    bytes: Vec<u8>,
}

/// What became of some bytes of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// It is not all there.
    More,
    /// It was there after so many of these bytes.
    Done(usize, Word, String),
    /// It is none.
    Nonsense,
}

impl Reading {
    /// Takes in what came next.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Read {
        let before = self.bytes.len();
        let wanted = HEAD_BYTES + TEXT_BYTES_MAX - before;
        self.bytes.extend(&piece[..piece.len().min(wanted)]);
        let [word, zero, low, high, text @ ..] = &self.bytes[..] else { return Read::More };
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let Some(word) = WORDS.get(usize::from(*word)).filter(|_| *zero == 0 && length <= TEXT_BYTES_MAX)
        else {
            return Read::Nonsense;
        };
        match text.get(..length) {
            None => Read::More,
            Some(text) => {
                // It is shown to people: nothing in it may move a terminal's cursor.
                let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
                Read::Done(HEAD_BYTES + length - before, *word, text)
            }
        }
    }
}

#[derive(Serialize)]
struct Opening<'a> {
    service: &'static str,
    to: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pieces: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    takes_over: bool,
}

/// What the agent is told a channel is for.
pub(crate) fn opening(to: &str, form: Form, takes_over: bool) -> Vec<u8> {
    // A struct of texts always has a JSON.
    serde_json::to_vec(&Opening { service: "connect", to, pieces: form == Form::Pieces, takes_over })
        .unwrap_or_default()
}

/// What an agent announces when a session begins.
#[derive(Default, Serialize, Deserialize)]
struct Announced {
    /// What it takes for `connect` beside what all agents do.
    #[serde(default)]
    connect: Vec<String>,
}

const PIECES: &str = "pieces";

/// What an agent announces whose [`crate::Ports`] take streams in pieces.
pub fn announcement() -> Vec<u8> {
    // As above.
    serde_json::to_vec(&Announced { connect: vec![PIECES.to_string()] }).unwrap_or_default()
}

/// How streams go to an agent that has announced this. One of before announces nothing.
pub(crate) fn form_for(announced: &[u8]) -> Form {
    let told: Announced = serde_json::from_slice(announced).unwrap_or_default();
    if told.connect.iter().any(|it| it == PIECES) { Form::Pieces } else { Form::Plain }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_opening_is_what_the_documents_say() {
        assert_eq!(opening("h:1", Form::Plain, false), br#"{"service":"connect","to":"h:1"}"#);
        let in_pieces = opening("h:1", Form::Pieces, true);
        assert_eq!(in_pieces, br#"{"service":"connect","to":"h:1","pieces":true,"takes_over":true}"#);
    }

    #[test]
    fn pieces_are_for_agents_that_announce_them() {
        assert_eq!(announcement(), br#"{"connect":["pieces"]}"#);
        assert_eq!(form_for(&announcement()), Form::Pieces);
        for other in [&b""[..], b"{}", b"[]", br#"{"connect":[]}"#, br#"{"connect":["other"]}"#, &[0xff]] {
            assert_eq!(form_for(other), Form::Plain, "{other:?}");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_found() {
        for bytes in [&[7, 0, 0, 0][..], &[0, 1, 0, 0], &[1, 0, 1, 2]] {
            assert_eq!(Reading::default().take(bytes), Read::Nonsense, "{bytes:?}");
        }
        let bytes = answer(Word::Denied, "a\x1b[2J\nb");
        assert!(matches!(Reading::default().take(&bytes), Read::Done(_, _, text) if text == "a [2J b"));
    }

    proptest! {
        #[test]
        fn an_answer_reads_back_however_it_is_cut(
            word in prop::sample::select(&WORDS[..]), text in "[a-zü ]{0,600}", cut in 1_usize..600, more in 0_usize..9,
        ) {
            let mut bytes = answer(word, &text);
            let length = bytes.len();
            bytes.extend(std::iter::repeat_n(9, more));
            let (mut reading, mut at) = (Reading::default(), 0);
            loop {
                let piece = &bytes[at..bytes.len().min(at + cut)];
                match reading.take(piece) {
                    Read::More => at += piece.len(),
                    Read::Done(used, found, why) => {
                        prop_assert_eq!((at + used, found), (length, word));
                        prop_assert!(text.starts_with(&why) && (why.len() == text.len() || why.len() > 510));
                        break;
                    }
                    Read::Nonsense => panic!("of {bytes:?}"),
                }
            }
        }

        #[test]
        fn no_bytes_break_it(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..40)) {
            let mut reading = Reading::default();
            for piece in pieces {
                if reading.take(&piece) != Read::More {
                    break;
                }
            }
        }
    }
}
