use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use drover_disk::DiskError;
use drover_nbd::NbdUri;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustls::ServerConfig;

use crate::connection::{self, Context};
use crate::export::Export;
use crate::negotiate::TlsRule;
use crate::stream::{Socket, Stream};

/// Clients at once, if nothing else is said. Each may hold 64 MiB of requests and replies and 16 MiB
/// of buffers for the next ones.
pub const CONNECTIONS_MAX: usize = 32;

/// A client has this long for its handshake, if nothing else is said.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// After this long a stopped server no longer waits for requests in flight.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);

/// Threads that have nothing more to do are waited for this long, looking this often.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(5);
const LEAVE_LOOK: Duration = Duration::from_millis(1);

/// Rest after a failed accept (no descriptors left), so that it does not spin.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// Clients at once; further ones are sent away.
    pub connections_max: usize,
    /// Time that a client has for its handshake.
    pub handshake_max: Duration,
    /// Certificate and key; see [`crate::server_config`].
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether clients without TLS are sent away; only with `tls`.
    pub tls_required: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            connections_max: CONNECTIONS_MAX,
            handshake_max: HANDSHAKE_MAX,
            tls: None,
            tls_required: true,
        }
    }
}

impl ServerOptions {
    /// For one program that opens all of so many disks: QEMU takes a connection for each, and a second one while it reopens it.
    pub fn for_disks(disks: usize) -> ServerOptions {
        ServerOptions { connections_max: CONNECTIONS_MAX.max(2 * disks), ..ServerOptions::default() }
    }
}

/// Where to listen.
#[derive(Clone, Debug)]
pub enum Listen {
    /// Host and port; port 0 takes a free one.
    Tcp(String),
    /// Path of a Unix socket that is not there yet. Only its owner may connect.
    Unix(PathBuf),
}

/// A server that serves. Stops when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    place: Place,
    tls: bool,
    wake: UnixStream,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

struct Shared {
    context: Context,
    connections_max: usize,
    clients: Mutex<Clients>,
    changed: Condvar,
}

#[derive(Default)]
struct Clients {
    streams: HashMap<u64, Arc<Stream>>,
    next: u64,
    /// Clients that came through the handshake, ever.
    served: u64,
}

impl Server {
    /// Listens, and serves each client in threads of its own.
    ///
    /// # Errors
    /// When the address or path cannot be listened on.
    pub fn start(exports: Vec<Export>, listen: &Listen, options: ServerOptions) -> io::Result<Server> {
        let (listener, place) = Listener::bind(listen)?;
        let tls = options.tls.is_some();
        let rule = match (tls, options.tls_required) {
            (false, _) => TlsRule::Off,
            (true, false) => TlsRule::Offered,
            (true, true) => TlsRule::Required,
        };
        let exports = exports.into_iter().map(Arc::new).collect();
        let context = Context {
            exports,
            tls: options.tls,
            rule,
            handshake_max: options.handshake_max,
            stopping: Arc::new(AtomicBool::new(false)),
        };
        let shared = Arc::new(Shared {
            context,
            connections_max: options.connections_max.max(1),
            clients: Mutex::default(),
            changed: Condvar::new(),
        });
        let (wake, woken) = UnixStream::pair()?;
        let accepting = {
            let shared = shared.clone();
            Builder::new().name("nbd-accept".to_string()).spawn(move || accept(&listener, &woken, &shared))?
        };
        Ok(Server { shared, place, tls, wake, accepting: Some(accepting) })
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        let uri = match &self.place {
            Place::Tcp(address) => NbdUri::tcp(&address.ip().to_string(), address.port(), export),
            Place::Unix(path) => NbdUri::unix(path, export),
        };
        let text = uri.to_string();
        if self.tls { text.replacen("nbd", "nbds", 1) } else { text }
    }

    /// The port, if it listens on TCP.
    pub fn port(&self) -> Option<u16> {
        match &self.place {
            Place::Tcp(address) => Some(address.port()),
            Place::Unix(_) => None,
        }
    }

    /// The exports.
    pub fn exports(&self) -> &[Arc<Export>] {
        &self.shared.context.exports
    }

    /// Clients connected now.
    pub fn clients(&self) -> usize {
        self.shared.clients().streams.len()
    }

    /// Whether clients were served and all have gone.
    pub fn is_done(&self) -> bool {
        let clients = self.shared.clients();
        clients.served > 0 && clients.streams.is_empty()
    }

    /// Takes no more clients and requests, ends what is in flight, and makes all of it durable.
    ///
    /// # Errors
    /// When a disk cannot be flushed.
    pub fn stop(mut self) -> Result<(), DiskError> {
        self.end();
        self.shared.context.exports.iter().try_for_each(|export| export.flush())
    }

    fn end(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.shared.context.stopping.store(true, SeqCst);
        // The thread waits for this end to be closed.
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        let _ = accepting.join();
        if let Place::Unix(path) = &self.place {
            let _ = std::fs::remove_file(path);
        }
        self.shared.end_clients();
        // A thread that has just left the list holds the exports, and with them the fence's lock, for
        // some instants more. One that hangs in its disk keeps both, as it should.
        let until = Instant::now() + LEAVE_WAIT_MAX;
        while Arc::strong_count(&self.shared) > 1 && Instant::now() < until {
            std::thread::sleep(LEAVE_LOOK);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets clients have the replies they wait for, for a while.
    fn end_clients(&self) {
        let until = Instant::now() + STOP_WAIT_MAX;
        let mut clients = self.clients();
        clients.streams.values().for_each(|stream| stream.stop_reading());
        while !clients.streams.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                clients.streams.values().for_each(|stream| stream.close());
                return;
            }
            clients = self.changed.wait_timeout(clients, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn serve(self: &Arc<Self>, socket: Socket) -> io::Result<()> {
        let stream = Arc::new(Stream::new(socket)?);
        let id = {
            let mut clients = self.clients();
            if clients.streams.len() >= self.connections_max {
                // Dropped: the client sees the end of the connection and may come again.
                return Ok(());
            }
            clients.next += 1;
            let id = clients.next;
            clients.streams.insert(id, stream.clone());
            id
        };
        let registered = Registered { shared: self.clone(), id };
        Builder::new().name("nbd-client".to_string()).spawn(move || {
            let shared = registered.shared.clone();
            // How a client ended is its own affair; it has been told what it could be told.
            let _ = connection::run(&stream, &shared.context, || shared.clients().served += 1);
        })?;
        Ok(())
    }
}

/// A client in the list; leaves it when its thread ends, however that ends.
struct Registered {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.clients().streams.remove(&self.id);
        self.shared.changed.notify_all();
    }
}

fn accept(listener: &Listener, woken: &UnixStream, shared: &Arc<Shared>) {
    while !shared.context.stopping.load(SeqCst) {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().contains(PollFlags::IN) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => {
                std::thread::sleep(ACCEPT_REST);
                continue;
            }
        }
        match listener.accept().and_then(|socket| shared.serve(socket)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => std::thread::sleep(ACCEPT_REST),
            _ => {}
        }
    }
}

impl Listener {
    fn bind(listen: &Listen) -> io::Result<(Listener, Place)> {
        match listen {
            Listen::Tcp(address) => {
                let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
                let listener = TcpListener::bind(&addresses[..])?;
                listener.set_nonblocking(true)?;
                let place = Place::Tcp(listener.local_addr()?);
                Ok((Listener::Tcp(listener), place))
            }
            Listen::Unix(path) => {
                let listener = bind_private(path)?;
                listener.set_nonblocking(true)?;
                Ok((Listener::Unix(listener), Place::Unix(std::path::absolute(path)?)))
            }
        }
    }

    /// Accepted sockets wait, whatever the listener does.
    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Socket::Unix(stream))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A socket that nobody else can connect to, from its first moment on: a mode set afterwards would
/// come too late. What another thread makes meanwhile gets fewer rights too, never more; the owner's own
/// stay, or a folder made then could not be entered.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(Mode::from_raw_mode(0o077));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(
            error.kind(),
            format!("{} is there already; remove it if no server uses it", path.display()),
        ),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_is_private_and_a_folder_that_is_made_meanwhile_can_be_entered() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (is_over, sockets) = (AtomicBool::new(false), folder.path().join("sockets"));
        std::fs::create_dir(&sockets).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    let path = sockets.join(number.to_string());
                    drop(bind_private(&path).unwrap());
                    assert_eq!(mode(&path) & 0o077, 0);
                    std::fs::remove_file(&path).unwrap();
                    if is_over.load(SeqCst) {
                        break;
                    }
                }
            });
            let modes: Vec<u32> = (0..3000)
                .map(|number| {
                    let path = folder.path().join(number.to_string());
                    std::fs::create_dir(&path).unwrap();
                    mode(&path)
                })
                .collect();
            is_over.store(true, SeqCst);
            assert!(modes.iter().all(|mode| mode & 0o700 == 0o700), "{modes:?}");
        });
    }
}
