//! The bench of live moves still moves guests; what it measures here means nothing.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use drover_lab::Pulse;

#[test]
fn the_bench_of_live_moves_moves_a_guest_and_tells_how_long_it_stood_still() {
    if Pulse::qemu().is_none() {
        return;
    }
    let mut bench = Command::new(env!("CARGO_BIN_EXE_drover-live-bench"));
    bench.envs([
        ("DROVER_LIVE_SIZES", "64"),
        ("DROVER_LIVE_MEMORY", "continuous"),
        ("DROVER_LIVE_WRITES", "8"),
        ("DROVER_LIVE_PLACES", "here"),
        ("DROVER_LIVE_WAYS", "qemu_x1"),
        ("DROVER_LIVE_ROUNDS", "1"),
        ("DROVER_LIVE_LIMIT", "300"),
    ]);
    let output = bench.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let row =
        out.lines().find(|line| line.starts_with("| qemu x1 |")).unwrap_or_else(|| panic!("{out}{err}"));
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    // Seconds; the gap between beats with its spread; nothing to remark.
    assert!(cells[2].parse::<f64>().unwrap() > 0.0, "{row}");
    assert!(cells[8].contains('('), "{row}");
    assert_eq!(cells[11], "", "{row}");
}
