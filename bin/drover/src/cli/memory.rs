//! `drover live`: how memory goes, beyond what the promise needs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use drover_types::units::size;

/// The heading of these options in the help.
pub const MEMORY: &str = "How memory goes";

#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = MEMORY)]
pub struct MemoryArgs {
    /// Let both QEMUs compress memory, on their processors; a link compresses by itself
    #[arg(long, value_enum, value_name = "HOW", default_value_t = CompressArg::None, hide_default_value = true)]
    pub compress: CompressArg,
    /// Compression level: 0 to 9 for zlib, 0 to 20 for zstd [default: 1]
    #[arg(long, value_name = "LEVEL", requires = "compress")]
    pub compress_level: Option<u8>,
    /// Cache sent pages in SIZE of the source's memory, and send only the changes when a page is sent again: for
    /// guests that change a few bytes per page. One connection
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub xbzrle: Option<u64>,
    /// How --allow throttle slows the guest down
    #[arg(long, value_enum, value_name = "HOW", default_value_t = ThrottleArg::AutoConverge)]
    pub throttle_by: ThrottleArg,
    /// With --uri rdma: pin all of the guest's memory on both hosts from the start
    #[arg(long)]
    pub rdma_pin_all: bool,
    /// With --uri rdma: size of the pieces in which memory is registered, 1m to 1g (QEMU 11.1 on both sides) [default: 64m where --line says 25g or more, else 1m]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub rdma_chunk_size: Option<u64>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "QEMU's own encryption, of memory and of mirrored disks")]
pub struct TlsArgs {
    /// Of a libvirt domain: encrypt by the certificates that both daemons have for migrations (migrate_tls_x509_cert_dir in qemu.conf,
    /// or /etc/pki/qemu)
    #[arg(long = "tls", group = "tls")]
    pub by_libvirt: bool,
    /// Encrypt by this object, tls-creds-x509 or tls-creds-psk, which both QEMUs have: endpoint=client at the source,
    /// endpoint=server at the target
    #[arg(long, value_name = "ID", group = "tls")]
    pub tls_creds: Option<String>,
    /// Encrypt by certificates in this folder of each host, by the names that QEMU gives them (ca-cert.pem, client-cert.pem,
    /// client-key.pem at the source, server-cert.pem and server-key.pem at the target)
    #[arg(long, value_name = "FOLDER", group = "tls")]
    pub tls_x509: Option<PathBuf>,
    /// Encrypt by a key that both hosts have in the file keys.psk in this folder
    #[arg(long, value_name = "FOLDER", group = "tls")]
    pub tls_psk: Option<PathBuf>,
    /// Whose key in keys.psk
    #[arg(long, value_name = "NAME", default_value = "qemu", requires = "tls_psk")]
    pub tls_psk_user: String,
    /// The target's name in its certificate [default: the host of --uri, or of --or-direct]
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_hostname: Option<String>,
}

impl TlsArgs {
    /// Whether any was asked for.
    pub fn is_wanted(&self) -> bool {
        self.by_libvirt || self.tls_creds.is_some() || self.tls_x509.is_some() || self.tls_psk.is_some()
    }
}

impl MemoryArgs {
    /// One of these options that was given; nothing where none was.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            (self.compress != CompressArg::None, "--compress"),
            (self.xbzrle.is_some(), "--xbzrle"),
            (self.throttle_by != ThrottleArg::AutoConverge, "--throttle-by"),
            (self.rdma_pin_all, "--rdma-pin-all"),
            (self.rdma_chunk_size.is_some(), "--rdma-chunk-size"),
            (self.tls.tls_creds.is_some(), "--tls-creds"),
            (self.tls.tls_x509.is_some(), "--tls-x509"),
            (self.tls.tls_psk.is_some(), "--tls-psk"),
        ];
        all.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }
}

/// How QEMU compresses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// Not at all
    None,
    /// Slower than zstd in most cases
    Zlib,
    /// Fast
    Zstd,
}

/// How a guest is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThrottleArg {
    /// Give all its processors less time
    AutoConverge,
    /// Limit what each processor writes; readers are not slowed down. Needs KVM with a dirty ring at the source
    DirtyLimit,
}
