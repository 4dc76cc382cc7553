//! The clock of a time zone.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// No name of a zone is longer.
const NAME_CHARS_MAX: usize = 64;

/// A clock on a wall there: daylight saving puts it forward and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clock(TimeZone);

impl Clock {
    pub(crate) fn utc() -> Clock {
        Clock(TimeZone::UTC)
    }

    /// That of a zone of the IANA database.
    pub(crate) fn named(name: &str) -> Option<Clock> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_+-/".contains(c);
        let is_sound = name.len() <= NAME_CHARS_MAX && name.chars().all(fits);
        // Systems put former names into packages of their own, or leave them out.
        let of = |name: &str| TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
        let zone = is_sound.then(|| of(name).ok()).flatten()?;
        (!zone.is_unknown() && zone.iana_name().is_some()).then_some(Clock(zone))
    }

    pub(crate) fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// What it shows at a moment, in milliseconds since 1970.
    pub(crate) fn shows(&self, ms: i64) -> Option<DateTime> {
        Timestamp::from_millisecond(ms).ok().map(|at| self.0.to_datetime(at))
    }

    /// The first moment at which it shows this time or a later one, in milliseconds since 1970: of a time that is skipped, when the
    /// clock is put forward; of one that comes twice, the first.
    pub(crate) fn reaches(&self, time: DateTime) -> Option<i64> {
        let at = match self.0.to_ambiguous_timestamp(time).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(time).ok()?,
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(time).ok()?,
            AmbiguousOffset::Gap { after, .. } => {
                // By the offset after the change, the time is before the change.
                let earlier = after.to_timestamp(time).ok()?;
                self.0.following(earlier).find(|change| change.offset() == after)?.timestamp()
            }
        };
        Some(at.as_millisecond())
    }

    pub(crate) fn rfc3339(&self, ms: u64) -> Option<String> {
        let at = Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
        Some(at.to_zoned(self.0.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
    }

    /// A moment, in milliseconds since 1970, for people: `Sat 2026-12-05 22:00 Europe/Berlin`.
    pub(crate) fn moment(&self, ms: u64) -> String {
        let shown = i64::try_from(ms).ok().and_then(|ms| self.shows(ms));
        shown.map_or("never".into(), |it| format!("{} {}", it.strftime("%a %Y-%m-%d %H:%M"), self.name()))
    }
}
