//! `drover relay top`, `drover agent top`: the connections of a running relay, or of relays at a running agent.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use drover_relay::control::{Asker, CONNECTIONS_TOLD_MAX, control_folder, living};
use drover_relay::{ConnectionStats, LinkStats, Snapshot, Stage, Waiting, WayStats};
use drover_types::{Bytes, Rate, count, counted};
use drover_view::{Align, Table};

use crate::cli::TopArgs;
use crate::exit::{Exit, Failure};
use crate::signals::stop_on_signals;

const EVERY: Duration = Duration::from_secs(1);
/// How often to look whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Shows them, for a `relay` or an `agent`.
pub fn run(args: &TopArgs, what: &str) -> Result<Exit, Failure> {
    let path = args.control.clone().map_or_else(|| the_only_one(what), Ok)?;
    let gone = |error: std::io::Error| {
        Failure::new(Exit::Connection, format!("{what} at {}: {error}", path.display()))
            .advise("is it running, and is it yours?")
    };
    let mut asker = Asker::connect(&path).map_err(gone)?;
    let number = args.number.min(CONNECTIONS_TOLD_MAX);
    if args.json {
        let told = asker.ask(number).map_err(gone)?;
        let text = serde_json::to_string_pretty(&told);
        crate::out::json(text.map_err(|error| Failure::new(Exit::Internal, error.to_string()))?);
        return Ok(Exit::Success);
    }
    if args.once || !std::io::stdout().is_terminal() {
        crate::out::print(&page(&asker.ask(number).map_err(gone)?));
        return Ok(Exit::Success);
    }
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    while !stop.is_set() {
        let told = asker.ask(number).map_err(gone)?;
        crate::out::fresh_page();
        crate::out::print(&page(&told));
        (0..EVERY.as_millis() / LOOK.as_millis())
            .take_while(|_| !stop.is_set())
            .for_each(|_| std::thread::sleep(LOOK));
    }
    Ok(Exit::Success)
}

fn the_only_one(what: &str) -> Result<PathBuf, Failure> {
    let folder = control_folder();
    let failed = |text: String| Failure::new(Exit::Usage, text).advise("give its socket with --control");
    let mut found =
        living(&folder, what).map_err(|error| failed(format!("{}: {error}", folder.display())))?;
    match (found.pop(), found.len()) {
        (Some(path), 0) => Ok(path),
        (None, _) => Err(failed(format!("no {what} in {}", folder.display()))),
        (Some(path), more) => {
            found.push(path);
            let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            Err(failed(format!("{} {what}s: {}", more + 1, names.join(", "))))
        }
    }
}

fn page(told: &Snapshot) -> String {
    let totals = &told.totals;
    let refused: u64 = totals.refused.values().sum();
    let mut text = format!(
        "{} now, {} since the start ({refused} refused, {} reset); {} up, {} down; {} in {} pipes at most\n",
        count(told.live as usize, "connection"),
        totals.accepted,
        totals.reset,
        Bytes(totals.up_bytes),
        Bytes(totals.down_bytes),
        Bytes(told.pipe_bytes),
        told.pipes,
    );
    if let Some(link) = &told.link {
        text += &link_line(link, totals.saved_bytes);
    }
    if !told.peers.is_empty() {
        text += &peers_line(told);
    }
    if !told.connections.is_empty() {
        text.push('\n');
        text += &table(told).to_string();
    }
    text
}

fn link_line(link: &LinkStats, saved: u64) -> String {
    let waiting = match link.asking + link.waiting {
        0 => String::new(),
        waiting => format!(", {} for its answer", counted(waiting as usize, "client", "waits", "wait")),
    };
    let saved = if saved == 0 { String::new() } else { format!(", {} saved by packing", Bytes(saved)) };
    format!(
        "link to {}: {}, {}{}, round trip {}, {} now; {} not acknowledged, {} not taken by clients{saved}{waiting}\n",
        link.site,
        link.state,
        count(link.connections as usize, "connection"),
        if link.congestion.is_empty() { String::new() } else { format!(" ({})", link.congestion) },
        milliseconds(link.rtt_us),
        Rate(link.bytes_per_second as f64),
        Bytes(link.held_bytes),
        Bytes(link.unread_bytes),
    )
}

fn peers_line(told: &Snapshot) -> String {
    let peers: Vec<String> = told.peers.iter().map(|(peer, count)| format!("{peer} {count}")).collect();
    format!("of peers: {}\n", peers.join(", "))
}

fn milliseconds(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

fn table(told: &Snapshot) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("ID", Right),
        ("CLIENT", Left),
        ("TARGET", Left),
        ("UP", Right),
        ("UP/S", Right),
        ("DOWN", Right),
        ("DOWN/S", Right),
        ("RTT", Right),
        ("AGAIN", Right),
        ("BY", Left),
        ("WAITS FOR", Left),
    ]);
    told.connections.iter().for_each(|it| table.row(row(it, told.link.as_ref())));
    table
}

fn row(it: &ConnectionStats, link: Option<&LinkStats>) -> [String; 11] {
    let link = link.filter(|_| it.is_linked);
    let sockets = || [&it.client_socket, &it.target_socket].into_iter().flatten();
    let target = it.target_socket.as_ref();
    [
        it.id.to_string(),
        it.peer.clone().unwrap_or_else(|| it.client.to_string()),
        it.target.clone(),
        Bytes(it.up.bytes).to_string(),
        Rate(it.up.bytes_per_second as f64).to_string(),
        Bytes(it.down.bytes).to_string(),
        Rate(it.down.bytes_per_second as f64).to_string(),
        target.map(|it| it.rtt_us).or(link.map(|it| it.rtt_us)).map_or_else(String::new, milliseconds),
        sockets().map(|it| u64::from(it.segments_again)).sum::<u64>().to_string(),
        match (target, link) {
            (_, Some(link)) => link.site.clone(),
            (Some(target), None) => target.congestion.clone(),
            (None, None) => String::new(),
        },
        waits_for(it).to_string(),
    ]
}

/// Who keeps the busier direction from going faster.
fn waits_for(it: &ConnectionStats) -> &'static str {
    let is_up = (it.up.bytes_per_second, it.up.bytes) >= (it.down.bytes_per_second, it.down.bytes);
    let (way, source, target): (&WayStats, _, _) =
        if is_up { (&it.up, "client", "target") } else { (&it.down, "target", "client") };
    match (it.stage, way.waiting) {
        (Stage::Connecting, _) => "target's answer",
        (Stage::Ending, _) => "its end",
        (Stage::Open, Waiting::Moving) => "nothing",
        (Stage::Open, Waiting::Source) => source,
        (Stage::Open, Waiting::Target) => target,
        (Stage::Open, Waiting::Line) => "link",
        (Stage::Open, Waiting::Rate) => "rate limit",
        (Stage::Open, Waiting::Done) => "the other way",
    }
}

#[cfg(test)]
mod tests {
    use drover_relay::Totals;

    use super::*;

    #[test]
    fn the_line_of_a_link_tells_what_packing_saved() {
        let link = LinkStats { site: "b".into(), state: "up".into(), ..LinkStats::default() };
        let told = |saved_bytes| Snapshot {
            link: Some(link.clone()),
            totals: Totals { saved_bytes, ..Totals::default() },
            ..Snapshot::default()
        };
        assert!(page(&told(3 << 20)).contains(", 3 MiB saved by packing\n"), "{}", page(&told(3 << 20)));
        assert!(!page(&told(0)).contains("saved"));
    }
}
