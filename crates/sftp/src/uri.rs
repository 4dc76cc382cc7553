use std::fmt;
use std::str::FromStr;

/// A file of another host: `ssh://[user@]host[:port]/path`, percent-encoded where need be. A path that
/// starts with `/~/` is looked for in the user's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshUri {
    /// User, if not the one that ssh chooses.
    pub user: Option<String>,
    /// Host: a name, an address without brackets, or a name from the user's ssh configuration.
    pub host: String,
    /// Port, if not the one that ssh chooses.
    pub port: Option<u16>,
    /// Path there.
    pub path: String,
}

/// A text that is no such URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not ssh://[user@]host[:port]/path: {why}", .text.escape_debug())]
pub struct SshUriError {
    text: String,
    why: &'static str,
}

impl FromStr for SshUri {
    type Err = SshUriError;

    fn from_str(text: &str) -> Result<Self, SshUriError> {
        // A password would be shown in the error as well.
        let shown =
            if text.split('/').nth(2).is_some_and(|it| it.contains('@')) { "ssh://..." } else { text };
        parse(text).map_err(|why| SshUriError { text: shown.to_string(), why })
    }
}

fn parse(text: &str) -> Result<SshUri, &'static str> {
    let rest = text.strip_prefix("ssh://").ok_or("it does not start with ssh://")?;
    let (authority, path) = rest.split_once('/').ok_or("it has no path")?;
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err("a password has no place in it; use a key or an agent");
    }
    let user = user.map(|user| decode(user).and_then(|user| argument(user, "the user"))).transpose()?;
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a bracket is not closed")?;
            (host, port.strip_prefix(':').or(if port.is_empty() { None } else { Some(port) }))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = match port {
        Some(port) => {
            Some(port.parse().ok().filter(|port| *port != 0).ok_or("the port is no number of a port")?)
        }
        None => None,
    };
    let host = argument(decode(host)?, "the host")?;
    let path = decode(path)?;
    let path = match path.strip_prefix("~/") {
        Some(in_home) => in_home.to_string(),
        None => format!("/{path}"),
    };
    if path.is_empty() || path.ends_with('/') || path.len() > PATH_BYTES_MAX {
        return Err("the path is no name of a file");
    }
    Ok(SshUri { user, host, port, path })
}

/// Longer paths no system takes.
const PATH_BYTES_MAX: usize = 4096;

/// What becomes an argument of ssh must not look like an option of it, nor hold what a shell or a
/// `ProxyCommand` of the user's configuration would take for more than a name.
fn argument(text: String, _what: &str) -> Result<String, &'static str> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-:%+@\\".contains(c) || !c.is_ascii();
    match () {
        () if text.is_empty() => Err("the host or the user is empty"),
        () if text.starts_with('-') => Err("the host or the user starts with a dash"),
        () if text.len() > 255 || !text.chars().all(fine) => Err("the host or the user has odd characters"),
        () => Ok(text),
    }
}

fn decode(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || (rest.next()? as char).to_digit(16);
                match (digit(), digit()) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err("a % is not followed by two hexadecimal digits"),
                }
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
    if text.contains('\0') { Err("it has a zero byte") } else { Ok(text) }
}

impl fmt::Display for SshUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if self.path.starts_with('/') { f.write_str(&self.path) } else { write!(f, "/~/{}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_say_who_where_and_what() {
        let parsed = |text: &str| text.parse::<SshUri>().unwrap();
        let uri = parsed("ssh://root@kvm1.example.org:2222/var/lib/a%20b.raw");
        assert_eq!(
            (uri.user.as_deref(), uri.host.as_str(), uri.port),
            (Some("root"), "kvm1.example.org", Some(2222))
        );
        assert_eq!(uri.path, "/var/lib/a b.raw");
        let uri = parsed("ssh://[fe80::1]/disk");
        assert_eq!((uri.host.as_str(), uri.port, uri.path.as_str()), ("fe80::1", None, "/disk"));
        assert_eq!(parsed("ssh://[::1]:22/x").port, Some(22));
        assert_eq!(parsed("ssh://host/~/disk.raw").path, "disk.raw");
        for text in ["ssh://h/x", "ssh://u@h:1/x/y", "ssh://[::1]:5/z", "ssh://h/~/x"] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn nothing_becomes_an_option_or_a_command() {
        for text in [
            "ssh://-oProxyCommand=touch%20x/disk",
            "ssh://-l@host/disk",
            "ssh://%2doProxyCommand=x/disk",
            "ssh://host%20name/disk",
            "ssh://host;reboot/disk",
            "ssh://$(reboot)/disk",
            "ssh://h%00st/disk",
            "ssh://user:secret@host/disk",
            "ssh:///disk",
            "ssh://@/disk",
            "ssh://host",
            "ssh://host/",
            "ssh://host/folder/",
            "ssh://host:0/x",
            "ssh://host:99999/x",
            "ssh://[::1/x",
            "ssh://[::1]x/x",
            "ssh://host/%zz",
            "ssh://host/%ff",
            "nbd://host/x",
        ] {
            let error = text.parse::<SshUri>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
