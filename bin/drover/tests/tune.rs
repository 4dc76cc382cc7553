//! `drover tune`, which only tells.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

fn tune(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_drover")).arg("tune").args(arguments).output().unwrap()
}

#[test]
fn it_tells_what_to_set_and_the_lines_agree_with_the_json() {
    let run = |arguments: &[&str]| {
        let output = tune(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let line = ["--rate", "1000g", "--rtt", "100ms"];
    let text = run(&line);
    let json: Value = serde_json::from_str(&run(&[&line[..], &["--json"]].concat())).unwrap();
    let settings = json["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 7);
    for it in settings {
        let lacking = it["value"] != it["wanted"];
        assert_eq!(it["lacking"], lacking, "{it}");
        let said = format!("\n{} = {}\n", it["name"].as_str().unwrap(), it["wanted"].as_str().unwrap());
        assert_eq!(text.contains(&said), lacking, "{said} in {text}");
    }
    // No host has buffers of 1 GiB.
    assert!(text.contains("\nnet.core.rmem_max = 1073741824\n"), "{text}");
}

#[test]
fn a_rate_without_a_round_trip_is_refused() {
    assert_eq!(tune(&["--rate", "1g"]).status.code(), Some(2));
}
