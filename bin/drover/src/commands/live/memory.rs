//! How memory goes, as it was asked for on the command line.

use drover_live::{Compression, Rdma};
use drover_qemu::live::{MemoryOptions, TlsBy, TlsOptions};

use crate::cli::{CompressArg, LiveArgs, MemoryArgs, ThrottleArg};
use crate::exit::{Exit, Failure};

/// Of an address that goes by RDMA.
pub const RDMA: &str = "rdma:";

/// What a compressor is told if nobody says.
const LEVEL: u8 = 1;

/// What was asked for.
pub fn options(args: &LiveArgs) -> Result<MemoryOptions, Failure> {
    let memory = &args.memory;
    if memory.tls.by_libvirt {
        return Err(Failure::new(
            Exit::Usage,
            "--tls is for libvirt domains, whose daemons have certificates",
        )
        .advise("two QEMUs take --tls-x509, --tls-psk or --tls-creds"));
    }
    let level = memory.compress_level.unwrap_or(LEVEL);
    Ok(MemoryOptions {
        compression: match memory.compress {
            CompressArg::None => Compression::None,
            CompressArg::Zlib => Compression::Zlib(level),
            CompressArg::Zstd => Compression::Zstd(level),
        },
        xbzrle_bytes: memory.xbzrle,
        limits_writes: memory.throttle_by == ThrottleArg::DirtyLimit,
        tls: tls(memory),
        rdma: rdma(args)?,
    })
}

fn tls(memory: &MemoryArgs) -> Option<TlsOptions> {
    let given = &memory.tls;
    let by = given.tls_creds.clone().map(TlsBy::Object);
    let by = by.or_else(|| given.tls_x509.clone().map(TlsBy::X509));
    let psk = || {
        let folder = given.tls_psk.clone()?;
        Some(TlsBy::Psk { folder, username: given.tls_psk_user.clone() })
    };
    let hostname = given.tls_hostname.clone().unwrap_or_default();
    Some(TlsOptions { by: by.or_else(psk)?, hostname })
}

fn rdma(args: &LiveArgs) -> Result<Option<Rdma>, Failure> {
    let Rdma { pin_all, chunk_bytes } =
        Rdma { pin_all: args.memory.rdma_pin_all, chunk_bytes: args.memory.rdma_chunk_size };
    if args.uri.as_ref().is_some_and(|uri| uri.starts_with(RDMA)) {
        return Ok(Some(Rdma { pin_all, chunk_bytes }));
    }
    match pin_all || chunk_bytes.is_some() {
        true => {
            Err(Failure::new(Exit::Usage, "--rdma-pin-all and --rdma-chunk-size want --uri rdma:HOST:PORT"))
        }
        false => Ok(None),
    }
}
