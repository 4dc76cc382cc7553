//! `drover nbd list`: what a server exports.

use drover_engine::chain;
use drover_nbd::{
    BlockSizes, ExportInfo, ExportList, NbdOptions, NbdUri, UriError, list as list_of, printable,
};
use drover_types::Bytes;
use serde_json::{Value, json};

use crate::cli::NbdListArgs;
use crate::exit::{Exit, Failure, disk_exit};

/// Runs `drover nbd list`.
pub fn list(args: &NbdListArgs) -> Result<Exit, Failure> {
    let uri: NbdUri = args.uri.parse().map_err(|error: UriError| {
        Failure::new(Exit::Usage, error.to_string()).advise("write nbd://HOST or nbd+unix:///?socket=PATH")
    })?;
    let found = list_of(&uri, &NbdOptions::default())
        .map_err(|error| Failure::new(disk_exit(&error, ""), chain(&error)))?;
    match args.json {
        true => crate::out::json(format_args!("{:#}", document(&found))),
        false => crate::out::print(&text(&found)),
    }
    Ok(Exit::Success)
}

fn document(found: &ExportList) -> Value {
    let sizes = |block: BlockSizes| json!({"minimum": block.minimum, "preferred": block.preferred, "maximum": block.maximum});
    let one = |export: &ExportInfo| {
        json!({
            "name": export.name,
            "description": export.description,
            "size": export.size,
            "writable": export.size.map(|_| export.is_writable()),
            "multi_conn": export.size.map(|_| export.is_multi_conn()),
            "block_sizes": export.block.map(sizes),
            "contexts": export.contexts,
            "refusal": export.refusal,
        })
    };
    let exports: Vec<Value> = found.exports.iter().map(one).collect();
    json!({"exports": exports, "more": found.more})
}

fn text(found: &ExportList) -> String {
    let mut text: String = found.exports.iter().map(export_text).collect();
    if found.exports.is_empty() {
        text.push_str("the server exports nothing that it tells of\n");
    }
    if found.more {
        text.push_str("the server has more exports than are shown\n");
    }
    text
}

/// Texts are the server's own, so they are cleaned.
fn export_text(export: &ExportInfo) -> String {
    let name = match export.name.as_str() {
        "" => "(the export without a name)".to_string(),
        name => printable(name),
    };
    let mut lines = vec![name];
    if !export.description.is_empty() {
        lines.push(format!("  {}", printable(&export.description)));
    }
    match (&export.refusal, export.size) {
        (Some(why), _) => lines.push(format!("  {}", printable(why))),
        (None, Some(size)) => {
            let access = if export.is_writable() { "writable" } else { "read-only" };
            let connections = if export.is_multi_conn() { ", several connections" } else { "" };
            lines.push(format!("  {} ({size} bytes), {access}{connections}", Bytes(size)));
        }
        (None, None) => {}
    }
    if let Some(block) = export.block {
        let BlockSizes { minimum, preferred, maximum } = block;
        lines.push(format!("  blocks: at least {minimum}, best {preferred}, at most {maximum} bytes"));
    }
    if !export.contexts.is_empty() {
        let contexts: Vec<String> = export.contexts.iter().map(|context| printable(context)).collect();
        lines.push(format!("  contexts: {}", contexts.join(", ")));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
