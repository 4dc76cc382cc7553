use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use drover_types::Secret;
use tempfile::TempDir;

use crate::child::{self, Guarded, private_folder, start_error};
use crate::daemon::{KEY, RbdPool, escaped};
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
    /// What the child says; it may be a lock, too, which is held as long as any of the two is there.
    log: File,
    image: PathBuf,
    uri: String,
}

/// An image of a pool of Ceph.
#[derive(Clone, Copy, Debug)]
pub struct RbdImage<'a> {
    /// Its pool.
    pub pool: &'a RbdPool,
    /// Its name.
    pub name: &'a str,
    /// The key of the pool's user, if it has one. It is told by a file that this user alone can read, and that is gone once it was read.
    pub key: Option<&'a Secret>,
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
        let words =
            |_: &Path| Ok([arguments(image, format, access), vec!["--".into(), image.into()]].concat());
        ImageServer::run(image, words, None)
    }

    /// Serves an image of Ceph. What the child says goes to `held`, which it keeps open for as long as it lives, also if drover does not:
    /// Ceph lets two write to an image, so a lock on that file tells whether an earlier child is still at work.
    ///
    /// # Errors
    /// [`QemuErrorKind::Missing`] without `qemu-nbd` or what it needs for Ceph; its own words else.
    pub fn open_rbd(
        image: &RbdImage<'_>,
        access: Access,
        held: Option<File>,
    ) -> Result<ImageServer, QemuError> {
        let name = PathBuf::from(format!("rbd:{}/{}", image.pool.name, image.name));
        let words = |folder: &Path| {
            let mut words = common_arguments(access);
            words.push("--cache=writeback".into());
            if let Some(key) = image.key {
                let file = folder.join(KEY);
                let mut made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&file)?;
                made.write_all(key.reveal().as_bytes())?;
                let file = escaped(&file.to_string_lossy());
                words.extend(["--object".into(), format!("secret,id={KEY},format=base64,file={file}")]);
            }
            words.extend(["--image-opts".into(), image.pool.image_options(image.name)]);
            Ok(words.into_iter().map(Into::into).collect())
        };
        let server = ImageServer::run(&name, words, held).map_err(|error| match error.chain() {
            words if words.contains(NO_DRIVER) => no_driver(),
            _ => error,
        })?;
        let _ = fs::remove_file(server.folder.path().join(KEY));
        Ok(server)
    }

    fn run(
        image: &Path,
        words: impl FnOnce(&Path) -> io::Result<Vec<OsString>>,
        held: Option<File>,
    ) -> Result<ImageServer, QemuError> {
        let what = format!("serve {} by qemu-nbd", image.display());
        let folder = private_folder().map_err(|error| QemuError::io(&what, error))?;
        let socket = socket_in(folder.path());
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let why = format!("socket path {} is too long; set TMPDIR to a shorter one", socket.display());
            return Err(QemuError::new(QemuErrorKind::Invalid, what).because(why));
        }
        let mut command = drover_child::command(program()?, Kind::Plain);
        let spawned = words(folder.path()).and_then(|words| {
            command.arg("--socket").arg(&socket).args(words);
            let log = match held {
                Some(held) => held,
                None => {
                    File::options().create_new(true).read(true).write(true).open(log_in(folder.path()))?
                }
            };
            Ok((Guarded::spawn(&command, folder.path(), log.try_clone()?)?, log))
        });
        let (child, log) = spawned.map_err(|error| QemuError::io(&what, error))?;
        let uri = format!("nbd+unix:///?socket={}", percent_encoded(&socket.to_string_lossy()));
        let mut server = ImageServer { child, folder, log, image: image.to_path_buf(), uri };
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
        // By its place: the child writes at the same offset.
        let mut words = vec![0; LOG_BYTES_MAX];
        let bytes = self.log.read_at(&mut words, 0).unwrap_or_default();
        let words = child::tail(&words[..bytes]);
        let kind = QemuErrorKind::of_words(&words);
        QemuError::new(kind, what).because(if words.is_empty() { status.to_string() } else { words })
    }
}

fn program() -> Result<PathBuf, QemuError> {
    drover_child::find_program("qemu-nbd", &[])
        .ok_or_else(|| start_error(PACKAGE, "qemu-nbd", std::io::ErrorKind::NotFound.into()))
}

/// What this machine lacks to open images of Ceph. Nothing is asked of a Ceph: no pool is named, which the driver tells if there is one.
///
/// # Errors
/// [`QemuErrorKind::Missing`] with the package that has it.
pub fn lack_for_rbd() -> Result<(), QemuError> {
    let mut command = drover_child::command(program()?, Kind::Plain);
    command.args(["--read-only", "--image-opts", "driver=rbd"]);
    let ended = child::run_of(PACKAGE, &mut command, READY_TIME_MAX)?;
    if ended.words().contains(NO_DRIVER) { Err(no_driver()) } else { Ok(()) }
}

fn no_driver() -> QemuError {
    QemuError::new(QemuErrorKind::Missing(BLOCK_PACKAGE), "qemu-nbd has no driver for RBD")
}

fn arguments(image: &Path, format: ImageFormat, access: Access) -> Vec<OsString> {
    let cache = Cache::for_files([image]);
    let is_device = image.starts_with("/dev");
    let mut words = common_arguments(access);
    words.extend([
        format!("--format={}", format.as_str()),
        format!("--cache={}", if cache == Cache::Direct { "none" } else { "writeback" }),
        format!("--aio={}", if cache == Cache::Direct && is_device { "native" } else { "threads" }),
    ]);
    words.into_iter().map(Into::into).collect()
}

fn common_arguments(access: Access) -> Vec<String> {
    let mut words: Vec<String> = vec![
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
/// What a qemu-nbd says that was built without a driver, or does not find its module.
const NO_DRIVER: &str = "Unknown driver 'rbd'";
/// Debian's package of that module.
const BLOCK_PACKAGE: &str = "qemu-block-extra";
const LOG_BYTES_MAX: usize = 64 << 10;
