//! The size of the chunks in which RDMA registers memory, where nobody said it.
//!
//! QEMU registers a guest's memory chunk by chunk, each with a question to the target, and leaves zeros out only where a whole chunk holds
//! nothing else. So large chunks save questions and send empty memory, and small ones the other way round. How much of a guest is empty
//! QEMU does not tell before it sends, so the line decides.
//!
//! Source: QEMU `migration/rdma.c`; what both sizes send was measured with soft RDMA, what a card makes of them never.

use crate::Ability;
use crate::settings::{CHUNK, CHUNK_BYTES_OLD, Rdma};

/// From so many bytes a second on (25 Gbit/s) chunks are large.
const FAST: f64 = 25e9 / 8.0;
/// Of a fast line.
const CHUNK_BYTES_LARGE: u64 = 64 << 20;

impl Rdma {
    /// The same with a size of chunks, where none was said and both sides know one. `line` is what may be sent in a second, where that is
    /// known.
    #[must_use]
    pub fn with_chunk(self, source: &Ability, target: &Ability, line: Option<f64>) -> Rdma {
        let is_known = source.takes(CHUNK) && target.takes(CHUNK);
        let is_fast = line.is_some_and(|line| line >= FAST);
        let chosen = if is_fast && !self.pin_all { CHUNK_BYTES_LARGE } else { CHUNK_BYTES_OLD };
        Rdma { chunk_bytes: self.chunk_bytes.or(is_known.then_some(chosen)), ..self }
    }

    /// What is sent this way of a guest with so much memory, and why its chunks have the size that they have (`self`), if
    /// [`Rdma::with_chunk`] chose it and not somebody else (`asked`).
    #[must_use]
    pub fn words(self, asked: Rdma, line: Option<f64>, memory_bytes: u64) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let size = self.chunk_bytes.unwrap_or(CHUNK_BYTES_OLD);
        let large = mib(CHUNK_BYTES_LARGE);
        let why = match (asked.chunk_bytes, line) {
            _ if self.pin_all => format!(
                "all of it is pinned, so all {} MiB of the guest's memory are sent, empty or not",
                mib(memory_bytes)
            ),
            (Some(_), _) if size > CHUNK_BYTES_OLD => {
                "as asked for: memory that is empty is sent too, but for chunks that are empty as a whole"
                    .into()
            }
            (Some(_), _) => "as asked for".into(),
            _ if self.chunk_bytes.is_none() => {
                "the size that QEMU before 11.1 has, and one side's is older".into()
            }
            (None, Some(line)) if size > CHUNK_BYTES_OLD => format!(
                "since {:.0} Gbit/s may be sent: fewer have to be registered, and memory that is empty is sent too",
                line * 8.0 / 1e9
            ),
            (None, Some(line)) => format!(
                "since {:.1} Gbit/s may be sent: those of {large} MiB send memory that is empty too, which pays from 25 Gbit/s on",
                line * 8.0 / 1e9
            ),
            (None, None) => format!(
                "since what the line carries is not said (--line): those of {large} MiB send memory that is empty too, which pays from 25 \
                 Gbit/s on"
            ),
        };
        format!("RDMA in chunks of {} MiB, {why}", mib(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::{new, old};

    const PLAIN: Rdma = Rdma { pin_all: false, chunk_bytes: None };

    #[test]
    fn chunks_are_large_on_a_fast_line_alone_and_as_asked_for_where_that_was_done() {
        let chosen = |rdma: Rdma, gbit: Option<f64>| {
            rdma.with_chunk(&new(), &new(), gbit.map(|gbit| gbit * 1e9 / 8.0)).chunk_bytes
        };
        for (gbit, mib) in [(None, 1), (Some(0.1), 1), (Some(10.0), 1), (Some(25.0), 64), (Some(200.0), 64)] {
            assert_eq!(chosen(PLAIN, gbit), Some(mib << 20), "{gbit:?}");
            let asked = Rdma { chunk_bytes: Some(4 << 20), ..PLAIN };
            assert_eq!(chosen(asked, gbit), Some(4 << 20), "{gbit:?}");
            // All of it is registered at once, and sent whatever is in it.
            assert_eq!(chosen(Rdma { pin_all: true, ..PLAIN }, gbit), Some(1 << 20));
        }
        for (here, there) in [(new(), old()), (old(), new()), (old(), old())] {
            assert_eq!(PLAIN.with_chunk(&here, &there, Some(1e12)), PLAIN, "a side has a size of its own");
        }
    }

    #[test]
    fn what_is_sent_and_why_is_told() {
        let told = |asked: Rdma, line: Option<f64>| {
            asked.with_chunk(&new(), &new(), line).words(asked, line, 8 << 30)
        };
        let large = Rdma { chunk_bytes: Some(1 << 30), ..PLAIN };
        let pinned = Rdma { pin_all: true, ..PLAIN };
        for (asked, line, words) in [
            (PLAIN, None, ["chunks of 1 MiB", "--line"]),
            (PLAIN, Some(125e6), ["chunks of 1 MiB", "1.0 Gbit/s may be sent"]),
            (PLAIN, Some(12.5e9), ["chunks of 64 MiB", "empty is sent too"]),
            (large, None, ["chunks of 1024 MiB, as asked", "empty is sent too"]),
            (pinned, Some(12.5e9), ["all 8192 MiB", "empty or not"]),
        ] {
            let told = told(asked, line);
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
        }
        assert!(!told(Rdma { chunk_bytes: Some(1 << 20), ..PLAIN }, None).contains("empty"));
        let line = Some(12.5e9);
        let told = PLAIN.with_chunk(&new(), &old(), line).words(PLAIN, line, 8 << 30);
        assert!(
            told.contains("chunks of 1 MiB") && told.contains("11.1") && !told.contains("pays"),
            "{told}"
        );
    }
}
