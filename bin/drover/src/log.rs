//! `--verbose` and `--log-file`: where what goes on is written.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use drover_engine::{Event, Observer};
use drover_log::log;
use drover_view::{now_utc, plain, set_plain_display};

use crate::cli::LogArgs;
use crate::exit::{Exit, Failure};

static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// Whether `--verbose` was given.
pub fn is_verbose() -> bool {
    IS_VERBOSE.load(Ordering::Relaxed)
}

/// Begins to log, if that is asked for.
///
/// # Errors
/// If the file cannot be written.
pub fn start(args: &LogArgs, command: &str) -> Result<(), Failure> {
    let file = args.log_file.as_deref().map(open).transpose()?;
    if !args.verbose && file.is_none() {
        return Ok(());
    }
    IS_VERBOSE.store(args.verbose, Ordering::Relaxed);
    // Lines between those that move would tear them.
    set_plain_display(args.verbose);
    let (file, verbose) = (file.map(Mutex::new), args.verbose);
    drover_log::start(Box::new(move |part, text| {
        // Named by others, it may hold line ends, and drive a terminal.
        let line = format!("{} {part}: {}", now_utc(), plain(&text.replace('\n', " ")));
        if verbose {
            crate::out::say(&line);
        }
        if let Some(file) = &file {
            // A log that cannot be written must not end a migration; its reader sees that lines are missing.
            let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        }
    }));
    // What the environment holds may come up in an error of a library.
    for name in ["DROVER_PASSWORD", "DROVER_TOKEN"] {
        std::env::var(name).iter().for_each(|secret| drover_log::hold(secret));
    }
    log!(
        "drover",
        "version {}, command {command}, process {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );
    Ok(())
}

/// The file, which only its owner may read: it names hosts, VMs and users.
fn open(path: &Path) -> Result<File, Failure> {
    let open = || {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        // One that was there before may have been open to others.
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(file)
    };
    open().map_err(|error: std::io::Error| {
        Failure::new(Exit::Usage, format!("log file {}: {error}", path.display()))
            .advise("name a file of yours, in a folder that you may write to")
    })
}

/// Logs the events of a run, and passes them on.
pub struct Logged<'a>(pub &'a dyn Observer);

impl Observer for Logged<'_> {
    fn event(&self, event: &Event) {
        log!("run", "{}", serde_json::to_string(event).unwrap_or_default());
        self.0.event(event);
    }
}
