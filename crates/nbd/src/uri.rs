use drover_stream::printable;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use drover_stream::Address;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an export is, and how the way there is guarded:
///
/// ```text
/// nbd://host[:port]/export                 nbds://[user@]host[:port]/export[?tls-...]
/// nbd+unix:///export?socket=/path          nbds+unix://[user@]/export?socket=/path[&tls-...]
/// ```
///
/// Source: NBD `doc/uri.md`; `tls-certificates`, `tls-psk-file` and `tls-username` are the names that
/// other clients use for what the standard leaves open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub address: Address,
    /// The export's name; empty is the server's default export.
    pub export: String,
    /// How to prove who is who; `None` speaks in the clear.
    pub tls: Option<UriTls>,
}

/// What a URI says about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UriTls {
    /// A folder with `ca-cert.pem`, and perhaps `client-cert.pem`, `client-key.pem`, `ca-crl.pem`.
    pub certificates: Option<PathBuf>,
    /// A file with a pre-shared key, a line `user:hex` each. Certificates have no part then.
    pub psk_file: Option<PathBuf>,
    /// Whose key of the file it is.
    pub username: Option<String>,
    /// The name the server's certificate must be for, if it is not the URI's host.
    pub hostname: Option<String>,
}

/// A text that is no NBD URI drover can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NBD URI '{}': {}", printable(.uri), printable(.reason))]
pub struct UriError {
    uri: String,
    reason: String,
}

impl NbdUri {
    /// An export of a server on TCP.
    pub fn tcp(host: &str, port: u16, export: &str) -> NbdUri {
        NbdUri { address: Address::Tcp(host.to_string(), port), export: export.to_string(), tls: None }
    }

    /// An export of a server on a Unix socket.
    pub fn unix(socket: impl AsRef<Path>, export: &str) -> NbdUri {
        let address = Address::Unix(socket.as_ref().to_path_buf());
        NbdUri { address, export: export.to_string(), tls: None }
    }

    /// The same export, by TLS.
    #[must_use]
    pub fn with_tls(self, tls: UriTls) -> NbdUri {
        NbdUri { tls: Some(tls), ..self }
    }

    /// Scheme, server and export, for errors.
    pub(crate) fn name(&self) -> String {
        NbdUri { tls: self.tls.as_ref().map(|_| UriTls::default()), ..self.clone() }.to_string()
    }

    /// Server and export alone, as a name: the same whatever guards the way there.
    pub fn place(&self) -> String {
        NbdUri { tls: None, ..self.clone() }.to_string()
    }
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<NbdUri, UriError> {
        parse(uri).map_err(|reason| UriError { uri: without_user(uri), reason })
    }
}

/// The URI for an error: where a user's name stands there may be a password too.
fn without_user(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_string() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://...{}", &rest[at..]),
        None => uri.to_string(),
    }
}

fn parse(uri: &str) -> Result<NbdUri, String> {
    let start = "it does not start with nbd://, nbds://, nbd+unix:// or nbds+unix://";
    let (scheme, rest) = uri.split_once("://").ok_or(start)?;
    let scheme = scheme.to_ascii_lowercase();
    if rest.contains('#') {
        return Err("it holds a '#'; in a name write %23".to_string());
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(path)?;
    if export.len() > crate::wire::STRING_BYTES_MAX {
        return Err("the export's name is longer than 4096 bytes".to_string());
    }
    let (is_tls, is_unix) = match scheme.as_str() {
        "nbd" => (false, false),
        "nbds" => (true, false),
        "nbd+unix" => (false, true),
        "nbds+unix" => (true, true),
        other => return Err(format!("the scheme {other} is not known; {start}")),
    };
    let mut query = Query::parse(query)?;
    let (user, server) = match authority.rsplit_once('@') {
        Some((user, server)) => (Some(user), server),
        None => (None, authority),
    };
    let tls = if is_tls { Some(query.tls(user)?) } else { None };
    if user.is_some() && tls.is_none() {
        return Err("a user name needs TLS: use nbds:// or nbds+unix://".to_string());
    }
    let address = if is_unix { unix_address(server, &mut query)? } else { tcp_address(server)? };
    query.nothing_left(is_tls, is_unix)?;
    Ok(NbdUri { address, export, tls })
}

fn tcp_address(authority: &str) -> Result<Address, String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a '[' is not closed")?;
            let port = after.strip_prefix(':');
            if port.is_none() && !after.is_empty() {
                return Err(format!("'{after}' after the ']' is no port"));
            }
            (host, port)
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().map_err(|_| format!("'{port}' is no port"))?
        }
        Some(port) => return Err(format!("'{port}' is no port (an IPv6 address goes in [])")),
    };
    let host = decode(host)?;
    if host.contains(|letter: char| "/@[]".contains(letter) || letter.is_control()) {
        return Err(format!("'{host}' is no host name"));
    }
    Ok(Address::Tcp(if host.is_empty() { "localhost".to_string() } else { host }, port))
}

fn unix_address(authority: &str, query: &mut Query<'_>) -> Result<Address, String> {
    if !authority.is_empty() {
        return Err("a Unix socket has no host: write nbd+unix:///export?socket=/path".to_string());
    }
    let socket = decode_bytes(query.take("socket").ok_or("?socket=/path is missing")?)?;
    match socket.split_first() {
        None | Some((0, [])) => Err("the socket's path is empty".to_string()),
        Some((_, rest)) if rest.contains(&0) => Err("the socket's path holds a zero byte".to_string()),
        Some(_) => Ok(Address::Unix(PathBuf::from(OsString::from_vec(socket)))),
    }
}

/// What follows the '?', each parameter once.
struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    fn parse(text: &'a str) -> Result<Query<'a>, String> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if pairs.iter().any(|(other, _)| *other == key) {
                return Err(format!("the parameter {key} is there twice"));
            }
            pairs.push((key, value));
        }
        Ok(Query(pairs))
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let index = self.0.iter().position(|(name, _)| *name == key)?;
        Some(self.0.remove(index).1)
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key).map(decode).transpose()? {
            Some(text) if text.is_empty() => Err(format!("the parameter {key} is empty")),
            text => Ok(text),
        }
    }

    fn tls(&mut self, user: Option<&str>) -> Result<UriTls, String> {
        let user = user.filter(|user| !user.is_empty());
        if user.is_some_and(|user| user.contains(':')) {
            return Err("a password in a URI is seen by everybody: use ?tls-psk-file=FILE".to_string());
        }
        let tls = UriTls {
            certificates: self.text("tls-certificates")?.map(PathBuf::from),
            psk_file: self.text("tls-psk-file")?.map(PathBuf::from),
            username: match (user.map(decode).transpose()?, self.text("tls-username")?) {
                (Some(_), Some(_)) => return Err("the user is named twice".to_string()),
                (user, parameter) => user.or(parameter),
            },
            hostname: self.text("tls-hostname")?,
        };
        if tls.certificates.is_some() && tls.psk_file.is_some() {
            return Err("tls-certificates and tls-psk-file exclude each other".to_string());
        }
        if tls.username.is_some() && tls.psk_file.is_none() {
            return Err("a user name goes with ?tls-psk-file=FILE".to_string());
        }
        match (self.take("tls-type"), &tls.psk_file) {
            (None, _) | (Some("x509"), None) | (Some("psk"), Some(_)) => {}
            (Some("psk"), None) => return Err("tls-type=psk needs tls-psk-file=FILE".to_string()),
            (Some("x509"), Some(_)) => return Err("tls-type=x509 takes no tls-psk-file".to_string()),
            (Some("anon"), _) => return Err("tls-type=anon proves nothing; use x509 or psk".to_string()),
            (Some(other), _) => return Err(format!("tls-type is x509 or psk, not '{other}'")),
        }
        match self.take("tls-verify-peer") {
            None | Some("1" | "true") => Ok(tls),
            Some("0" | "false") => {
                let try_this = "give its authority with ?tls-certificates=DIR, or use nbd://";
                Err(format!("a server that is not verified may be anybody: {try_this}"))
            }
            Some(other) => Err(format!("tls-verify-peer is 0 or 1, not '{other}'")),
        }
    }

    fn nothing_left(&self, is_tls: bool, is_unix: bool) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) if key.starts_with("tls-") && !is_tls => {
                Err(format!("the parameter {key} needs nbds:// or nbds+unix://"))
            }
            Some(("socket", _)) if !is_unix => Err("?socket= needs nbd+unix:// or nbds+unix://".to_string()),
            Some((key, _)) => Err(format!("the parameter {key} is not known")),
        }
    }
}

fn decode_bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or("a % without two digits")?;
        let byte = hex(digits[0]).zip(hex(digits[1])).map(|(high, low)| high << 4 | low);
        bytes.push(byte.ok_or("a % without two digits")?);
        rest = after;
    }
    Ok(bytes)
}

fn decode(text: &str) -> Result<String, String> {
    let text = String::from_utf8(decode_bytes(text)?).map_err(|_| "it is not UTF-8")?;
    if text.contains('\0') { Err("it holds a zero byte".to_string()) } else { Ok(text) }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn encode(text: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                write!(f, "{}", char::from(*byte))?;
            }
            _ => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

/// A name in the authority, where ':' and '/' mean something.
fn encode_name(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for part in text.split_inclusive([':', '/']) {
        let (front, last) = part.split_at(part.len() - usize::from(part.ends_with([':', '/'])));
        encode(front.as_bytes(), f)?;
        last.bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
    }
    Ok(())
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "nbds" } else { "nbd" })?;
        let user = self.tls.as_ref().and_then(|tls| tls.username.as_deref());
        let user = |f: &mut fmt::Formatter<'_>| {
            user.map_or(Ok(()), |user| encode_name(user, f).and_then(|()| f.write_str("@")))
        };
        let mut separator = '?';
        match &self.address {
            Address::Tcp(host, port) => {
                f.write_str("://")?;
                user(f)?;
                if host.contains(':') {
                    f.write_str("[")?;
                    encode(host.as_bytes(), f)?;
                    f.write_str("]")?;
                } else {
                    encode(host.as_bytes(), f)?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_str("/")?;
                encode(self.export.as_bytes(), f)?;
            }
            Address::Unix(path) => {
                f.write_str("+unix://")?;
                user(f)?;
                f.write_str("/")?;
                encode(self.export.as_bytes(), f)?;
                f.write_str("?socket=")?;
                encode(path.as_os_str().as_bytes(), f)?;
                separator = '&';
            }
        }
        let tls = self.tls.clone().unwrap_or_default();
        let path = |path: Option<PathBuf>| path.map(|path| path.into_os_string().into_vec());
        for (key, value) in [
            ("tls-certificates", path(tls.certificates)),
            ("tls-psk-file", path(tls.psk_file)),
            ("tls-hostname", tls.hostname.map(String::into_bytes)),
        ] {
            let Some(value) = value else { continue };
            write!(f, "{separator}{key}=")?;
            encode(&value, f)?;
            separator = '&';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
