//! That options read rates, sizes and times alike.

use clap::Parser;

use super::Cli;

const RATES: [&str; 9] = [
    "copy a b --rate-limit",
    "agent run --rate-limit",
    "relay --listen 127.0.0.1:1 --to 127.0.0.1:2 --via site --rate-limit",
    "live a --to b --line",
    "live a --to b --rate-max",
    "live a --to b --connection",
    "tune --rtt 5ms --rate",
    "forecast plan.yaml --link",
    "serve --rate-limit",
];
const SIZES: [&str; 2] = ["copy a b --request", "agent run --memory"];
const TIMES: [&str; 4] = [
    "operator --keep-failed",
    "agent pair --new-token --valid",
    "live a --to b --downtime",
    "live a --to b --deadline",
];

#[track_caller]
fn all_take(options: &[&str], values: &[&str], refused: &[&str]) {
    let read = |option: &str, value: &str| {
        let words = format!("drover {option}={value}");
        Cli::try_parse_from(words.split_whitespace()).map(drop).map_err(|error| format!("{words}: {error}"))
    };
    for option in options {
        values.iter().for_each(|value| read(option, value).unwrap());
        refused.iter().for_each(|value| assert!(read(option, value).is_err(), "{option}={value}"));
    }
}

#[test]
fn options_read_rates_alike() {
    all_take(&RATES, &["500m", "2.5g", "1G", "12MiB", "1.5gib"], &["1x", "0", "-1m", "2000g"]);
}

#[test]
fn options_read_sizes_alike() {
    all_take(&SIZES, &["65536", "64k", "1.5m", "4MiB"], &["1.5", "1x", "-1m", "1e6"]);
}

#[test]
fn options_read_times_alike() {
    all_take(&TIMES, &["90s", "1.5m", "5min", "2h", "1500ms"], &["5", "-1s", "1x", "367d"]);
}
