//! Arguments of the commands for single disks.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use drover_endpoint::ToldFormat;
use drover_image::Format;
use drover_types::Bytes;

use super::agent::RateArg;
use super::{RunArgs, SecretArgs};

/// Takes the format of an image.
pub(super) fn formats() -> impl TypedValueParser<Value = ToldFormat> {
    let help = |format: Format| match format {
        Format::Raw => "Bytes as they are",
        Format::Qcow2 => "QEMU's qcow2",
        Format::Vmdk => "VMware's VMDK; only read",
        Format::Vhd => "Virtual PC's VHD; only read",
        Format::Vhdx => "Hyper-V's VHDX; only read",
    };
    let auto = PossibleValue::new("auto").help(
        "By the first and last bytes; only for a disk whose guest you trust: it can write any format's mark there",
    );
    let all = Format::ALL.into_iter().map(|format| PossibleValue::new(format.as_str()).help(help(format)));
    PossibleValuesParser::new(all.chain([auto])).try_map(|name| match name.as_str() {
        "auto" => Ok(ToldFormat::Auto),
        name => name.parse().map(ToldFormat::Is),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyArg {
    /// Trust the copy
    None,
    /// Read some blocks of the target back and compare
    Sampled,
    /// Read the whole target back and compare
    Full,
    /// Read the source once more and the whole target, and compare
    Source,
}

#[derive(Debug, Args)]
pub struct CopyArgs {
    /// A file or block device, nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, https://HOST/FILE,
    /// ssh://[USER@]HOST[:PORT]/PATH, ova:FILE/DISK, agent://SITE/POOL/FILE, or vsphere://HOST[:PORT]/VM/DISK (DISK counts from 0)
    pub source: String,
    /// A file or block device, nbd://..., nbd+unix://..., agent://SITE/POOL/FILE, - (standard output), or null: to read
    /// only
    pub target: String,
    /// Format of the source; not guessed from its content unless by auto [default: by the name's ending, else raw]
    #[arg(long, value_parser = formats())]
    pub source_format: Option<ToldFormat>,
    /// Format of the target [default: by the name's ending, else raw]
    #[arg(long, value_parser = formats())]
    pub format: Option<ToldFormat>,
    /// Settings of a qcow2 target: cluster_size=64KiB, preallocation=off|metadata|falloc|full,
    /// compression_type=zlib|zstd
    #[arg(long, short, value_name = "NAME=VALUE,...")]
    pub options: Vec<String>,
    /// Pack the clusters of a qcow2 target
    #[arg(long, short)]
    pub compress: bool,
    /// How much of the target is read back and compared
    #[arg(long, value_enum, default_value_t = VerifyArg::None)]
    pub verify: VerifyArg,
    /// Share of the blocks that `--verify sampled` reads, in percent
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub sample: f64,
    /// Overwrite a target that already holds something (never one that is mounted or otherwise in use)
    #[arg(long)]
    pub force: bool,
    /// Copy only what this dirty bitmap of an nbd:// source marks (`drover nbd list` shows them), widened to blocks of
    /// 64 KiB, onto a target that is there, has the source's size and holds what the disk held when the bitmap began.
    /// Nothing else of the target is looked at: if it holds something else, it is no copy afterwards either.
    /// `--verify full` compares what was copied; there is no root
    #[arg(long, value_name = "NAME", conflicts_with_all = ["force", "no_hash", "options", "compress"])]
    pub bitmap: Option<String>,
    /// Do not compare a disk of an appliance with the appliance's checksums
    #[arg(long)]
    pub ignore_manifest: bool,
    /// Keep no journal: the copy cannot be resumed
    #[arg(long)]
    pub no_journal: bool,
    /// Give up hashing, to share the blocks of a file where the file system can (reflink: XFS, btrfs): at once,
    /// but no root, nothing verified
    #[arg(long, conflicts_with_all = ["verify", "journal"])]
    pub no_hash: bool,
    /// Journal file [default: the target's path with .drover-journal added; for a block device a file in
    /// the state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "no_journal")]
    pub journal: Option<PathBuf>,
    /// For agent:// targets: bytes that may go over the link in a second (100m, 1g: bits as lines are named; 12MiB: bytes)
    #[arg(long, value_name = "RATE")]
    pub rate_limit: Option<RateArg>,
    /// For agent:// disks: have blocks sent as they are, both ways
    #[arg(long)]
    pub no_link_compression: bool,
    /// For agent:// targets: send blocks also if the other site may have them
    #[arg(long)]
    pub no_have_by_hash: bool,
    #[command(flatten)]
    pub tune: TuneArgs,
    #[command(flatten)]
    pub login: LoginArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

/// Who asks a provider for a disk.
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// User, for vsphere:// disks
    #[arg(long, short, env = "DROVER_USER")]
    pub user: Option<String>,
    #[command(flatten)]
    pub secret: SecretArgs,
}

/// How a disk is read; all of it is chosen if nothing is said.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Connections to the source [default: chosen from what it offers]
    #[arg(long)]
    pub lanes: Option<usize>,
    /// Requests in flight on each connection [default: chosen]
    #[arg(long)]
    pub depth: Option<usize>,
    /// Size of a request [default: chosen]
    #[arg(long)]
    pub request: Option<Bytes>,
    /// Memory for buffers
    #[arg(long, default_value = "96MiB")]
    pub memory: Bytes,
    /// Seconds that the source or target may be away before the copy gives up (to be resumed)
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub retry_for: u64,
}

#[derive(Debug, Args)]
pub struct HashArgs {
    /// Whatever `drover copy` reads: a file, block device, nbd://..., https://..., vsphere://HOST[:PORT]/VM/DISK
    pub disk: String,
    /// Format of a file; never guessed from its content [default: by the name's ending, else raw]
    #[arg(long, value_parser = formats())]
    pub format: Option<ToldFormat>,
    /// Write a report with the whole tree to this new file, for `drover verify --report`
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Sign the report with this key of OpenSSH, into FILE.sig
    #[arg(long, value_name = "KEY", requires = "output")]
    pub sign: Option<PathBuf>,
    #[command(flatten)]
    pub tune: TuneArgs,
    #[command(flatten)]
    pub login: LoginArgs,
    /// Folder of drover's state [default: /var/lib/drover for root, else ~/.local/state/drover]
    #[arg(long, env = "DROVER_STATE", value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// Print one JSON object per event on standard output
    #[arg(long)]
    pub json: bool,
    /// Print the root and errors only
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Two disks, or one with --report: whatever `drover copy` reads
    #[arg(required_unless_present = "report", num_args = 0..=2, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Compare with this report of `drover hash --output`; without a disk only the report is checked
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The report, also one of `drover report --html`, must be signed by one of the signers in this file (`man ssh-keygen`, ALLOWED SIGNERS)
    #[arg(long, value_name = "FILE", requires = "report")]
    pub signers: Option<PathBuf>,
    /// Format of the first disk; never guessed from its content [default: by the name's ending, else raw]
    #[arg(long, value_parser = formats())]
    pub format: Option<ToldFormat>,
    /// Format of the second disk
    #[arg(long, value_parser = formats())]
    pub second_format: Option<ToldFormat>,
    /// Read only this share of the blocks, chosen at random, in percent
    #[arg(long, value_name = "PERCENT", conflicts_with = "full")]
    pub sample: Option<f64>,
    /// Read everything; so it is if nothing else is said
    #[arg(long)]
    pub full: bool,
    /// Let one be longer: a device that a smaller disk was copied to
    #[arg(long)]
    pub allow_longer: bool,
    #[command(flatten)]
    pub tune: TuneArgs,
    #[command(flatten)]
    pub login: LoginArgs,
    #[command(flatten)]
    pub run: RunArgs,
}
