//! The server against our own client, other people's clients, and clients that mean harm.
#![allow(clippy::unwrap_used, missing_docs)]

mod conformance;
mod fence;
mod foreign;
mod hostile;
mod oracle;
mod protocol;
mod raw;
mod takeover;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use drover_disk::Disk;
use drover_nbd::NbdUri;
use drover_nbd_server::{Export, Listen, Server, ServerOptions};

/// A server on a socket in a folder of its own.
pub struct Stage {
    pub server: Option<Server>,
    pub socket: PathBuf,
    pub folder: tempfile::TempDir,
    /// Where the disk lies, if it lies anywhere.
    pub more: Option<tempfile::TempDir>,
}

impl Stage {
    pub fn new(export: Export) -> Stage {
        Stage::with(export, ServerOptions::default())
    }

    pub fn with(export: Export, options: ServerOptions) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let server = Server::start(vec![export], &Listen::Unix(socket.clone()), options).unwrap();
        Stage { server: Some(server), socket, folder, more: None }
    }

    pub fn readable(disk: impl Disk + 'static) -> Stage {
        Stage::new(Export::new("", Arc::new(disk)).holes_in_reads())
    }

    pub fn writable(disk: impl Disk + 'static) -> Stage {
        Stage::new(Export::new("", Arc::new(disk)).writable().holes_in_reads())
    }

    pub fn uri(&self) -> NbdUri {
        NbdUri::unix(&self.socket, "")
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Stops the server, which flushes.
    pub fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }
}
