//! Records of TLS 1.3 (RFC 8446, section 5), each direction with keys of its own. Pure.
//!
//! The library that shakes hands copies each record twice when it writes, and has both directions behind one lock. Here
//! bytes are encrypted from where they are to where they are sent from.

use std::io;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    TlsProtocolId, TlsRecordSealingKey, UnboundKey,
};
use rustls::ConnectionTrafficSecrets as Secrets;
use rustls::crypto::cipher::AeadKey;

use super::failed;

/// Plain bytes in a record, at most.
pub const PLAIN_BYTES_MAX: usize = 16 << 10;

const HEADER_BYTES: usize = 5;
/// The kind that is encrypted with the bytes, and the tag.
const KIND_BYTES: usize = 1;
const TAG_BYTES: usize = 16;

/// What a record is longer than its plain bytes.
pub const GROWTH_BYTES: usize = HEADER_BYTES + KIND_BYTES + TAG_BYTES;

/// What may be behind a header: a peer may pad its records.
const ENCRYPTED_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;

/// What is in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Alert = 21,
    Handshake = 22,
    Data = 23,
}

/// Numbers the records of one direction.
struct Numbers {
    iv: [u8; NONCE_LEN],
    records: u64,
}

impl Numbers {
    /// A nonce that was never used with this key.
    fn next(&mut self) -> io::Result<Nonce> {
        let number = self.records;
        self.records = number.checked_add(1).ok_or_else(|| failed("keys were used too often"))?;
        let mut nonce = self.iv;
        let end = nonce.iter_mut().rev().zip(number.to_le_bytes());
        end.for_each(|(byte, of_number)| *byte ^= of_number);
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn parts((records, secrets): (u64, Secrets)) -> io::Result<(&'static Algorithm, AeadKey, Numbers)> {
    let (algorithm, key, iv): (&'static Algorithm, _, _) = match secrets {
        Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
        Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
        Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
        _ => return Err(failed("a cipher that links do not know")),
    };
    let iv = iv.as_ref().try_into().map_err(failed)?;
    Ok((algorithm, key, Numbers { iv, records }))
}

fn any_key(algorithm: &'static Algorithm, key: &AeadKey) -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| failed("a key that does not fit"))?;
    Ok(LessSafeKey::new(key))
}

/// What is written is sealed with.
enum SealingKey {
    /// It refuses a nonce that is not above all before.
    Gcm(TlsRecordSealingKey),
    Chacha(LessSafeKey),
}

/// Seals records.
pub struct Sealer {
    key: SealingKey,
    numbers: Numbers,
}

impl Sealer {
    /// With keys that were not used.
    pub fn new(secrets: (u64, Secrets)) -> io::Result<Sealer> {
        let (algorithm, key, numbers) = parts(secrets)?;
        if numbers.records != 0 {
            return Err(failed("keys that were used before"));
        }
        let key = if algorithm == &CHACHA20_POLY1305 {
            SealingKey::Chacha(any_key(algorithm, &key)?)
        } else {
            let key = TlsRecordSealingKey::new(algorithm, TlsProtocolId::TLS13, key.as_ref());
            SealingKey::Gcm(key.map_err(|_| failed("a key that does not fit"))?)
        };
        Ok(Sealer { key, numbers })
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        self.numbers.records
    }

    /// Encrypts up to [`PLAIN_BYTES_MAX`] into the front of `room`, [`GROWTH_BYTES`] more: how long the record is.
    pub fn seal(&mut self, kind: Kind, plain: &[u8], room: &mut [u8]) -> io::Result<usize> {
        let length = plain.len() + GROWTH_BYTES;
        if plain.len() > PLAIN_BYTES_MAX || room.len() < length {
            return Err(failed("too much for a record"));
        }
        let [high, low] = ((length - HEADER_BYTES) as u16).to_be_bytes();
        // What is encrypted looks like data, whatever it is.
        let header = [Kind::Data as u8, 3, 3, high, low];
        let (front, rest) = room[..length].split_at_mut(HEADER_BYTES);
        let (out, end) = rest.split_at_mut(plain.len());
        front.copy_from_slice(&header);
        let (nonce, aad, kind) = (self.numbers.next()?, Aad::from(header), [kind as u8]);
        match &mut self.key {
            SealingKey::Gcm(key) => key.seal_out_of_place_scatter(nonce, aad, plain, out, &kind, end),
            SealingKey::Chacha(key) => key.seal_out_of_place_scatter(nonce, aad, plain, out, &kind, end),
        }
        .map_err(|_| failed("a record could not be encrypted"))?;
        Ok(length)
    }
}

/// Opens records.
pub struct Opener {
    key: LessSafeKey,
    numbers: Numbers,
}

impl Opener {
    pub fn new(secrets: (u64, Secrets)) -> io::Result<Opener> {
        let (algorithm, key, numbers) = parts(secrets)?;
        Ok(Opener { key: any_key(algorithm, &key)?, numbers })
    }

    /// Decrypts a whole record in its place.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> io::Result<(Kind, &'a [u8])> {
        let (header, encrypted) = record.split_first_chunk_mut::<HEADER_BYTES>().ok_or_else(unsound)?;
        let nonce = self.numbers.next()?;
        let plain: &[u8] =
            self.key.open_in_place(nonce, Aad::from(*header), encrypted).map_err(|_| unsound())?;
        let (kind, length) = content(plain)?;
        Ok((kind, &plain[..length]))
    }

    /// Decrypts a whole record into the front of `room`, [`room_for`] so much: its kind, and how long it is. Where that fails, anything
    /// is there.
    pub fn open_into(&mut self, record: &[u8], room: &mut [u8]) -> io::Result<(Kind, usize)> {
        let (header, encrypted) = record.split_first_chunk::<HEADER_BYTES>().ok_or_else(unsound)?;
        let (encrypted, tag) = encrypted.split_last_chunk::<TAG_BYTES>().ok_or_else(unsound)?;
        let out = room.get_mut(..encrypted.len()).ok_or_else(|| failed("no room for a record"))?;
        let nonce = self.numbers.next()?;
        let opened = self.key.open_separate_gather(nonce, Aad::from(*header), encrypted, tag, out);
        opened.map_err(|_| unsound())?;
        content(out)
    }
}

fn unsound() -> io::Error {
    failed("a record was damaged on its way")
}

/// Room that [`Opener::open_into`] needs for a record: its bytes, and their kind behind them.
pub fn room_for(record: &[u8]) -> usize {
    record.len().saturating_sub(HEADER_BYTES + TAG_BYTES)
}

/// Of what was encrypted, the kind and how many bytes are of it. Behind the kind there may be zeros, to hide the length.
fn content(plain: &[u8]) -> io::Result<(Kind, usize)> {
    let end = plain.iter().rposition(|byte| *byte != 0).ok_or_else(|| failed("an empty record"))?;
    let kind = match plain[end] {
        21 => Kind::Alert,
        22 => Kind::Handshake,
        23 => Kind::Data,
        other => return Err(failed(format!("a record of kind {other}"))),
    };
    if end > PLAIN_BYTES_MAX {
        return Err(failed("a record that is too long"));
    }
    Ok((kind, end))
}

/// How long the record at the front of `bytes` is; nothing if it has not come whole.
pub fn whole(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some([kind, _, _, high, low]) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if *kind != Kind::Data as u8 || !(KIND_BYTES + TAG_BYTES..=ENCRYPTED_BYTES_MAX).contains(&length) {
        return Err(failed("what came is no TLS record"));
    }
    Ok(Some(HEADER_BYTES + length).filter(|length| *length <= bytes.len()))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::cipher::Iv;

    use super::*;

    fn secrets() -> Secrets {
        Secrets::Aes256Gcm { key: AeadKey::from([7; 32]), iv: Iv::from([9; 12]) }
    }

    fn sealer() -> Sealer {
        Sealer::new((0, secrets())).unwrap()
    }

    fn opener() -> Opener {
        Opener::new((0, secrets())).unwrap()
    }

    fn sealed(sealer: &mut Sealer, kind: Kind, plain: &[u8]) -> Vec<u8> {
        let mut room = vec![0; plain.len() + GROWTH_BYTES];
        let length = sealer.seal(kind, plain, &mut room).unwrap();
        assert_eq!(length, room.len());
        room
    }

    fn opened_in_order_only(mut ours: Sealer, mut theirs: Opener) {
        for (kind, length) in [(Kind::Data, 0), (Kind::Alert, 2), (Kind::Handshake, 5), (Kind::Data, 16_384)]
        {
            let plain: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut record = sealed(&mut ours, kind, &plain);
            assert_eq!(whole(&record).unwrap(), Some(record.len()));
            assert_eq!(whole(&record[..record.len() - 1]).unwrap(), None);
            assert_eq!(theirs.open(&mut record).unwrap(), (kind, &plain[..]));
            let record = sealed(&mut ours, kind, &plain);
            let mut room = vec![7; room_for(&record) + 3];
            assert_eq!(theirs.open_into(&record, &mut room).unwrap(), (kind, length));
            assert_eq!((&room[..length], &room[length + 1..]), (&plain[..], &[7; 3][..]));
        }
        assert_eq!((ours.records(), theirs.numbers.records), (8, 8));
        let mut first = sealed(&mut ours, Kind::Data, b"first");
        let mut second = sealed(&mut ours, Kind::Data, b"second");
        assert!(theirs.open(&mut second).is_err(), "before the first");
        assert!(theirs.open(&mut first).is_err(), "at the place of the second");
    }

    #[test]
    fn what_is_sealed_is_opened_in_its_order_only() {
        opened_in_order_only(sealer(), opener());
        let chacha = || Secrets::Chacha20Poly1305 { key: AeadKey::from([7; 32]), iv: Iv::from([9; 12]) };
        let aes_128 = || Secrets::Aes128Gcm { key: AeadKey::from([7; 32]), iv: Iv::from([9; 12]) };
        opened_in_order_only(Sealer::new((0, chacha())).unwrap(), Opener::new((0, chacha())).unwrap());
        // A key of 32 bytes is none of AES-128: the library's own come as long as they must be.
        assert!(Sealer::new((0, aes_128())).is_err() && Opener::new((0, aes_128())).is_err());
    }

    #[test]
    fn no_number_is_used_twice() {
        assert!(Sealer::new((1, secrets())).is_err(), "used before");
        let mut sealer = sealer();
        sealed(&mut sealer, Kind::Data, b"one");
        sealed(&mut sealer, Kind::Data, b"two");
        sealer.numbers.records = 1;
        assert!(sealer.seal(Kind::Data, b"two again", &mut [0; 100]).is_err());
        sealer.numbers.records = u64::MAX;
        assert!(sealer.seal(Kind::Data, b"the last", &mut [0; 100]).is_err());
    }

    #[test]
    fn a_record_with_any_bit_changed_is_refused() {
        let record = sealed(&mut sealer(), Kind::Data, b"some bytes");
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(opener().open(&mut changed.clone()).is_err(), "bit {bit}");
            assert!(opener().open_into(&changed, &mut [0; 99]).is_err(), "bit {bit}");
        }
        assert!(opener().open(&mut record.clone()).is_ok());
        assert!(opener().open_into(&record, &mut [0; 11]).is_ok());
        assert!(opener().open_into(&record, &mut [0; 10]).is_err(), "no room");
        assert!(opener().open_into(&record[..20], &mut [0; 99]).is_err());
    }

    /// A record of a peer that pads, or says nothing at all.
    fn padded(plain: &[u8], zeros: usize) -> Vec<u8> {
        let mut opener = opener();
        let length = plain.len() + zeros + TAG_BYTES;
        let header = [23, 3, 3, (length >> 8) as u8, length as u8];
        let mut rest = [plain, &vec![0; zeros]].concat();
        let nonce = opener.numbers.next().unwrap();
        opener.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut rest).unwrap();
        [&header[..], &rest].concat()
    }

    #[test]
    fn padding_is_taken_off_and_what_has_no_kind_is_refused() {
        for zeros in [0, 1, 200] {
            let mut record = padded(b"abc\x17", zeros);
            assert_eq!(opener().open(&mut record).unwrap(), (Kind::Data, &b"abc"[..]));
        }
        let refused = |mut record: Vec<u8>| opener().open(&mut record).unwrap_err().to_string();
        assert!(refused(padded(b"", 20)).contains("empty"));
        assert!(refused(padded(b"abc\x18", 3)).contains("kind 24"));
        let mut long = vec![1; PLAIN_BYTES_MAX + 1];
        long.push(23);
        assert!(refused(padded(&long, 0)).contains("too long"));
    }

    #[test]
    fn what_is_no_record_is_found_by_its_header() {
        for bad in [[22, 3, 3, 0, 20], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1], [21, 3, 3, 0, 2]] {
            assert!(whole(&bad).is_err(), "{bad:?}");
        }
        assert_eq!(whole(&[22, 3, 3]).unwrap(), None);
        assert_eq!(whole(&[23, 3, 3, 0x41, 0]).unwrap(), None);
        assert!(sealer().seal(Kind::Data, &[0; PLAIN_BYTES_MAX + 1], &mut [0; 20_000]).is_err());
        assert!(sealer().seal(Kind::Data, &[0; 10], &mut [0; 10 + GROWTH_BYTES - 1]).is_err());
    }
}
