use drover_types::calendar::{days_since_1970, moment_text};

/// Seconds since 1970 of an XML date and time: `2026-11-21T13:17:33.25+01:00`. Without an offset it is UTC.
/// Absent if it is none, or lies before 1970.
pub(crate) fn seconds_of(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let zone_at = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone_at);
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?;
    let in_range = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 24 || minute > 59 || second > 60 {
        return None;
    }
    let local = days_since_1970(year, month, day);
    let seconds = local * 86_400 + hour * 3600 + minute * 60 + second - offset_seconds(zone)?;
    u64::try_from(seconds).ok()
}

/// The same the other way round, in UTC: `2026-11-21T13:17:33Z`.
pub(crate) fn text_of(seconds: u64) -> String {
    moment_text(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000))
}

/// The same as HTTP writes it: `Sat, 21 Nov 2026 13:17:33 GMT`.
pub(crate) fn http_text_of(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = text_of(seconds);
    let (date, time) = text.trim_end_matches('Z').split_once('T').unwrap_or_default();
    let [year, month, day] = numbers(date, '-').unwrap_or([1970, 1, 1]);
    let (weekday, month) = (DAYS[(seconds / 86_400 % 7) as usize], MONTHS[(month - 1) as usize % 12]);
    format!("{weekday}, {day:02} {month} {year} {time} GMT")
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse::<u16>().ok().map(i64::from));
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

fn offset_seconds(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next() {
        None | Some('Z') => return Some(0),
        Some('-') => -1,
        Some(_) => 1,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let number = |text: &str| text.parse::<u8>().ok().map(i64::from);
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_with_and_without_fractions_and_offsets() {
        for (text, wanted) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00", 951_825_600),
            ("2026-11-21T13:17:33.250841Z", 1_795_267_053),
            ("2026-11-21T14:17:33+01:00", 1_795_267_053),
            ("2026-11-21T07:47:33.1-05:30", 1_795_267_053),
        ] {
            assert_eq!(seconds_of(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn a_moment_is_written_as_it_is_read() {
        let day = 86_400;
        let around = |seconds: u64| [seconds.saturating_sub(1), seconds, seconds + 1];
        let years = (0..800).map(|half: u64| half * 15_778_800);
        for seconds in
            years.chain([59 * day, 60 * day, 951_782_400, 951_868_800, 1_795_267_053]).flat_map(around)
        {
            let text = text_of(seconds);
            assert_eq!((text.len(), seconds_of(&text)), (20, Some(seconds)), "{text}");
        }
        assert_eq!(text_of(951_825_600), "2000-02-29T12:00:00Z");
    }

    #[test]
    fn a_moment_as_http_writes_it() {
        for (seconds, wanted) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"), // RFC 9110, section 5.6.7.
            (951_825_600, "Tue, 29 Feb 2000 12:00:00 GMT"),
            (1_795_267_053, "Sat, 21 Nov 2026 13:17:33 GMT"),
        ] {
            assert_eq!(http_text_of(seconds), wanted);
        }
    }

    #[test]
    fn what_is_no_date_gives_none() {
        for text in [
            "",
            "T",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2026-13-01T00:00:00Z",
            "2026-11-21T13:17",
            "2026-11-21T13:17:33+1",
            "99999-01-01T00:00:00Z",
            "2026-11-21T13:17:33+é",
        ] {
            assert_eq!(seconds_of(text), None, "{text}");
        }
    }
}
