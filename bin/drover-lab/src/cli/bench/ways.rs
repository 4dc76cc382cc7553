//! The ways that guests of a bench go, by their names.

use std::fmt;
use std::str::FromStr;

/// Who moves the guest, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// QEMU alone, over so many connections.
    Qemu { channels: u8, tls: bool },
    /// Drover, over the network, with so many connections if it is told to.
    Drover { channels: Option<u8> },
    /// Drover, over the link to an agent.
    Link,
    /// Drover, over that link or past it, as it finds better (unencrypted past it).
    Chosen,
    /// QEMU or drover, by RDMA.
    Rdma { is_drover: bool },
}

/// One way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    pub by: By,
    /// Congestion control at both ends of the line.
    pub congestion: Option<String>,
}

impl Way {
    /// QEMU alone over plain TCP: others are told beside it.
    pub fn is_direct(&self) -> bool {
        matches!(self.by, By::Qemu { tls: false, .. })
    }

    pub fn is_rdma(&self) -> bool {
        matches!(self.by, By::Rdma { .. })
    }
}

const NAMES: &str =
    "tcp, multifd:N, tls, tls-multifd:N, drover, drover:N, link, chosen, rdma and drover-rdma are";

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let (name, congestion) = match text.split_once('@') {
            Some((_, "")) => return Err("want a congestion control behind the @, such as bbr".to_string()),
            Some((name, congestion)) => (name, Some(congestion.to_string())),
            None => (text, None),
        };
        let by = by(name)?;
        if congestion.is_some() && matches!(by, By::Rdma { .. }) {
            return Err("RDMA has no congestion control of TCP's".to_string());
        }
        Ok(Way { by, congestion })
    }
}

fn by(name: &str) -> Result<By, String> {
    let (kind, number) = match name.split_once(':') {
        Some((kind, number)) => (kind, Some(number)),
        None => (name, None),
    };
    let number = number.map(connections).transpose()?;
    match (kind, number) {
        ("tcp", None) => Ok(By::Qemu { channels: 1, tls: false }),
        ("tls", None) => Ok(By::Qemu { channels: 1, tls: true }),
        ("multifd", Some(channels @ 2..)) => Ok(By::Qemu { channels, tls: false }),
        ("tls-multifd", Some(channels @ 2..)) => Ok(By::Qemu { channels, tls: true }),
        // One connection by itself is `tcp` or `tls`, which is not multifd with one.
        ("multifd" | "tls-multifd", _) => Err(format!("want 2 to 255 connections: {kind}:4")),
        ("drover", channels) => Ok(By::Drover { channels }),
        ("link", None) => Ok(By::Link),
        ("chosen", None) => Ok(By::Chosen),
        ("rdma", None) => Ok(By::Rdma { is_drover: false }),
        ("drover-rdma", None) => Ok(By::Rdma { is_drover: true }),
        _ => Err(format!("no way is called so; {NAMES}")),
    }
}

fn connections(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|channels| *channels > 0).ok_or("1 to 255 connections are possible".to_string())
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            By::Qemu { channels: 1, tls } => f.write_str(if tls { "tls" } else { "tcp" }),
            By::Qemu { channels, tls } => write!(f, "{}multifd:{channels}", if tls { "tls-" } else { "" }),
            By::Drover { channels: None } => f.write_str("drover"),
            By::Drover { channels: Some(channels) } => write!(f, "drover:{channels}"),
            By::Link => f.write_str("link"),
            By::Chosen => f.write_str("chosen"),
            By::Rdma { is_drover } => f.write_str(if is_drover { "drover-rdma" } else { "rdma" }),
        }?;
        self.congestion.as_ref().map_or(Ok(()), |congestion| write!(f, "@{congestion}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_called_what_they_are_written_as() {
        for name in [
            "tcp",
            "tls",
            "multifd:2",
            "multifd:16@bbr",
            "tls-multifd:4",
            "drover",
            "drover:8",
            "link",
            "link@bbr",
            "chosen",
            "rdma",
            "drover-rdma",
        ] {
            assert_eq!(name.parse::<Way>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_is_no_way_is_told_with_those_that_are() {
        let why = |text: &str| text.parse::<Way>().unwrap_err();
        assert!(
            why("udp").contains("multifd:N")
                && why("tcp:4").contains("multifd:N")
                && why("").contains("link")
        );
        assert!(why("multifd").contains("multifd:4"));
        assert!(why("tls-multifd:1").contains("2 to 255"));
        for bad in ["multifd:256", "multifd:", "multifd:0", "drover:x"] {
            assert!(why(bad).contains("1 to 255"), "{bad}");
        }
        assert!(why("tcp@").contains("bbr") && why("rdma@bbr").contains("no congestion control"));
    }

    #[test]
    fn direct_is_qemu_alone_in_the_clear() {
        let is_direct = |text: &str| text.parse::<Way>().unwrap().is_direct();
        assert!(is_direct("tcp") && is_direct("multifd:4@bbr"));
        assert!(!["tls", "drover", "link", "chosen", "rdma"].into_iter().any(is_direct));
    }
}
