use super::*;
use proptest::prelude::*;

fn chunk_bytes(flags: u16, kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    let mut bytes = CHUNK_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

fn extended_bytes(flags: u16, kind: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = EXTENDED_CHUNK_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

#[test]
fn a_request_has_its_fields_where_the_protocol_says() {
    let (cookie, offset, length) = (0x0102_0304_0506_0708, 0x1000, 0x0010_0000);
    let head = RequestHead { flags: COMMAND_FUA, command: Command::Write, cookie, offset, length };
    let expected = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0x10, 0, 0,
    ];
    assert_eq!(head.encode(), expected);
    let extended = [
        0x21, 0xe4, 0x1c, 0x71, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0,
        0x10, 0, 0,
    ];
    assert_eq!(RequestHead { length: 0x0100_0010_0000, ..head }.encode_extended(), extended);
}

#[test]
fn a_head_is_partial_until_its_last_byte() {
    let bytes = chunk_bytes(1, 5, 9, 12);
    for length in 0..CHUNK_BYTES {
        assert_eq!(decode_reply(&bytes[..length]), Decoded::Partial);
    }
    let head = ChunkHead { done: true, kind: ChunkKind::Status, cookie: 9, offset: None, length: 12 };
    assert_eq!(decode_reply(&bytes), Decoded::Whole(ReplyHead::Chunk(head), CHUNK_BYTES));
    assert_eq!(decode_reply(b"HTTP/1.1 400"), Decoded::Garbage(0x4854_5450));
    let extended = extended_bytes(0, 6, 9, 77, 1 << 40);
    for length in 0..EXTENDED_CHUNK_BYTES {
        assert_eq!(decode_reply(&extended[..length]), Decoded::Partial);
    }
    let head = ChunkHead {
        done: false,
        kind: ChunkKind::ExtendedStatus,
        cookie: 9,
        offset: Some(77),
        length: 1 << 40,
    };
    assert_eq!(decode_reply(&extended), Decoded::Whole(ReplyHead::Chunk(head), EXTENDED_CHUNK_BYTES));
}

#[test]
fn errors_of_unknown_type_are_errors() {
    assert_eq!(ChunkKind::from_wire(0x8001), ChunkKind::Error);
    assert_eq!(ChunkKind::from_wire(0xbeef), ChunkKind::Error);
    assert_eq!(ChunkKind::from_wire(3), ChunkKind::Unknown(3));
}

#[test]
fn payloads_of_a_wrong_length_are_refused() {
    assert!(decode_hole(&[0; 12]).is_some() && decode_hole(&[0; 11]).is_none());
    assert!(decode_hole(&[0; 13]).is_none());
    assert!(decode_status(&[0; 4], false).is_none() && decode_status(&[0; 13], false).is_none());
    let one = [0, 0, 0, 7, 0, 0, 0, 1].into_iter().chain([0; 16]).collect::<Vec<u8>>();
    assert!(decode_status(&one, true).is_some() && decode_status(&one[..23], true).is_none());
    let two = [0, 0, 0, 7, 0, 0, 0, 2].into_iter().chain([0; 16]).collect::<Vec<u8>>();
    assert!(decode_status(&two, true).is_none(), "a number of runs that are not there");
    assert!(decode_status(&[0; 8], true).is_none(), "no run at all");
    assert!(decode_error(&[0, 0, 0, 5, 0, 9, b'x']).is_none(), "a message longer than its chunk");
    assert_eq!(decode_error(&[0, 0, 0, 5, 0, 1, b'x']), Some((5, "x".to_string())));
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = (decode_reply(&bytes), decode_hole(&bytes), decode_error(&bytes));
        for extended in [false, true] {
            if let Some((_, runs)) = decode_status(&bytes, extended) {
                prop_assert!(runs.count() > 0);
            }
        }
    }

    #[test]
    fn chunk_heads_go_there_and_back(done: bool, kind: u16, cookie: u64, length: u32) {
        let bytes = chunk_bytes(u16::from(done), kind, cookie, length);
        let kind_read = ChunkKind::from_wire(kind);
        let head = ChunkHead { done, kind: kind_read, cookie, offset: None, length: length.into() };
        prop_assert_eq!(decode_reply(&bytes), Decoded::Whole(ReplyHead::Chunk(head), CHUNK_BYTES));
        let bytes = extended_bytes(u16::from(done), kind, cookie, !cookie, cookie ^ 5);
        let head = ChunkHead { offset: Some(!cookie), length: cookie ^ 5, ..head };
        prop_assert_eq!(decode_reply(&bytes), Decoded::Whole(ReplyHead::Chunk(head), EXTENDED_CHUNK_BYTES));
    }

    #[test]
    fn requests_go_there_and_back(flags: u16, cookie: u64, offset: u64, length: u32) {
        let command = Command::WriteZeroes;
        let bytes = RequestHead { flags, command, cookie, offset, length: length.into() }.encode();
        let mut fields = Fields(&bytes);
        prop_assert_eq!(fields.u32(), Some(REQUEST_MAGIC));
        prop_assert_eq!((fields.u16(), fields.u16()), (Some(flags), Some(6)));
        prop_assert_eq!((fields.u64(), fields.u64()), (Some(cookie), Some(offset)));
        prop_assert_eq!((fields.u32(), fields.u16()), (Some(length), None));
    }

    #[test]
    fn runs_of_a_status_go_there_and_back(context: u32, runs in prop::collection::vec(any::<(u32, u32)>(), 1..20)) {
        let mut bytes = context.to_be_bytes().to_vec();
        for (length, flags) in &runs {
            bytes.extend(length.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
        }
        let (found, decoded) = decode_status(&bytes, false).unwrap();
        prop_assert_eq!(found, context);
        let wide: Vec<_> = runs.iter().map(|(length, flags)| (u64::from(*length), u64::from(*flags))).collect();
        prop_assert_eq!(decoded.collect::<Vec<_>>(), wide);
    }

    #[test]
    fn extended_runs_go_there_and_back(context: u32, runs in prop::collection::vec(any::<(u64, u64)>(), 1..20)) {
        let mut bytes = context.to_be_bytes().to_vec();
        bytes.extend((runs.len() as u32).to_be_bytes());
        for (length, flags) in &runs {
            bytes.extend(length.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
        }
        let (found, decoded) = decode_status(&bytes, true).unwrap();
        prop_assert_eq!(found, context);
        prop_assert_eq!(decoded.collect::<Vec<_>>(), runs);
    }
}
