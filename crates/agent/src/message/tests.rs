use super::*;
use proptest::prelude::*;

fn span() -> impl Strategy<Value = ByteSpan> {
    (0u64..1 << 40, 1..=DATA_BYTES_MAX).prop_map(|(offset, length)| ByteSpan::new(offset, length))
}

proptest! {
    #[test]
    fn pieces_are_parts_of_blocks_that_cover_the_span(span in span()) {
        let found: Vec<_> = pieces(span).collect();
        prop_assert!(found.len() <= PIECES_MAX);
        prop_assert_eq!(found.first().map(|piece| piece.offset), Some(span.offset));
        prop_assert_eq!(found.last().map(ByteSpan::end), Some(span.end()));
        for piece in &found {
            prop_assert_eq!(piece.offset / BLOCK_BYTES, (piece.end() - 1) / BLOCK_BYTES);
        }
        prop_assert!(found.windows(2).all(|pair| pair[0].end() == pair[1].offset));
    }

    #[test]
    fn heads_go_there_and_back(span in span(), id: u64, detail: u8, bits: u32) {
        for kind in [Kind::Write, Kind::Offer, Kind::Data, Kind::Have, Kind::Read, Kind::Zero] {
            let hashes = if kind.has_hashes() { pieces(span).map(|it| hash_of(&it.offset.to_le_bytes())).collect() } else { Vec::new() };
            let mask = if kind.has_hashes() || kind == Kind::Have { bits & all_pieces(span) } else { 0 };
            let head = Head { kind, detail, mask, id, span, hashes };
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }
    }

    #[test]
    fn no_bytes_panic_and_what_is_taken_is_sound(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        if let Ok(head) = Head::decode(&bytes) {
            prop_assert!(head.hashes.len() <= PIECES_MAX);
            prop_assert!(head.span.offset.checked_add(head.span.length).is_some());
            prop_assert!(head.meant_bytes() as u64 <= DATA_BYTES_MAX);
        }
        if let Ok(extents) = decode_extents(&bytes, ByteSpan::new(5, 1 << 30)) {
            prop_assert!(extents.iter().all(|extent| ByteSpan::new(5, 1 << 30).contains(extent.span)));
        }
    }

    #[test]
    fn extents_go_there_and_back(lengths in prop::collection::vec((1u64..1 << 30, any::<bool>()), 1..50)) {
        let mut at = 77;
        let mut extents = Vec::new();
        for (length, zero) in lengths {
            let span = ByteSpan::new(at, length);
            extents.push(if zero { Extent::zero(span) } else { Extent::allocated(span) });
            at = span.end();
        }
        let whole = ByteSpan::from_bounds(77, at);
        prop_assert_eq!(decode_extents(&encode_extents(&extents), whole), Ok(extents.clone()));
        let short = ByteSpan::new(77, whole.length - 1);
        prop_assert_eq!(decode_extents(&encode_extents(&extents), short), Err(MessageError::Extents));
    }
}

#[test]
fn the_largest_head_fits_a_message_of_a_link() {
    let span = ByteSpan::new(1, DATA_BYTES_MAX);
    let hashes = vec![[0; 32]; PIECES_MAX];
    let head = Head { kind: Kind::Write, detail: 0, mask: all_pieces(span), id: 0, span, hashes };
    assert!(head.encode().len() <= drover_link::HEAD_BYTES_MAX);
    assert_eq!(head.meant_bytes() as u64, DATA_BYTES_MAX);
}

#[test]
fn senseless_heads_are_refused() {
    let span = ByteSpan::new(0, 100);
    let head = |kind, span| Head::plain(kind, 1, span).encode();
    assert_eq!(Head::decode(&[0; 31]), Err(MessageError::Length(31)));
    assert_eq!(Head::decode(&[0; 32]), Err(MessageError::Kind(0)));
    assert_eq!(Head::decode(&head(Kind::Write, span)), Err(MessageError::Length(32)), "no hash");
    for (kind, span) in [
        (Kind::Read, ByteSpan::new(0, 0)),
        (Kind::Read, ByteSpan::new(0, DATA_BYTES_MAX + 1)),
        (Kind::Zero, ByteSpan::new(u64::MAX, 2)),
        (Kind::Zero, ByteSpan::new(0, SPAN_BYTES_MAX + 1)),
        (Kind::Flush, span),
    ] {
        assert_eq!(Head::decode(&head(kind, span)), Err(MessageError::Span(span)));
    }
    let have = Head { mask: 2, ..Head::plain(Kind::Have, 1, span) };
    assert_eq!(Head::decode(&have.encode()), Err(MessageError::Mask { mask: 2, pieces: 1 }));
}

#[test]
fn every_kind_of_failure_has_a_status_of_its_own() {
    for status in 1..=8 {
        let kind = kind_of(status).unwrap().unwrap();
        assert_eq!(status_of(kind), status);
    }
    assert_eq!((kind_of(0), kind_of(9)), (Ok(None), Err(MessageError::Status(9))));
}

#[test]
fn words_are_cut_between_letters() {
    let long = "ä".repeat(WORDS_BYTES_MAX);
    assert_eq!(words_in(&words(&long)), "ä".repeat(WORDS_BYTES_MAX / 2));
}
