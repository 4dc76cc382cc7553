//! Exit codes. `docs/reference/exit-codes.md` says the same.

use std::process::ExitCode;

/// Why the program ends as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All that was asked is done.
    Success = 0,
    /// A defect.
    Internal = 1,
    /// The command line is wrong (clap's own code).
    Usage = 2,
    /// The plan has errors, or another process runs it.
    Plan = 3,
    /// Login or permission.
    Access = 4,
    /// Unreachable, or a certificate that is not trusted.
    Connection = 5,
    /// The source refused or failed.
    Source = 6,
    /// The target refused or failed.
    Target = 7,
    /// The target is full.
    TargetFull = 8,
    /// What arrived is not what left.
    Verification = 9,
    /// The source is not what the checksums say that came with it.
    Manifest = 11,
    /// A guest moved, and stood still or took for longer than was promised.
    PromiseBroken = 12,
    /// All VMs are at the target, and the clean-up at the source of some failed.
    NotCleanedUp = 13,
    /// drover's own state cannot be read or kept.
    State = 14,
    /// A hook of the plan failed, or said stop.
    Hook = 15,
    /// A check of the plan did not pass, or a rehearsal failed.
    Check = 16,
    /// All VMs arrived but those that a hook had left out.
    Skipped = 17,
    /// Nothing failed, and VMs did not move because the window of their wave was over.
    WindowOver = 18,
    /// Some VMs arrived and others failed, for several causes.
    Mixed = 10,
    /// Stopped by Ctrl-C, SIGTERM or `drover cancel`; it can be resumed.
    Interrupted = 130,
}

impl Exit {
    /// The exit of a number, as a daemon tells it.
    pub fn of_code(code: u8) -> Exit {
        use Exit::*;
        let all = [
            Success,
            Internal,
            Usage,
            Plan,
            Access,
            Connection,
            Source,
            Target,
            TargetFull,
            Verification,
            Mixed,
            Manifest,
            PromiseBroken,
            NotCleanedUp,
            State,
            Hook,
            Check,
            Skipped,
            WindowOver,
            Interrupted,
        ];
        all.into_iter().find(|exit| *exit as u8 == code).unwrap_or(Internal)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
