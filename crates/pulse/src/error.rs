use std::io;

/// Why there is no guest, or no word of it.
#[derive(Debug, thiserror::Error)]
pub enum PulseError {
    /// What was asked makes no sense.
    #[error("{0}")]
    Misuse(String),
    /// This program was built for another processor, whose compiler cannot assemble the guest.
    #[error("this drover was built without its guest, which only a build for x86-64 has")]
    NoGuest,
    /// The system refused.
    #[error("{what}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// QEMU ended by itself.
    #[error("QEMU ended by itself: {0}")]
    Ended(String),
    /// The guest was waited for in vain.
    #[error("the guest gave no {what} within {seconds} s; it said last: {last:?}")]
    Silent {
        /// What it was to say.
        what: &'static str,
        /// How long it was waited for.
        seconds: u64,
        /// Its last line.
        last: Option<String>,
    },
    /// It is not wanted any more ([`crate::PulseSpec::stop`]).
    #[error("stopped")]
    Stopped,
}

impl PulseError {
    /// Turns an I/O error into one that says what was being done.
    pub(crate) fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> PulseError {
        let what = what.into();
        move |source| PulseError::System { what, source }
    }
}
