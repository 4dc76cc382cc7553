//! How long a guest stands still whose disks go with it across a long line, directly and over the link: figures, and no test of the
//! suite.
//!
//! Run by `cargo test -p drover --test live_line -- --ignored --nocapture`, as root. `DROVER_LINE_ROUNDS` moves each way (12), over a
//! line with `DROVER_LINE_RTT_MS` (55).
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use drover_lab::{Output, Pulse, PulseOptions, run_by};
use drover_stage::moves::{self, busy, events, with_disks};
use drover_stage::sites::Sites;
use drover_wan::line::LineSpec;
use drover_wan::line::units::{Rate, Share};
use drover_wan::{Site, Wan, WanSpec};

const RATE_BITS: u64 = 1_000_000_000;
const MTU: u32 = 9000;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The same guest, whose QEMU runs at an end of the line.
fn at(site: &Site, guest: &PulseOptions, folder: &Path, name: &str) -> PulseOptions {
    let runner = folder.join(name);
    let qemu = Pulse::qemu().unwrap();
    let text = format!(
        "#!/bin/sh\nexec nsenter --net={} {} \"$@\"\n",
        site.namespace.path().display(),
        qemu.display()
    );
    std::fs::write(&runner, text).unwrap();
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    PulseOptions { runner: Some(runner), ..guest.clone() }
}

fn enter(site: &Site) -> Vec<String> {
    vec!["nsenter".to_string(), format!("--net={}", site.namespace.path().display())]
}

/// Moves one: what drover says of it, and milliseconds for which no beat of the guest was heard.
fn moved(seed: u64, is_over_link: bool) -> Option<(Output, Option<u128>)> {
    Pulse::qemu()?;
    let rtt = Duration::from_millis(number("DROVER_LINE_RTT_MS", 55));
    let line = LineSpec::symmetric(Some(Rate::bits(RATE_BITS)), rtt, Share::of_one(0.0));
    let wan = Wan::start(&WanSpec::long(line, MTU, "bbr", seed)).unwrap();
    let folder = tempfile::Builder::new().prefix("drover-line-").tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let source =
        Pulse::start(&folder.path().join("a"), &at(&wan.near, &here, folder.path(), "near")).unwrap();
    let target =
        Pulse::waiting(&folder.path().join("b"), &at(&wan.far, &there, folder.path(), "far")).unwrap();
    source.beat(100).unwrap();
    let mut sites = Sites::not_started();
    let mut command = sites.here.command(&["live"]);
    command.arg(source.monitor()).arg("--to").arg(target.monitor()).args(["--json", "--disks", "mirror"]);
    // As busy as it is.
    command.env_remove("DROVER_PROC");
    let far = wan.far.address();
    if is_over_link {
        sites.run_by = enter(&wan.far);
        sites.address = format!("{far}:7077");
        sites.more = vec!["--allow-connect".into(), format!("unix:{}/*", folder.path().join("b").display())];
        sites.start();
        let token = sites.path("token");
        std::fs::write(&token, sites.token(&[])).unwrap();
        let mut pairing =
            sites.here.command(&["agent", "pair", &sites.address, "--name", "site-b", "--as", "site-a"]);
        pairing.arg("--token-file").arg(&token);
        assert_eq!(moves::run(run_by(&enter(&wan.near), &pairing)).code, Some(0));
        command.args(["--via", "site-b"]);
    } else {
        command.args(["--uri", &format!("tcp:{far}:4444"), "--nbd", &format!("{far}:4445")]);
    }
    let output = run_by(&enter(&wan.near), &command).output().unwrap();
    let output = Output {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    if !matches!(output.code, Some(0 | 12)) {
        source.beat(20).unwrap();
        return Some((output, None));
    }
    target.beat(20).unwrap();
    let first = target.beats()[0];
    let last = source.beats().into_iter().rfind(|(_, number)| *number < first.1).unwrap();
    Some((output, Some(first.0.duration_since(last.0).as_millis())))
}

#[test]
#[ignore = "minutes, and figures only"]
fn figures_of_guests_whose_disks_go_with_them_over_a_long_line() {
    for is_over_link in [false, true] {
        println!("{}:", if is_over_link { "over the link" } else { "directly" });
        let (mut kept, mut broken, mut refused) = (0, 0, 0);
        for seed in 1..=number("DROVER_LINE_ROUNDS", 12) {
            let Some((output, stood_ms)) = moved(seed, is_over_link) else { return };
            match output.code {
                Some(0) => kept += 1,
                Some(12) => broken += 1,
                Some(3) => refused += 1,
                _ => panic!("{output:?}"),
            }
            let told = events(&output);
            let of =
                |kind: &str| told.iter().find(|event| event["event"] == kind).cloned().unwrap_or_default();
            let (told, busy) = (of("moved"), of("busy"));
            println!(
                "  exit {}: {stood_ms:?} ms between beats, {} ms from stop to start, {} by QEMU, {} foreseen, {} of it for busy hosts{}",
                output.code.unwrap(),
                told["downtime_ms"],
                told["downtime_ms_by_qemu"],
                told["downtime_ms_foreseen"],
                busy["downtime_longer_ms"],
                if output.code == Some(3) { format!("; {}", output.err.trim()) } else { String::new() }
            );
        }
        println!("  {kept} kept the promise of 300 ms, {broken} broke it, {refused} were refused");
    }
}
