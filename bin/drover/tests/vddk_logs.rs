//! `drover vddk logs`.
#![allow(clippy::unwrap_used)]

use drover_lab::Drover;

#[test]
fn known_causes_are_told_with_their_line_and_advice() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("vddk.log");
    let lines = [
        "nbdkit: debug: nothing to see",
        "nbdkit: vddk[1]: error: [NFC ERROR] x: received NFC error 5 from server: Failed to allocate the requested 1 bytes",
        "nbdkit: vddk[2]: error: [NFC ERROR] x: received NFC error 5 from server: Failed to allocate the requested 2 bytes",
        "\u{1b}[2Jerror: Host address lookup for server esx1 failed: Name or service not known",
    ];
    std::fs::write(&log, lines.join("\n")).unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let file = log.display().to_string();
    let told = drover.run(&["vddk", "logs", &file]).unwrap();
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(
        told.out.contains(&format!("{file}:2: the host's NFC server is out of memory (busy, 2 lines)")),
        "{}",
        told.out
    );
    assert!(told.out.contains("try: VDDK connects to the ESXi host by the name"), "{}", told.out);
    assert!(!told.out.contains('\u{1b}'), "control characters are not passed on");
    let json = drover.run(&["vddk", "logs", &file, "--json"]).unwrap().json().unwrap();
    let causes: Vec<_> =
        json["files"][0]["findings"].as_array().unwrap().iter().map(|it| it["cause"].clone()).collect();
    assert_eq!(causes, ["nfc_memory", "dns"]);
    std::fs::write(&log, "all is well\n").unwrap();
    assert!(drover.run(&["vddk", "logs", &file]).unwrap().out.contains("no known cause"));
    assert_eq!(drover.run(&["vddk", "logs", "/no/such/log"]).unwrap().code, Some(2));
}
