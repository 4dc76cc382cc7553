//! Drover itself: a relay beside the sender, a relay in a pair with an agent, and a copy to an agent.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use drover_lab::{lab_folder, workspace};

use crate::clone::wan::data;
use crate::clone::wan::tools::{Goodput, PORT, Tool, stream};

/// Where a relay listens at the near end.
const RELAY_PORT: u16 = 8_001;
/// Where the agent listens at the far end, if something else listens at the port.
const AGENT_PORT: u16 = 7_843;

/// What the program can do, of what is measured.
pub fn all(file: &Path, bytes: u64) -> Result<Vec<Tool>> {
    let built = workspace().join("target/release/drover").display().to_string();
    let program = std::env::var("DROVER_PROGRAM").unwrap_or(built);
    let file = file.display().to_string();
    let mut tools = Vec::new();
    if has(&program, "relay") {
        tools.push(relay(&program, &file, bytes));
    }
    if has(&program, "agent") {
        tools.push(paired_relay(&program, &file, bytes));
        let pool = data::pool()?.display().to_string();
        tools.push(copy(&program, &pool, &file, bytes));
        let image = data::programs()?;
        let (sibling, image) = (data::sibling(&image)?.display().to_string(), image.display().to_string());
        tools.push(Tool {
            name: "drover copy of a disk with programs".into(),
            is_sparing: true,
            ..copy(&program, &pool, &image, data::PROGRAMS_BYTES)
        });
        tools.push(second_copy(&program, &pool, &image, &sibling));
    }
    Ok(tools)
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
        chooses: true,
        ..stream("drover relay, one stream", &client, bytes)
    }
}

/// Where state of both ends lies, and how the program is called there.
struct Hosts {
    place: String,
    here: String,
    there: String,
}

impl Hosts {
    fn new(program: &str, name: &str) -> Hosts {
        let place = lab_folder().join("bench").join(name).display().to_string();
        let host = |name: &str| format!("env DROVER_STATE={place}/{name} {program}");
        Hosts { here: host("here"), there: host("there"), place }
    }

    /// Has both ends know each other; the agent must listen.
    fn pair(&self, port: u16) -> String {
        let Hosts { place, here, there } = self;
        format!(
            "{there} agent pair --new-token >{place}/token && \
             {here} agent pair {{far}}:{port} --name site-b --as site-a --token-file {place}/token"
        )
    }
}

/// One stream of somebody else's, over a link: a relay beside the sender, the agent beside the receiver.
fn paired_relay(program: &str, file: &str, bytes: u64) -> Tool {
    let hosts = Hosts::new(program, "relays");
    let Hosts { place, here, there } = &hosts;
    let sink = format!("socat -u -b 1048576 TCP-LISTEN:{PORT},reuseaddr OPEN:/dev/null");
    let serve = format!(
        "rm -rf {place} && mkdir -p {place} || exit; \
         {there} agent run --listen {{far}}:{AGENT_PORT} --name west --allow-connect '{{far}}:{PORT}' & \
         until ss -Hltn 'sport = :{AGENT_PORT}' | grep -q .; do kill -0 $! || exit; sleep 0.02; done; exec {sink}"
    );
    let relay = format!(
        "{pair} && exec {here} relay --via site-b --control {place}/relay.sock --listen {{near}}:{RELAY_PORT} --to {{far}}:{PORT}",
        pair = hosts.pair(AGENT_PORT)
    );
    // In service the link is there long before a client comes.
    let is_up = format!(
        "{program} relay top --once --json --control {place}/relay.sock | grep -Eq '\"state\": ?\"up\"'"
    );
    let client = format!("socat -u -b 1048576 OPEN:{file} TCP:{{near}}:{RELAY_PORT}");
    Tool {
        needs: vec!["socat", "ss"],
        server: shell(serve),
        helper: shell(relay),
        helper_port: Some(RELAY_PORT),
        prepare: shell(format!("until {is_up}; do sleep 0.1; done; sleep 1")),
        chooses: true,
        ..stream("drover relay in a pair, one stream", &client, bytes)
    }
}

/// A new disk in a pool of the far end's agent, durable when the copy ends.
fn copy(program: &str, pool: &str, file: &str, bytes: u64) -> Tool {
    let hosts = Hosts::new(program, "agents");
    let Hosts { place, here, there } = &hosts;
    let serve = format!(
        "rm -rf {place} {pool} && mkdir -p {place} {pool} && \
         exec {there} agent run --listen {{far}}:{PORT} --pool vms={pool} --name west",
    );
    Tool {
        name: "drover copy to an agent".into(),
        needs: Vec::new(),
        server: shell(serve),
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: shell(hosts.pair(PORT)),
        client: shell(format!("exec {here} copy {file} agent://site-b/vms/disk.raw")),
        goodput: Goodput::SenderEnds(bytes),
        chooses: true,
        is_sparing: false,
    }
}

/// The disk of a second machine from the same image, when the first one's is there.
fn second_copy(program: &str, pool: &str, image: &str, sibling: &str) -> Tool {
    let hosts = Hosts::new(program, "agents");
    let first = format!("{} && {} copy {image} agent://site-b/vms/first.raw", hosts.pair(PORT), hosts.here);
    Tool {
        name: "drover copy of a second disk like it".into(),
        prepare: shell(first),
        is_sparing: true,
        ..copy(program, pool, sibling, data::PROGRAMS_BYTES)
    }
}
