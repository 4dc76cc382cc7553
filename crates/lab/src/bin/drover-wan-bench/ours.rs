//! Drover itself: a relay beside the sender, and a copy between two agents.

use std::path::Path;
use std::process::{Command, Stdio};

use drover_lab::{lab_folder, workspace};

use crate::tools::{Goodput, PORT, Tool, stream};

/// Where a relay listens at the near end.
const RELAY_PORT: u16 = 8_001;

/// What the program can do, of what is measured.
pub fn all(file: &Path, bytes: u64) -> Vec<Tool> {
    let built = workspace().join("target/release/drover").display().to_string();
    let program = std::env::var("DROVER_PROGRAM").unwrap_or(built);
    let file = file.display().to_string();
    let mut tools = Vec::new();
    if has(&program, "relay") {
        tools.push(relay(&program, &file, bytes));
    }
    if has(&program, "agent") {
        tools.push(copy(&program, &file, bytes));
    }
    tools
}

/// Whether the program, as it was built, knows a command.
fn has(program: &str, command: &str) -> bool {
    let mut help = Command::new(program);
    help.args([command, "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    help.status().is_ok_and(|status| status.success())
}

fn shell(text: String) -> Vec<String> {
    vec!["sh".into(), "-c".into(), text]
}

/// One stream of somebody whose congestion control is the line's; the relay chooses its own.
fn relay(program: &str, file: &str, bytes: u64) -> Tool {
    let client = format!("socat -u -b 1048576 OPEN:{file} TCP:{{near}}:{RELAY_PORT}");
    Tool {
        helper: shell(format!("exec {program} relay --listen {{near}}:{RELAY_PORT} --to {{far}}:{PORT}")),
        helper_port: Some(RELAY_PORT),
        ..stream("drover relay, one stream", &client, bytes)
    }
}

/// A new disk in a pool of the far end's agent, durable when the copy ends.
fn copy(program: &str, file: &str, bytes: u64) -> Tool {
    let place = lab_folder().join("bench/agents").display().to_string();
    let host = |name: &str| format!("DROVER_STATE={place}/{name} {program}");
    let (here, there) = (host("here"), host("there"));
    let serve = format!(
        "rm -rf {place} && mkdir -p {place}/pool && export {there_state} && \
         exec {program} agent run --listen {{far}}:{PORT} --pool vms={place}/pool --name west",
        there_state = there.split(' ').next().unwrap_or_default(),
    );
    let pair = format!(
        "{there} agent pair --new-token >{place}/token && \
         {here} agent pair {{far}}:{PORT} --name site-b --as site-a --token-file {place}/token"
    );
    Tool {
        name: "drover copy to an agent".into(),
        needs: Vec::new(),
        server: shell(serve),
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: shell(pair),
        client: shell(format!("exec env {here} copy {file} agent://site-b/vms/disk.raw")),
        goodput: Goodput::SenderEnds(bytes),
    }
}
