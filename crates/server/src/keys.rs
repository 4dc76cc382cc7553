//! Idempotency keys: an order that comes a second time with the same key gets the first one's answer. They are remembered
//! until the daemon ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer that can be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

/// What is known of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: go on, and tell the answer.
    New,
    /// The first request with it has not ended.
    Busy,
    /// It was for another request.
    Other,
    /// The answer of the first.
    Answered(Answer),
}

#[derive(Debug)]
struct Entry {
    digest: [u8; 32],
    answer: Option<Answer>,
}

/// Keys by caller and text.
#[derive(Debug)]
pub(crate) struct Keys {
    max: usize,
    /// Bytes of all answers.
    bytes_max: usize,
    time: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<(String, String), Entry>,
    order: VecDeque<(Instant, (String, String))>,
    bytes: usize,
}

impl State {
    fn forget(&mut self, id: &(String, String)) {
        if let Some(Entry { answer: Some(answer), .. }) = self.entries.remove(id) {
            self.bytes -= answer.body.len();
        }
    }
}

impl Keys {
    pub(crate) fn new(max: usize, bytes_max: usize, time: Duration) -> Keys {
        Keys { max, bytes_max, time, state: Mutex::default() }
    }

    /// Looks a key up, and holds it if it is new.
    pub(crate) fn begin(&self, caller: &str, key: &str, request: &[u8], now: Instant) -> Known {
        let digest = *blake3::hash(request).as_bytes();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((at, _)) = state.order.front()
            && (state.order.len() >= self.max || now.saturating_duration_since(*at) > self.time)
        {
            if let Some((_, old)) = state.order.pop_front() {
                state.forget(&old);
            }
        }
        let id = (caller.to_string(), key.to_string());
        match state.entries.get(&id) {
            None => {}
            Some(entry) if entry.digest != digest => return Known::Other,
            Some(Entry { answer: None, .. }) => return Known::Busy,
            Some(Entry { answer: Some(answer), .. }) => return Known::Answered(answer.clone()),
        }
        state.order.push_back((now, id.clone()));
        state.entries.insert(id, Entry { digest, answer: None });
        Known::New
    }

    /// Keeps the answer; one of the server's own failures is not kept, so that the request may be tried again.
    pub(crate) fn end(&self, caller: &str, key: &str, answer: Option<Answer>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (caller.to_string(), key.to_string());
        match answer {
            Some(answer) => {
                let bytes = answer.body.len();
                if let Some(entry) = state.entries.get_mut(&id) {
                    entry.answer = Some(answer);
                    state.bytes += bytes;
                }
                // The oldest go first; one that is larger than all of it goes, too.
                while state.bytes > self.bytes_max
                    && let Some((_, old)) = state.order.pop_front()
                {
                    state.forget(&old);
                }
            }
            None => {
                state.forget(&id);
                state.order.retain(|(_, it)| *it != id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Answer {
        Answer { status: 200, content_type: "application/json", body: body.into() }
    }

    #[test]
    fn the_same_request_gets_the_same_answer_and_another_is_refused() {
        let (keys, now) = (Keys::new(10, 1_000, Duration::from_secs(60)), Instant::now());
        assert_eq!(keys.begin("ann", "1", b"a", now), Known::New);
        assert_eq!(keys.begin("ann", "1", b"a", now), Known::Busy);
        keys.end("ann", "1", Some(answer("x")));
        assert_eq!(keys.begin("ann", "1", b"a", now), Known::Answered(answer("x")));
        assert_eq!(keys.begin("ann", "1", b"b", now), Known::Other);
        assert_eq!(keys.begin("bob", "1", b"b", now), Known::New, "each caller has keys of its own");
        keys.end("bob", "1", None);
        assert_eq!(keys.begin("bob", "1", b"c", now), Known::New, "what failed here may be tried again");
    }

    #[test]
    fn keys_are_bounded_in_number_and_age() {
        let (keys, now) = (Keys::new(10, 1_000, Duration::from_secs(60)), Instant::now());
        for number in 0..1_000 {
            keys.begin("ann", &number.to_string(), b"", now);
        }
        assert_eq!(keys.state.lock().unwrap().entries.len(), 10);
        keys.begin("ann", "late", b"", now + Duration::from_secs(61));
        let state = keys.state.lock().unwrap();
        assert_eq!((state.entries.len(), state.order.len()), (1, 1));
    }

    #[test]
    fn answers_are_bounded_in_bytes_and_the_oldest_go() {
        let (keys, now) = (Keys::new(10, 1_000, Duration::from_secs(60)), Instant::now());
        for number in ["1", "2", "3"] {
            keys.begin("ann", number, b"", now);
            keys.end("ann", number, Some(answer(&"x".repeat(400))));
        }
        assert_eq!(keys.begin("ann", "1", b"", now), Known::New, "it was forgotten");
        assert_eq!(keys.begin("ann", "3", b"", now), Known::Answered(answer(&"x".repeat(400))));
        assert_eq!(keys.state.lock().unwrap().bytes, 800);
    }
}
