//! `drover-lab bench memory`: how long running guests take to move, and for how long they stand still, by QEMU alone and by drover.
//!
//! A way counts from the order to send until the guest runs at the target, by that QEMU's word; what drover does besides, before and
//! after, is told beside it. The guest is heard from outside, a hundred times a second: it stood still between its last beat at the source and its first at
//! the target. Then it proves all of its memory. QEMU alone is tuned as well as it can be by hand: no limit of its own to the rate, and the
//! downtime that drover promises.
//!
//! ```text
//! tables   what is measured beside what
//! host     whether this host can do it, before anything is begun
//! keeper   a folder for all of it, and that nothing is left
//! run      one way, once: ground (where), alone (QEMU), ours (drover), cards (RDMA)
//! rows     what came of it, for people and machines
//! ```

mod alone;
mod cards;
mod ground;
mod host;
mod keeper;
mod ours;
mod rows;
mod run;
mod tables;

use std::time::Instant;

use drover_console::Exit;
use drover_console::out::{line, say};
use drover_console::signals::{Undo, stop_on_signals};

pub use self::host::machine;

use self::host::Host;
use self::keeper::Keeper;
use self::rows::{Kind, Row};
use self::run::{Bench, Terms};
use self::tables::Table;
use crate::cli::BenchMemoryArgs;
use crate::failure::Failure;

/// Runs `drover-lab bench memory`.
pub fn run(args: &BenchMemoryArgs) -> Result<Exit, Failure> {
    let stop =
        stop_on_signals().map_err(|error| Failure::new(Exit::Internal, format!("signals: {error}")))?;
    let tables = tables::tables(args)?;
    // Ended in its midst, QEMUs and agents would live on.
    let _undo = Undo::begin();
    let keeper = Keeper::start()?;
    host::end_first_where_memory_is_short();
    let host = Host::look(args, &tables, &keeper, &stop)?;
    let bench = Bench { host, terms: Terms::of(args), folder: keeper.folder().to_path_buf(), stop };
    let began = Instant::now();
    bench.host.tell(args);
    let mut exit = Exit::Success;
    for table in &tables {
        exit = worse(exit, measure(&bench, args, table)?);
    }
    if !args.json {
        line(format_args!("all of it took {:.1} minutes", began.elapsed().as_secs_f64() / 60.0));
    }
    Ok(exit)
}

/// Goes all ways of a table in turns, and tells what came of it.
fn measure(bench: &Bench, args: &BenchMemoryArgs, table: &Table) -> Result<Exit, Failure> {
    let mut rows: Vec<Row> = table.ways.iter().cloned().map(Row::new).collect();
    let mut exit = Exit::Success;
    say(format_args!("{}", table.name()));
    'rounds: for round in 1..=args.rounds {
        for row in &mut rows {
            if let Some(why) = bench.host.cannot(&row.way) {
                row.absent = Some(why);
                continue;
            }
            let run = run::run(bench, table, &row.way, round);
            if bench.stop.is_set() {
                break 'rounds;
            }
            exit = worse(exit, run.as_ref().map_or_else(exit_of, |_| Exit::Success));
            row.add(table, round, run, args.json);
        }
    }
    rows::tell(table, &rows, bench.terms, args.json);
    match bench.stop.is_set() {
        true => Err(Failure::new(Exit::Interrupted, "stopped; nothing is left behind")),
        false => Ok(exit),
    }
}

/// That drover keeps a promise by moving nothing is an outcome, as is a way that is given up at the limit.
fn exit_of(error: &anyhow::Error) -> Exit {
    match Kind::of(error) {
        Kind::Unsound => Exit::Verification,
        Kind::Refused => Exit::Success,
        Kind::Failed => Exit::Target,
    }
}

/// A guest that is not what it was weighs more than one that did not move.
fn worse(one: Exit, other: Exit) -> Exit {
    let weight = |exit| match exit {
        Exit::Verification => 2,
        Exit::Success => 0,
        _ => 1,
    };
    if weight(other) > weight(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use drover_pulse::Verdict;

    use super::*;
    use ours::Refused;
    use run::Unsound;

    #[test]
    fn only_what_the_promise_forbids_is_no_failure_and_unsound_memory_is_the_worst() {
        assert_eq!(exit_of(&Refused("no way".into()).into()), Exit::Success);
        assert_eq!(exit_of(&anyhow!("refused: no way")), Exit::Target);
        let unsound = Unsound(Verdict { bad_pages: 1, writes_found: 0, writes_counted: 0 });
        let beside: anyhow::Result<()> = Err(unsound).context("another did not move");
        assert_eq!(beside.as_ref().map_err(exit_of), Err(Exit::Verification));
        let all = [Exit::Success, Exit::Verification, Exit::Target, Exit::Success];
        assert_eq!(all.into_iter().fold(Exit::Success, worse), Exit::Verification);
        assert_eq!(worse(Exit::Target, Exit::Success), Exit::Target);
    }
}
