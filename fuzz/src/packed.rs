//! Images without the zeros that most of them consist of, so that a corpus is small and a changed byte
//! is a byte that matters.
//!
//! ```text
//! piece, 8 + n bytes, and again
//!   0  4  sector where it lies, of 512 bytes, little endian
//!   4  4  bytes n
//!   8  n  the bytes
//! ```

/// No image is longer.
const IMAGE_BYTES_MAX: u64 = 16 << 20;

const SECTOR: usize = 512;

/// The image of these pieces. A piece that goes on past the input ends with it; the length of the image is
/// that of its farthest piece, or what a piece without bytes says.
pub fn pieces(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(8) {
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (data, after) = rest.split_at(rest.len().min(number(4) as usize));
        let offset = (u64::from(number(0)) * SECTOR as u64).min(IMAGE_BYTES_MAX);
        found.push((offset, &data[..data.len().min((IMAGE_BYTES_MAX - offset) as usize)]));
        bytes = after;
    }
    found
}

/// The pieces of an image; what is longer than can be packed is cut.
pub fn pack(image: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let is_data = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    let sectors: Vec<&[u8]> = image[..image.len().min(IMAGE_BYTES_MAX as usize)].chunks(SECTOR).collect();
    let mut at = 0;
    while at < sectors.len() {
        let run = sectors[at..].iter().take_while(|sector| is_data(sector)).count();
        if run > 0 {
            let bytes = sectors[at..at + run].concat();
            // What is zero at the end of a run need not be said.
            let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            piece(&mut packed, at, &bytes[..length]);
        }
        at += run.max(1);
    }
    piece(&mut packed, image.len().div_ceil(SECTOR), &[]);
    packed
}

fn piece(packed: &mut Vec<u8>, sector: usize, bytes: &[u8]) {
    packed.extend((sector as u32).to_le_bytes());
    packed.extend((bytes.len() as u32).to_le_bytes());
    packed.extend(bytes);
}
