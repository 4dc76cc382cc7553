//! `drover live`: a running guest moves from one QEMU to another, or a libvirt domain from one daemon to another.

mod domain;
mod memory;
mod over;
mod record;
mod route;
mod several;
mod show;

use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use drover_live::{
    Allowed, Choice, Event, Found, HostLoad, Loads, Mending, Moment, Moved, Phase, Promise, Route, Side,
    Told, Where, line_said,
};
use drover_qemu::QemuError;
use drover_qemu::live::{
    DisksBy, Ending, Guest, LiveError, LiveOptions, NbdAt, Place, Sides, TlsBy, TlsOptions, Wanted,
    left_by_earlier,
};
use drover_types::count;
use drover_view::{LiveAsked, live_words};
use serde_json::{Value, json};

use crate::cli::{AllowArg, DisksArg, LiveArgs, LiveCommand};
use crate::exit::{Exit, Failure};
use crate::out::{line, say};
use crate::signals::{Undo, stop_on_signals};
use over::{Over, Sites, Way};
use record::Record;
use route::Direct;
use show::Shown;

/// Runs `drover live`.
pub fn run(command: &LiveCommand) -> Result<Exit, Failure> {
    match command.one() {
        Some(args) => move_one(&args),
        None => several::run(command),
    }
}

fn move_one(args: &LiveArgs) -> Result<Exit, Failure> {
    let mut record = Record::begin(args)?;
    let ended = move_guest(args, &mut record);
    match record {
        Some(record) => record.write(ended),
        None => ended,
    }
}

fn move_guest(args: &LiveArgs, record: &mut Option<Record>) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let Opened { mut place, over, route } = Opened::open(args, &Sites::default())?;
    let mut view = View::of_one(args);
    let mut tell = |event: Event| {
        if let Some(record) = record {
            record.take(&event);
        }
        view.tell(&event);
    };
    route.into_iter().for_each(|route| tell(Event::Route(Box::new(route))));
    if args.dry_run {
        return looked_at(args, place.foresee(&mut tell), record);
    }
    // Ended in its midst, the guest could be left on neither side: further signals, and readers that have gone, ask for
    // the same clean stop.
    let _undo = Undo::begin();
    let ended = place.go(&stop.flag(), &mut tell);
    if let Some(over) = &over {
        over.refused().into_iter().for_each(|why| tell(Event::Note(why)));
        if let Some(record) = record.as_mut() {
            record.went_over(over.told());
        }
    }
    let [source, target] = place.moments();
    match ended {
        Ok(moved) => {
            if let Some(record) = record {
                record.moved(&moved, &source, &target);
            }
            Ok(view.moved(&moved, over.as_ref()))
        }
        Err(error) => Err(not_moved(args, &error, record, &source)),
    }
}

/// Both sides of a move, and what is between them.
struct Opened {
    place: Place,
    over: Option<Over>,
    /// Which way memory and disks go, where that was chosen.
    route: Option<Route>,
}

impl Opened {
    fn open(args: &LiveArgs, sites: &Sites) -> Result<Opened, Failure> {
        match args.daemon() {
            Some(daemon) => domain::open(args, daemon, sites),
            None => open(args, sites),
        }
    }

    fn of(sides: Sides, over: Option<Over>, route: Option<Route>) -> Opened {
        Opened { place: Place::Qemu(Box::new(sides)), over, route }
    }
}

/// Two monitors.
fn open(args: &LiveArgs, sites: &Sites) -> Result<Opened, Failure> {
    let Some(site) = &args.via else {
        let mut options = options(args, None)?;
        let mut source = connect_watched(&args.source)?;
        let target = connect(&args.to, Side::Target);
        let target = target.map_err(|failure| with_source(failure, &mut source))?;
        options.wanted.loads = Loads { source: load_of(&source), target: load_of(&target) };
        return Ok(Opened::of(Sides { source, target, options }, None, None));
    };
    let direct = Direct::wanted(args)?;
    // What is wrong with what was said is told before anybody is connected to.
    let way = Way::find(args, site, sites)?;
    let mut options = options(args, Some(&way))?;
    // While the site is dialled and asked the guest's writing is watched.
    let socket = args.source.clone();
    let source = thread::Builder::new().name("live-source".into()).spawn(move || connect_watched(&socket));
    let source = source.map_err(|error| {
        let error = QemuError::not_started("the thread that asks the source's monitor", error);
        Failure::new(Exit::Internal, error.chain())
    })?;
    let mut over = match Over::open(args, way) {
        Ok(over) => over,
        Err(failure) => return Err(beside_source(failure, source)),
    };
    // Who has the source's monitor is the one drover that moves this guest: what another left at the target's makes way.
    let mut source = source.join().unwrap_or_else(|panic| resume_unwind(panic))?;
    let target = over.connect();
    let mut target = target.map_err(|failure| with_source(failure, &mut source))?;
    let route = match &direct {
        Some(direct) => Some(route_of(direct, &mut source, &mut target, (&over, sites))?),
        None => None,
    };
    if let (Some(direct), Some(route)) = (&direct, &route) {
        if route.is_direct {
            over.set_direct();
            options.uri = direct.memory();
            if let (DisksBy::Mirror(at), Some(disks)) = (&mut options.disks, direct.disks()) {
                *at = disks;
            }
        } else if !matches!(options.memory.tls, Some(TlsOptions { by: TlsBy::Object(_), .. })) {
            // The link encrypts. What both QEMUs have by themselves they may be set to use.
            options.memory.tls = None;
        }
    }
    options.wanted.carried = Some(over.carried());
    over.ask(&mut target)?;
    options.wanted.loads = Loads { source: load_of(&source), target: over.load() };
    Ok(Opened::of(Sides { source, target, options }, Some(over), route))
}

/// How busy the host of a QEMU is, if it is this one.
fn load_of(guest: &Guest) -> Option<HostLoad> {
    guest.is_of_this_host().then(load_here).flatten()
}

fn load_here() -> Option<HostLoad> {
    drover_agent::HostLoad::here().map(host_load)
}

fn host_load(told: drover_agent::HostLoad) -> HostLoad {
    HostLoad {
        processors: told.processors,
        load_average: f64::from(told.load_percent) / 100.0,
        waiting: told.waiting_percent.map(|percent| f64::from(percent) / 100.0),
    }
}

/// The way that memory and disks go. Nothing is measured while an earlier move of the guest is to be ended.
fn route_of(
    direct: &Direct,
    source: &mut Guest,
    target: &mut Guest,
    (over, sites): (&Over, &Sites),
) -> Result<Route, Failure> {
    let found = left_by_earlier(source, target);
    Ok(match found.map_err(|error| Failure::new(Exit::Target, error.chain()))? {
        Found::Nothing => over.route(sites, direct),
        // Another line would be made as these QEMUs are set.
        Found::Ahead | Found::Broken => match source.is_set_to_encrypt() {
            Ok(true) => {
                direct.known(true, "its QEMUs encrypt, so a line that has to be made anew is direct, too")
            }
            Ok(false) => {
                direct.known(false, "it is in post-copy: a line that has to be made anew is over the link")
            }
            Err(error) => return Err(Failure::new(Exit::Source, error.chain())),
        },
        // What goes over a link ends with its drover.
        Found::Sending | Found::Arrived | Found::Moved | Found::Unclear(_) => {
            direct.known(true, "it is on its way there already")
        }
    })
}

/// What a site fails in is told at once, with what the source has failed in by then. A source that has not answered yet is
/// not waited for: nothing was done there but to measure.
fn beside_source(failure: Failure, source: JoinHandle<Result<Guest, Failure>>) -> Failure {
    if !source.is_finished() {
        return failure;
    }
    match source.join() {
        Ok(Err(other)) => both(failure, &other),
        Ok(Ok(_)) | Err(_) => failure,
    }
}

/// Two failures at once, of which the first counts.
fn both(failure: Failure, other: &Failure) -> Failure {
    Failure { message: format!("{}; {}", failure.message, other.message), ..failure }
}

/// The source, which begins to measure how fast the guest writes.
fn connect_watched(socket: &Path) -> Result<Guest, Failure> {
    let mut source = connect(socket, Side::Source)?;
    let begun = source.begin_to_measure();
    begun.map_err(|error| Failure::new(Exit::Source, error.chain()))?;
    Ok(source)
}

/// What a look ends in that moves nothing.
fn looked_at(
    args: &LiveArgs,
    looked: Result<(), LiveError>,
    record: &mut Option<Record>,
) -> Result<Exit, Failure> {
    let Err(error) = looked else { return Ok(Exit::Success) };
    if let Some(record) = record {
        record.failed(&error, &[]);
    }
    Err(failure(&error, allowed(args)))
}

/// Tells that a guest did not move, or not as it should.
fn not_moved(args: &LiveArgs, error: &LiveError, record: &mut Option<Record>, source: &[Moment]) -> Failure {
    if let Some(record) = record {
        record.failed(error, source);
    }
    if args.json {
        line(failed_document(error));
    }
    failure(error, allowed(args))
}

fn failed_document(error: &LiveError) -> Value {
    json!({"event": "failed", "message": error.to_string(), "guest_at": place(&error.guest_at)})
}

/// What was asked for; what carries it is not in it yet.
fn options(args: &LiveArgs, way: Option<&Way>) -> Result<LiveOptions, Failure> {
    if args.p2p || args.connect.is_some() {
        return Err(Failure::new(Exit::Usage, NO_DAEMON));
    }
    let disks = match (args.disks, way, args.nbd.as_deref()) {
        (DisksArg::Shared, _, _) => DisksBy::Shared { assume_shared: args.assume_shared },
        (DisksArg::Mirror, Some(way), _) => DisksBy::Mirror(way.disks.clone()),
        (DisksArg::Mirror, None, Some(nbd)) => DisksBy::Mirror(nbd_at(nbd)?),
        (DisksArg::Mirror, None, None) => {
            return Err(Failure::new(
                Exit::Usage,
                "--disks mirror wants --nbd, where the target may offer them",
            ));
        }
    };
    let uri = match (way, &args.uri) {
        (Some(way), _) => way.memory.clone(),
        (None, Some(uri)) => uri.clone(),
        (None, None) => return Err(Failure::new(Exit::Usage, NO_URI)),
    };
    Ok(LiveOptions { wanted: wanted(args), uri, disks, memory: memory::options(args)?, looked: None })
}

/// The same of any move. What carries it, its turn and how busy both hosts are is not in it yet.
fn wanted(args: &LiveArgs) -> Wanted {
    let rate = args.line.map(|rate| rate.bits_per_s() as f64 / 8.0);
    Wanted {
        promise: Promise { downtime_max: args.downtime, deadline: args.deadline },
        allowed: allowed(args),
        channels: args.channels,
        line: rate.map(line_said),
        rate_max: args.rate_max.map(|rate| rate.bits_per_s() / 8),
        share: None,
        carried: None,
        loads: Loads::default(),
        turn: None,
    }
}

/// What may be done to keep the promise.
fn allowed(args: &LiveArgs) -> Allowed {
    let allows = |what| args.allow.contains(&what);
    Allowed { throttle: allows(AllowArg::Throttle), postcopy: allows(AllowArg::Postcopy) }
}

const NO_DAEMON: &str = "--connect and --p2p are for libvirt domains, where --to is the address of a daemon: qemu+ssh://host/system";
const NO_URI: &str = "--uri is missing: where the target waits for memory (tcp:HOST:PORT, unix:/PATH or rdma:HOST:PORT). For a libvirt domain \
                      --to is the address of a daemon: qemu+ssh://host/system";

fn nbd_at(text: &str) -> Result<NbdAt, Failure> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(NbdAt::Unix(path.into()));
    }
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    match parts {
        Some((host, port)) if !host.is_empty() && port != 0 => {
            Ok(NbdAt::Tcp(host.trim_start_matches('[').trim_end_matches(']').to_string(), port))
        }
        _ => Err(Failure::new(Exit::Usage, format!("--nbd {text}: want HOST:PORT or unix:/PATH"))),
    }
}

fn connect(socket: &Path, side: Side) -> Result<Guest, Failure> {
    let exit = if side == Side::Source { Exit::Source } else { Exit::Target };
    let advice = "see that this is the monitor of a QEMU that runs (`-qmp unix:PATH,server=on,wait=off`), and that nobody else is \
                  connected: QEMU serves one client per monitor";
    Guest::connect_here(socket, side).map_err(|error| Failure::new(exit, error.chain()).advise(advice))
}

/// A target that is not to be reached, with what the source has to do with it: a move may be half done.
fn with_source(mut failure: Failure, source: &mut Guest) -> Failure {
    let Ok(told) = source.sample(Instant::now()) else { return failure };
    let has_ended = source.status().is_ok_and(|status| status == "postmigrate");
    let text = match told.sample.phase {
        Phase::Done if has_ended => {
            "the source has sent everything and ended the guest, which is paused at the target until it is started: \
             reach that target; only if its QEMU ended and never ran the guest, say `cont` at the source's monitor"
        }
        Phase::Precopy | Phase::Switchover => {
            "a move is under way at the source, which goes on or ends without you"
        }
        Phase::PostCopy | Phase::Broken => {
            "the guest runs at the target (post-copy) and needs memory that the source has: end neither QEMU, and run the command again when \
             the target's is reached; if that one has ended, the guest is lost, and its disks are as after a power cut"
        }
        Phase::Setup | Phase::Done | Phase::Failed => return failure,
    };
    failure.message = format!("{}; {text}", failure.message);
    failure
}

/// How it ends, of a move that was allowed this.
fn failure(error: &LiveError, allowed: Allowed) -> Failure {
    let exit = match &error.cause {
        // It was the source that failed, and took the guest with it.
        Ending::Failed(_) if error.guest_at == Where::Ended => Exit::Source,
        Ending::Obstacles(_) | Ending::Settings(_) | Ending::Promise(_) | Ending::Unclear(_) => Exit::Plan,
        Ending::GivenUp(_) => Exit::Source,
        Ending::Stopped => Exit::Interrupted,
        Ending::Failed(_) => Exit::Target,
    };
    let failure = Failure::new(exit, error.to_string());
    match &error.cause {
        Ending::Promise(_) | Ending::GivenUp(_) => failure.advise(more(allowed)),
        Ending::Failed(error) => match QemuError::advice(error) {
            Some(advice) => failure.advise(advice),
            None => failure,
        },
        _ => failure,
    }
}

/// What may be said otherwise where a promise could not be kept, of what was not said already.
fn more(allowed: Allowed) -> String {
    let words = [(allowed.throttle, "throttle"), (allowed.postcopy, "postcopy")];
    let words: Vec<&str> =
        words.iter().filter(|(is_allowed, _)| !is_allowed).map(|(_, word)| *word).collect();
    let less = "promise less (--downtime, --deadline)";
    if words.is_empty() {
        less.into()
    } else {
        format!("allow more (--allow {}), or {less}", words.join(","))
    }
}

fn place(place: &Where) -> &'static str {
    match place {
        Where::Ended => "ended",
        Where::Source => "source",
        Where::Target => "target",
        Where::Both => "both",
        Where::Between => "postcopy_incomplete",
        Where::Lost { .. } => "lost",
        Where::Waiting => "waiting",
        Where::Halted => "paused_at_target",
        Where::Held => "paused_at_source",
        Where::Unknown => "unknown",
    }
}

/// What happens, for people or machines.
struct View {
    /// The guest, where there are several.
    who: Option<String>,
    json: bool,
    /// When memory's progress was told last.
    said_ms: Option<u64>,
    /// What is shown in place of progress, where that is wanted.
    shown: Option<Shown>,
    /// What was promised.
    asked: LiveAsked,
}

/// Between two lines of progress for people.
const SAY_EVERY_MS: u64 = 1000;

impl View {
    fn of_one(args: &LiveArgs) -> View {
        let asked = record::asked(args);
        View { who: None, json: args.json, said_ms: None, shown: Shown::begin(args), asked }
    }

    fn tell(&mut self, event: &Event) {
        if self.json {
            return self.print(document(event));
        }
        if let Some(shown) = &mut self.shown {
            shown.take(event);
        }
        match event {
            Event::Note(_) | Event::Route(_) | Event::Busy { .. } | Event::Share(_) | Event::Mending(_) => {
                live_words(event).into_iter().for_each(|words| self.say(words));
            }
            Event::Chosen(choice) => choice.looked_at.iter().for_each(|looked| self.say(looked)),
            Event::Disk { name, state } => {
                let share = state.done_bytes as f64 * 100.0 / (state.all_bytes.max(1)) as f64;
                let word = if state.is_ready { "follows each write" } else { "is copied" };
                self.progress(
                    None,
                    format!("disk {name} {word}: {share:.0} % of {} MiB", state.all_bytes >> 20),
                );
            }
            Event::Memory(told) => {
                let sample = &told.sample;
                let text = format!(
                    "memory, pass {}: {} MiB sent, {} MiB left, dirty rate {:.0} MB/s{}",
                    sample.passes,
                    sample.sent_bytes >> 20,
                    sample.left_bytes >> 20,
                    sample.dirty_bytes_per_s as f64 / 1e6,
                    slowed(sample.throttle_percent),
                );
                self.progress(Some(sample.at_ms), text);
            }
            // The sample before tells it.
            Event::Sent => {}
            Event::Did(deed, why) => self.say(format!("{deed}: {why}")),
            Event::Link { site, is_up: true } => self.say(format!("the link to {site} is back: it goes on")),
            Event::Link { site, is_up: false } => {
                self.say(format!("the link to {site} is away: what goes over it waits until it is back"));
            }
        }
    }

    /// Says something that stays.
    fn say(&self, text: impl std::fmt::Display) {
        let text = self.named(text);
        match &self.shown {
            Some(shown) => shown.say(&text),
            None => say(text),
        }
    }

    /// Prints a document, which tells whose it is.
    fn print(&self, mut document: Value) {
        if let Some(who) = &self.who {
            document["guest"] = json!(who);
        }
        line(document);
    }

    fn named(&self, text: impl std::fmt::Display) -> String {
        self.who.as_ref().map_or_else(|| text.to_string(), |who| format!("{who}: {text}"))
    }

    /// At most one line a second; those of disks have no time of their own and come as they change.
    fn progress(&mut self, at_ms: Option<u64>, text: String) {
        let is_due = match (self.said_ms, at_ms) {
            _ if self.shown.is_some() => false,
            (Some(said), Some(at)) => at >= said + SAY_EVERY_MS || at < said,
            (None, _) | (Some(_), None) => true,
        };
        if is_due {
            self.said_ms = at_ms.or(self.said_ms);
            self.say(text);
        }
    }

    /// Tells of a move that came through, and gives how it ends: a promise that was broken is no failure, and no success.
    fn moved(&mut self, moved: &Moved, over: Option<&Over>) -> Exit {
        let real = record::real(moved);
        let broken = real.broken(&self.asked);
        let exit = if broken.is_some() { Exit::PromiseBroken } else { Exit::Success };
        if self.json {
            self.print(json!({
                "event": "moved",
                "link": over.map(Over::told),
                "total_s": moved.total.as_secs_f64(),
                "total_s_foreseen": moved.foreseen.total.likely,
                "total_s_foreseen_below": moved.foreseen_below_s,
                "downtime_ms_by_qemu": moved.downtime_by_qemu.map(millis),
                "downtime_ms": moved.stood_still.map(millis),
                "downtime_ms_foreseen": moved.foreseen.downtime.likely * 1000.0,
                "sent_bytes": moved.last.sample.sent_bytes,
                "passes": moved.last.sample.passes,
                "actions": moved.deeds.iter().map(|(deed, _)| deed.to_string()).collect::<Vec<_>>(),
                "promise_kept": real.is_kept(&self.asked),
                "promise_broken": broken,
                "downtime_ms_promised": self.asked.downtime_ms,
            }));
            return exit;
        }
        // What moved on the terminal goes before what stays is written below; of several the others go on moving there.
        let shown = self.shown.take().filter(|_| self.who.is_some());
        let line = |text: String| match &shown {
            Some(shown) => shown.say(&self.named(text)),
            None => line(self.named(text)),
        };
        let time =
            |time: Option<Duration>| time.map_or("not told".into(), |time| format!("{} ms", millis(time)));
        line(format!(
            "the guest runs at the target{} after {:.1} s (foreseen {}): {} MiB in {}",
            over.filter(|over| over.is_whole())
                .map(|over| format!(", over the link to {},", over.site()))
                .unwrap_or_default(),
            moved.total.as_secs_f64(),
            foreseen_words(moved),
            moved.last.sample.sent_bytes >> 20,
            count(moved.last.sample.passes as usize, "pass"),
        ));
        line(format!(
            "downtime {} from stop to start (QEMU's own count: {}, forecast: {:.0} ms)",
            time(moved.stood_still),
            time(moved.downtime_by_qemu),
            moved.foreseen.downtime.likely * 1000.0,
        ));
        if let Some(broken) = broken {
            line(format!("the promise was broken: {broken}"));
        }
        exit
    }
}

/// Seconds that were foreseen, or a bound where the line was not known.
fn foreseen_words(moved: &Moved) -> String {
    match moved.foreseen_below_s {
        Some(below_s) => format!("less than {below_s:.1}"),
        None => format!("{:.1}", moved.foreseen.total.likely),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn slowed(percent: u8) -> String {
    if percent == 0 { String::new() } else { format!(", slowed down by {percent} %") }
}

fn document(event: &Event) -> Value {
    match event {
        Event::Note(text) => json!({"event": "note", "text": text}),
        Event::Route(route) => route_document(route),
        Event::Busy { loads, longer } => json!({
            "event": "busy", "source": load_document(loads.source), "target": load_document(loads.target),
            "downtime_longer_ms": longer.likely * 1000.0,
        }),
        Event::Chosen(choice) => chosen(choice),
        Event::Disk { name, state } => json!({
            "event": "disk", "name": name, "done_bytes": state.done_bytes, "all_bytes": state.all_bytes,
            "is_ready": state.is_ready,
        }),
        Event::Memory(Told { sample, status, .. }) => json!({
            "event": "memory", "at_ms": sample.at_ms, "status": status, "phase": phase_word(sample.phase),
            "pass": sample.passes, "sent_bytes": sample.sent_bytes, "left_bytes": sample.left_bytes,
            "dirty_bytes_per_s": sample.dirty_bytes_per_s, "throttle_percent": sample.throttle_percent,
        }),
        Event::Sent => json!({"event": "sent"}),
        Event::Did(deed, why) => json!({"event": "action", "what": deed.to_string(), "why": why.to_string()}),
        Event::Share(rate) => json!({"event": "share", "rate_bytes_per_s": rate}),
        Event::Mending(mending) => mending_document(mending),
        Event::Link { site, is_up } => json!({"event": "link", "site": site, "is_up": is_up}),
    }
}

fn route_document(route: &Route) -> Value {
    let Route { is_direct, reason, asked, direct, link_bytes_per_s } = route;
    json!({
        "event": "route", "way": if *is_direct { "direct" } else { "link" }, "reason": reason.word(), "why": route.to_string(),
        "direct_to": asked.to, "connections": asked.connections, "rate_max_bytes_per_s": asked.rate_max,
        "is_encrypted_by_qemu": asked.is_encrypted && *is_direct, "direct_bytes_per_s": direct.map(|it| it.bytes_per_s),
        "direct_sent_again_share": direct.map(|it| it.again_share),
        "direct_rtt_us": direct.map(|it| u64::try_from(it.round_trip.as_micros()).unwrap_or(u64::MAX)),
        "link_bytes_per_s": link_bytes_per_s,
    })
}

fn load_document(load: Option<HostLoad>) -> Value {
    let document = |HostLoad { processors, load_average, waiting }| json!({"processors": processors, "load_average": load_average, "waiting_share": waiting});
    load.map_or(Value::Null, document)
}

fn mending_document(mending: &Mending) -> Value {
    let (what, more) = match mending {
        Mending::Broke { why } => ("broke", json!({ "why": why })),
        Mending::Told(side) => ("told", json!({"side": side.to_string()})),
        Mending::Tries { number } => ("tries", json!({ "number": number })),
        Mending::Failed { number, why, next } => {
            ("failed", json!({"number": number, "why": why, "next_ms": millis(*next)}))
        }
        Mending::Back { tries } => ("back", json!({ "tries": tries })),
    };
    let mut document = json!({"event": "recovery", "what": what});
    more.as_object().into_iter().flatten().for_each(|(key, value)| document[key] = value.clone());
    document
}

fn chosen(choice: &Choice) -> Value {
    let ways = choice.looked_at.iter().map(|looked| {
        json!({
            "way": looked.way, "keeps_the_promise": looked.keeps, "converges": looked.forecast.converges,
            "total_s": looked.forecast.total.likely, "total_s_spread": looked.forecast.total.spread,
            "downtime_ms": looked.forecast.downtime.likely * 1000.0, "passes": looked.forecast.passes,
        })
    });
    let channels = choice.course.as_ref().map(|course| course.channels);
    let facts = &choice.facts;
    json!({
        "event": "chosen", "channels": channels, "ways": ways.collect::<Vec<_>>(), "memory_bytes": facts.memory_bytes,
        "dirty_bytes_per_s": facts.dirty.likely, "line_bytes_per_s": facts.rate.likely,
    })
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Setup => "setup",
        Phase::Precopy => "precopy",
        Phase::Switchover => "switchover",
        Phase::PostCopy => "postcopy",
        Phase::Broken => "broken",
        Phase::Done => "done",
        Phase::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allowed_already_is_not_advised() {
        let one = Allowed { throttle: true, postcopy: false };
        assert!(more(Allowed::default()).contains("(--allow throttle,postcopy), or promise less"));
        assert!(more(one).contains("(--allow postcopy)"));
        assert!(more(Allowed { postcopy: true, ..one }).starts_with("promise less"));
    }
}
