use drover_disk::DiskError;

use drover_stream::Tls;

use crate::disk::NbdOptions;
use crate::handshake::{BlockSizes, Greeting};
use crate::route::{Route, open_error};
use crate::talk::{HandshakeError, Talk, protocol};
use crate::uri::NbdUri;
use crate::wire::{self, answer, flag, info, option};

/// Exports that are listed; what is beyond is left out, and said.
const EXPORTS_MAX: usize = 1000;

/// Contexts listed of an export.
const CONTEXTS_MAX: usize = 100;

/// Names, descriptions and contexts of a list together; one that is larger is no list to look at.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// The exports of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportList {
    /// At most 1000, in the server's order.
    pub exports: Vec<ExportInfo>,
    /// Whether the server has more.
    pub more: bool,
}

/// An export, as its server tells. Texts are the server's own: show them by [`crate::printable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportInfo {
    /// What to write in the URI.
    pub name: String,
    /// For people; often empty.
    pub description: String,
    /// Why the server tells nothing more, if it does not.
    pub refusal: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
    /// Transmission flags, see [`wire::flag`].
    pub flags: u16,
    /// Block size constraints; `None` if the server does not tell any.
    pub block: Option<BlockSizes>,
    /// What block status can tell, as `base:allocation` or `qemu:dirty-bitmap:monday`.
    pub contexts: Vec<String>,
}

impl ExportInfo {
    /// Whether it takes writes.
    pub fn is_writable(&self) -> bool {
        self.flags & flag::READ_ONLY == 0
    }

    fn text_bytes(&self) -> usize {
        let contexts = self.contexts.iter().map(String::len).sum::<usize>();
        self.name.len() + self.description.len() + contexts
    }

    /// Whether it takes several connections at once.
    pub fn is_multi_conn(&self) -> bool {
        self.flags & flag::MULTI_CONN != 0
    }
}

/// Asks a server what it exports. The URI's own export name has no part in it.
///
/// Ends within the timeout of `options`, whatever the server does.
///
/// # Errors
/// When there is no server, and when it is too old to tell or does not want to.
pub fn list(uri: &NbdUri, options: &NbdOptions) -> Result<ExportList, DiskError> {
    // A child in between has one export, whatever the server has.
    let failed = |error| open_error(&uri.name(), error);
    if uri.tls.as_ref().is_some_and(|tls| tls.psk_file.is_some()) {
        let text = "exports cannot be listed through TLS with a pre-shared key";
        return Err(failed(HandshakeError::Refused(text.to_string())));
    }
    let options = NbdOptions { dirty_bitmap: None, ..options.clone() };
    let route = Route::new(uri, &options).map_err(failed)?;
    ask(&route, &options).map_err(failed)
}

fn ask(route: &Route, options: &NbdOptions) -> Result<ExportList, HandshakeError> {
    ask_talk(route.talk(options.timeout)?, route.tls())
}

pub(crate) fn ask_talk(mut talk: Talk, tls: Option<&Tls>) -> Result<ExportList, HandshakeError> {
    match talk.greet()? {
        Greeting::New(flags) if flags & wire::FIXED_NEWSTYLE != 0 => {}
        _ => {
            let text = "the server is too old to list its exports; name one, or none";
            return Err(HandshakeError::Refused(text.to_string()));
        }
    }
    if let Some(tls) = tls {
        talk = talk.start_tls()?.into_tls(tls)?;
    }
    // Contexts are told only to those who can use them.
    talk.style()?;
    let (mut found, last) = talk.exports(EXPORTS_MAX)?;
    if last.kind != answer::ACK {
        last.must_not_demand_tls()?;
        let text = format!("the server does not list its exports{}", last.words());
        return Err(HandshakeError::Refused(text));
    }
    let more = found.len() > EXPORTS_MAX;
    found.truncate(EXPORTS_MAX);
    let (mut exports, mut text_bytes) = (Vec::new(), 0);
    for (name, description) in found {
        let export = talk.export_info(name, description)?;
        text_bytes += export.text_bytes();
        if text_bytes > TEXT_BYTES_MAX {
            return protocol("its list of exports is too long");
        }
        exports.push(export);
    }
    talk.abort();
    Ok(ExportList { exports, more })
}

impl Talk {
    fn export_info(&mut self, name: String, description: String) -> Result<ExportInfo, HandshakeError> {
        let mut export = ExportInfo { name, description, ..ExportInfo::default() };
        let (facts, last) = self.facts(option::INFO, &export.name, &[info::BLOCK_SIZE, info::DESCRIPTION])?;
        if last.kind != answer::ACK {
            export.refusal = Some(last.refusal(&export.name).to_string());
            return Ok(export);
        }
        if let Some((size, flags)) = facts.export {
            (export.size, export.flags) = (Some(size), flags);
        }
        export.block = facts.told_block;
        if export.description.is_empty() {
            export.description = facts.description.unwrap_or_default();
        }
        export.contexts = self.contexts(&export.name, "", CONTEXTS_MAX)?;
        export.contexts.truncate(CONTEXTS_MAX);
        Ok(export)
    }
}
