//! What the source tells of a move on its way.

use serde_json::Value;

use crate::watch::{Phase, Sample};

/// What `query-migrate` told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// In numbers.
    pub sample: Sample,
    /// QEMU's word for where it is.
    pub status: String,
    /// Why it failed.
    pub error: Option<String>,
    /// Milliseconds for which QEMU says that the guest stood still.
    pub downtime_ms: Option<u64>,
    /// Bytes of the guest's memory.
    pub total_bytes: u64,
    /// Bytes of pages that held nothing, of those looked at.
    pub zero_bytes: u64,
}

impl Told {
    /// Reads an answer of the source, so long after the move began.
    #[must_use]
    pub fn of(answer: &Value, at_ms: u64) -> Told {
        let ram = &answer["ram"];
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let page_bytes = ram["page-size"].as_u64().unwrap_or(PAGE_BYTES);
        let status = answer["status"].as_str().unwrap_or("none").to_string();
        let sent_bytes = number(&ram["transferred"]);
        // Pages that were packed, and those of which only the change was sent.
        let changed_bytes = number(&answer["xbzrle-cache"]["pages"]).saturating_mul(page_bytes);
        let sample = Sample {
            at_ms,
            phase: Phase::of(&status),
            sent_bytes,
            gone_bytes: number(&ram["normal-bytes"]).saturating_add(changed_bytes).max(sent_bytes),
            left_bytes: number(&ram["remaining"]),
            dirty_bytes_per_s: number(&ram["dirty-pages-rate"]).saturating_mul(page_bytes),
            passes: number(&ram["dirty-sync-count"]),
            throttle_percent: u8::try_from(number(&answer["cpu-throttle-percentage"])).unwrap_or(100),
        };
        let error = answer["error-desc"].as_str().map(str::to_string);
        let downtime_ms = answer["downtime"].as_u64();
        let zero_bytes = number(&ram["duplicate"]).saturating_mul(page_bytes);
        Told { sample, status, error, downtime_ms, total_bytes: number(&ram["total"]), zero_bytes }
    }

    /// Share of the guest's memory that holds something, as far as it was looked at (0 to 1).
    #[must_use]
    pub fn share_in_use(&self) -> f64 {
        match self.sample.gone_bytes {
            0 => 1.0,
            gone => gone as f64 / gone.saturating_add(self.zero_bytes) as f64,
        }
    }

    /// Why it failed, or that this was not told.
    #[must_use]
    pub fn why(&self) -> String {
        self.error.clone().unwrap_or_else(|| format!("QEMU says {:?} and no reason", self.status))
    }
}

/// What x86 has, should QEMU not say.
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_in_numbers() {
        let answer = json!({
            "status": "active",
            "cpu-throttle-percentage": 20,
            "ram": {"transferred": 1000, "remaining": 50, "total": 4096, "dirty-pages-rate": 3,
                    "page-size": 4096, "dirty-sync-count": 2, "new": {"x": []}},
        });
        let told = Told::of(&answer, 7);
        assert_eq!(told.sample.phase, Phase::Precopy);
        assert_eq!((told.sample.sent_bytes, told.sample.left_bytes, told.sample.passes), (1000, 50, 2));
        assert_eq!((told.sample.dirty_bytes_per_s, told.sample.throttle_percent), (12288, 20));
        assert_eq!(told.total_bytes, 4096);
        assert_eq!(told.sample.gone_bytes, 1000);
    }

    #[test]
    fn of_memory_that_was_looked_at_a_share_is_in_use() {
        let mut answer = json!({"status": "active", "ram": {"normal-bytes": 12288, "page-size": 4096}});
        assert_eq!(Told::of(&answer, 0).share_in_use(), 1.0);
        answer["ram"]["duplicate"] = json!(9);
        assert_eq!(Told::of(&answer, 0).share_in_use(), 0.25);
        assert_eq!(Told::of(&json!({}), 0).share_in_use(), 1.0);
    }

    #[test]
    fn memory_that_was_packed_counts_as_what_it_was() {
        let mut answer = json!({"status": "active", "ram": {"transferred": 1000, "normal-bytes": 8192, "page-size": 4096}});
        assert_eq!(Told::of(&answer, 0).sample.gone_bytes, 8192);
        answer["xbzrle-cache"] = json!({"pages": 2});
        assert_eq!(Told::of(&answer, 0).sample.gone_bytes, 16384);
        assert_eq!(Told::of(&answer, 0).sample.sent_bytes, 1000);
    }

    #[test]
    fn an_empty_answer_is_a_move_that_has_not_begun() {
        let told = Told::of(&json!({}), 0);
        assert_eq!((told.sample.phase, told.status.as_str()), (Phase::Setup, "none"));
        assert_eq!((told.error, told.downtime_ms), (None, None));
    }
}
