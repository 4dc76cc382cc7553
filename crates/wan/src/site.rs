//! One end of the line: a namespace with an interface and addresses.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::error::WanError;
use crate::namespace::Namespace;
use crate::tun::{QUEUE_PACKETS, Tun};
use crate::wan::WanSpec;

/// The interface to the line, in either namespace.
pub const INTERFACE: &str = "wan0";

/// Any port: the socket is closed before an answer could come.
const PROBE_PORT: u16 = 9;

/// Smallest and usual sizes of TCP's buffers, as R2 of the reference figures has them; only the largest is set.
const TCP_RMEM: &str = "4096 131072";
const TCP_WMEM: &str = "4096 65536";

/// One end of the line.
#[derive(Debug)]
pub struct Site {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its addresses, at least one.
    pub addresses: Vec<Ipv4Addr>,
    /// The same over IPv6; none where the kernel has no IPv6.
    pub addresses6: Vec<Ipv6Addr>,
    /// Congestion control of connections made here over the line, read back from a socket.
    pub congestion: String,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Near,
    Far,
}

impl End {
    fn name(self) -> &'static str {
        if self == End::Near { "near" } else { "far" }
    }

    fn other(self) -> End {
        if self == End::Near { End::Far } else { End::Near }
    }

    fn number(self) -> u8 {
        if self == End::Near { 1 } else { 2 }
    }

    /// `10.81.1.1` and on, `10.81.2.1` and on.
    fn addresses(self, count: u8) -> Vec<Ipv4Addr> {
        (1..=count).map(|host| Ipv4Addr::new(10, 81, self.number(), host)).collect()
    }

    /// `fd81::1:1` and on, `fd81::2:1` and on.
    fn addresses6(self, count: u8) -> Vec<Ipv6Addr> {
        let site = u16::from(self.number());
        (1..=count).map(|host| Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, site, host.into())).collect()
    }
}

impl Site {
    /// A namespace with its device, addresses and routes, and nobody at the other end of the device yet.
    pub(crate) fn lay(end: End, spec: &WanSpec) -> Result<(Site, Tun), WanError> {
        let namespace = Namespace::new().map_err(WanError::of("making a network namespace"))?;
        let tun = namespace.run(|| Tun::open(INTERFACE)).and_then(|tun| tun);
        let tun = tun.map_err(WanError::of("making a TUN device with /dev/net/tun"))?;
        let inside = |work: &(dyn Fn() -> io::Result<()> + Sync)| {
            let done = namespace.run(work).and_then(|done| done);
            done.map_err(WanError::of(format!("settings of the {} namespace", end.name())))
        };
        inside(&quiet_ipv6)?;
        inside(&|| spec.tcp_mem.map_or(Ok(()), set_tcp_mem))?;
        let has_v6 = namespace.run(has_ipv6).map_err(WanError::of("entering a namespace"))?;
        configure(&namespace, end, &script(end, spec, has_v6))?;
        let count = spec.addresses(end);
        let addresses6 = if has_v6 { end.addresses6(count) } else { Vec::new() };
        let mut site =
            Site { namespace, addresses: end.addresses(count), addresses6, congestion: String::new() };
        site.congestion = site.probe(SocketAddr::from((end.other().addresses(1)[0], PROBE_PORT)))?;
        tun.drain().map_err(WanError::of("reading the TUN device"))?;
        Ok((site, tun))
    }

    /// The first address.
    pub fn address(&self) -> Ipv4Addr {
        self.addresses[0]
    }

    /// Does some work at this end, see [`Namespace::run`].
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.namespace.run(work)
    }

    /// Starts a program at this end.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the program not started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.namespace.spawn(command)
    }

    /// Whether a program at this end listens on TCP: on `port`, or on any.
    ///
    /// # Errors
    /// If the namespace cannot be looked at.
    pub fn listens(&self, port: Option<u16>) -> io::Result<bool> {
        self.namespace.run(|| {
            let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            let tables = [read("tcp")?, read("tcp6").unwrap_or_default()];
            Ok(tables.iter().flat_map(|it| it.lines().skip(1)).any(|line| is_listening(line, port)))
        })?
    }

    /// Packets the kernel dropped at this end because nobody read them from the device.
    pub(crate) fn unread(&self) -> io::Result<u64> {
        let table = self.namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        Ok(dropped(&table).unwrap_or(0))
    }

    /// The congestion control that the kernel gives a connection to the other end. It is chosen when the first packet leaves, so none has to arrive.
    fn probe(&self, target: SocketAddr) -> Result<String, WanError> {
        let ask = || -> rustix::io::Result<String> {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            match connect(&socket, &target) {
                Ok(()) | Err(rustix::io::Errno::INPROGRESS) => sockopt::tcp_congestion(&socket),
                Err(error) => Err(error),
            }
        };
        let asked = self.namespace.run(ask).and_then(|asked| asked.map_err(io::Error::from));
        asked.map_err(WanError::of("reading the congestion control back"))
    }
}

/// No solicitations and no waiting for doubles: what passes is what was sent.
fn quiet_ipv6() -> io::Result<()> {
    if !has_ipv6() {
        return Ok(());
    }
    for (name, value) in [("accept_dad", "0"), ("router_solicitations", "0"), ("addr_gen_mode", "1")] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{INTERFACE}/{name}"), value)?;
    }
    Ok(())
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6/conf").join(INTERFACE).is_dir()
}

fn set_tcp_mem(bytes: u64) -> io::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_rmem", format!("{TCP_RMEM} {bytes}"))?;
    std::fs::write("/proc/sys/net/ipv4/tcp_wmem", format!("{TCP_WMEM} {bytes}"))
}

/// What `ip -batch` is given.
fn script(end: End, spec: &WanSpec, has_v6: bool) -> String {
    let (number, other, count) = (end.number(), end.other().number(), spec.addresses(end));
    let congestion = spec.congestion(end).map_or(String::new(), |name| format!(" congctl {name}"));
    let mut lines = vec![
        "link set lo up".to_string(),
        format!("link set {INTERFACE} mtu {} txqueuelen {QUEUE_PACKETS} up", spec.mtu),
    ];
    lines.extend(end.addresses(count).iter().map(|it| format!("addr add {it}/24 dev {INTERFACE}")));
    lines.push(format!("route add 10.81.{other}.0/24 dev {INTERFACE} src 10.81.{number}.1{congestion}"));
    if has_v6 {
        lines.extend(
            end.addresses6(count).iter().map(|it| format!("addr add {it}/112 dev {INTERFACE} nodad")),
        );
        lines.push(format!("route add fd81::{other}:0/112 dev {INTERFACE}{congestion}"));
    }
    lines.join("\n") + "\n"
}

fn configure(namespace: &Namespace, end: End, script: &str) -> Result<(), WanError> {
    let mut command = Command::new("ip");
    // Users' paths often lack the folders of administrators' programs.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(["-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let started = namespace.spawn(&mut command);
    let mut child = started.map_err(WanError::of("starting ip (of the Debian package iproute2)"))?;
    let fed = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(WanError::of("waiting for ip"))?;
    if output.status.success() {
        return fed.map_err(WanError::of("telling ip what to do"));
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(WanError::Ip { side: end.name(), said })
}

/// A line of `/proc/net/tcp`: number, local address and port, remote ones, state; 0A is listening.
fn is_listening(line: &str, port: Option<u16>) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next().and_then(|it| it.rsplit_once(':')).map(|(_, port)| port);
    let found = local.and_then(|it| u16::from_str_radix(it, 16).ok());
    fields.nth(1) == Some("0A") && found.is_some() && port.is_none_or(|port| found == Some(port))
}

/// The fourth of the figures for sending, which come after eight for receiving.
fn dropped(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_the_kernels_table() {
        let line = "   0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        assert!(is_listening(line, None) && is_listening(line, Some(5_201)));
        assert!(!is_listening(line, Some(5_202)));
        assert!(!is_listening(&line.replace(" 0A ", " 01 "), None));
        assert!(!is_listening("", None));
    }

    #[test]
    fn drops_of_the_device_are_read_from_the_kernels_table() {
        let table = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13\n  wan0: 1 2 3 4 5 6 7 8 9 10 11 42 13 14 15 16\n";
        assert_eq!(dropped(table), Some(42));
        assert_eq!(dropped("lo: 1"), None);
    }

    #[test]
    fn each_end_has_addresses_and_a_route_to_the_other() {
        let spec = WanSpec { near_addresses: 2, near_congestion: Some("bbr".into()), ..WanSpec::default() };
        let near = script(End::Near, &spec, true);
        assert!(near.contains("addr add 10.81.1.2/24 dev wan0\n"), "{near}");
        assert!(near.contains("route add 10.81.2.0/24 dev wan0 src 10.81.1.1 congctl bbr\n"), "{near}");
        assert!(near.contains("route add fd81::2:0/112 dev wan0 congctl bbr\n"), "{near}");
        let far = script(End::Far, &spec, false);
        assert!(!far.contains("congctl") && !far.contains("fd81"), "{far}");
    }
}
