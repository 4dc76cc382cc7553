//! Benches and demos that need what a clone of the repository builds: the simulator, guests, a cluster. `make` runs them.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod copy;
mod demo;
mod demo_kube;
mod relay;
mod shared;
mod wan;

use std::process::ExitCode;

use anyhow::Result;
use drover_console::Exit;

use crate::failure::Failure;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub enum What {
    Copy,
    Warm,
    Fleet,
    Relay,
    Wan,
    Demo,
    DemoKube,
}

/// Runs it.
///
/// # Errors
/// If this program was not built in a clone that is still there, or it fails.
pub fn run(what: What) -> Result<ExitCode, Failure> {
    let clone = drover_lab::workspace();
    if !clone.join("Makefile").is_file() {
        let why =
            format!("this needs the clone of drover's repository that it was built in, {}", clone.display());
        return Err(Failure::new(Exit::Plan, why)
            .advise("`make help` in a clone of your own names these benches and demos"));
    }
    let done = match what {
        What::Copy => copy::run(),
        What::Warm => copy::warm(),
        What::Fleet => copy::fleet(),
        What::Relay => relay::run(),
        What::Wan => wan::run(),
        What::Demo => match demo::run() {
            Ok(false) => return Ok(ExitCode::FAILURE),
            done => done.map(drop),
        },
        What::DemoKube => demo_kube::run(),
    };
    let failed = |error| Failure::new(Exit::Internal, format!("{error:#}"));
    done.map(|()| ExitCode::SUCCESS).map_err(failed)
}
