//! Machines beside the disks of an agent: whose they are, and which orders about them count. What builds and runs them is
//! the program's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::disk::PeersRun;
use super::given::{self, Given, Pieces};
use super::orders::{Orders, START_WITHIN};
use super::refused;
use crate::error::Refusal;
use crate::machine::{
    CHECK, CONVERT_FILES, CONVERT_WRITE, Conversion, Defined, Guest, Image, Lack, Machine, Order, Told, What,
};
use crate::places::{Places, Room, check_writable};

/// The file in a machine's folder that says whose it is.
const OWNER_FILE: &str = "machine.drover-owner";

/// How long what was found of the converter counts.
const CONVERTS_FOR: Duration = Duration::from_secs(10);

/// An owner's name is not longer.
const OWNER_BYTES_MAX: usize = 1024;

/// Builds and runs machines on this host.
pub trait Hypervisor: Send + Sync {
    /// Checks that it can be built.
    ///
    /// # Errors
    /// With the first thing that is wrong.
    fn check(&self, home: &Home<'_>) -> Result<(), Refusal>;

    /// What this host lacks of what a machine is plugged into, converted and started by. May take minutes where it is converted;
    /// ends when `is_unwanted`.
    fn lacks(&self, machine: &Machine, is_unwanted: &dyn Fn() -> bool) -> Vec<Lack>;

    /// Writes its definition to its folder; gives a line about it and a command that starts it.
    ///
    /// # Errors
    /// When it cannot be built or written.
    fn define(&self, home: &Home<'_>) -> Result<(String, Option<String>), Refusal>;

    /// Whether there is a definition in a folder.
    fn is_defined(&self, folder: &Path) -> bool;

    /// Removes a definition. One that is gone is fine.
    ///
    /// # Errors
    /// When the machine runs, or the files cannot be removed.
    fn undefine(&self, folder: &Path) -> Result<(), Refusal>;

    /// Starts it and sees that it goes on running; gives a line about it, and how long its guest was watched.
    ///
    /// # Errors
    /// When it runs already or does not start.
    fn start(&self, home: &Home<'_>) -> Result<(String, Duration), Refusal>;

    /// Whether the machine of a folder runs.
    ///
    /// # Errors
    /// When that cannot be told.
    fn runs(&self, folder: &Path) -> Result<bool, Refusal>;

    /// Stops it. One that is off is fine.
    ///
    /// # Errors
    /// When it does not end.
    fn stop(&self, folder: &Path) -> Result<(), Refusal>;

    /// What kinds of guests can be converted here: words such as [`crate::machine::CONVERT`].
    fn converts(&self) -> Vec<&'static str>;

    /// Converts its guest, once, with these files for its first boot; ends when `is_unwanted`.
    ///
    /// # Errors
    /// When it cannot be converted: then its images are as they were, or a conversion that has begun is to be ordered again.
    fn convert(
        &self,
        home: &Home<'_>,
        guest: &Guest,
        files: &FirstBootFiles,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Conversion, Refusal>;

    /// Whether the images of a folder's machine hold a converted guest, or may hold one in part.
    fn is_converted(&self, folder: &Path) -> bool;

    /// Removes what tells of a conversion. Nothing to remove is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn forget_conversion(&self, folder: &Path) -> Result<(), Refusal>;
}

/// Files on this host for a guest's first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstBootFiles {
    /// Those that run, in this order.
    pub scripts: Vec<PathBuf>,
    /// A package to be installed.
    pub package: Option<PathBuf>,
}

/// A machine and where its files are on this host.
pub struct Home<'a> {
    /// Its own folder.
    pub folder: PathBuf,
    /// Its images, in the order of its disks.
    pub images: Vec<PathBuf>,
    /// What it has.
    pub machine: &'a Machine,
}

/// The machines of an agent.
pub struct Machines {
    places: Arc<Places>,
    hypervisor: Box<dyn Hypervisor>,
    may_start: bool,
    orders: Orders,
    /// What can be converted, and when that was found out.
    converts: Mutex<Option<(Instant, Vec<&'static str>)>>,
}

impl Machines {
    /// Machines in these pools; peers may start them only if that is allowed here.
    pub fn new(places: Arc<Places>, hypervisor: Box<dyn Hypervisor>, may_start: bool) -> Machines {
        Machines { places, hypervisor, may_start, orders: Orders::default(), converts: Mutex::default() }
    }

    /// Peers ask again and again how busy this host is, and a converter is a program that is run to be asked.
    fn converts(&self) -> Vec<&'static str> {
        let mut known = self.converts.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((at, kinds)) if at.elapsed() < CONVERTS_FOR => kinds.clone(),
            _ => {
                let kinds = self.hypervisor.converts();
                *known = Some((Instant::now(), kinds.clone()));
                kinds
            }
        }
    }

    /// What peers may do with machines.
    pub(super) fn takes(&self) -> Vec<String> {
        // A converter runs a machine of its own.
        let runs = match self.may_start {
            true => {
                let converts = self.converts();
                let files = converts.contains(&CONVERT_WRITE).then_some(CONVERT_FILES);
                [vec!["start"], converts, files.into_iter().collect()].concat()
            }
            false => Vec::new(),
        };
        ["machine", CHECK].into_iter().chain(runs).map(str::to_string).collect()
    }

    /// Carries out an order of the peer with this key. One that takes long ends when its channel does, or when it was left and
    /// another order comes. `receiver` has the files that follow it.
    pub(super) fn carry_out(
        &self,
        peer: &str,
        order: &Order,
        run: &PeersRun,
        pieces: &mut Pieces<'_>,
    ) -> Result<Told, Refusal> {
        if order.owner.len() > OWNER_BYTES_MAX || order.owner.contains(char::is_control) {
            return Err(refused(
                DiskErrorKind::Denied,
                "the owner's name is too long, or has odd characters",
            ));
        }
        let own = |room| Own { machines: self, room, owner: format!("{peer} {}", order.owner) };
        let room = match &order.what {
            What::Check(machine) => {
                let is_unwanted = || run.sender.is_given_up();
                return own(self.places.room(&order.folder)?).check(machine, &is_unwanted);
            }
            What::Prepare(_) => self.places.room(&order.folder)?,
            what => match self.places.folder(&order.folder) {
                // Nothing is there: as good as removed.
                Err(refusal) if refusal.kind == DiskErrorKind::Gone && leaves_nothing(what) => {
                    return self.without_folder(order);
                }
                folder => Room::there(folder?),
            },
        };
        let orders = self.orders.of(&room.path)?;
        orders.end_what_was_left();
        // Held to the end: one order about a machine at a time.
        let mut last = orders.held();
        let _at_work = orders.at_work(Box::new(run.clone()));
        match &order.what {
            What::Start { after, .. } => last.take_start(order.number, *after, START_WITHIN)?,
            // Just a look, which stands in nobody's way.
            What::Look if order.number == 0 => {}
            _ => last.take(order.number)?,
        }
        let own = own(room);
        let done = own.carry_out(&order.what, run, pieces)?;
        if order.what == What::Ready {
            last.make_ready();
        }
        let Told { runs, defined, converted, .. } = own.look()?;
        Ok(Told { runs, defined, converted, number: last.number(), ..done })
    }

    fn without_folder(&self, order: &Order) -> Result<Told, Refusal> {
        if let What::Clear { images } = &order.what {
            self.remove(images)?;
        }
        Ok(Told::default())
    }

    fn remove(&self, images: &[Image]) -> Result<(), Refusal> {
        images.iter().try_for_each(|image| self.places.remove_image(&image.disk, &image.tag))
    }
}

/// Whether an order is fulfilled where the machine has no folder at all.
fn leaves_nothing(what: &What) -> bool {
    matches!(what, What::Look | What::Undefine | What::Stop | What::ForgetConversion | What::Clear { .. })
}

/// A machine as its owner sees it.
struct Own<'a> {
    machines: &'a Machines,
    room: Room,
    owner: String,
}

/// What preparing a machine comes to.
struct Ahead {
    /// Its folders.
    rooms: Vec<Room>,
    /// What its host lacks for it.
    lacks: Vec<Lack>,
}

impl Own<'_> {
    /// All that could refuse the machine, looked at before anything is made for it.
    fn look_ahead(&self, machine: &Machine, is_unwanted: &dyn Fn() -> bool) -> Result<Ahead, Refusal> {
        self.check_ours()?;
        let (places, hypervisor) = (&self.machines.places, &self.machines.hypervisor);
        let images = machine.disks.iter().map(|disk| places.image_to_come(&disk.disk));
        let (images, mut rooms): (Vec<PathBuf>, Vec<Room>) =
            images.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        rooms.push(self.room.clone());
        rooms.iter().try_for_each(|room| check_writable(&room.there))?;
        hypervisor.check(&Home { folder: self.room.path.clone(), images, machine })?;
        // Who may not have guests converted here has no converter run either.
        let is_converted = machine.is_converted && self.machines.may_start;
        let machine = Machine { is_converted, ..machine.clone() };
        Ok(Ahead { rooms, lacks: hypervisor.lacks(&machine, is_unwanted) })
    }

    /// Tells what preparing the machine would come to, and how it stands.
    fn check(&self, machine: &Machine, is_unwanted: &dyn Fn() -> bool) -> Result<Told, Refusal> {
        let told = if self.room.is_there() { self.look()? } else { Told::default() };
        if told.defined == Defined::Others {
            return Ok(told);
        }
        Ok(Told { lacks: self.look_ahead(machine, is_unwanted)?.lacks, ..told })
    }

    fn carry_out(&self, what: &What, run: &PeersRun, pieces: &mut Pieces<'_>) -> Result<Told, Refusal> {
        let is_unwanted = &|| run.sender.is_given_up();
        let hypervisor = &self.machines.hypervisor;
        let nothing = || Ok(Told::default());
        match what {
            What::Look | What::Check(_) => nothing(),
            What::Prepare(machine) => {
                let Ahead { rooms, lacks } = self.look_ahead(machine, is_unwanted)?;
                if let Some(lack) = lacks.first() {
                    return Err(refused(DiskErrorKind::Unsupported, lack.to_string()));
                }
                self.machines.places.make(&rooms)?;
                nothing()
            }
            What::Define(machine) => {
                self.check_ours()?;
                let home = self.home(machine)?;
                hypervisor.check(&home)?;
                self.claim()?;
                let (words, start_with) = hypervisor.define(&home)?;
                Ok(Told { words, start_with, ..Told::default() })
            }
            What::Convert { machine, guest } => {
                self.check_may_convert()?;
                self.check_ours()?;
                self.check_off()?;
                let home = self.home(machine)?;
                let given = Given::take(guest, pieces, &|| run.sender.reset(), self.given_folder())?;
                let conversion = hypervisor.convert(&home, guest, &given.files, is_unwanted)?;
                Ok(Told { conversion: Some(conversion), ..Told::default() })
            }
            What::ForgetConversion => {
                self.check_ours()?;
                self.check_off()?;
                self.forget_conversion()?;
                nothing()
            }
            What::Undefine => {
                if self.defined()? == Defined::Ours || self.is_claimed()? {
                    hypervisor.undefine(self.folder())?;
                    self.give_up()?;
                }
                nothing()
            }
            What::Ready => {
                self.check_may_start()?;
                nothing()
            }
            What::Start { machine, .. } => {
                self.check_may_start()?;
                let (words, watched) = hypervisor.start(&self.home(machine)?)?;
                Ok(Told { words, watched_ms: watched.as_millis() as u64, ..Told::default() })
            }
            What::Stop => {
                if !hypervisor.runs(self.folder())? {
                    return nothing();
                }
                self.check_may_start()?;
                hypervisor.stop(self.folder())?;
                nothing()
            }
            What::Clear { images } => {
                self.check_off()?;
                if self.defined()? != Defined::Others {
                    self.forget_conversion()?;
                }
                self.machines.remove(images)?;
                self.machines.places.remove_empty(self.folder());
                nothing()
            }
        }
    }

    fn look(&self) -> Result<Told, Refusal> {
        let runs = self.machines.hypervisor.runs(self.folder())?;
        let converted = self.machines.hypervisor.is_converted(self.folder());
        Ok(Told { runs, converted, defined: self.defined()?, ..Told::default() })
    }

    fn home<'a>(&self, machine: &'a Machine) -> Result<Home<'a>, Refusal> {
        let images: Result<Vec<PathBuf>, Refusal> =
            machine.disks.iter().map(|disk| self.machines.places.image(&disk.disk)).collect();
        Ok(Home { folder: self.folder().to_path_buf(), images: images?, machine })
    }

    fn folder(&self) -> &Path {
        &self.room.path
    }

    /// Where files lie that an order brings along, as long as it is carried out.
    fn given_folder(&self) -> PathBuf {
        // No disk and no machine of a peer has such a name.
        self.folder().join(".drover-first-boot")
    }

    fn forget_conversion(&self) -> Result<(), Refusal> {
        // An agent that was killed while it converted may have left some.
        given::remove(&self.given_folder())?;
        self.machines.hypervisor.forget_conversion(self.folder())
    }

    fn owner_file(&self) -> PathBuf {
        self.folder().join(OWNER_FILE)
    }

    /// Whose the folder is, if it is somebody's.
    fn found_owner(&self) -> Result<Option<String>, Refusal> {
        match std::fs::read(self.owner_file()) {
            // Somebody's whose host failed while it was written; it comes to its place whole by now.
            Ok(text) if !text.ends_with(b"\n") => Ok(None),
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("reading", &error)),
        }
    }

    fn is_claimed(&self) -> Result<bool, Refusal> {
        Ok(self.found_owner()?.is_some_and(|owner| owner == self.owner))
    }

    fn defined(&self) -> Result<Defined, Refusal> {
        Ok(match (self.machines.hypervisor.is_defined(self.folder()), self.found_owner()?) {
            (false, None) => Defined::No,
            (false, Some(owner)) if owner == self.owner => Defined::No,
            (true, Some(owner)) if owner == self.owner => Defined::Ours,
            _ => Defined::Others,
        })
    }

    /// Refuses a folder with somebody else's machine.
    fn check_ours(&self) -> Result<(), Refusal> {
        if self.defined()? != Defined::Others {
            return Ok(());
        }
        let why = format!("{} holds a machine that this plan did not make", self.folder().display());
        Err(refused(DiskErrorKind::Denied, why))
    }

    fn check_may_convert(&self) -> Result<(), Refusal> {
        if self.machines.may_start {
            return Ok(());
        }
        let why = "this agent converts no guests: it was run without --allow-start";
        Err(refused(DiskErrorKind::Denied, why))
    }

    fn check_may_start(&self) -> Result<(), Refusal> {
        if !self.machines.may_start {
            let why = "this agent starts and stops no machines: it was run without --allow-start";
            return Err(refused(DiskErrorKind::Denied, why));
        }
        match self.defined()? {
            Defined::Ours => Ok(()),
            Defined::No => Err(refused(DiskErrorKind::Gone, "the machine is not defined")),
            Defined::Others => self.check_ours(),
        }
    }

    fn check_off(&self) -> Result<(), Refusal> {
        match self.machines.hypervisor.runs(self.folder())? {
            true => Err(refused(DiskErrorKind::Denied, "the machine runs: its images stay")),
            false => Ok(()),
        }
    }

    /// Writes down whose it is, durably and before anything else.
    fn claim(&self) -> Result<(), Refusal> {
        if self.is_claimed()? {
            return Ok(());
        }
        let (path, new) = (self.owner_file(), self.folder().join(format!(".{OWNER_FILE}.new")));
        let is_torn = path.exists() && self.found_owner()?.is_none();
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            std::io::Write::write_all(&mut file, format!("{}\n", self.owner).as_bytes())?;
            file.sync_all()?;
            let flags = if is_torn { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            renameat_with(CWD, &new, CWD, &path, flags)?;
            std::fs::File::open(self.folder())?.sync_all()
        };
        write().map_err(|error: std::io::Error| {
            // It may not have come to be.
            let _ = std::fs::remove_file(&new);
            self.failed("writing", &error)
        })
    }

    fn give_up(&self) -> Result<(), Refusal> {
        match std::fs::remove_file(self.owner_file()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.failed("removing", &error))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, doing: &str, error: &std::io::Error) -> Refusal {
        let why = format!("{doing} {}: {error}", self.owner_file().display());
        refused(DiskErrorKind::of(error), why)
    }
}
