//! Packets as a TUN device gives and takes them: what they consist of, and pieces of them.
//!
//! A frame is a header for offloads and an IP packet. Source: virtio 1.1, 5.1.6 "Device Operation"; Linux
//! `include/uapi/linux/virtio_net.h`. All fields in the byte order of the host.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | flags; 1: the checksum is to be completed |
//! | 1 | 1 | kind of super-packet: 0 none, 1 TCP over IPv4, 4 TCP over IPv6, 5 UDP; 0x80 beside it: ECN |
//! | 2 | 2 | bytes of all headers (a hint) |
//! | 4 | 2 | payload of each segment |
//! | 6 | 2 | where the checksum begins: the transport header, from the IP header on |
//! | 8 | 2 | where the checksum stands, from there |
//! | 10 | | IP packet |
//!
//! A super-packet has one set of headers, made for its whole length; the receiving kernel treats it as its segments. A run of
//! its segments is again a super-packet, with lengths, sequence number, flags and sums of its own. The transport checksum holds only the
//! sum of the pseudo header: the rest is left to whoever needs it.

use std::ops::Range;

use super::{Flow, Run, Segments};

/// Bytes before the IP packet.
pub const OFFLOAD_BYTES: usize = 10;

/// Bytes of a frame at most: a packet of IPv6 at its largest.
pub const FRAME_BYTES_MAX: usize = OFFLOAD_BYTES + 40 + 65_535;

/// Headers that can be rebuilt are at most this long, with the offloads' one. Packets with longer ones are never cut.
pub const HEAD_BYTES_MAX: usize = 256;

const NEEDS_CHECKSUM: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_TCP4: u8 = 1;
const KIND_TCP6: u8 = 4;
const KIND_UDP: u8 = 5;
const KIND_ECN: u8 = 0x80;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FIN_PSH: u8 = 0x01 | 0x08;
const TCP_CWR: u8 = 0x80;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What it consists of.
    pub segments: Segments,
    /// Its session.
    pub flow: Flow,
}

/// Looks at a frame. `None` if it is no IP packet.
pub fn parse(frame: &[u8]) -> Option<Parsed> {
    let packet = frame.get(OFFLOAD_BYTES..)?;
    let flow = flow(packet)?;
    let whole = Segments::one(packet.len() as u32);
    Some(Parsed { segments: segments(frame, packet).unwrap_or(whole), flow })
}

/// A part of a frame to be sent: new headers, and where in the frame the payload stands.
#[derive(Clone, Debug)]
pub struct Piece {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// The payload within the frame.
    pub payload: Range<usize>,
}

impl Piece {
    /// The headers.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }
}

/// The run of a frame that [`parse`] found to consist of `segments`; `None` if it is all of it.
pub fn piece(frame: &[u8], segments: &Segments, run: Run) -> Option<Piece> {
    if run.first == 0 && run.count >= segments.count {
        return None;
    }
    let header = segments.header as usize;
    let head_bytes = OFFLOAD_BYTES + header;
    let begin = head_bytes + run.first as usize * segments.size as usize;
    let end = (begin + run.count as usize * segments.size as usize).min(frame.len());
    let mut head = [0; HEAD_BYTES_MAX];
    head[..head_bytes].copy_from_slice(&frame[..head_bytes]);
    let is_last = run.first + run.count >= segments.count;
    rebuild(&mut head[..head_bytes], end - begin, segments, run, is_last);
    Some(Piece { head, head_bytes, payload: begin..end })
}

/// The segments of a super-packet; `None` if the frame is none, or not one that can be cut.
fn segments(frame: &[u8], packet: &[u8]) -> Option<Segments> {
    let kind = frame[1] & !KIND_ECN;
    let size = u32::from(host16(frame, 4));
    let transport = usize::from(host16(frame, 6));
    let header = match (kind, ip_protocol(packet)) {
        (KIND_TCP4 | KIND_TCP6, TCP) => transport + usize::from(packet.get(transport + 12)? >> 4) * 4,
        (KIND_UDP, UDP) => transport + 8,
        _ => return None,
    };
    let is_sound = size > 0
        && frame[0] & NEEDS_CHECKSUM != 0
        && transport >= ip_header(packet)
        && header > transport
        && header < packet.len()
        && OFFLOAD_BYTES + header <= HEAD_BYTES_MAX
        && transport + usize::from(host16(frame, 8)) + 2 <= header;
    let payload = (packet.len().checked_sub(header)?) as u32;
    is_sound.then(|| Segments {
        header: header as u32,
        size,
        last: (payload - 1) % size + 1,
        count: payload.div_ceil(size),
    })
}

/// Makes headers fit for the run whose payload has `payload` bytes.
fn rebuild(head: &mut [u8], payload: usize, segments: &Segments, run: Run, is_last: bool) {
    let (transport, sum) = (usize::from(host16(head, 6)), usize::from(host16(head, 8)));
    let kind = head[1] & !KIND_ECN;
    head[2..4].copy_from_slice(&(segments.header as u16).to_ne_bytes());
    if run.count == 1 {
        head[1] = KIND_NONE;
        head[4..6].fill(0);
    }
    let packet = &mut head[OFFLOAD_BYTES..];
    let bytes = packet.len() + payload;
    rebuild_ip(packet, bytes, run.first);
    let upper = (bytes - transport) as u32;
    let pseudo = pseudo_sum(packet, if kind == KIND_UDP { UDP } else { TCP }, upper);
    let header = &mut packet[transport..];
    if kind == KIND_UDP {
        header[4..6].copy_from_slice(&(upper as u16).to_be_bytes());
    } else {
        let skipped = run.first.wrapping_mul(segments.size);
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]).wrapping_add(skipped);
        header[4..8].copy_from_slice(&sequence.to_be_bytes());
        // The end of a stream belongs to its last segment, what the window did to its first.
        header[13] &= if is_last { 0xff } else { !TCP_FIN_PSH };
        header[13] &= if run.first == 0 { 0xff } else { !TCP_CWR };
    }
    header[sum..sum + 2].copy_from_slice(&pseudo.to_be_bytes());
}

fn rebuild_ip(packet: &mut [u8], bytes: usize, skipped: u32) {
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
        let id = big16(packet, 4).wrapping_add(skipped as u16);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[10..12].fill(0);
        let header = ip_header(packet);
        let sum = !folded(sum_of(&packet[..header]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
    }
}

/// The sum over addresses, protocol and length that every transport checksum begins with, not inverted.
fn pseudo_sum(packet: &[u8], protocol: u8, upper: u32) -> u16 {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let length = u64::from(upper >> 16) + u64::from(upper & 0xffff);
    folded(sum_of(addresses) + u64::from(protocol) + length)
}

/// Sum of 16-bit words, big-endian; an odd byte counts as the higher half.
fn sum_of(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words.map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0))).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Bytes of the IP header, without extension headers; 0 if it is cut off.
fn ip_header(packet: &[u8]) -> usize {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => usize::from(packet[0] & 15) * 4,
        Some(6) => 40,
        _ => 0,
    }
}

/// The protocol the IP header names; extension headers of IPv6 are not followed.
fn ip_protocol(packet: &[u8]) -> u8 {
    let at = if packet[0] >> 4 == 4 { 9 } else { 6 };
    packet.get(at).copied().unwrap_or(0)
}

fn flow(packet: &[u8]) -> Option<Flow> {
    let header = ip_header(packet);
    let (source, target) = match packet.first()? >> 4 {
        4 if packet.len() >= header && header >= 20 => (address4(packet, 12), address4(packet, 16)),
        6 if packet.len() >= 40 => (address6(packet, 8), address6(packet, 24)),
        _ => return None,
    };
    let protocol = ip_protocol(packet);
    // Only the first fragment of a packet has ports.
    let is_first = packet[0] >> 4 != 4 || big16(packet, 6) & 0x1fff == 0;
    let ports = match packet.get(header..header + 4) {
        Some(it) if is_first && matches!(protocol, TCP | UDP) => {
            u32::from_be_bytes([it[0], it[1], it[2], it[3]])
        }
        _ => 0,
    };
    Some(Flow { source, target, ports, protocol })
}

/// As it stands in IPv6, behind `::ffff:`.
fn address4(packet: &[u8], at: usize) -> u128 {
    let bytes = [packet[at], packet[at + 1], packet[at + 2], packet[at + 3]];
    0xffff << 32 | u128::from(u32::from_be_bytes(bytes))
}

fn address6(packet: &[u8], at: usize) -> u128 {
    packet[at..at + 16].iter().fold(0, |address, byte| address << 8 | u128::from(*byte))
}

fn host16(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn big16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
