//! JWTs (RFC 7519) in their compact form (RFC 7515), signed by RS256, ES256 or EdDSA, and the keys of a JWK set (RFC 7517).
//!
//! Signatures are checked by `aws-lc-rs`; here is what stands around them. What a key is says which algorithm it is used with, never
//! the token: so no public key is taken for a secret, and `none` is no algorithm.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

/// How far the clocks of issuer and daemon may be apart.
const LEEWAY_S: f64 = 30.0;
/// OpenID Connect Core 1.0, 2: `sub` has at most 255 characters of ASCII.
const SUBJECT_CHARS_MAX: usize = 255;
/// Half a point of P-256.
const P256_BYTES: usize = 32;

/// Signatures that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Algorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "ES256")]
    Es256,
    EdDSA,
}

/// A token that nobody has checked yet.
#[derive(Debug)]
pub(crate) struct Jwt<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    claims: Vec<u8>,
    header: Header,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: Algorithm,
    kid: Option<String>,
    crit: Option<Value>,
}

/// A key of an issuer.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Clone, Debug)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// RFC 7518, 6 and RFC 8037, 2.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    kid: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl Key {
    /// The key of a JWK, if it is one for signatures that count.
    pub(crate) fn of_jwk(value: Value) -> Option<Key> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let part = |part: &Option<String>| bytes(part.as_deref()?);
        let coordinate = |it: &Option<String>| part(it).filter(|bytes| bytes.len() == P256_BYTES);
        let (alg, public) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => ("RS256", Public::Rsa { n: part(&jwk.n)?, e: part(&jwk.e)? }),
            ("EC", Some("P-256")) => {
                let point = [vec![4], coordinate(&jwk.x)?, coordinate(&jwk.y)?].concat();
                ("ES256", Public::P256(point))
            }
            ("OKP", Some("Ed25519")) => ("EdDSA", Public::Ed25519(part(&jwk.x)?)),
            _ => return None,
        };
        let is = |named: Option<&str>, wanted: &str| named.is_none_or(|named| named == wanted);
        (is(jwk.purpose.as_deref(), "sig") && is(jwk.alg.as_deref(), alg))
            .then_some(Key { id: jwk.kid, public })
    }

    fn algorithm(&self) -> Algorithm {
        match self.public {
            Public::Rsa { .. } => Algorithm::Rs256,
            Public::P256(_) => Algorithm::Es256,
            Public::Ed25519(_) => Algorithm::EdDSA,
        }
    }

    /// Whether it may have signed a token, by the names that both have.
    pub(crate) fn is_for(&self, jwt: &Jwt<'_>) -> bool {
        self.algorithm() == jwt.header.alg && (jwt.id().is_none() || self.id.as_deref() == jwt.id())
    }

    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.public {
            Public::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Public::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Public::Ed25519(x) => UnparsedPublicKey::new(&ED25519, x).verify(message, signature),
        }
        .is_ok()
    }
}

/// What a token whose signature is right lacks.
pub(crate) type Fault = String;

impl<'a> Jwt<'a> {
    /// A token in three parts, signed by an algorithm that counts.
    pub(crate) fn parse(text: &'a str) -> Option<Jwt<'a>> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&bytes(header)?).ok()?;
        // RFC 7515, 4.1.11: what has to be understood and is not makes the token invalid.
        if header.crit.is_some() {
            return None;
        }
        Some(Jwt { signed, signature: bytes(signature)?, claims: bytes(claims)?, header })
    }

    /// The name of its key.
    pub(crate) fn id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Its claims, if a key has signed them.
    pub(crate) fn claims(&self, key: &Key) -> Option<Value> {
        let signed = key.is_for(self) && key.has_signed(self.signed.as_bytes(), &self.signature);
        signed.then(|| serde_json::from_slice(&self.claims).ok()).flatten()
    }
}

/// Holds claims against issuer, audience and time; gives their subject.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn subject<'a>(
    claims: &'a Value,
    issuer: &str,
    audience: &str,
    now_s: f64,
) -> Result<&'a str, Fault> {
    let number = |name: &str| claims.get(name).and_then(Value::as_f64);
    let expires = number("exp").ok_or("it has no usable `exp`")?;
    if expires + LEEWAY_S <= now_s {
        return Err("it has expired".into());
    }
    if claims.get("nbf").is_some() && number("nbf").ok_or("it has no usable `nbf`")? > now_s + LEEWAY_S {
        return Err("it is not valid yet".into());
    }
    if claims.get("iss").and_then(Value::as_str) != Some(issuer) {
        return Err("its `iss` is not the issuer of the settings".into());
    }
    let is_ours = |value: &Value| value.as_str() == Some(audience);
    let names_us = match claims.get("aud") {
        Some(Value::Array(values)) => values.iter().any(is_ours),
        Some(value) => is_ours(value),
        None => false,
    };
    if !names_us {
        return Err("its `aud` does not name this daemon".into());
    }
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
    match (1..=SUBJECT_CHARS_MAX).contains(&subject.len()) && subject.bytes().all(is_printable) {
        true => Ok(subject),
        false => Err("its `sub` is not 1 to 255 characters of ASCII".into()),
    }
}
