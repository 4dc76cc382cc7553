//! Every parser of bytes that others made, as a function of bytes. Each looks at what comes out: no
//! panic is the least of it. cargo-fuzz runs them for long (`make fuzz`), the tests of `drover-lab` run
//! the kept corpus and its neighbours through them every time.
#![forbid(unsafe_code)]

mod image;
mod link;
mod packed;
mod pieces;
mod sealed;

pub use packed::pack;
use packed::pieces;

use drover_copy::report::ReportReader;
use drover_copy::{LeafTable, SEGMENT_BYTES, replay};
use drover_nbd::NbdUri;
use drover_plan::Plan;
use drover_relay::Allowed;
use drover_relay::address::{Listen, Network, PORTS_MAX, PortRange, Target as RelayTarget};
use drover_relay::rule::Rule;

/// A name, as of the folder of its corpus, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 28] = [
    ("agent_client", drover_agent::fuzzing::client),
    ("agent_messages", drover_agent::fuzzing::messages),
    ("http_head", drover_http::fuzzing::head),
    ("image_ova", image::ova),
    ("image_qcow2", image::qcow2),
    ("image_vhd", image::vhd),
    ("image_vhdx", image::vhdx),
    ("image_vmdk", image::vmdk),
    ("inspect_disk", inspect_disk),
    ("inspect_hive", drover_inspect::fuzzing::hive),
    ("inspect_initramfs", inspect_initramfs),
    ("inspect_ntfs", inspect_ntfs),
    ("journal", journal),
    ("link_frames", link::frames),
    ("link_greeting", link::greeting),
    ("link_peer", drover_link::fuzzing::peer),
    ("nbd_client", drover_nbd::fuzzing::greeting),
    ("nbd_list", drover_nbd::fuzzing::list),
    ("nbd_replies", drover_nbd::fuzzing::replies),
    ("nbd_server", nbd_server),
    ("nbd_uri", nbd_uri),
    ("nfc_frames", drover_nfc::fuzzing::frames),
    ("nfc_handshake", drover_nfc::fuzzing::handshake),
    ("plan", plan),
    ("relay_texts", relay_texts),
    ("report", report),
    ("sftp", drover_sftp::fuzzing::replies),
    ("stream_pieces", pieces::stream),
];

/// Runs the target of that name.
///
/// # Panics
/// If there is none, or at a finding.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(bytes);
}

/// A journal, as it is and with its checks made right. What was sound is sound by itself.
fn journal(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let bytes = if choice & 1 == 0 { bytes.to_vec() } else { sealed::journal(bytes) };
    let Ok(first) = replay(&mut &bytes[..]) else { return };
    let sound = first.sound_bytes as usize;
    assert!(sound <= bytes.len() && (first.damage.is_some() || sound == bytes.len()));
    let again = replay(&mut &bytes[..sound]).expect("its header was sound");
    assert!(again.damage.is_none() && again.sound_bytes == first.sound_bytes);
    assert!(again.leaves == first.leaves && again.complete == first.complete && again.pass == first.pass);
}

/// A hash report, as it is and with its checks made right.
fn report(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let bytes = if choice & 1 == 0 { bytes.to_vec() } else { sealed::report(bytes) };
    let Ok(mut reader) = ReportReader::open(&bytes[..]) else { return };
    let size = reader.about().size;
    let mut read = 0;
    // A report of nothing but zero segments has 8 bytes for each 256 MiB: its own length bounds this.
    while let Ok(Some(part)) = reader.next_part(SEGMENT_BYTES) {
        read += LeafTable::size(&part);
        assert!(read <= size);
    }
    if read == size {
        let _ = reader.finish();
    }
}

/// A URI that is understood is understood again, and the same, from how it is shown.
fn nbd_uri(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(uri) = text.parse::<NbdUri>() {
        assert_eq!(uri.to_string().parse::<NbdUri>().as_ref(), Ok(&uri), "{uri}");
    }
}

/// Rules, addresses and ports of a relay: of its operator, and of peers that want to connect to something.
fn relay_texts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(network) = text.parse::<Network>() {
        assert_eq!(network.to_string().parse(), Ok(network), "{network}");
    }
    if let Ok(ports) = text.parse::<PortRange>() {
        assert!(ports.first <= ports.last && ports.contains(ports.first) && ports.contains(ports.last));
        assert_eq!(ports.to_string().parse(), Ok(ports), "{ports}");
    }
    if let Ok(listen) = text.parse::<Listen>() {
        assert!(listen.ports.count() <= PORTS_MAX && !listen.addresses.is_empty());
    }
    if let Ok(target) = text.parse::<RelayTarget>() {
        assert!(!target.host.is_empty() && target.ports.first > 0);
        assert!(text.parse::<Allowed>().is_ok(), "what may be gone on to may be allowed");
    }
    if let Err(error) = text.parse::<Rule>() {
        assert!(!error.to_string().is_empty());
    }
}

/// A plan, and each of its problems as a user sees it.
fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Plan::parse(text) {
        Ok(plan) => plan.warnings.iter().for_each(|warning| assert!(!warning.is_error())),
        Err(problems) => {
            assert!(problems.iter().any(drover_plan::Problem::is_error));
            problems.iter().for_each(|problem| assert!(!problem.to_string().is_empty()));
        }
    }
}

/// A client. The first byte says which part of an honest handshake comes before the rest.
fn nbd_server(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let mut all = Vec::new();
    let mut option = |code: u32, data: &[u8]| {
        all.extend(b"IHAVEOPT");
        all.extend(code.to_be_bytes());
        all.extend((data.len() as u32).to_be_bytes());
        all.extend(data);
    };
    match choice % 4 {
        0 => {}
        1 => option(GO, b"\0\0\0\x04disk\0\0"),
        2 => {
            option(STRUCTURED_REPLY, b"");
            option(SET_META_CONTEXT, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
            option(GO, b"\0\0\0\x04disk\0\0");
        }
        _ => {
            option(EXTENDED_HEADERS, b"");
            option(SET_META_CONTEXT, b"\0\0\0\x06fenced\0\0\0\x01\0\0\0\x0edrover:fence=7");
            option(GO, b"\0\0\0\x06fenced\0\0");
        }
    }
    if choice % 4 != 0 {
        all.splice(0..0, 3u32.to_be_bytes());
    }
    all.extend(rest);
    drover_nbd_server::fuzzing::client(&all);
}

const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;
const EXTENDED_HEADERS: u32 = 11;

/// A guest's disk, whatever its tables and file systems say.
fn inspect_disk(bytes: &[u8]) {
    let inside = drover_inspect::inspect(&[std::sync::Arc::new(bytes.to_vec())]);
    assert!(inside.by_path.iter().all(|line| line.device.starts_with("/dev/")));
}

/// An NTFS, in pieces: most of it is zeros.
fn inspect_ntfs(bytes: &[u8]) {
    let pieces = pieces(bytes);
    let length = pieces.iter().map(|(at, data)| *at as usize + data.len()).max().unwrap_or(0);
    let mut image = vec![0; length];
    for (at, data) in pieces {
        image[at as usize..][..data.len()].copy_from_slice(data);
    }
    let inside = drover_inspect::inspect(&[std::sync::Arc::new(image)]);
    assert!(inside.windows.is_none() || inside.ntfs);
}

fn inspect_initramfs(bytes: &[u8]) {
    let _ = drover_inspect::Drivers::of_initramfs(bytes);
}
