use std::fmt;
use std::str::FromStr;

use crate::error::{HttpError, HttpErrorKind, HttpOp};

/// A server: scheme, host and port. Prints as `https://[::1]:8989`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Whether TLS is spoken.
    pub https: bool,
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// An endpoint and what to ask of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The server.
    pub endpoint: Endpoint,
    /// Path and query, percent-encoded, starting with `/`.
    pub path: String,
}

impl Endpoint {
    /// `host:port`, an IPv6 address in brackets: for messages and the Host header.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.https { "https" } else { "http" }, self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = HttpError;

    /// Takes a URL, or `host[:port]`, which means HTTPS. A path is not looked at.
    fn from_str(text: &str) -> Result<Self, HttpError> {
        let with_scheme = if text.contains("://") { text.to_string() } else { format!("https://{text}") };
        Ok(with_scheme.parse::<Url>()?.endpoint)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.endpoint, self.path)
    }
}

impl FromStr for Url {
    type Err = HttpError;

    /// # Errors
    /// [`HttpErrorKind::BadUrl`] for another scheme, user info (secrets do not belong in URLs), an empty host,
    /// a bad port, or characters that would end a request line.
    fn from_str(text: &str) -> Result<Self, HttpError> {
        parse(text.trim())
            .ok_or_else(|| HttpError::new(HttpErrorKind::BadUrl, HttpOp::Connect, &without_user(text)))
    }
}

fn parse(text: &str) -> Option<Url> {
    let (https, rest) = match text.split_once("://")? {
        ("https", rest) => (true, rest),
        ("http", rest) => (false, rest),
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = split_port(authority)?;
    let host_is_clean = |c: char| c.is_ascii_graphic() && !"@/\\<>\"%".contains(c);
    if host.is_empty() || !host.chars().all(host_is_clean) || !path.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
    let port =
        port.map_or(Some(if https { 443 } else { 80 }), |port| port.parse().ok().filter(|port| *port != 0))?;
    Some(Url { endpoint: Endpoint { https, host: host.to_string(), port }, path })
}

fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return if rest.is_empty() {
            Some((host, None))
        } else {
            Some((host, Some(rest.strip_prefix(':')?)))
        };
    }
    match authority.split_once(':') {
        None => Some((authority, None)),
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        // Several colons without brackets: a bare IPv6 address.
        Some(_) => authority.parse::<std::net::Ipv6Addr>().ok().map(|_| (authority, None)),
    }
}

/// A refused URL is shown in the error; a password in it is not.
fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("***@{rest}"),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> String {
        text.parse::<Endpoint>().unwrap().to_string()
    }

    #[test]
    fn takes_names_addresses_and_urls() {
        assert_eq!(endpoint("vc.example.org"), "https://vc.example.org:443");
        assert_eq!(endpoint("vc.example.org:8989"), "https://vc.example.org:8989");
        assert_eq!(endpoint("http://10.0.0.1/sdk"), "http://10.0.0.1:80");
        assert_eq!(endpoint("https://[::1]:8989/sdk"), "https://[::1]:8989");
        assert_eq!(endpoint("fe80::1"), "https://[fe80::1]:443");
    }

    #[test]
    fn keeps_path_and_query_without_fragment() {
        let url: Url = "https://h/a%20b?x=1#y".parse().unwrap();
        assert_eq!(url.path, "/a%20b?x=1");
        assert_eq!("http://h?x".parse::<Url>().unwrap().path, "/?x");
    }

    #[test]
    fn refuses_what_could_smuggle_or_leak() {
        for text in [
            "ftp://h/",
            "https://",
            "https://h:0/",
            "https://h:x/",
            "https://h/a b",
            "https://h/a\r\nb",
            "https://[zz]/",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text:?}");
        }
        let error = "https://root:hunter2@h/".parse::<Url>().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
