use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::child::{self, Guarded, private_folder, start_error};
use crate::error::{QemuError, QemuErrorKind};
use crate::image::{PACKAGE, format_of, image_info};
use crate::qmp::SOCKET_PATH_BYTES_MAX;
use crate::spec::{Cache, ImageFormat};
use drover_child::Kind;

/// An image served over NBD on a private socket, by a `qemu-nbd` that ends with this value or this process,
/// also when the process is killed. Any number of clients may come, go, and come again.
#[derive(Debug)]
pub struct ImageServer {
    // Fields drop in this order: first the server goes, then its folder.
    child: Guarded,
    folder: TempDir,
    image: PathBuf,
    uri: String,
}

/// What clients may do with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read; the image may be in use by other readers.
    Read,
    /// Read and write; nobody else may use the image.
    Write,
}

impl ImageServer {
    /// Serves an image in a format that is told, never probed.
    ///
    /// A lock that another process holds is waited for up to ten seconds: after a kill, the server before us
    /// may still be writing back.
    ///
    /// # Errors
    /// [`QemuErrorKind::Busy`] if the lock stays; [`QemuErrorKind::Invalid`] for an image that leans on other
    /// files, which a hostile header could choose; [`QemuErrorKind::Missing`] without `qemu-nbd`; its own words else.
    pub fn open(image: &Path, format: ImageFormat, access: Access) -> Result<ImageServer, QemuError> {
        format_of(image, Some(format))?;
        if format == ImageFormat::Qcow2 {
            refuse_other_files(image)?;
        }
        ImageServer::serve(image, format, access)
    }

    /// As [`ImageServer::open`], for an image of our own making that may have a backing file.
    pub(crate) fn serve(image: &Path, format: ImageFormat, access: Access) -> Result<ImageServer, QemuError> {
        let until = Instant::now() + LOCK_TIME_MAX;
        loop {
            match ImageServer::start(image, format, access) {
                Err(error) if error.kind == QemuErrorKind::Busy && Instant::now() < until => {
                    thread::sleep(LOCK_RETRY);
                }
                done => return done,
            }
        }
    }

    /// Where clients connect: `nbd+unix:///?socket=...`.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The socket itself.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// The image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Ends the server and waits until all is written and the image is free. Dropping does the same.
    pub fn close(self) {}

    fn start(image: &Path, format: ImageFormat, access: Access) -> Result<ImageServer, QemuError> {
        let what = format!("serve {} by qemu-nbd", image.display());
        let folder = private_folder().map_err(|error| QemuError::io(&what, error))?;
        let socket = socket_in(folder.path());
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let why = format!("socket path {} is too long; set TMPDIR to a shorter one", socket.display());
            return Err(QemuError::new(QemuErrorKind::Invalid, what).because(why));
        }
        let program = drover_child::find_program("qemu-nbd", &[])
            .ok_or_else(|| start_error(PACKAGE, "qemu-nbd", std::io::ErrorKind::NotFound.into()))?;
        let mut command = drover_child::command(program, Kind::Plain);
        command.args(arguments(image, format, access)).arg("--socket").arg(&socket).arg("--").arg(image);
        let log = log_in(folder.path());
        let child = File::create(&log)
            .and_then(|log| Guarded::spawn(&command, folder.path(), log))
            .map_err(|error| QemuError::io(&what, error))?;
        let uri = format!("nbd+unix:///?socket={}", percent_encoded(&socket.to_string_lossy()));
        let mut server = ImageServer { child, folder, image: image.to_path_buf(), uri };
        server.wait_ready(&what)?;
        Ok(server)
    }

    fn wait_ready(&mut self, what: &str) -> Result<(), QemuError> {
        let until = Instant::now() + READY_TIME_MAX;
        while !greets(&self.socket()) {
            if let Ok(Some(status)) = self.child.wait(Duration::ZERO) {
                return Err(self.failure(what, &status.to_string()));
            }
            if Instant::now() >= until {
                let why = format!("no answer in {} s", READY_TIME_MAX.as_secs());
                return Err(QemuError::new(QemuErrorKind::Timeout, what).because(why));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn failure(&self, what: &str, status: &str) -> QemuError {
        let words = child::tail(&fs::read(log_in(self.folder.path())).unwrap_or_default());
        let kind = QemuErrorKind::of_words(&words);
        QemuError::new(kind, what).because(if words.is_empty() { status.to_string() } else { words })
    }
}

fn arguments(image: &Path, format: ImageFormat, access: Access) -> Vec<String> {
    let cache = Cache::for_files([image]);
    let is_device = image.starts_with("/dev");
    let mut words: Vec<String> = vec![
        format!("--format={}", format.as_str()),
        format!("--cache={}", if cache == Cache::Direct { "none" } else { "writeback" }),
        format!("--aio={}", if cache == Cache::Direct && is_device { "native" } else { "threads" }),
        "--discard=unmap".into(),
        // Whether zeros become holes is decided by drover, which asks for them in so many words.
        "--detect-zeroes=off".into(),
        // Clients may all go and come again, as lanes do; our guard ends the server, not the last client.
        "--persistent".into(),
        "--shared=0".into(),
        "--export-name=".into(),
    ];
    if access == Access::Read {
        words.push("--read-only".into());
    }
    words
}

/// Whether an NBD server speaks at the socket. Connecting alone proves only that someone listens.
fn greets(socket: &Path) -> bool {
    let greeted = UnixStream::connect(socket).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut greeting = [0; NBD_MAGIC.len()];
        stream.read_exact(&mut greeting)?;
        Ok(&greeting == NBD_MAGIC)
    });
    greeted.unwrap_or(false)
}

fn refuse_other_files(image: &Path) -> Result<(), QemuError> {
    let info = image_info(image, ImageFormat::Qcow2)?;
    let other = info.backing_file.map(|file| ("backing", file)).or(info.data_file.map(|file| ("data", file)));
    let Some((role, file)) = other else { return Ok(()) };
    let why = format!("its header names the {role} file '{file}'; merge them first with `qemu-img convert`");
    Err(QemuError::new(QemuErrorKind::Invalid, format!("serve {}", image.display())).because(why))
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("qemu-nbd.log")
}

fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Source: NBD `doc/proto.md`, "Newstyle negotiation".
const NBD_MAGIC: &[u8; 8] = b"NBDMAGIC";
const READY_TIME_MAX: Duration = Duration::from_secs(30);
const LOCK_TIME_MAX: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(250);
