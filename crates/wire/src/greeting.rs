//! What both sides say first on each connection. Its layout is the same in every version.
//!
//! ```text
//!  0  4  bytes from offset 8 on, 2..=16384
//!  4  4  CRC32C of them
//!  8  2  what: 1 hello (the side that dialled), 2 welcome or 3 refusal (the answer)
//! 10     items, each: 2 tag, 2 length, bytes
//! ```
//!
//! | tag | item | bytes |
//! |---|---|---|
//! | 1 | versions: lowest, highest; in a welcome both are the chosen one | 2 + 2 |
//! | 2 | features: bits; those that are not known are ignored | 8 |
//! | 3 | session | 16 |
//! | 4 | token of the session, secret | 32 |
//! | 5 | instance: drawn anew by each process | 16 |
//! | 6 | name | up to 255, UTF-8 |
//! | 7 | what the speaker announces, as it likes | up to 8192 |
//! | 8 | first credit that the speaker gives: a stream, messages, the session | 8 + 8 + 8 |
//! | 9 | refusal: code | 2 |
//! | 10 | refusal: text | up to 512, UTF-8 |
//!
//! Items with another tag are skipped, so a newer side may say more.

use crate::{WireError, check};

/// Bytes of a greeting after its length and check, at most.
pub const GREETING_BYTES_MAX: usize = 16 << 10;

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of what is announced.
pub const ANNOUNCE_BYTES_MAX: usize = 8 << 10;

/// Bytes of a text that says why something is refused or over.
pub const TEXT_BYTES_MAX: usize = 512;

/// The oldest version spoken here.
pub const VERSION_MIN: u16 = 1;

/// The newest version spoken here.
pub const VERSION_MAX: u16 = 1;

/// The versions spoken here.
pub const VERSIONS: VersionRange = VersionRange { lowest: VERSION_MIN, highest: VERSION_MAX };

/// A feature: the side that listens can be connected to over RDMA, too, at the addresses and ports at which it can be over TCP. In a hello:
/// the side that dialled would like to know.
pub const FEATURE_RDMA: u64 = 1;

const PREFIX_BYTES: usize = 8;

/// Versions that one side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest.
    pub lowest: u16,
    /// The newest.
    pub highest: u16,
}

impl VersionRange {
    /// The highest version that both speak.
    pub fn common(self, other: VersionRange) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

/// How much may be sent before the first credit frame arrives, in [`crate::cost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// On each stream.
    pub stream: u64,
    /// On each channel of messages.
    pub messages: u64,
    /// On all channels together.
    pub session: u64,
}

/// What the dialling side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Versions it speaks.
    pub versions: VersionRange,
    /// Features it has.
    pub features: u64,
    /// The session that this connection is to join, and its token. `None` asks for a new one.
    pub join: Option<([u8; 16], [u8; 32])>,
    /// Drawn anew by each process.
    pub instance: [u8; 16],
    /// Its name.
    pub name: String,
    /// What it announces.
    pub announce: Vec<u8>,
    /// Credit that it gives.
    pub credits: Credits,
}

/// The answer that lets the connection in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version of all that follows.
    pub version: u16,
    /// Features that both sides have.
    pub features: u64,
    /// The session.
    pub session: [u8; 16],
    /// What further connections have to show; secret.
    pub token: [u8; 32],
    /// Drawn anew by each process.
    pub instance: [u8; 16],
    /// Its name.
    pub name: String,
    /// What it announces.
    pub announce: Vec<u8>,
    /// Credit that it gives.
    pub credits: Credits,
}

/// Why a connection is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RefusalCode {
    /// There is no version that both sides speak.
    Version = 1,
    /// This peer is not let in: not known, revoked.
    Identity = 2,
    /// There is no such session, any more.
    Session = 3,
    /// Too many sessions or connections.
    Busy = 4,
    /// The hello broke the rules, or a code that is not known here.
    Protocol = 5,
}

/// The answer that does not let the connection in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// Why, for a person.
    pub text: String,
}

/// A greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Of the side that dialled.
    Hello(Hello),
    /// Of the side that answers.
    Welcome(Welcome),
    /// Of the side that answers.
    Refusal(Refusal),
}

/// How many bytes follow the first eight of a greeting.
///
/// # Errors
/// When they would be too many or too few.
pub fn greeting_bytes(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, WireError> {
    let length = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
    match (2..=GREETING_BYTES_MAX).contains(&length) {
        true => Ok(length),
        false => Err(WireError::Greeting("its length is out of bounds")),
    }
}

impl Greeting {
    /// The greeting as bytes. Names and texts that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut items = Items::default();
        match self {
            Greeting::Hello(hello) => items.hello(hello),
            Greeting::Welcome(welcome) => items.welcome(welcome),
            Greeting::Refusal(refusal) => items.refusal(refusal),
        }
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + items.bytes.len());
        bytes.extend((items.bytes.len() as u32).to_le_bytes());
        bytes.extend(check(&items.bytes).to_le_bytes());
        bytes.extend(items.bytes);
        bytes
    }

    /// Reads a greeting: its first eight bytes, and as many more as [`greeting_bytes`] says.
    ///
    /// # Errors
    /// When the check fails, an item is missing or of a wrong length, or a text is not UTF-8.
    pub fn decode(prefix: &[u8; PREFIX_BYTES], rest: &[u8]) -> Result<Greeting, WireError> {
        if greeting_bytes(prefix)? != rest.len() {
            return Err(WireError::Greeting("it is not whole"));
        }
        if check(rest) != u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) {
            return Err(WireError::Greeting("its check fails"));
        }
        let found = Found::read(&rest[2..])?;
        match u16::from_le_bytes([rest[0], rest[1]]) {
            1 => found.hello().map(Greeting::Hello),
            2 => found.welcome().map(Greeting::Welcome),
            3 => found.refusal().map(Greeting::Refusal),
            _ => Err(WireError::Greeting("it is neither hello, welcome nor refusal")),
        }
    }
}

const VERSIONS_TAG: u16 = 1;
const FEATURES_TAG: u16 = 2;
const SESSION_TAG: u16 = 3;
const TOKEN_TAG: u16 = 4;
const INSTANCE_TAG: u16 = 5;
const NAME_TAG: u16 = 6;
const ANNOUNCE_TAG: u16 = 7;
const CREDITS_TAG: u16 = 8;
const CODE_TAG: u16 = 9;
const TEXT_TAG: u16 = 10;

#[derive(Default)]
struct Items {
    bytes: Vec<u8>,
}

impl Items {
    fn hello(&mut self, hello: &Hello) {
        self.bytes.extend(1u16.to_le_bytes());
        self.versions(hello.versions);
        if let Some((session, token)) = &hello.join {
            self.item(SESSION_TAG, session);
            self.item(TOKEN_TAG, token);
        }
        self.speaker(hello.features, &hello.instance, &hello.name, &hello.announce, hello.credits);
    }

    fn welcome(&mut self, welcome: &Welcome) {
        self.bytes.extend(2u16.to_le_bytes());
        self.versions(VersionRange { lowest: welcome.version, highest: welcome.version });
        self.item(SESSION_TAG, &welcome.session);
        self.item(TOKEN_TAG, &welcome.token);
        self.speaker(welcome.features, &welcome.instance, &welcome.name, &welcome.announce, welcome.credits);
    }

    fn refusal(&mut self, refusal: &Refusal) {
        self.bytes.extend(3u16.to_le_bytes());
        self.item(CODE_TAG, &(refusal.code as u16).to_le_bytes());
        self.item(TEXT_TAG, cut(&refusal.text, TEXT_BYTES_MAX).as_bytes());
    }

    fn versions(&mut self, versions: VersionRange) {
        self.item(VERSIONS_TAG, &[versions.lowest.to_le_bytes(), versions.highest.to_le_bytes()].concat());
    }

    fn speaker(&mut self, features: u64, instance: &[u8], name: &str, announce: &[u8], credits: Credits) {
        self.item(FEATURES_TAG, &features.to_le_bytes());
        self.item(INSTANCE_TAG, instance);
        self.item(NAME_TAG, cut(name, NAME_BYTES_MAX).as_bytes());
        self.item(ANNOUNCE_TAG, &announce[..announce.len().min(ANNOUNCE_BYTES_MAX)]);
        let credits = [credits.stream, credits.messages, credits.session].map(u64::to_le_bytes);
        self.item(CREDITS_TAG, &credits.concat());
    }

    fn item(&mut self, tag: u16, bytes: &[u8]) {
        self.bytes.extend(tag.to_le_bytes());
        self.bytes.extend((bytes.len() as u16).to_le_bytes());
        self.bytes.extend(bytes);
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The items of a greeting, by tag.
#[derive(Default)]
struct Found<'a> {
    known: [Option<&'a [u8]>; TEXT_TAG as usize + 1],
}

impl<'a> Found<'a> {
    fn read(mut bytes: &'a [u8]) -> Result<Found<'a>, WireError> {
        let mut found = Found::default();
        while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
            let tag = u16::from_le_bytes([head[0], head[1]]);
            let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let (item, rest) =
                rest.split_at_checked(length).ok_or(WireError::Greeting("an item is cut off"))?;
            bytes = rest;
            let Some(place) = found.known.get_mut(usize::from(tag)) else { continue };
            if place.replace(item).is_some() {
                return Err(WireError::Greeting("an item is there twice"));
            }
        }
        match bytes.is_empty() {
            true => Ok(found),
            false => Err(WireError::Greeting("an item is cut off")),
        }
    }

    fn hello(&self) -> Result<Hello, WireError> {
        let join = match (self.known[usize::from(SESSION_TAG)], self.known[usize::from(TOKEN_TAG)]) {
            (None, None) => None,
            _ => Some((self.fixed(SESSION_TAG)?, self.fixed(TOKEN_TAG)?)),
        };
        Ok(Hello {
            versions: self.versions()?,
            features: u64::from_le_bytes(self.fixed(FEATURES_TAG)?),
            join,
            instance: self.fixed(INSTANCE_TAG)?,
            name: self.text(NAME_TAG, NAME_BYTES_MAX)?,
            announce: self.up_to(ANNOUNCE_TAG, ANNOUNCE_BYTES_MAX)?.to_vec(),
            credits: self.credits()?,
        })
    }

    fn welcome(&self) -> Result<Welcome, WireError> {
        Ok(Welcome {
            version: self.versions()?.highest,
            features: u64::from_le_bytes(self.fixed(FEATURES_TAG)?),
            session: self.fixed(SESSION_TAG)?,
            token: self.fixed(TOKEN_TAG)?,
            instance: self.fixed(INSTANCE_TAG)?,
            name: self.text(NAME_TAG, NAME_BYTES_MAX)?,
            announce: self.up_to(ANNOUNCE_TAG, ANNOUNCE_BYTES_MAX)?.to_vec(),
            credits: self.credits()?,
        })
    }

    fn refusal(&self) -> Result<Refusal, WireError> {
        use RefusalCode as C;
        let code = u16::from_le_bytes(self.fixed(CODE_TAG)?);
        let known = [C::Version, C::Identity, C::Session, C::Busy].into_iter().find(|it| *it as u16 == code);
        Ok(Refusal { code: known.unwrap_or(C::Protocol), text: self.text(TEXT_TAG, TEXT_BYTES_MAX)? })
    }

    fn versions(&self) -> Result<VersionRange, WireError> {
        let [a, b, c, d] = self.fixed(VERSIONS_TAG)?;
        let (lowest, highest) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        match lowest <= highest {
            true => Ok(VersionRange { lowest, highest }),
            false => Err(WireError::Greeting("its versions are upside down")),
        }
    }

    fn credits(&self) -> Result<Credits, WireError> {
        let bytes: [u8; 24] = self.fixed(CREDITS_TAG)?;
        let mut parts = bytes.as_chunks::<8>().0.iter().map(|part| u64::from_le_bytes(*part));
        let mut next = || parts.next().ok_or(WireError::Greeting("an item is missing"));
        Ok(Credits { stream: next()?, messages: next()?, session: next()? })
    }

    fn up_to(&self, tag: u16, bytes_max: usize) -> Result<&'a [u8], WireError> {
        let item = self.known[usize::from(tag)].ok_or(WireError::Greeting("an item is missing"))?;
        match item.len() <= bytes_max {
            true => Ok(item),
            false => Err(WireError::Greeting("an item is too long")),
        }
    }

    fn fixed<const N: usize>(&self, tag: u16) -> Result<[u8; N], WireError> {
        self.up_to(tag, N)?.try_into().map_err(|_| WireError::Greeting("an item is too short"))
    }

    fn text(&self, tag: u16, bytes_max: usize) -> Result<String, WireError> {
        let bytes = self.up_to(tag, bytes_max)?.to_vec();
        String::from_utf8(bytes).map_err(|_| WireError::Greeting("a text is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CREDITS: Credits = Credits { stream: 1 << 18, messages: 1 << 21, session: 1 << 28 };

    fn hello() -> Hello {
        Hello {
            versions: VERSIONS,
            features: 0,
            join: Some(([1; 16], [2; 32])),
            instance: [3; 16],
            name: "site-a".into(),
            announce: b"{}".to_vec(),
            credits: CREDITS,
        }
    }

    fn read(bytes: &[u8]) -> Result<Greeting, WireError> {
        let (prefix, rest) = bytes.split_first_chunk::<8>().ok_or(WireError::Greeting("short"))?;
        Greeting::decode(prefix, rest)
    }

    fn sealed(what: u16, items: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = Items { bytes: what.to_le_bytes().to_vec() };
        items.iter().for_each(|(tag, bytes)| all.item(*tag, bytes));
        let length = (all.bytes.len() as u32).to_le_bytes();
        [&length[..], &check(&all.bytes).to_le_bytes(), &all.bytes].concat()
    }

    proptest! {
        #[test]
        fn greetings_read_back(
            name in ".{0,60}", announce in prop::collection::vec(any::<u8>(), 0..200), (features, a, b) in any::<(u64, u16, u16)>(),
            joins in any::<bool>(), session in any::<[u8; 16]>(), token in any::<[u8; 32]>(), text in ".{0,100}",
        ) {
            let versions = VersionRange { lowest: a.min(b), highest: a.max(b) };
            let join = joins.then_some((session, token));
            let said = Hello { versions, features, join, name: name.clone(), announce: announce.clone(), ..hello() };
            prop_assert_eq!(read(&Greeting::Hello(said.clone()).encode()), Ok(Greeting::Hello(said)));
            let welcome = Welcome { version: a, features, session, token, instance: [9; 16], name, announce, credits: CREDITS };
            prop_assert_eq!(read(&Greeting::Welcome(welcome.clone()).encode()), Ok(Greeting::Welcome(welcome)));
            let refusal = Greeting::Refusal(Refusal { code: RefusalCode::Identity, text });
            prop_assert_eq!(read(&refusal.encode()), Ok(refusal));
        }

        #[test]
        fn a_flipped_bit_is_found(bit in any::<prop::sample::Index>()) {
            let mut bytes = Greeting::Hello(hello()).encode();
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn the_common_version_is_the_highest_that_both_speak(a in 0u16..9, b in 0u16..9, c in 0u16..9, d in 0u16..9) {
            let (one, two) = (VersionRange { lowest: a.min(b), highest: a.max(b) }, VersionRange { lowest: c.min(d), highest: c.max(d) });
            let speaks = |range: VersionRange, version| range.lowest <= version && version <= range.highest;
            let oracle = (0u16..9).rev().find(|version| speaks(one, *version) && speaks(two, *version));
            prop_assert_eq!(one.common(two), oracle);
            prop_assert_eq!(two.common(one), oracle);
        }
    }

    #[test]
    fn what_a_newer_side_says_more_is_skipped() {
        let refusal: [(u16, &[u8]); 3] = [(CODE_TAG, &[4, 0]), (TEXT_TAG, b"full"), (999, b"new")];
        let busy = Refusal { code: RefusalCode::Busy, text: "full".into() };
        assert_eq!(read(&sealed(3, &refusal)), Ok(Greeting::Refusal(busy)));
        let unknown = read(&sealed(3, &[(CODE_TAG, &[77, 0]), (TEXT_TAG, b"new reason")]));
        let understood = Refusal { code: RefusalCode::Protocol, text: "new reason".into() };
        assert_eq!(unknown, Ok(Greeting::Refusal(understood)));
    }

    #[test]
    fn greetings_that_break_the_rules_are_refused() {
        let error = |bytes: &[u8]| matches!(read(bytes), Err(WireError::Greeting(_)));
        assert!(error(&sealed(3, &[(CODE_TAG, &[1, 0])])), "no text");
        assert!(error(&sealed(3, &[(CODE_TAG, &[1]), (TEXT_TAG, b"")])), "a code of one byte");
        assert!(error(&sealed(3, &[(CODE_TAG, &[1, 0]), (CODE_TAG, &[1, 0]), (TEXT_TAG, b"")])), "twice");
        assert!(error(&sealed(3, &[(CODE_TAG, &[1, 0]), (TEXT_TAG, &[0xFF])])), "not UTF-8");
        assert!(error(&sealed(3, &[(CODE_TAG, &[1, 0]), (TEXT_TAG, &[b'a'; TEXT_BYTES_MAX + 1])])), "long");
        assert!(error(&sealed(4, &[])), "no such greeting");
        let half = Hello { join: None, ..hello() };
        let mut bytes = Greeting::Hello(half).encode()[8..].to_vec();
        bytes.extend([SESSION_TAG as u8, 0, 16, 0]);
        bytes.extend([7; 16]);
        let length = (bytes.len() as u32).to_le_bytes();
        assert!(
            error(&[&length[..], &check(&bytes).to_le_bytes(), &bytes].concat()),
            "a session without token"
        );
        assert!(greeting_bytes(&[1, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(greeting_bytes(&((GREETING_BYTES_MAX as u64) + 1).to_le_bytes()).is_err());
    }
}
