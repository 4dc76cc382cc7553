//! The other end of a link.

use drover_wire::{Ack, Decoder, Greeting, HEADER_BYTES, Header, check, greeting_bytes};

/// A greeting, as it is and with its length and check made right. What is understood is understood again.
pub fn greeting(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let sealed = match choice & 1 {
        0 => rest.to_vec(),
        _ => [&(rest.len() as u32).to_le_bytes()[..], &check(rest).to_le_bytes(), rest].concat(),
    };
    let Some((prefix, rest)) = sealed.split_first_chunk::<8>() else { return };
    let Ok(length) = greeting_bytes(prefix) else { return };
    let Some(rest) = rest.get(..length) else { return };
    let Ok(greeting) = Greeting::decode(prefix, rest) else { return };
    let again = greeting.encode();
    let (prefix, rest) = again.split_first_chunk::<8>().expect("it has a prefix");
    assert_eq!(Greeting::decode(prefix, rest), Ok(greeting));
}

/// Frames, as they are and with lengths and checks made right, in pieces. A frame that comes out is the one
/// that went in.
pub fn frames(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let sealed = if choice & 1 == 0 { rest.to_vec() } else { sealed(rest) };
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for mut piece in sealed.chunks(1 + usize::from(*choice >> 1)) {
        loop {
            match decoder.take(&mut piece) {
                Ok(Some(frame)) => {
                    found.extend(frame.header.encode());
                    found.extend(&frame.head);
                    found.extend(&frame.body);
                    if frame.header.kind == drover_wire::Kind::Ack {
                        acknowledgement(frame.header.number, &frame.body);
                    }
                }
                Ok(None) => break,
                Err(_) => return assert!(sealed.starts_with(&found)),
            }
        }
    }
    assert!(sealed.starts_with(&found) && sealed.len() - found.len() < HEADER_BYTES + (2 << 20));
}

fn acknowledgement(below: u64, payload: &[u8]) {
    if let Ok(ack) = Ack::read(below, payload) {
        assert_eq!(ack.payload(), payload);
    }
}

/// Headers whose payload is there, with right checks, as a hostile peer would make them.
fn sealed(mut rest: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let mut head = *head;
        // Lengths are kept small by chance, and large by the two lowest bits of their last byte.
        let told = u32::from_le_bytes([head[4], head[5], head[6] & 0x1f, 0]) as usize;
        let (payload, after) = after.split_at(told.min(after.len()));
        let length = if head[7] & 3 == 3 { told } else { payload.len() } as u32;
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[12..16].copy_from_slice(&check(payload).to_le_bytes());
        let sum = check(&head[..HEADER_BYTES - 4]);
        head[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        sealed.extend(head);
        sealed.extend(payload);
        rest = after;
    }
    if let Some(header) = sealed.first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::decode(header)
    {
        assert_eq!(&header.encode()[..], &sealed[..HEADER_BYTES]);
    }
    sealed
}
