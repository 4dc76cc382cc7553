use proptest::prelude::*;

use super::*;

/// A super-packet as the kernel makes it: `payload` bytes in segments of `size`.
fn frame(is_v6: bool, protocol: u8, payload: usize, size: u16, flags: u8) -> Vec<u8> {
    let options = if protocol == TCP { 12 } else { 0 };
    let upper = if protocol == TCP { 20 + options } else { 8 };
    let ip = if is_v6 { 40 } else { 20 };
    let mut packet = vec![0u8; ip + upper];
    if is_v6 {
        packet[0] = 0x60;
        packet[6] = protocol;
        (8..40).for_each(|at| packet[at] = (at * 7) as u8);
    } else {
        packet[0] = 0x45;
        packet[4..6].copy_from_slice(&0xfffeu16.to_be_bytes());
        packet[8] = 64;
        packet[9] = protocol;
        (12..20).for_each(|at| packet[at] = (at * 7) as u8);
    }
    packet[ip..ip + 4].copy_from_slice(&[0xc0, 0x01, 0x14, 0x51]);
    if protocol == TCP {
        packet[ip + 4..ip + 8].copy_from_slice(&0xffff_f000u32.to_be_bytes());
        packet[ip + 12] = ((upper / 4) as u8) << 4;
        packet[ip + 13] = flags;
    }
    packet.extend((0..payload).map(|at| (at * 31 % 251) as u8));
    let bytes = packet.len();
    rebuild_ip(&mut packet, bytes, 0);
    let sum_at = if protocol == TCP { 16 } else { 6 };
    let pseudo = pseudo_sum(&packet, protocol, (bytes - ip) as u32);
    packet[ip + sum_at..ip + sum_at + 2].copy_from_slice(&pseudo.to_be_bytes());
    if protocol == UDP {
        packet[ip + 4..ip + 6].copy_from_slice(&((bytes - ip) as u16).to_be_bytes());
    }
    let kind = if protocol == UDP { KIND_UDP } else { [KIND_TCP4, KIND_TCP6][usize::from(is_v6)] };
    let mut frame = vec![NEEDS_CHECKSUM, kind];
    for field in [(ip + upper) as u16, size, ip as u16, sum_at as u16] {
        frame.extend(field.to_ne_bytes());
    }
    frame.extend(packet);
    frame
}

fn sent(frame: &[u8], segments: &Segments, run: Run) -> Vec<u8> {
    match piece(frame, segments, run) {
        None => frame.to_vec(),
        Some(piece) => [piece.head(), &frame[piece.payload.clone()]].concat(),
    }
}

/// The plain packets that a frame stands for, with every sum complete: what a device without offloads would send.
fn plain(frame: &[u8]) -> Vec<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let (transport, sum) = (usize::from(host16(frame, 6)), usize::from(host16(frame, 8)));
    let complete = |number| {
        let run = Run { packet: 0, first: number, count: 1 };
        let mut packet = sent(frame, &parsed.segments, run)[OFFLOAD_BYTES..].to_vec();
        let whole = !folded(sum_of(&packet[transport..]));
        packet[transport + sum..transport + sum + 2].copy_from_slice(&whole.to_be_bytes());
        packet
    };
    (0..parsed.segments.count).map(complete).collect()
}

/// What a receiver checks: lengths and sums.
fn check(packet: &[u8]) {
    let ip = ip_header(packet);
    let protocol = ip_protocol(packet);
    if packet[0] >> 4 == 4 {
        assert_eq!(usize::from(big16(packet, 2)), packet.len());
        assert_eq!(folded(sum_of(&packet[..ip])), 0xffff, "sum of the IP header");
    } else {
        assert_eq!(usize::from(big16(packet, 4)) + 40, packet.len());
    }
    let pseudo = u64::from(pseudo_sum(packet, protocol, (packet.len() - ip) as u32));
    assert_eq!(folded(pseudo + sum_of(&packet[ip..])), 0xffff, "sum of the transport");
}

#[test]
fn a_super_packet_is_its_segments() {
    let parsed = parse(&frame(false, TCP, 4_000, 1_448, 0x18)).unwrap();
    assert_eq!(parsed.segments, Segments { header: 52, size: 1_448, last: 1_104, count: 3 });
    assert_eq!(parsed.flow.ports, 0xc001_1451);
    let even = parse(&frame(true, TCP, 2_856, 1_428, 0x10)).unwrap();
    assert_eq!(even.segments, Segments { header: 72, size: 1_428, last: 1_428, count: 2 });
}

#[test]
fn flags_and_numbers_are_those_of_the_segments() {
    let frame = frame(false, TCP, 4_000, 1_448, 0x18 | TCP_CWR | 0x01);
    let packets = plain(&frame);
    let flags: Vec<u8> = packets.iter().map(|packet| packet[33]).collect();
    assert_eq!(flags, [0x10 | TCP_CWR, 0x10, 0x19]);
    let ids: Vec<u16> = packets.iter().map(|packet| big16(packet, 4)).collect();
    assert_eq!(ids, [0xfffe, 0xffff, 0]);
    let sequences: Vec<u32> =
        packets.iter().map(|it| u32::from_be_bytes(it[24..28].try_into().unwrap())).collect();
    assert_eq!(sequences, [0xffff_f000, 0xffff_f5a8, 0xffff_fb50]);
}

#[test]
fn a_whole_frame_is_left_alone() {
    let frame = frame(false, TCP, 4_000, 1_448, 0x10);
    let segments = parse(&frame).unwrap().segments;
    assert!(piece(&frame, &segments, Run { packet: 0, first: 0, count: 3 }).is_none());
}

#[test]
fn sessions_are_told_apart() {
    let mut first = frame(false, TCP, 100, 1_448, 0);
    let flow = parse(&first).unwrap().flow;
    first[OFFLOAD_BYTES + 21] ^= 1;
    assert_ne!(parse(&first).unwrap().flow, flow);
    assert_ne!(parse(&frame(false, UDP, 100, 1_448, 0)).unwrap().flow, flow);
    assert_ne!(parse(&frame(true, TCP, 100, 1_448, 0)).unwrap().flow, flow);
}

#[test]
fn what_cannot_be_cut_is_one_segment() {
    let mut odd = frame(false, TCP, 4_000, 1_448, 0);
    odd[6..8].copy_from_slice(&60_000u16.to_ne_bytes());
    assert_eq!(parse(&odd).unwrap().segments, Segments::one(4_052));
    let mut no_size = frame(false, TCP, 4_000, 1_448, 0);
    no_size[4..6].fill(0);
    assert_eq!(parse(&no_size).unwrap().segments.count, 1);
    assert!(parse(&[0; 9]).is_none());
    assert!(parse(&[0; 40]).is_none());
}

proptest! {
    /// Cut into runs at any places, a super-packet still is the same plain packets, and each passes its receiver's checks.
    #[test]
    fn runs_stand_for_the_same_packets(
        is_v6: bool, is_udp: bool, size in 1u16..9_000, count in 1usize..44, last in 1usize..9_000, cut in 0u32..44,
    ) {
        let payload = ((count - 1) * usize::from(size) + last.min(size.into())).min(60_000);
        let frame = frame(is_v6, if is_udp { UDP } else { TCP }, payload, size, 0x19 | TCP_CWR);
        let segments = parse(&frame).unwrap().segments;
        let expected = plain(&frame);
        expected.iter().for_each(|packet| check(packet));
        let cut = cut.min(segments.count);
        let runs = [(0, cut), (cut, segments.count - cut)].into_iter().filter(|(_, count)| *count > 0);
        let pieces = runs.map(|(first, count)| sent(&frame, &segments, Run { packet: 0, first, count }));
        let got: Vec<Vec<u8>> = pieces.flat_map(|it| plain(&it)).collect();
        prop_assert_eq!(got, expected);
    }

    /// Nothing that comes out of a device makes the parser panic, and what it says can be cut anywhere.
    #[test]
    fn any_bytes_are_parsed(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..6, version in 0u8..3) {
        if bytes.len() > 10 {
            (bytes[0], bytes[1], bytes[3]) = (1, kind, 0);
            bytes[10] = [bytes[10], 0x45, 0x60][usize::from(version)];
        }
        if let Some(parsed) = parse(&bytes) {
            for first in 0..parsed.segments.count.min(50) {
                let out = sent(&bytes, &parsed.segments, Run { packet: 0, first, count: 1 });
                prop_assert!(out.len() <= bytes.len());
            }
        }
    }
}
