//! How long a libvirt domain stands still that moves over the link across a long, lossy line: figures, and no test of the suite.
//!
//! The daemons are true ones (`lab/libvirt/hosts`); drover and the agent are at the two ends of an emulated line. Run by
//! `cargo test -p drover --test live_domain_line -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use drover_lab::{PulseOptions, run_by};
use drover_stage::domains::{NAME, Pair};
use drover_stage::moves::{self, events, is_eased};
use drover_stage::sites::Sites;
use drover_wan::line::LineSpec;
use drover_wan::line::units::{Rate, Share};
use drover_wan::{Site, Wan, WanSpec};

const ROUNDS: u64 = 6;
const RATE_BITS: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(55);
const LOSS: f64 = 0.005;
const MTU: u32 = 9000;
/// What libvirt's QEMUs may write to, on either host.
const PLACES: &str = "unix:/var/lib/libvirt/qemu/*";
/// In which a guest fills its memory.
const FILL_TIME: Duration = Duration::from_secs(3);

/// Moves a guest with 256 MiB that writes to so many pages a hundred times a second: milliseconds for which no beat of it was heard.
fn stood_ms(seed: u64, pages_per_beat: u32) -> Option<u128> {
    let line = LineSpec::symmetric(Some(Rate::bits(RATE_BITS)), RTT, Share::of_one(LOSS));
    let wan = Wan::start(&WanSpec::long(line, MTU, "bbr", seed)).unwrap();
    let guest = PulseOptions { memory_mib: 256, pages: 240 << 8, pages_per_beat, ..PulseOptions::default() };
    let pair = Pair::new(|_| guest)?;
    let at = |site: &Site, host: &str| {
        let network = format!("--net={}", site.namespace.path().display());
        [vec!["nsenter".to_string(), network], pair.hosts.inside(host).unwrap()].concat()
    };
    let (here, there) = (at(&wan.near, "a"), at(&wan.far, "b"));
    let mut sites = Sites::not_started();
    sites.run_by = there;
    sites.address = format!("{}:7077", wan.far.address());
    sites.more = vec!["--allow-connect".to_string(), PLACES.to_string()];
    sites.start();
    let token = sites.path("token");
    std::fs::write(&token, sites.token(&[])).unwrap();
    let mut pairing =
        sites.here.command(&["agent", "pair", &sites.address, "--name", "site-b", "--as", "site-a"]);
    pairing.arg("--token-file").arg(&token);
    let paired = moves::run(run_by(&here, &pairing));
    assert_eq!(paired.code, Some(0), "{paired:?}");
    std::thread::sleep(FILL_TIME);
    let mut command = pair.command("a", "b", &["--via", "site-b", "--downtime", "300ms"]);
    command.env("DROVER_STATE", sites.path("here"));
    let command = run_by(&here, &command);
    // Its serial line at the target is there before it runs.
    let (output, mut arrived) = std::thread::scope(|scope| {
        let arrived = scope.spawn(|| pair.hosts.voice("b", NAME).unwrap());
        (moves::run(command), arrived.join().unwrap())
    });
    assert_eq!(output.code, Some(0), "{output:?}");
    arrived.beat(20).unwrap();
    let verdict = arrived.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
    let first = arrived.beats()[0];
    let last = pair.voice.beats().into_iter().rfind(|(_, number)| *number < first.1).unwrap();
    let stood = first.0.duration_since(last.0).as_millis();
    let told = events(&output);
    let eased = told.iter().find(|event| is_eased(event)).and_then(|event| event["text"].as_str());
    println!(
        "  {stood} ms, {} s in all; {}",
        moves::moved(&output)["total_s"],
        eased.unwrap_or("its end did not go slower")
    );
    Some(stood)
}

#[test]
#[ignore = "minutes, and figures only"]
fn figures_of_domains_that_move_over_a_long_line() {
    for pages_per_beat in [0, 80] {
        let mut stood: Vec<u128> = (1..=ROUNDS).filter_map(|seed| stood_ms(seed, pages_per_beat)).collect();
        stood.sort_unstable();
        println!("{pages_per_beat} pages a beat: it stood for {stood:?} ms");
    }
}
