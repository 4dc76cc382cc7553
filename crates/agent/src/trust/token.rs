//! One-time tokens. A token is a text that holds the fingerprint of the agent's key and 128 random bits:
//!
//! ```text
//! drover1- and base32 (a-z, 2-7) of:    0 32  fingerprint of the agent's key
//!                                      32 16  secret
//!                                      48  2  first bytes of the BLAKE3 of what stands before: typing errors
//! ```
//!
//! So who has the token knows the agent before it says anything, and the secret goes to nobody else. The agent keeps
//! only a hash of the secret.

use std::fmt;
use std::str::FromStr;

use drover_types::Secret;
use serde::{Deserialize, Serialize};

use super::folder::{Folder, FolderError};
use super::identity::Fingerprint;

const FILE: &str = "tokens.json";
const PREFIX: &str = "drover1-";
const SECRET_BYTES: usize = 16;
const CHECK_BYTES: usize = 2;
const ALL_BYTES: usize = 32 + SECRET_BYTES + CHECK_BYTES;

/// Tokens that are kept, used and expired ones with them.
const TOKENS_MAX: usize = 100;

/// How long a token that is used or expired is remembered, to say which it is.
const REMEMBERED_SECONDS: u64 = 7 * 24 * 3600;

/// Wrong tokens before all that are open become worthless.
pub const TRIES_MAX: u32 = 10;

/// A token, as it is handed over.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The agent that made it.
    pub agent: Fingerprint,
    secret: [u8; SECRET_BYTES],
}

/// A text that is no token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no pairing token, or a letter of it is wrong")]
pub struct TokenError;

impl Token {
    fn new(agent: Fingerprint) -> Token {
        Token { agent, secret: crate::random::bytes() }
    }

    /// The text to hand over. It is a secret.
    pub fn text(&self) -> Secret {
        let mut bytes = self.body();
        let check = blake3::hash(&bytes);
        bytes.extend(&check.as_bytes()[..CHECK_BYTES]);
        Secret::new(format!("{PREFIX}{}", base32(&bytes)))
    }

    fn body(&self) -> Vec<u8> {
        [&self.agent.0[..], &self.secret].concat()
    }

    /// What only who has the token knows.
    pub(super) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:?}, ***)", self.agent)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(TokenError)?;
        let bytes = from_base32(digits).filter(|bytes| bytes.len() == ALL_BYTES).ok_or(TokenError)?;
        let (body, check) = bytes.split_at(ALL_BYTES - CHECK_BYTES);
        if blake3::hash(body).as_bytes()[..CHECK_BYTES] != *check {
            return Err(TokenError);
        }
        let mut token = Token { agent: Fingerprint([0; 32]), secret: [0; SECRET_BYTES] };
        token.agent.0.copy_from_slice(&body[..32]);
        token.secret.copy_from_slice(&body[32..]);
        Ok(token)
    }
}

const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digits = (bytes.len() * 8).div_ceil(5);
    let value = |digit: usize| (0..5).fold(0, |value, at| value << 1 | bit(digit * 5 + at));
    (0..digits).map(|digit| DIGITS[usize::from(value(digit))] as char).collect()
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut value, mut bits) = (0u32, 0);
    for letter in text.bytes().map(|letter| letter.to_ascii_lowercase()) {
        let digit = DIGITS.iter().position(|it| *it == letter)? as u32;
        value = value << 5 | digit;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((value >> bits) as u8);
            value &= (1 << bits) - 1;
        }
    }
    (value == 0 && bits < 5).then_some(bytes)
}

/// The tokens that an agent made.
#[derive(Clone, Debug)]
pub struct Tokens {
    folder: Folder,
}

#[derive(Default, Serialize, Deserialize)]
struct File {
    tokens: Vec<Kept>,
    /// Wrong ones since the last that was right or new.
    wrong: u32,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    /// BLAKE3 of the secret, with a context of its own.
    hash: Fingerprint,
    name: Option<String>,
    /// In seconds since 1970.
    until: u64,
    used: bool,
    /// The key of who showed it. It counts for no other from then on, also if this host fails before it is used up.
    #[serde(default)]
    shown_by: Option<Fingerprint>,
    #[serde(default)]
    withdrawn: bool,
}

/// A new token.
#[derive(Debug)]
pub struct Issued {
    /// It.
    pub token: Token,
    /// Until when it counts, in seconds since 1970.
    pub until: u64,
}

/// Why a token that was shown does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was used before.
    Used,
    /// Its time is over.
    Expired,
    /// It was withdrawn after too many wrong ones.
    Withdrawn,
    /// There is no such token.
    Wrong,
}

impl Tokens {
    /// The tokens kept in a folder.
    pub fn new(folder: Folder) -> Tokens {
        Tokens { folder }
    }

    /// Makes a token for the agent with this key.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn issue(
        &self,
        agent: Fingerprint,
        name: Option<String>,
        now: u64,
        valid_seconds: u64,
    ) -> Result<Issued, FolderError> {
        let token = Token::new(agent);
        let until = now.saturating_add(valid_seconds);
        let kept =
            Kept { hash: hash_of(&token.secret), name, until, used: false, shown_by: None, withdrawn: false };
        self.folder.change_json(FILE, |file: &mut File| {
            file.tokens.retain(|token| token.until.saturating_add(REMEMBERED_SECONDS) > now);
            let excess = (file.tokens.len() + 1).saturating_sub(TOKENS_MAX);
            file.tokens.drain(..excess);
            file.tokens.push(kept);
            file.wrong = 0;
        })?;
        Ok(Issued { token, until })
    }

    /// Whether any token counts at that time, so that strangers may show one.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn any_open(&self, now: u64) -> Result<bool, FolderError> {
        let file: File = self.folder.read_json(FILE)?;
        Ok(file.tokens.iter().any(|token| token.is_open(now)))
    }

    /// Judges a secret that was shown by who has this key. If it is good, that is written down, `keep` makes its bearer a peer, and
    /// then it is used up: in this order, because the bearer has more connections on the way, and must be a peer before no
    /// token is open any more.
    ///
    /// # Errors
    /// When any of that cannot be kept.
    pub(super) fn redeem<T>(
        &self,
        secret: &[u8],
        by: Fingerprint,
        now: u64,
        keep: impl FnOnce(Option<String>) -> Result<T, FolderError>,
    ) -> Result<Result<T, Verdict>, FolderError> {
        let hash = hash_of(secret);
        let good = self.folder.change_json(FILE, |file: &mut File| {
            file.judge(hash, by, now).map(|token| token.shown_by = Some(by))
        })?;
        if let Err(verdict) = good {
            return Ok(Err(verdict));
        }
        self.folder.change_json(FILE, |file: &mut File| match file.judge(hash, by, now) {
            Ok(token) => {
                let kept = keep(token.name.clone())?;
                token.used = true;
                file.wrong = 0;
                Ok(Ok(kept))
            }
            Err(verdict) => Ok(Err(verdict)),
        })?
    }
}

impl File {
    /// The token with this hash, if it counts for who has this key.
    fn judge(&mut self, hash: Fingerprint, by: Fingerprint, now: u64) -> Result<&mut Kept, Verdict> {
        // Hashes of 128 random bits: how long a comparison takes tells nothing of use.
        let Some(place) = self.tokens.iter().position(|token| token.hash == hash) else {
            self.wrong = self.wrong.saturating_add(1);
            if self.wrong >= TRIES_MAX {
                self.tokens.iter_mut().filter(|token| token.is_open(now)).for_each(|it| it.withdrawn = true);
            }
            return Err(Verdict::Wrong);
        };
        match &mut self.tokens[place] {
            Kept { used: true, .. } => Err(Verdict::Used),
            Kept { shown_by: Some(other), .. } if *other != by => Err(Verdict::Used),
            Kept { withdrawn: true, .. } => Err(Verdict::Withdrawn),
            Kept { until, .. } if *until <= now => Err(Verdict::Expired),
            token => Ok(token),
        }
    }
}

impl Kept {
    fn is_open(&self, now: u64) -> bool {
        !self.used && !self.withdrawn && self.until > now
    }
}

fn hash_of(secret: &[u8]) -> Fingerprint {
    Fingerprint(blake3::derive_key("drover agent pairing token v1", secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> (tempfile::TempDir, Tokens) {
        let state = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(Folder::open(state.path()).unwrap());
        (state, tokens)
    }

    fn redeem(tokens: &Tokens, secret: &[u8], now: u64) -> Result<Option<String>, Verdict> {
        tokens.redeem(secret, AGENT, now, Ok).unwrap()
    }

    const AGENT: Fingerprint = Fingerprint([7; 32]);

    #[test]
    fn a_token_goes_through_its_text_and_a_wrong_letter_is_noticed() {
        let token = Token::new(AGENT);
        let text = token.text().reveal().to_string();
        assert_eq!(text.len(), PREFIX.len() + 80);
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!(" {}\n", text).parse(), Ok(token.clone()));
        for at in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] = if wrong[at] == b'b' { b'c' } else { b'b' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert_ne!(wrong.parse(), Ok(token.clone()), "letter {at}");
        }
        assert!(!format!("{token:?}").contains(&text[50..]));
        for senseless in ["", "drover1-", "drover1-ä", "drover2-aaaa"] {
            assert_eq!(senseless.parse::<Token>(), Err(TokenError));
        }
    }

    #[test]
    fn a_token_counts_once_and_in_its_time() {
        let (_state, tokens) = tokens();
        let issued = tokens.issue(AGENT, Some("site-a".into()), 1000, 60).unwrap();
        let secret = issued.token.secret();
        assert_eq!(
            (issued.until, tokens.any_open(1059).unwrap(), tokens.any_open(1060).unwrap()),
            (1060, true, false)
        );
        assert_eq!(redeem(&tokens, &[0; 16], 1001), Err(Verdict::Wrong));
        assert_eq!(redeem(&tokens, secret, 1060), Err(Verdict::Expired));
        assert_eq!(redeem(&tokens, secret, 1059), Ok(Some("site-a".into())));
        assert_eq!(redeem(&tokens, secret, 1059), Err(Verdict::Used));
        assert!(!tokens.any_open(1059).unwrap());
    }

    #[test]
    fn a_token_counts_once_though_the_host_fails_while_its_bearer_is_kept() {
        let (_state, tokens) = tokens();
        let secret = *tokens.issue(AGENT, None, 1000, 60).unwrap().token.secret();
        let full = |_| tokens.folder.write("no/such", b"");
        let (first, second) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        assert!(tokens.redeem(&secret, first, 1001, full).is_err());
        assert!(matches!(tokens.redeem(&secret, second, 1001, Ok), Ok(Err(Verdict::Used))));
        assert!(matches!(tokens.redeem(&secret, first, 1001, Ok), Ok(Ok(None))));
        assert!(matches!(tokens.redeem(&secret, first, 1001, Ok), Ok(Err(Verdict::Used))));
    }

    #[test]
    fn of_many_who_show_one_token_at_once_one_is_let_in() {
        let (_state, tokens) = tokens();
        let secret = *tokens.issue(AGENT, None, 1000, 60).unwrap().token.secret();
        let good = std::thread::scope(|scope| {
            let shown: Vec<_> =
                (0..8).map(|_| scope.spawn(|| redeem(&tokens, &secret, 1001).is_ok())).collect();
            shown.into_iter().map(|it| it.join().unwrap()).filter(|good| *good).count()
        });
        assert_eq!(good, 1);
    }

    #[test]
    fn too_many_wrong_ones_withdraw_those_that_are_open() {
        let (_state, tokens) = tokens();
        let secret = *tokens.issue(AGENT, None, 1000, 60).unwrap().token.secret();
        for _ in 0..TRIES_MAX {
            assert_eq!(redeem(&tokens, b"guess", 1001), Err(Verdict::Wrong));
        }
        assert!(!tokens.any_open(1001).unwrap());
        assert_eq!(redeem(&tokens, &secret, 1001), Err(Verdict::Withdrawn));
    }

    #[test]
    fn the_secret_is_not_in_the_state() {
        let (state, tokens) = tokens();
        let token = tokens.issue(AGENT, None, 1000, 60).unwrap().token;
        let kept = std::fs::read_to_string(state.path().join("link/tokens.json")).unwrap();
        assert!(!kept.contains(&crate::random::to_hex(token.secret())));
    }
}
