//! The ends of `drover copy` and its sisters, as the command line names them.

use std::path::Path;
use std::time::Duration;

use drover_endpoint::{NamedSource, NamedTarget, ToldFormat};

use crate::cli::{CopyArgs, LoginArgs};
use crate::connect::credentials;
use crate::sites::this_host;
use crate::state::state_folder;

/// A disk to be read, by its name alone.
pub fn source_named<'a>(
    text: &'a str,
    format: Option<ToldFormat>,
    login: &LoginArgs,
    state: Option<&Path>,
) -> NamedSource<'a> {
    NamedSource {
        text,
        format,
        login: credentials(login.user.as_deref(), &login.secret),
        past_cache: false,
        host: this_host(state),
        own_state: state_folder(None),
        pack: true,
        manifest_is_checked: false,
    }
}

/// The source of a copy.
pub fn source_of(args: &CopyArgs, past_cache: bool) -> NamedSource<'_> {
    let named = source_named(&args.source, args.source_format, &args.login, args.run.state.as_deref());
    let (pack, manifest_is_checked) = (!args.no_link_compression, !args.ignore_manifest);
    NamedSource { past_cache, pack, manifest_is_checked, ..named }
}

/// The target of a copy.
pub fn target_of(args: &CopyArgs) -> NamedTarget<'_> {
    NamedTarget {
        text: &args.target,
        source: &args.source,
        format: args.format,
        options: &args.options,
        compress: args.compress,
        force: args.force,
        journal: args.journal.as_deref(),
        no_journal: args.no_journal,
        rate: args.rate_limit.map(|rate| rate.0),
        pack: !args.no_link_compression,
        offer: !args.no_have_by_hash,
        retry_for: Duration::from_secs(args.tune.retry_for),
        host: this_host(args.run.state.as_deref()),
    }
}
