//! What names an end, and how it was asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_agent::sites::ThisHost;
use drover_source::login::Credentials;

use crate::format::ToldFormat;

/// What names a disk to be read, and how to get at it.
pub struct NamedSource<'a> {
    /// What names it.
    pub text: &'a str,
    /// Its format, if it was told.
    pub format: Option<ToldFormat>,
    /// Who asks a provider or a web server for it.
    pub login: Credentials,
    /// Whether files are read from the disk itself, past the page cache.
    pub past_cache: bool,
    /// This host: its state folder, and who is told what goes on.
    pub host: ThisHost,
    /// The state folder of this user where none is named.
    pub own_state: PathBuf,
    /// Whether what goes over a link may be packed.
    pub pack: bool,
    /// Whether the caller holds an appliance's files against their manifest.
    pub manifest_is_checked: bool,
}

/// What names the target of a copy, and how it was asked for.
pub struct NamedTarget<'a> {
    /// What names it.
    pub text: &'a str,
    /// What names the source.
    pub source: &'a str,
    /// Its format, if it was told.
    pub format: Option<ToldFormat>,
    /// Settings of a qcow2 image, `NAME=VALUE,...` each.
    pub options: &'a [String],
    /// Whether clusters of a qcow2 image are packed.
    pub compress: bool,
    /// Whether what it holds may be overwritten.
    pub force: bool,
    /// Its journal, if it was named.
    pub journal: Option<&'a Path>,
    /// Whether none is kept.
    pub no_journal: bool,
    /// Bytes that may go over a link in a second.
    pub rate: Option<u64>,
    /// Whether what goes over a link may be packed.
    pub pack: bool,
    /// Whether an agent is asked which blocks its site has already.
    pub offer: bool,
    /// How long an agent may be away.
    pub retry_for: Duration,
    /// This host: its state folder, and who is told what goes on.
    pub host: ThisHost,
}
