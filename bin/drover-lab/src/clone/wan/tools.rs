//! The programs that are measured.

use std::path::{Path, PathBuf};

use anyhow::Result;
use drover_lab::lab_folder;

use crate::clone::wan::lines::Ground;
use crate::clone::wan::ours;

/// Port of whatever serves at the far end.
pub const PORT: u16 = 10_809;

/// How goodput is known.
pub enum Goodput {
    /// The sender ends when all is there.
    SenderEnds(u64),
    /// The receiver ends when all is there; the sender may have ended long before.
    ReceiverEnds(u64),
    /// iperf3 tells.
    Iperf,
}

/// A program. Words of its commands may hold `{far}` and `{near}`, the addresses.
pub struct Tool {
    pub name: String,
    /// Programs that have to be there.
    pub needs: Vec<&'static str>,
    /// Runs at the far end first.
    pub server: Vec<String>,
    /// Runs at the near end beside the sender.
    pub helper: Vec<String>,
    /// Port at which the helper listens.
    pub helper_port: Option<u16>,
    pub port: u16,
    /// Runs at the near end to its end, before the time begins.
    pub prepare: Vec<String>,
    pub client: Vec<String>,
    pub goodput: Goodput,
    /// It chooses its congestion control by itself: one row is enough, whatever the hosts have.
    pub chooses: bool,
    /// It sends less than the bytes that arrive: little on the line is no reason to give it up.
    pub is_sparing: bool,
}

impl Tool {
    /// A program it needs that is not there.
    pub fn missing(&self) -> Option<&'static str> {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let is_there = |name: &&str| path.split(':').any(|folder| Path::new(folder).join(name).is_file());
        self.needs.iter().find(|name| !is_there(name)).copied()
    }
}

/// Where programs get files of their own.
fn folder() -> PathBuf {
    lab_folder().join("bench")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// All of them, sending `bytes` of `file`; with those that say little new if there are to be more.
pub fn all(ground: &Ground, file: &Path, bytes: u64, has_more: bool) -> Result<Vec<Tool>> {
    let name = file.display().to_string();
    let streams = if has_more { &[1, 5, 16, 48][..] } else { &[1, 16] };
    let mut tools: Vec<Tool> = streams.iter().map(|streams| iperf(*streams, ground.seconds)).collect();
    let tuned = format!("nbdcopy --flush -C 4 -T 4 -R 32 --request-size=1048576 {name} nbd://{{far}}");
    tools.push(nbd("nbdcopy -C4 -R32 1 MiB", "nbdcopy", &tuned, bytes));
    let convert = |options: &str| format!("qemu-img convert -n {options} -f raw -O raw {name} nbd://{{far}}");
    let socat = |options: &str| format!("socat -u {options} OPEN:{name} TCP:{{far}}:{PORT}");
    if has_more {
        tools.push(nbd("nbdcopy", "nbdcopy", &format!("nbdcopy --flush {name} nbd://{{far}}"), bytes));
        tools.push(nbd("qemu-img convert", "qemu-img", &convert(""), bytes));
        tools.push(nbd("qemu-img convert -W -m 16", "qemu-img", &convert("-W -m 16"), bytes));
        tools.push(stream("socat", &socat(""), bytes));
        tools.push(rsync(&name, bytes));
    }
    tools.push(stream("socat -b 1048576", &socat("-b 1048576"), bytes));
    if has_more {
        tools.push(haproxy(&name, bytes));
    }
    tools.extend(ours::all(file, bytes)?);
    Ok(tools)
}

fn iperf(streams: u32, seconds: f64) -> Tool {
    Tool {
        name: format!("iperf3 x{streams}"),
        needs: vec!["iperf3"],
        server: words("iperf3 -s -1 -p 10809"),
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: Vec::new(),
        client: words(&format!("iperf3 -c {{far}} -p {PORT} -J -P {streams} -t {}", seconds.ceil())),
        goodput: Goodput::Iperf,
        chooses: false,
        is_sparing: false,
    }
}

/// Copies to an NBD server that takes everything and keeps nothing.
fn nbd(name: &str, program: &'static str, client: &str, bytes: u64) -> Tool {
    Tool {
        name: name.into(),
        needs: vec![program, "nbdkit"],
        server: words(&format!("nbdkit -f -p {PORT} null {bytes}")),
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: Vec::new(),
        client: words(client),
        goodput: Goodput::SenderEnds(bytes),
        chooses: false,
        is_sparing: false,
    }
}

/// One TCP stream into nothing.
pub fn stream(name: &str, client: &str, bytes: u64) -> Tool {
    Tool {
        name: name.into(),
        needs: vec!["socat"],
        server: words(&format!("socat -u -b 1048576 TCP-LISTEN:{PORT},reuseaddr OPEN:/dev/null")),
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: Vec::new(),
        client: words(client),
        goodput: Goodput::ReceiverEnds(bytes),
        chooses: false,
        is_sparing: false,
    }
}

/// One stream through a proxy beside the sender.
fn haproxy(file: &str, bytes: u64) -> Tool {
    const CONFIG: &str = "global\n maxpipes 100\n tune.pipesize 1048576\ndefaults\n mode tcp\n timeout connect 60s\n timeout client 600s\n timeout server 600s\n \
                          option splice-request\n option splice-response\nlisten relay\n bind {near}:8001\n server far {far}:10809\n";
    let place = folder().join("haproxy.cfg").display().to_string();
    let configure = format!("cat >{place} <<'END' || exit\n{CONFIG}END\nexec haproxy -db -f {place}");
    Tool {
        helper: vec!["sh".into(), "-c".into(), configure],
        helper_port: Some(8_001),
        needs: vec!["haproxy", "socat"],
        ..stream("haproxy, one stream", &format!("socat -u -b 1048576 OPEN:{file} TCP:{{near}}:8001"), bytes)
    }
}

/// To a daemon, as a new file.
fn rsync(file: &str, bytes: u64) -> Tool {
    let place = folder().join("rsync").display().to_string();
    let serve = format!(
        "rm -rf {place} && mkdir {place} && cat >{place}/conf <<'END' || exit\nuse chroot = no\nuid = 0\ngid = 0\n\
         [in]\npath = {place}\nread only = no\nEND\nexec rsync --daemon --no-detach --port={PORT} --config={place}/conf"
    );
    Tool {
        name: "rsync --whole-file --inplace (to a daemon, a new file)".into(),
        needs: vec!["rsync"],
        server: vec!["sh".into(), "-c".into(), serve],
        helper: Vec::new(),
        helper_port: None,
        port: PORT,
        prepare: Vec::new(),
        client: words(&format!("rsync --whole-file --inplace --port={PORT} {file} rsync://{{far}}/in/copy")),
        goodput: Goodput::SenderEnds(bytes),
        chooses: false,
        is_sparing: false,
    }
}
