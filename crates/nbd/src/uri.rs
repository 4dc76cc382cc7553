use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where an export is: `nbd://host[:port]/export` or `nbd+unix:///export?socket=/path`.
///
/// Source: NBD `doc/uri.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub address: Address,
    /// The export's name; empty is the server's default export.
    pub export: String,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, without brackets, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// A text that is no NBD URI drover can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NBD URI '{uri}': {reason}")]
pub struct UriError {
    uri: String,
    reason: String,
}

impl NbdUri {
    /// An export of a server on TCP.
    pub fn tcp(host: &str, port: u16, export: &str) -> NbdUri {
        NbdUri { address: Address::Tcp(host.to_string(), port), export: export.to_string() }
    }

    /// An export of a server on a Unix socket.
    pub fn unix(socket: impl AsRef<Path>, export: &str) -> NbdUri {
        NbdUri { address: Address::Unix(socket.as_ref().to_path_buf()), export: export.to_string() }
    }
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<NbdUri, UriError> {
        parse(uri).map_err(|reason| UriError { uri: uri.to_string(), reason })
    }
}

fn parse(uri: &str) -> Result<NbdUri, String> {
    let (scheme, rest) = uri.split_once("://").ok_or("it does not start with nbd:// or nbd+unix://")?;
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = decode(path)?;
    if export.len() > crate::wire::STRING_BYTES_MAX {
        return Err("the export's name is longer than 4096 bytes".to_string());
    }
    let address = match scheme {
        "nbd" => tcp_address(authority)?,
        "nbd+unix" => unix_address(authority, query)?,
        "nbds" | "nbds+unix" => return Err("TLS comes later; use nbd:// on a trusted network".to_string()),
        other => return Err(format!("the scheme {other} is not known, use nbd or nbd+unix")),
    };
    Ok(NbdUri { address, export })
}

fn tcp_address(authority: &str) -> Result<Address, String> {
    if authority.contains('@') {
        return Err("a user name needs TLS, which comes later".to_string());
    }
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
        Some(port) => {
            port.parse().map_err(|_| format!("'{port}' is no port (an IPv6 address goes in [])"))?
        }
    };
    let host = decode(host)?;
    Ok(Address::Tcp(if host.is_empty() { "localhost".to_string() } else { host }, port))
}

fn unix_address(authority: &str, query: &str) -> Result<Address, String> {
    if !authority.is_empty() {
        return Err("a Unix socket has no host: write nbd+unix:///export?socket=/path".to_string());
    }
    let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
    let socket = decode(socket.ok_or("?socket=/path is missing")?)?;
    if socket.is_empty() {
        return Err("the socket's path is empty".to_string());
    }
    Ok(Address::Unix(PathBuf::from(socket)))
}

fn decode(text: &str) -> Result<String, String> {
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
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    if text.contains('\0') { Err("it holds a zero byte".to_string()) } else { Ok(text) }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn encode(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                write!(f, "{}", char::from(byte))?;
            }
            _ => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(host, port) => {
                f.write_str("nbd://")?;
                if host.contains(':') {
                    write!(f, "[{host}]")?
                } else {
                    encode(host, f)?
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_str("/")?;
                encode(&self.export, f)
            }
            Address::Unix(path) => {
                f.write_str("nbd+unix:///")?;
                encode(&self.export, f)?;
                f.write_str("?socket=")?;
                encode(&path.to_string_lossy(), f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        text.parse::<NbdUri>().unwrap_err().to_string()
    }

    #[test]
    fn reads_hosts_ports_and_exports() {
        for (text, expected) in [
            ("nbd://web", NbdUri::tcp("web", 10809, "")),
            ("nbd://web/", NbdUri::tcp("web", 10809, "")),
            ("nbd://web:10810/disk%201", NbdUri::tcp("web", 10810, "disk 1")),
            ("nbd:///a/b", NbdUri::tcp("localhost", 10809, "a/b")),
            ("nbd://web//slash", NbdUri::tcp("web", 10809, "/slash")),
            ("nbd://[2001:db8::1]:9/x", NbdUri::tcp("2001:db8::1", 9, "x")),
            ("nbd://[::1]", NbdUri::tcp("::1", 10809, "")),
            ("nbd+unix:///?socket=/run/nbd.sock", NbdUri::unix("/run/nbd.sock", "")),
            ("nbd+unix:///e?a=b&socket=/run/a%20b", NbdUri::unix("/run/a b", "e")),
        ] {
            assert_eq!(text.parse::<NbdUri>().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, reason) in [
            ("nbds://web/x", "TLS comes later"),
            ("nbd+vsock://1", "not known"),
            ("http://web", "not known"),
            ("web:10809", "does not start with"),
            ("nbd://web:99999/", "is no port"),
            ("nbd://::1/", "goes in []"),
            ("nbd://[::1/", "not closed"),
            ("nbd://me@web/", "user name"),
            ("nbd+unix://web/x?socket=/a", "has no host"),
            ("nbd+unix:///x", "?socket=/path is missing"),
            ("nbd://web/%4", "two digits"),
            ("nbd://web/%zz", "two digits"),
            ("nbd://web/%00", "zero byte"),
            ("nbd://web/%ff", "UTF-8"),
        ] {
            assert!(refused(text).contains(reason), "{text}: {}", refused(text));
        }
    }

    proptest! {
        #[test]
        fn a_printed_uri_reads_as_itself(host in "[a-z0-9.-]{1,20}", port: u16, export in "[^\0]{0,30}") {
            let tcp = NbdUri::tcp(&host, port, &export);
            prop_assert_eq!(tcp.to_string().parse::<NbdUri>().unwrap(), tcp);
            let unix = NbdUri::unix(format!("/run/{host} ?&"), &export);
            prop_assert_eq!(unix.to_string().parse::<NbdUri>().unwrap(), unix);
        }

        #[test]
        fn no_text_makes_it_panic(text in "(nbd(s|\\+unix)?://)?.{0,40}") {
            let _ = text.parse::<NbdUri>();
        }
    }
}
