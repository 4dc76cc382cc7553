//! Peers that send what they like, for fuzz targets.

use std::sync::Arc;
use std::time::Duration;

use drover_pack::unpack;
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::client::pending::{Pending, What};
use crate::message::{
    DATA_BYTES_MAX, Head, Kind, PIECES_MAX, decode_extents, kind_of, piece_count, pieces, words_in,
};
use crate::opening::{Access, Announced, Answer, Listening, Opened, Opening, Stat};
use crate::places::PlaceName;
use crate::trust::{Token, check_name};

/// Bytes of a head without hashes.
const FIXED_BYTES: usize = 32;

/// Whatever begins a channel or goes over one. The first byte says which reader gets the rest.
///
/// # Panics
/// At a finding.
pub fn messages(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    match choice % 6 {
        0 => message(rest.split_at(rest.len().min(FIXED_BYTES))),
        1 => {
            if let Some((fixed, rest)) = rest.split_first_chunk::<FIXED_BYTES>() {
                sealed(*fixed, rest);
            }
        }
        2 => opening(rest),
        3 => answers(rest),
        4 => names(&String::from_utf8_lossy(rest)),
        _ => {
            let plain = &mut vec![0; usize::from(rest.first().copied().unwrap_or(0)) << 8];
            // Whether it can be unpacked: it fills what was announced, or is refused.
            let _ = unpack(choice / 6 % 4, rest.get(1..).unwrap_or_default(), plain);
        }
    }
}

fn message((head, body): (&[u8], &[u8])) {
    let Ok(head) = Head::decode(head) else { return };
    assert_eq!(Head::decode(&head.encode()), Ok(head.clone()));
    assert!(pieces(head.span).take(PIECES_MAX + 1).all(|piece| head.span.contains(piece)));
    if matches!(head.kind, Kind::Write | Kind::Data) {
        let mut plain = vec![0; head.meant_bytes()];
        assert!(plain.len() as u64 <= DATA_BYTES_MAX && piece_count(head.span) <= PIECES_MAX);
        // As above.
        let _ = unpack(head.detail, body, &mut plain);
    }
    if let Ok(extents) = decode_extents(body, head.span) {
        let mut at = head.span.offset;
        for extent in extents {
            assert!(extent.span.offset == at && !extent.span.is_empty());
            at = extent.span.end();
        }
        assert!(at <= head.span.end());
    }
    if kind_of(head.detail).is_ok() {
        assert!(!words_in(body).contains(char::is_control));
    }
}

/// A head with a kind that there is, a span of some size and as many hashes as that asks for.
fn sealed(mut fixed: [u8; FIXED_BYTES], body: &[u8]) {
    const KINDS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x80, 0x81, 0x82, 0x83, 0x84];
    fixed[0] = KINDS[usize::from(fixed[0]) % KINDS.len()];
    // Lengths up to 2 MiB: the largest that may be, and some that may not.
    fixed[27..32].fill(0);
    fixed[26] &= 0x1f;
    let number = |at: usize| fixed[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let span = ByteSpan::new(number(16) >> 2, number(24));
    fixed[16..24].copy_from_slice(&span.offset.to_le_bytes());
    let hashes = if matches!(fixed[0], 1 | 6 | 0x82) { pieces(span).take(PIECES_MAX + 1).count() } else { 0 };
    let head = [&fixed[..], &vec![7; hashes * 32]].concat();
    message((&head, body));
}

fn opening(bytes: &[u8]) {
    let Ok(opening) = serde_json::from_slice::<Opening>(bytes) else { return };
    let again = serde_json::to_vec(&opening).expect("it was JSON");
    assert_eq!(serde_json::from_slice::<Opening>(&again).ok(), Some(opening.clone()));
    if let Opening::Disk(wanted) = opening {
        names(&wanted.disk);
        if let Access::Write(writer) = wanted.access {
            let _ = writer.epoch;
        }
    }
}

fn answers(bytes: &[u8]) {
    if let Ok(Answer::Ok(opened)) = serde_json::from_slice::<Answer<Opened>>(bytes)
        && let Ok(opened) = opened.checked()
    {
        assert!(opened.bytes_min.is_power_of_two() && opened.size.checked_add(DATA_BYTES_MAX).is_some());
        let said = [&opened.tag, &opened.identity, &opened.generation];
        assert!(opened.notes.iter().chain(said).all(|text| !text.contains(char::is_control)));
    }
    if let Ok(Answer::Ok(announced)) = serde_json::from_slice::<Answer<Announced>>(bytes) {
        let announced = announced.checked();
        assert!(announced.devices.iter().all(|name| !name.contains(char::is_control)));
    }
    if let Ok(Answer::Ok(listening)) = serde_json::from_slice::<Answer<Listening>>(bytes)
        && let Ok(listening) = listening.checked([0, 0])
    {
        assert!(listening.port >= 1024 && !listening.token.is_empty());
    }
    if let Ok(answer) = serde_json::from_slice::<Answer<Stat>>(bytes)
        && let Err(refusal) = answer.into_result()
    {
        assert!(!refusal.why.contains(char::is_control));
    }
}

fn names(text: &str) {
    if let Ok(place) = PlaceName::parse(text) {
        let path = match place {
            PlaceName::File { pool, path } => format!("{pool}/{path}"),
            PlaceName::Named(name) => name.to_string(),
        };
        assert_eq!(path, text);
        let sound = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        assert!(text.split('/').all(sound), "{text:?}");
    }
    if let Err(error) = check_name(text) {
        assert!(!error.to_string().contains(char::is_control));
    }
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.text().reveal().parse::<Token>().ok(), Some(token));
    }
}

/// Blocks that requests are about.
const BLOCKS: u64 = 4;

/// What a client has not got answered, while its agent answers what it likes.
///
/// # Panics
/// At a finding: more is remembered than was asked.
pub fn client(bytes: &[u8]) {
    let mut pending = Pending::new("0", Duration::from_secs(60));
    let mut now = Duration::ZERO;
    for step in bytes.chunks(8) {
        let mut given = [0; 8];
        given[..step.len()].copy_from_slice(step);
        let [op, id, kind, detail, mask, block, body, generation] = given;
        let span = ByteSpan::new(u64::from(block) % BLOCKS * BLOCK_BYTES, BLOCK_BYTES);
        match op % 8 {
            _ if pending.failed().is_some() => break,
            0 if !pending.overlaps(span) => drop(pending.add(What::Write(Arc::new(vec![body; 16])), span)),
            1 if !pending.overlaps(span) => drop(pending.add(What::Zero, span)),
            2 => drop(pending.add(
                if kind & 1 == 0 { What::Read { plain: detail & 1 == 1 } } else { What::Extents },
                span,
            )),
            3 => drop(pending.add(What::Flush, ByteSpan::new(0, 0))),
            4 => drop(pending.next(now)),
            5 => {
                pending.disconnected();
                // Whether answered writes may be lost: then it has failed.
                let _ = pending.reopened(&generation.to_string());
            }
            6 => now += Duration::from_millis(u64::from(body) * 100),
            _ => {
                let kinds = [Kind::Done, Kind::Have, Kind::Data, Kind::Map];
                let head = Head {
                    detail: detail % 10,
                    mask: u32::from(mask),
                    ..Head::plain(kinds[usize::from(kind) % 4], id.into(), span)
                };
                // What makes no sense is said to make none.
                let _ = pending.answer(head, vec![body; 8], now);
            }
        }
        pending.check();
        assert!(pending.bytes() <= BLOCKS * 16);
    }
}
