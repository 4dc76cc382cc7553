//! `drover serve-disk`: one disk for other programs, until they or Ctrl-C end it.

use std::fs::DirBuilder;
use std::io::BufReader;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_copy::{Replay, replay};
use drover_endpoint::{End, NamedSource, open_in_place, open_source, path_of};
use drover_engine::chain;
use drover_mover::journal_path;
use drover_nbd_server::{Export, Listen, Server, ServerOptions, fence_path, server_config};
use drover_types::Bytes;
use serde_json::json;

use super::recorded::recorded;
use crate::cli::{ServeDiskArgs, TlsArg};
use crate::endpoint::source_named;
use crate::exit::{Exit, Failure};
use crate::signals::stop_on_signals;

/// How often to look whether it is time to end.
const LOOK: Duration = Duration::from_millis(50);

/// The context that tells which blocks of a half-copied disk are on it: 0 recorded, 1 not.
const RECORDED: &str = "drover:recorded";

/// Serves a disk.
pub fn run(args: &ServeDiskArgs) -> Result<Exit, Failure> {
    if args.exit_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(|error| Failure::new(Exit::Internal, format!("--exit-with-parent: {error}")))?;
    }
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let half = half_copied(args)?;
    let (end, export) = open(args, half.as_ref())?;
    let (listen, folder) = listen(args)?;
    let server = Server::start(vec![export], &listen, options(args)?)
        .map_err(|error| Failure::new(Exit::Usage, format!("listening on {}: {error}", told(&listen))))?;
    announce(args, &server, &end, half.as_ref());
    while !stop.is_set() && (!args.once || !server.is_done()) {
        std::thread::sleep(LOOK);
    }
    let stopped = server.stop();
    drop(folder);
    match stopped {
        Ok(()) => Ok(Exit::Success),
        Err(error) => Err(Failure::new(Exit::Target, chain(&error))),
    }
}

fn named(args: &ServeDiskArgs) -> NamedSource<'_> {
    source_named(&args.disk, args.format, &args.login, args.state.as_deref())
}

/// The journal of a copy to this disk that has not come to its end.
fn half_copied(args: &ServeDiskArgs) -> Result<Option<Replay>, Failure> {
    let Some(path) = path_of(&args.disk).map(|path| journal_path(&path)) else { return Ok(None) };
    let failed = |why: String| Failure::new(Exit::Target, format!("journal {}: {why}", path.display()));
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    // A run that was killed before it began: it is no journal.
    if file.metadata().is_ok_and(|meta| meta.len() == 0) {
        return Ok(None);
    }
    let journal = replay(&mut BufReader::new(file)).map_err(|error| failed(chain(&error)))?;
    if journal.complete.is_some() {
        return Ok(None);
    }
    if args.writable {
        let text = format!("a copy to {} has not come to its end, and writing would spoil it", args.disk);
        return Err(Failure::new(Exit::Usage, text)
            .advise("serve it read-only, end the copy first, or remove its journal to give it up"));
    }
    Ok(Some(journal))
}

fn open(args: &ServeDiskArgs, half: Option<&Replay>) -> Result<(End, Export), Failure> {
    if args.writable {
        let (end, path) = open_in_place(&named(args))?;
        let export = Export::new(&args.export, end.disk.clone());
        let export = if args.no_fence { export.writable() } else { fenced(export, args, path.as_deref())? };
        let is_file = path.is_some() && end.keep.is_empty();
        return Ok((end, if is_file { export.holes_in_reads() } else { export }));
    }
    let end = open_source(&named(args))?;
    let mut export = Export::new(&args.export, end.disk.clone());
    // Only files of this host are asked for holes before each read: other disks would ask someone else.
    if path_of(&args.disk).is_some() && end.keep.is_empty() {
        export = export.holes_in_reads();
    }
    if let Some(journal) = half {
        export = export.with_context(RECORDED, recorded(journal.leaves.clone()));
    }
    Ok((end, export))
}

fn fenced(export: Export, args: &ServeDiskArgs, disk: Option<&Path>) -> Result<Export, Failure> {
    let beside = disk.map(fence_path);
    let file = args.fence_file.as_deref().or(beside.as_deref());
    export.fenced(file).map_err(|error| {
        Failure::new(Exit::Target, chain(&error)).advise("choose another place with --fence-file")
    })
}

fn options(args: &ServeDiskArgs) -> Result<ServerOptions, Failure> {
    let folder = args.tls_certificates.as_deref().filter(|_| args.tls != Some(TlsArg::Off));
    let tls = folder
        .map(|folder| server_config(folder, args.tls_verify_peer))
        .transpose()
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let tls_required = args.tls != Some(TlsArg::On);
    Ok(ServerOptions { connections_max: args.connections, tls, tls_required, ..ServerOptions::default() })
}

/// A folder that goes with the server.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // The socket is gone by now; a folder that stays costs nothing.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn listen(args: &ServeDiskArgs) -> Result<(Listen, Option<Folder>), Failure> {
    if let Some(address) = &args.listen {
        return Ok((Listen::Tcp(address.clone()), None));
    }
    if let Some(path) = &args.socket {
        return Ok((Listen::Unix(path.clone()), None));
    }
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = base.join(format!("drover-serve-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
        Failure::new(Exit::Usage, format!("folder {}: {error}", path.display())).advise("give a --socket")
    })?;
    let folder = Folder(path);
    Ok((Listen::Unix(folder.0.join("nbd.sock")), Some(folder)))
}

fn told(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.clone(),
        Listen::Unix(path) => path.display().to_string(),
    }
}

/// Says what is served where: the URI alone on standard output, the rest on the other.
fn announce(args: &ServeDiskArgs, server: &Server, end: &End, half: Option<&Replay>) {
    let (size, uri) = (end.disk.size(), server.uri(&args.export));
    let recorded = half.map(|journal| recorded_bytes(journal, size));
    let epoch = server.exports().iter().find_map(|export| export.epoch());
    let notes: Vec<String> =
        end.notes.known().iter().cloned().chain(end.notes.found().and_then(|found| found())).collect();
    if args.json {
        crate::out::json(json!({
            "event": "serving", "uri": uri, "disk": end.disk.name(), "size": size, "writable": args.writable,
            "epoch": epoch, "recorded_bytes": recorded, "notes": notes,
        }));
        return;
    }
    let how = if args.writable { "writable" } else { "read-only" };
    crate::out::say(format_args!("serving {} ({}, {how}) until Ctrl-C", end.disk.name(), Bytes(size)));
    notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
    if let Some(recorded) = recorded {
        crate::out::say(format_args!(
            "note: half copied: {} of {} are recorded; the rest reads as whatever is there \
             (block status: {RECORDED}, 1 means not recorded)",
            Bytes(recorded),
            Bytes(size)
        ));
    }
    if let Some(epoch) = epoch.filter(|epoch| *epoch > 0) {
        crate::out::say(format_args!(
            "note: epoch {epoch} has taken this disk; writers with a lower one or none are refused"
        ));
    }
    crate::out::line(uri);
}

fn recorded_bytes(journal: &Replay, size: u64) -> u64 {
    journal.leaves.known_blocks().saturating_mul(drover_types::BLOCK_BYTES).min(size)
}
