//! An agent in this process, and a site that leads to it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use drover_agent::opening::{Access, Announced, DISK_VERSION, How, Opened, Stat};
use drover_agent::{Agent, AgentDisk, AgentOptions, Held, Refusal, Site, Store, Target};
use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, Request, Slice, Work};
use drover_link::{Limits, RateLimit, Session};
use drover_types::ByteSpan;

/// Starts agents, and ends them as kill -9 does: the process is gone, the host is not.
#[derive(Clone)]
pub struct Stage {
    store: Arc<dyn Store>,
    sessions: Arc<Mutex<Vec<Session>>>,
    agent: Arc<Mutex<Option<Arc<Agent>>>>,
    rate: Option<Arc<RateLimit>>,
}

impl Stage {
    pub fn new(store: impl Store + 'static) -> Stage {
        let store: Arc<dyn Store> = Arc::new(store);
        let agent = Arc::new(Mutex::new(Some(Arc::new(Agent::new(store.clone())))));
        Stage { store, sessions: Arc::default(), agent, rate: None }
    }

    /// The same behind lines that carry no more than so.
    pub fn behind(self, rate: &Arc<RateLimit>) -> Stage {
        Stage { rate: Some(rate.clone()), ..self }
    }

    /// A site of its own, as another host has it.
    pub fn site(&self) -> Arc<Site> {
        let stage = self.clone();
        Site::new("b", move || stage.dial())
    }

    /// The same, that cannot reach the agent while the flag is set.
    pub fn site_unless(&self, cut_off: &Arc<AtomicBool>) -> Arc<Site> {
        let (stage, cut_off) = (self.clone(), cut_off.clone());
        Site::new("b", move || match cut_off.load(SeqCst) {
            true => Err(Refusal::new(DiskErrorKind::Transient, "the line is cut")),
            false => stage.dial(),
        })
    }

    fn dial(&self) -> Result<Session, Refusal> {
        let agent = self.agent.lock().unwrap().clone();
        let agent = agent.ok_or_else(|| Refusal::new(DiskErrorKind::Transient, "nobody listens"))?;
        let (here, there) = Session::pair_of(Limits::default(), b"", self.rate.clone());
        self.sessions.lock().unwrap().push(there.clone());
        std::thread::spawn(move || agent.serve(&there));
        Ok(here)
    }

    /// Ends all sessions; the agent lives.
    pub fn cut(&self) {
        let sessions = std::mem::take(&mut *self.sessions.lock().unwrap());
        sessions.iter().for_each(Session::close);
    }

    /// The agent is gone until [`Stage::start_again`].
    pub fn kill(&self) {
        *self.agent.lock().unwrap() = None;
        self.cut();
    }

    pub fn start_again(&self) {
        *self.agent.lock().unwrap() = Some(Arc::new(Agent::new(self.store.clone())));
    }
}

pub fn source(site: &Arc<Site>, disk: &str) -> AgentDisk {
    AgentDisk::open_source(site, disk, AgentOptions::default()).unwrap()
}

pub fn target(site: &Arc<Site>, disk: &str, size: u64, how: How) -> Result<AgentDisk, DiskError> {
    target_of(site, disk, size, how, 7)
}

pub fn target_of(
    site: &Arc<Site>,
    disk: &str,
    size: u64,
    how: How,
    epoch: u64,
) -> Result<AgentDisk, DiskError> {
    let target = Target { size, how, epoch, volume: None };
    AgentDisk::open_target(site, disk, &target, AgentOptions::default())
}

/// A store of one disk.
pub struct One {
    pub disk: Arc<dyn Disk>,
    pub generation: Arc<Mutex<String>>,
}

impl One {
    pub fn new(disk: impl Disk + 'static) -> One {
        One { disk: Arc::new(disk), generation: Arc::new(Mutex::new("first".to_string())) }
    }
}

impl Store for One {
    fn open(&self, _disk: &str, _access: &Access) -> Result<Held, Refusal> {
        let features = self.disk.features();
        let opened = Opened {
            version: DISK_VERSION,
            size: self.disk.size(),
            bytes_min: self.disk.limits().bytes_min,
            identity: self.disk.identity(),
            tag: "one".to_string(),
            generation: self.generation.lock().unwrap().clone(),
            fast_zero: features.fast_zero,
            extents: features.extents,
            zeroed: features.zeroed,
            is_new: false,
            reserve_bytes: 0,
            takes: vec!["lz4".to_string(), "zstd".to_string()],
            notes: Vec::new(),
        };
        Ok(Held { disk: self.disk.clone(), opened, known: None, keep: Vec::new(), on_loss: None })
    }

    fn stat(&self, _disk: &str) -> Result<Stat, Refusal> {
        Ok(Stat {
            size: Some(self.disk.size()),
            tag: "one".to_string(),
            holds_nothing: false,
            allocated: None,
            epoch: 0,
        })
    }

    fn announce(&self) -> Announced {
        let devices = vec!["one".to_string()];
        Announced { version: "0".to_string(), pools: Vec::new(), devices, takes: Vec::new(), load: None }
    }
}

fn bytes(span: ByteSpan, content: &[u8]) -> Slice {
    let mut buffer = Buffer::zeroed(span.length as usize);
    buffer.copy_from_slice(&content[span.offset as usize..span.end() as usize]);
    Slice::from(buffer)
}

/// Writes a span through a lane of its own; how the lane says it went.
pub fn write(disk: &dyn Disk, span: ByteSpan, content: &[u8]) -> Result<(), DiskErrorKind> {
    let mut lane = disk.open_lane().unwrap();
    lane.submit(Request { id: 1, span, work: Work::Write(bytes(span, content)) });
    lane.complete().unwrap().result.map_err(|error| error.kind)
}

pub fn write_all(disk: &dyn Disk, content: &[u8]) {
    std::thread::scope(|scope| {
        for lane in 0..4 {
            scope.spawn(move || {
                for at in (lane * 200_000..content.len() as u64).step_by(800_000) {
                    let span = ByteSpan::new(at, 200_000.min(content.len() as u64 - at));
                    write(disk, span, content).unwrap();
                }
            });
        }
    });
}
