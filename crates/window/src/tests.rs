use jiff::Timestamp;
use jiff::ToSpan;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::window::When;

const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;

fn ms(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_millisecond() as u64
}

fn text(ms: u64) -> String {
    Timestamp::from_millisecond(ms as i64).unwrap().to_string()
}

fn window(text: &str) -> Window {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn windows(texts: &[&str]) -> Windows {
    Windows(texts.iter().map(|it| window(it)).collect())
}

#[test]
fn what_is_written_is_read_as_what_was_meant_and_shown_so_that_it_can_be_read_again() {
    for (written, shown) in [
        ("22:00-06:00", "22:00-06:00 UTC"),
        ("8:05-9:5", "08:05-09:05 UTC"),
        ("00:00-24:00", "00:00-24:00 UTC"),
        ("22:00 - 24:00 UTC", "22:00-24:00 UTC"),
        ("24:00-06:00", "00:00-06:00 UTC"),
        ("Sat 22:00-06:00 Europe/Berlin", "Sat 22:00-06:00 Europe/Berlin"),
        ("mon-FRI 20:00-06:00 europe/berlin", "Mon-Fri 20:00-06:00 Europe/Berlin"),
        ("Saturday - Monday 01:00-04:00", "Sat-Mon 01:00-04:00 UTC"),
        ("Sat 24:00-06:00", "Sun 00:00-06:00 UTC"),
        ("Sat-Sun", "Sat-Sun 00:00-24:00 UTC"),
        ("Sat-Fri 24:00-06:00", "00:00-06:00 UTC"),
        ("Sun America/Port-au-Prince", "Sun 00:00-24:00 America/Port-au-Prince"),
        ("Fri 20:00 - Mon 06:00", "Fri 20:00 - Mon 06:00 UTC"),
        ("Fri 20:00-Sun 24:00", "Fri 20:00 - Mon 00:00 UTC"),
        ("Fri 20:00 - Sat 06:00", "Fri 20:00-06:00 UTC"),
        ("Fri 20:00 - Fri 06:00", "Fri 20:00 - Fri 06:00 UTC"),
        ("2026-12-12 20:00 - 2026-12-13 04:00", "2026-12-12 20:00 - 2026-12-13 04:00 UTC"),
        ("2026-12-20 - 2027-01-03 Asia/Kolkata", "2026-12-20 00:00 - 2027-01-04 00:00 Asia/Kolkata"),
        ("2026-12-24", "2026-12-24 00:00 - 2026-12-25 00:00 UTC"),
        ("2026-12-31 22:00-02:00 Etc/GMT-3", "2026-12-31 22:00 - 2027-01-01 02:00 Etc/GMT-3"),
        ("2026-12-31 22:00-24:00", "2026-12-31 22:00 - 2027-01-01 00:00 UTC"),
        ("2026-12-12 20:00 - 2026-12-13", "2026-12-12 20:00 - 2026-12-14 00:00 UTC"),
        ("2026-12-12 - 2026-12-13 04:00", "2026-12-12 00:00 - 2026-12-13 04:00 UTC"),
    ] {
        let read = window(written);
        assert_eq!(read.to_string(), shown, "{written}");
        assert_eq!(window(shown), read, "{written}");
        let kept = serde_json::to_string(&read).unwrap();
        assert_eq!((serde_json::from_str::<Window>(&kept).unwrap(), kept), (read, format!("{shown:?}")));
    }
    assert!(serde_json::from_str::<Window>("\"22\"").is_err());
}

#[test]
fn an_error_names_what_is_wrong_and_has_an_example() {
    for (written, wanted) in [
        ("", "'' is not a window: write 22:00-06:00"),
        ("22:00", "'22:00' is not a window"),
        ("22:00-06:00,", "is not a window"),
        ("Sat 22:00", "is not a window"),
        ("Europe/Berlin", "is not a window"),
        ("22:00-06:00 2026-12-12", "is not a window"),
        ("8-9", "'8' is not a time from 00:00 to 24:00"),
        ("22-06", "'22' is not a time"),
        ("08:60-09:00", "'08:60' is not a time"),
        ("24:01-09:00", "'24:01' is not a time"),
        ("25:00-09:00", "'25:00' is not a time"),
        ("+8:00-9:00", "is not a window"),
        ("008:00-9:00", "'008:00' is not a time"),
        ("8:00:00-9:00", "'8:00:00' is not a time"),
        ("2026-02-29 20:00-22:00", "'2026-02-29' is not a date such as 2026-12-12"),
        ("2026-1-5", "'2026-1-5' is not a date"),
        ("Sta 22:00-06:00", "'Sta' is not a day of the week such as Sat"),
        ("Mon-Frei 22:00-06:00", "'Frei' is not a day of the week"),
        ("22:00-06:00 Europe/Berln", "'Europe/Berln' is not a time zone such as Europe/Berlin or UTC"),
        ("22:00-06:00 CEST", "'CEST' is not a time zone"),
        ("22:00-06:00 Etc/Unknown", "'Etc/Unknown' is not a time zone"),
        ("22:00-06:00 ../../etc/passwd", "is not a window"),
        ("2026-12-13 04:00 - 2026-12-12 20:00", "ends before it begins: write the earlier date first"),
        ("2027-01-03 - 2026-12-20", "ends before it begins"),
        ("2026-12-12 20:00 - 2026-12-12 20:00", "ends before it begins"),
        ("9999-12-31", "is not a window"),
    ] {
        let error = written.parse::<Window>().unwrap_err().to_string();
        assert!(error.contains(wanted), "{written}: {error}");
    }
    let long = "x".repeat(100_000).parse::<Window>().unwrap_err().to_string();
    assert!(long.len() < 500, "{long}");
}

/// Of each: the window, a moment, and the span that it is in or the next one.
#[test]
fn spans_are_right_where_the_clock_is_put_forward_and_back() {
    for (written, at, from, to) in [
        // The night of the change lasts an hour less, or more.
        ("01:00-04:00 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z"),
        ("01:00-04:00 Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"),
        ("01:00-04:00 Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-26T00:00:00Z", "2026-10-26T03:00:00Z"),
        // 02:30 is skipped: the clock shows 03:00 next.
        ("02:30-05:00 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T03:00:00Z"),
        ("22:00-02:30 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-28T21:00:00Z", "2026-03-29T01:00:00Z"),
        // All of it is skipped: the next one is that of the next day, or week.
        ("02:10-02:50 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:10:00Z", "2026-03-30T00:50:00Z"),
        (
            "Sun 02:10-02:50 Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "2026-04-05T00:10:00Z",
            "2026-04-05T00:50:00Z",
        ),
        // 02:30 comes twice: the first counts, at both ends.
        ("02:30-05:00 Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T04:00:00Z"),
        ("22:00-02:30 Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-24T20:00:00Z", "2026-10-25T00:30:00Z"),
        ("02:30-05:00 Europe/Berlin", "2026-10-25T01:15:00Z", "2026-10-25T00:30:00Z", "2026-10-25T04:00:00Z"),
        ("22:00-02:30 Europe/Berlin", "2026-10-25T01:15:00Z", "2026-10-25T21:00:00Z", "2026-10-26T01:30:00Z"),
        // Midnight is skipped, and comes twice.
        ("Sun America/Havana", "2026-03-07T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
        ("Sun America/Havana", "2026-10-31T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("Sun America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("Sat America/Havana", "2026-11-01T05:30:00Z", "2026-11-07T05:00:00Z", "2026-11-08T05:00:00Z"),
        // Half an hour of daylight saving.
        (
            "01:00-04:00 Australia/Lord_Howe",
            "2026-04-04T00:00:00Z",
            "2026-04-04T14:00:00Z",
            "2026-04-04T17:30:00Z",
        ),
        // A day that there was not.
        ("2011-12-30 Pacific/Apia", "2011-12-01T00:00:00Z", "-", ""),
        // Ends of months and years; a leap day.
        (
            "Thu 22:00-06:00 Europe/Berlin",
            "2026-12-31T12:00:00Z",
            "2026-12-31T21:00:00Z",
            "2027-01-01T05:00:00Z",
        ),
        ("22:00-06:00 Asia/Kolkata", "2028-02-29T12:00:00Z", "2028-02-29T16:30:00Z", "2028-03-01T00:30:00Z"),
        ("2028-02-28 20:00-04:00", "2028-01-01T00:00:00Z", "2028-02-28T20:00:00Z", "2028-02-29T04:00:00Z"),
        // Around a weekend with the change in it.
        (
            "Fri 20:00 - Mon 06:00 Europe/Berlin",
            "2026-10-25T12:00:00Z",
            "2026-10-23T18:00:00Z",
            "2026-10-26T05:00:00Z",
        ),
        // Far away, by the rule of the zone.
        ("01:00-04:00 Europe/Berlin", "2099-03-28T12:00:00Z", "2099-03-29T00:00:00Z", "2099-03-29T02:00:00Z"),
        ("2026-12-12 20:00 - 2026-12-13 04:00", "2026-12-13T04:00:00Z", "-", ""),
    ] {
        let span = window(written).span_at(ms(at)).map(|(from, to)| (text(from), text(to)));
        let wanted = (from != "-").then(|| (from.to_string(), to.to_string()));
        assert_eq!(span, wanted, "{written} at {at}");
    }
}

#[test]
fn daily_hours_in_utc_are_what_they_were() {
    let (day, night) = (20_000 * 24 * HOUR, window("22:00-06:00"));
    let tonight = Some((day + 22 * HOUR, day + 30 * HOUR));
    assert_eq!(night.span_at(day + 12 * HOUR), tonight);
    assert_eq!(night.span_at(day + 29 * HOUR), tonight, "after midnight");
    assert_eq!(night.span_at(day + 30 * HOUR), tonight.map(|(from, to)| (from + 24 * HOUR, to + 24 * HOUR)));
    assert_eq!(window("12:00-13:00").span_at(5), Some((12 * HOUR, 13 * HOUR)), "the first day of all");
    assert_eq!(night.span_at(5), Some((0, 6 * HOUR)), "it began before all days");
    assert_eq!(night.span_at(u64::MAX), None);
    let all = night.spans(day + HOUR, day + 46 * HOUR);
    assert_eq!(all, [(day - 2 * HOUR, day + 6 * HOUR), (day + 22 * HOUR, day + 30 * HOUR)]);
}

#[test]
fn windows_of_a_list_are_one_where_they_touch() {
    let weekend =
        windows(&["Fri 20:00-24:00 Europe/Berlin", "Sat-Sun Europe/Berlin", "Mon 00:00-06:00 Europe/Berlin"]);
    let (opens, closes) = (ms("2026-10-23T18:00:00Z"), ms("2026-10-26T05:00:00Z"));
    assert_eq!(weekend.at(opens - 1), Opening::At(opens));
    for at in [opens, ms("2026-10-25T00:30:00Z"), closes - 1] {
        assert_eq!(weekend.at(at), Opening::Open { until_ms: Some(closes) });
    }
    assert_eq!(weekend.at(closes), Opening::At(opens + (7 * 24 + 1) * HOUR), "in winter");
    let none = Opening::Open { until_ms: None };
    for always in
        [&["00:00-24:00"][..], &["Mon-Sun"], &["12:00-00:00", "00:00-12:00"], &["Fri 20:00 - Fri 20:00"]]
    {
        assert_eq!(windows(always).at(opens), none, "{always:?}");
    }
    let dates = windows(&["2026-12-12 20:00-24:00", "2026-12-13 00:00-04:00", "2027-01-09 20:00-23:00"]);
    assert_eq!(
        dates.at(ms("2026-12-12T21:00:00Z")),
        Opening::Open { until_ms: Some(ms("2026-12-13T04:00:00Z")) }
    );
    assert_eq!(dates.at(ms("2026-12-13T04:00:00Z")), Opening::At(ms("2027-01-09T20:00:00Z")));
    assert_eq!(dates.at(ms("2027-01-09T23:00:00Z")), Opening::Never);
    assert_eq!((dates.end_ms(), weekend.end_ms()), (Some(ms("2027-01-09T23:00:00Z")), None));
    assert_eq!((windows(&[]).at(opens), windows(&[]).end_ms()), (Opening::Never, None));
    assert_eq!(dates.to_string().matches(", ").count(), 2);
}

#[test]
fn a_window_tells_when_it_changes_next_and_moments_on_its_clock() {
    let night = window("22:00-06:00 Europe/Berlin");
    let opens = ms("2026-12-05T21:00:00Z");
    assert_eq!(night.changes_after(opens - 1), Some(opens));
    assert_eq!(night.changes_after(opens), Some(opens + 8 * HOUR));
    assert_eq!(window("06:00-06:00").changes_after(opens), None);
    assert_eq!(window("2026-12-05").changes_after(opens + 3 * HOUR), None);
    assert_eq!(night.moment(opens), "Sat 2026-12-05 22:00 Europe/Berlin");
    assert_eq!(night.zone(), "Europe/Berlin");
    assert_eq!(night.rfc3339(opens).unwrap(), "2026-12-05T22:00:00+01:00");
    assert_eq!(night.rfc3339(u64::MAX), None);
    assert_eq!(utc_moment(opens), "Sat 2026-12-05 21:00 UTC");
    assert_eq!(utc_moment(u64::MAX), "never");
}

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Australia/Lord_Howe", "Asia/Kolkata"];
/// Within days of these the clocks above are put forward or back, or a year ends.
const TIMES: [&str; 8] = [
    "2026-03-07T00:00:00Z",
    "2026-03-28T00:00:00Z",
    "2026-04-03T00:00:00Z",
    "2026-10-02T00:00:00Z",
    "2026-10-24T00:00:00Z",
    "2026-10-31T00:00:00Z",
    "2026-12-30T00:00:00Z",
    "2028-02-28T00:00:00Z",
];
const DAYS: u64 = 9;

fn any_window() -> impl Strategy<Value = String> {
    let day = prop::sample::select(vec!["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]);
    let minute = prop_oneof![0..=1440_u16, (0..=24_u16).prop_map(|hour| hour * 60), 0..=200_u16];
    let time = minute.prop_map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
    let date = (0..TIMES.len(), 0..5_i32).prop_map(|(at, days)| {
        let day = TIMES[at].parse::<Timestamp>().unwrap().to_zoned(TimeZone::UTC).date();
        day.checked_add(days.days()).unwrap().to_string()
    });
    let when = (0..6, day.clone(), day, date.clone(), date, time.clone(), time).prop_map(
        |(form, day, last, date, end, from, to)| match form {
            0 => format!("{from}-{to}"),
            1 => format!("{day} {from}-{to}"),
            2 => format!("{day}-{last} {from}-{to}"),
            3 => format!("{day} {from} - {last} {to}"),
            4 => format!("{date} {from}-{to}"),
            _ => format!("{date} {from} - {end} {to}"),
        },
    );
    (when, prop::sample::select(ZONES.to_vec())).prop_map(|(when, zone)| format!("{when} {zone}"))
}

/// Whether a window is open, by the latest time that its clock showed so far.
fn is_open_at(window: &Window, latest: DateTime) -> bool {
    let time = |day: jiff::civil::Date, minute: u16| day.at((minute / 60) as i8, (minute % 60) as i8, 0, 0);
    match window.when {
        When::Dates { from, to } => (from..to).contains(&latest),
        When::Days { first, count, from, to, later } => (0..=8).any(|back| {
            let day = latest.date().checked_sub(back.days()).unwrap();
            let last = day.checked_add(later.days()).unwrap();
            first.until(day.weekday()) < count && (time(day, from)..time(last, to)).contains(&latest)
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_agrees_with_a_walk_from_minute_to_minute(
        texts in prop::collection::vec(any_window(), 1..4),
        start in prop::sample::select(TIMES.to_vec()),
    ) {
        let list: Vec<Window> = texts.iter().filter_map(|it| it.parse().ok()).collect();
        let start = ms(start);
        let mut walked = vec![false; (DAYS * 1440) as usize];
        for window in &list {
            let zone = TimeZone::get(window.clock.name()).unwrap();
            let mut latest = DateTime::MIN;
            // Two days before, for what the clock showed already.
            for minute in 0..(DAYS + 2) * 1440 {
                let at = start - 2 * 24 * HOUR + minute * MINUTE;
                let shown = zone.to_datetime(Timestamp::from_millisecond(at as i64).unwrap());
                latest = latest.max(shown);
                if let Some(here) = minute.checked_sub(2 * 1440) {
                    walked[here as usize] |= is_open_at(window, latest);
                }
            }
        }
        let list = Windows(list);
        // From the last minute to the first: when it is otherwise next.
        let (mut changes, mut then) = (None, walked[walked.len() - 1]);
        for (minute, open) in walked.iter().enumerate().rev() {
            let at = start + minute as u64 * MINUTE;
            if *open != then {
                changes = Some(at + MINUTE);
                then = *open;
            }
            let told = list.at(at);
            let (is_open, next) = match told {
                Opening::Open { until_ms } => (true, until_ms),
                Opening::At(opens) => (false, Some(opens)),
                Opening::Never => (false, None),
            };
            prop_assert_eq!(is_open, *open, "{:?} at {}", texts, text(at));
            let end = start + walked.len() as u64 * MINUTE;
            prop_assert_eq!(next.filter(|next| *next < end), changes, "{:?} at {}: {:?}", texts, text(at), told);
        }
    }
}
