//! FastLZ blocks, by the published description of the format (levels 1 and 2). Own code.
//!
//! ```text
//! first byte: level - 1 in its top three bits, and the first literal run in its low five
//! 000LLLLL             L+1 literal bytes follow
//! MMMOOOOO [X] OOOOOOOO  match of M+2 bytes (M = 7: 9 + X, or more), O+1 bytes back
//! level 2: X goes on while it is 255; an offset of 8191 is followed by two bytes more, high one first
//! ```

/// From here on the far offset of level 2 counts.
const FAR: usize = 8191;

/// Unpacks a block, which must fill `out`.
pub fn decode(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    unpack(packed, out).ok_or_else(|| format!("a FastLZ fragment of {} bytes is damaged", packed.len()))
}

fn unpack(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let is_second = match packed.first()? >> 5 {
        0 => false,
        1 => true,
        _ => return None,
    };
    let mut bytes = packed.iter();
    let next = |bytes: &mut std::slice::Iter<'_, u8>| bytes.next().map(|byte| usize::from(*byte));
    let mut control = next(&mut bytes)? & 31;
    let mut filled = 0;
    loop {
        if control < 32 {
            let length = control + 1;
            let rest = bytes.as_slice();
            out.get_mut(filled..filled + length)?.copy_from_slice(rest.get(..length)?);
            bytes = rest[length..].iter();
            filled += length;
        } else {
            let mut length = (control >> 5) + 2;
            let mut back = (control & 31) << 8;
            if length == 9 {
                loop {
                    let more = next(&mut bytes)?;
                    length += more;
                    if !is_second || more < 255 {
                        break;
                    }
                }
            }
            back += next(&mut bytes)?;
            if is_second && back == FAR {
                back += next(&mut bytes)? << 8;
                back += next(&mut bytes)?;
            }
            let from = filled.checked_sub(back + 1)?;
            if length > out.len() - filled {
                return None;
            }
            // The match may reach into what it writes.
            for i in 0..length {
                out[filled + i] = out[from + i];
            }
            filled += length;
        }
        match next(&mut bytes) {
            Some(byte) => control = byte,
            None => break,
        }
    }
    (filled == out.len()).then_some(())
}

/// Bits of the table of places that were seen.
#[cfg(test)]
const TABLE_BITS: u32 = 13;

/// Packs at level 1. What is written goes as it is, so only tests pack so far.
#[cfg(test)]
pub fn encode(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(plain.len() + plain.len() / 32 + 2);
    let mut seen = vec![usize::MAX; 1 << TABLE_BITS];
    let (mut at, mut literals) = (0, 0);
    while at + 3 <= plain.len() {
        let key = u32::from_le_bytes([plain[at], plain[at + 1], plain[at + 2], 0]);
        let slot = &mut seen[(key.wrapping_mul(2_654_435_761) >> (32 - TABLE_BITS)) as usize];
        let before = std::mem::replace(slot, at);
        let fits = before != usize::MAX
            && at - before <= FAR
            && at > 0
            && plain[before..before + 3] == plain[at..at + 3];
        if !fits {
            at += 1;
            continue;
        }
        let longest = (plain.len() - at).min(264);
        let length = (3..longest).find(|i| plain[before + i] != plain[at + i]).unwrap_or(longest);
        put_literals(&mut out, &plain[literals..at]);
        put_match(&mut out, at - before - 1, length);
        at += length;
        literals = at;
    }
    put_literals(&mut out, &plain[literals..]);
    out
}

#[cfg(test)]
fn put_literals(out: &mut Vec<u8>, bytes: &[u8]) {
    for run in bytes.chunks(32) {
        out.push(run.len() as u8 - 1);
        out.extend_from_slice(run);
    }
}

#[cfg(test)]
fn put_match(out: &mut Vec<u8>, back: usize, length: usize) {
    let (high, low) = ((back >> 8) as u8, back as u8);
    match length - 2 {
        short @ ..7 => out.extend([(short as u8) << 5 | high, low]),
        long => out.extend([7 << 5 | high, (long - 7) as u8, low]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_of_the_first_level_by_hand() {
        // Three literals, then a match of seven that begins three back.
        let mut out = [0; 10];
        decode(&[2, b'a', b'b', b'c', 5 << 5, 2], &mut out).unwrap();
        assert_eq!(&out, b"abcabcabca");
    }

    #[test]
    fn a_block_of_the_second_level_by_hand() {
        // One literal, then a match of 9 + 255 + 3 bytes of it.
        let mut out = [0; 268];
        decode(&[1 << 5, b'x', 7 << 5, 255, 3, 0], &mut out).unwrap();
        assert_eq!(out, [b'x'; 268]);
        // 9000 bytes of two kinds, then a far match of three: 8191 + 2 x 256 + 96, and one.
        let mut plain = vec![b'y'; 9000];
        plain[200..203].copy_from_slice(b"far");
        let mut packed = vec![1 << 5, b'y', 7 << 5];
        let more = |packed: &mut Vec<u8>, mut length: usize| {
            length -= 9;
            while length >= 255 {
                packed.push(255);
                length -= 255;
            }
            packed.extend([length as u8, 0]);
        };
        more(&mut packed, 199);
        packed.extend([3, b'f', b'a', b'r', b'y', 7 << 5]);
        more(&mut packed, 9000 - 204);
        packed.extend([1 << 5 | 31, 255, 2, 96]);
        let mut out = vec![0; 9003];
        decode(&packed, &mut out).unwrap();
        assert_eq!(out[..9000], plain[..]);
        let from = 9000 - (FAR + 2 * 256 + 96) - 1;
        assert_eq!(out[9000..], plain[from..from + 3]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let mut out = [0; 10];
        for packed in [&[][..], &[9], &[0, 1, 1 << 5, 9], &[9, 0, 0], &[2 << 5, 1], &[0, 1, 7 << 5, 200, 0]] {
            assert!(decode(packed, &mut out).is_err(), "{packed:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out(plain in prop::collection::vec(0u8..4, 16..20_000)) {
            let packed = encode(&plain);
            let mut out = vec![9; plain.len()];
            prop_assert_eq!(decode(&packed, &mut out), Ok(()));
            prop_assert_eq!(out, plain);
        }
    }
}
