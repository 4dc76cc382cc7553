//! A byte stream in pieces, from the other end of a link.

use drover_pack::pieces::{Next, PIECE_BYTES_MAX, PieceError, Reader};

/// A stream is the same however it is cut, up to where it breaks, and no piece is larger than it may be.
pub fn stream(bytes: &[u8]) {
    let Some((portion, bytes)) = bytes.split_first() else { return };
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 1 + usize::from(*portion)), whole);
}

/// What a stream says, and how it ends.
fn read(bytes: &[u8], portion: usize) -> (Vec<u8>, Result<(), PieceError>) {
    let (mut reader, mut all) = (Reader::default(), Vec::new());
    for mut rest in bytes.chunks(portion) {
        while !rest.is_empty() {
            let (taken, next) = match reader.next(rest) {
                Ok(told) => told,
                Err(error) => {
                    assert_eq!((reader.next(rest), reader.end()), (Err(error), Err(error)));
                    return (all, Err(error));
                }
            };
            rest = &rest[taken..];
            match next {
                Next::More => assert!(rest.is_empty(), "bytes are left over"),
                Next::Plain(length) => {
                    all.extend_from_slice(&rest[..length]);
                    rest = &rest[length..];
                }
                Next::Unpacked(unpacked, stood_in) => {
                    assert!(stood_in < unpacked.len() && unpacked.len() <= PIECE_BYTES_MAX);
                    all.extend(unpacked);
                }
            }
        }
    }
    (all, reader.end())
}
