//! Where no pod of drover's may run: disks are sent through CDI's upload proxy. Such a disk arrives once and in order; it cannot be gone
//! on with in the middle, written to in passes, converted, or read back.

use std::io::{self, Write};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use drover_engine::{Cause, OneWay, ProviderError, Upload};
use drover_http::{Client, Connection, Endpoint, Head, HttpError, HttpErrorKind, Request, Timeouts, Trust};
use drover_kubevirt::objects::{self, Kind};
use drover_kubevirt::upload::{self, CONFIG_PATH, Standing, UPLOAD_PATH};
use drover_kubevirt::{Cluster, KubeError, KubeErrorKind};
use drover_link::RateLimit;
use drover_log::log;
use drover_mover::StopSignal;
use drover_plan::{Kubevirt, PlannedDisk, PlannedVm, Reach};
use drover_qemu::Lack;
use serde_json::{Value, json};

use super::{Claims, failed};
use crate::conversion::is_due;
use crate::machine::{boot_bus, machine_of};

/// How often a claim is looked at that is awaited.
const LOOK: Duration = Duration::from_millis(500);
/// How long the proxy may be silent before the first byte: it waits for CDI's pod itself.
const BEGIN_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take no byte.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How long CDI may work on a disk that was sent whole: it makes a file as large as its volume.
const FINISH_WITHIN: Duration = Duration::from_secs(3600);
/// How much of an answer is quoted.
const WORDS_BYTES_MAX: usize = 2000;
/// Bytes that are counted against a rate limit at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Why nothing that was uploaded is converted.
pub(super) const NOT_AGAIN: &str = "what went through CDI's upload proxy is not written to again";

/// The same of a VM that a look into its disks found to need it.
pub(super) fn no_conversion() -> Lack {
    let advice = "let drover make pods in the namespace, or have the guest boot from its new disks before the move (see what was \
                  found inside it); `convert: never` moves it as it is";
    Lack { what: NOT_AGAIN.into(), advice: advice.into() }
}

/// How disks come into claims.
#[derive(Clone)]
pub(super) enum Way {
    /// By a worker pod of drover's.
    Pods,
    /// Through CDI.
    Proxy(Arc<Proxy>),
}

/// CDI's upload proxy.
pub(super) struct Proxy {
    url: String,
    client: Client,
}

impl Claims {
    /// How the disks of VMs come into their claims that have none yet.
    pub(super) fn way(&self) -> Result<Way, ProviderError> {
        let mut known = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = known.as_ref() {
            return Ok(way.clone());
        }
        let cluster = self.cluster().map_err(failed)?;
        let way = match self.kubevirt.reach {
            Reach::Upload => Way::Proxy(Arc::new(self.proxy(&cluster)?.ok_or_else(no_proxy)?)),
            // The operator's workers have a pod each already.
            Reach::Auto if !cluster.is_inside() && !self.may_make_pods(&cluster)? => {
                self.proxy(&cluster)?.map_or(Way::Pods, |proxy| Way::Proxy(Arc::new(proxy)))
            }
            Reach::Auto
            | Reach::Pod
            | Reach::Forward
            | Reach::NodePort
            | Reach::LoadBalancer
            | Reach::Route => Way::Pods,
        };
        *known = Some(way.clone());
        Ok(way)
    }

    /// Whether disks of this VM are uploaded: claims that are there say so, else the way that there is.
    pub(super) fn is_uploaded(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        // Not held while the cluster is asked: other VMs would wait.
        let uploaded = || self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = uploaded().get(&vm.vm.id).copied() {
            return Ok(known);
        }
        let plan = self.plan()?;
        let mut known = None;
        for disk in &vm.disks {
            let claim = self.get(vm, Kind::Claim, &objects::claim_name(disk))?;
            // Somebody else's says nothing of this VM's.
            let claim = claim.filter(|claim| objects::is_of(claim, &vm.owner_of(&plan, disk)));
            known = known.or(claim.as_ref().map(upload::is_for_upload));
        }
        let known = match known {
            Some(known) => known,
            // Where the proxy is need not be known for that.
            None => self.kubevirt.reach == Reach::Upload || matches!(self.way()?, Way::Proxy(_)),
        };
        uploaded().insert(vm.vm.id.clone(), known);
        Ok(known)
    }

    fn may_make_pods(&self, cluster: &Cluster) -> Result<bool, ProviderError> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.kubevirt.namespace, "resource": "pods", "verb": "create"}},
        });
        let all = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = cluster.create(all, &review, false).map_err(failed)?;
        Ok(answer["status"]["allowed"] == true)
    }

    /// The proxy that the plan or CDI tells of.
    fn proxy(&self, cluster: &Cluster) -> Result<Option<Proxy>, ProviderError> {
        let config = match cluster.get(CONFIG_PATH) {
            Ok(config) => config.unwrap_or_default(),
            // Whoever says where it is need not be let in to look.
            Err(error) if matches!(error.kind, KubeErrorKind::NotServed | KubeErrorKind::Denied) => {
                Value::Null
            }
            Err(error) => return Err(failed(error)),
        };
        let (url, authorities) = upload::proxy(&config);
        let Some(url) = self.kubevirt.upload_url.as_deref().or(url) else { return Ok(None) };
        let wrong = |error: HttpError| {
            let advice =
                error.advice().unwrap_or_else(|| "see target.upload_url and target.upload_ca".into());
            ProviderError::new(Cause::Plan, format!("CDI's upload proxy at {url}"))
                .because(error)
                .advise(advice)
        };
        let place = url.split_once("://").map_or(url, |(_, place)| place);
        if place.trim_end_matches('/').contains('/') {
            let what = format!("CDI's upload proxy at {url} is to be a host, without a path");
            return Err(ProviderError::new(Cause::Plan, what).advise("see target.upload_url"));
        }
        let endpoint: Endpoint = url.parse().map_err(wrong)?;
        if !endpoint.https {
            let what = format!("CDI's upload proxy at {url} is to be told a token, which goes by https only");
            return Err(ProviderError::new(Cause::Plan, what).advise("write https:// in target.upload_url"));
        }
        let timeouts = Timeouts { stall: STALL_MAX, ..Timeouts::default() };
        let client = match (&self.kubevirt.upload_ca, authorities) {
            (Some(path), _) => Client::new(endpoint, &Trust::CaFile(path.clone()), timeouts),
            (None, Some(pem)) => {
                let file = authorities_of(pem)?;
                Client::new(endpoint, &Trust::CaFile(file.path().to_path_buf()), timeouts)
            }
            (None, None) => Client::new(endpoint, &Trust::System, timeouts),
        };
        Ok(Some(Proxy { url: url.to_string(), client: client.map_err(wrong)? }))
    }

    /// Refuses what an upload cannot do, while the VM still runs.
    pub(super) fn check_upload(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let refuse = |what: String, advice: &str| Err(ProviderError::new(Cause::Plan, what).advise(advice));
        let name = &vm.vm.name;
        if !self.has_taken_all(vm)?
            && let Way::Proxy(proxy) = self.way()?
        {
            proxy.probe()?;
        }
        if vm.warm.is_some() {
            let what = format!(
                "{name} cannot move warm: its disks go through CDI's upload proxy, which takes them once"
            );
            return refuse(what, "use `mode: cold`, or let drover make pods in the namespace");
        }
        let machine = machine_of(vm, &self.about.target, &self.about.origin);
        if is_due(vm, boot_bus(&machine)) || !vm.first_boot.is_empty() {
            let what =
                format!("{name} is to be converted, or given something for its first boot, and {NOT_AGAIN}");
            return refuse(
                what,
                "write `convert: never` if its guest has virtio drivers, or let drover make pods in the namespace",
            );
        }
        Ok(())
    }

    /// Whether CDI has every disk of a VM, so that its proxy is not needed any more.
    pub(super) fn has_taken_all(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        for disk in &vm.disks {
            if !self.claim_of(disk, vm)?.is_some_and(|claim| has_taken(&claim)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn upload_of(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
    ) -> Result<Box<dyn OneWay>, ProviderError> {
        let Way::Proxy(proxy) = self.way()? else {
            let what = format!(
                "{} is set up for CDI's upload proxy, and this plan says another `reach`",
                objects::claim_name(disk)
            );
            return Err(ProviderError::new(Cause::Plan, what)
                .advise("put `reach: upload` back, or `drover cancel` and begin anew"));
        };
        // Somebody else's is refused.
        self.claim_of(disk, vm)?;
        let (cluster, plan) = (self.cluster_of(vm)?, self.plan()?);
        let mut fresh = self.fresh_claim(&cluster, vm, disk, &plan).map_err(failed)?;
        upload::for_upload(&mut fresh);
        Ok(Box::new(ToClaim {
            kubevirt: self.kubevirt.clone(),
            proxy,
            limit: self.limit()?,
            stop: self.about.stop.clone(),
            name: objects::claim_name(disk),
            owner: vm.owner_of(&plan, disk),
            cluster,
            fresh,
        }))
    }
}

/// The file goes when this does, when its text was read.
fn authorities_of(pem: &str) -> Result<tempfile::NamedTempFile, ProviderError> {
    let kept = tempfile::NamedTempFile::new().and_then(|mut file| {
        file.write_all(pem.as_bytes())?;
        Ok(file)
    });
    kept.map_err(|error| {
        ProviderError::new(Cause::Internal, "keeping the authorities of CDI's upload proxy").because(error)
    })
}

fn no_proxy() -> ProviderError {
    let what =
        "`reach: upload`, and CDI tells no address of its upload proxy (CDIConfig, status.uploadProxyURL)";
    ProviderError::new(Cause::Plan, what)
        .advise("expose its Service cdi-uploadproxy by a Route, an Ingress or a node port, and give target.upload_url")
}

impl Proxy {
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether it is there, and who it says it is.
    pub(super) fn probe(&self) -> Result<(), ProviderError> {
        let answer = self.client.send(&Request::get("/healthz")).map_err(|error| self.failed(error))?;
        match answer.head.status {
            200..300 => Ok(()),
            _ => {
                let what = format!(
                    "{} answers {} at /healthz, as no upload proxy of CDI's does",
                    self.url,
                    answer.head.status_line()
                );
                Err(ProviderError::new(Cause::Connection, what)
                    .advise("see target.upload_url, or CDIConfig's status.uploadProxyURL"))
            }
        }
    }

    fn failed(&self, error: HttpError) -> ProviderError {
        let advice = error
            .advice()
            .unwrap_or_else(|| "see whether CDI's upload proxy runs, and what is on the way to it".into());
        let advice = match &error.kind {
            HttpErrorKind::Certificate(_) => {
                "put the authority that signed it into target.upload_ca, a PEM file; a certificate that CDI made itself is signed by the \
                 one in its ConfigMap cdi-uploadproxy-signer-bundle"
                    .into()
            }
            _ => advice,
        };
        ProviderError::new(Cause::Connection, format!("CDI's upload proxy at {}", self.url))
            .because(error)
            .advise(advice)
    }
}

/// A disk's claim, which its bytes are sent to.
#[derive(Clone)]
struct ToClaim {
    cluster: Arc<Cluster>,
    kubevirt: Kubevirt,
    proxy: Arc<Proxy>,
    limit: Arc<RateLimit>,
    stop: StopSignal,
    name: String,
    owner: String,
    /// As it is made.
    fresh: Value,
}

/// What became of asking to begin.
enum Begun {
    Yes(Box<Connection>),
    /// Not yet, and why.
    Later(String),
}

impl ToClaim {
    fn path(&self, name: &str) -> String {
        objects::path(&self.kubevirt, Kind::Claim, name)
    }

    /// The claim, or why it is not known just now.
    fn get(&self) -> Result<Result<Option<Value>, String>, ProviderError> {
        let found = match passing(self.cluster.get(&self.path(&self.name)))? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        match found {
            Some(claim) if !objects::is_of(&claim, &self.owner) => {
                let whose = objects::annotation(&claim, objects::OWNER).unwrap_or("nobody that drover knows");
                let what = format!("persistent volume claim {} is of {whose} by now", self.label());
                Err(ProviderError::new(Cause::Target, what).advise("see who made it"))
            }
            found => Ok(Ok(found)),
        }
    }

    fn label(&self) -> String {
        format!("{}/{}", self.kubevirt.namespace, self.name)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.kubevirt.worker_timeout_s)
    }

    /// Waits for what a look at the claim gives.
    fn wait<T>(
        &self,
        doing: &str,
        mut look: impl FnMut() -> Result<Result<T, String>, ProviderError>,
    ) -> Result<T, ProviderError> {
        let until = Instant::now() + self.timeout();
        loop {
            let why = match look()? {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            let is_stopped = self.stop.is_set();
            if is_stopped || Instant::now() >= until {
                let waited = match is_stopped {
                    true => "before the run was to stop".to_string(),
                    false => format!("within {} s", self.kubevirt.worker_timeout_s),
                };
                let what = format!("claim {} {doing} {waited}: {why}", self.label());
                let cause = if is_stopped { Cause::Cancelled } else { Cause::Target };
                return Err(ProviderError::new(cause, what).advise(
                    "see `kubectl describe pvc` of it and CDI's upload pod beside it, then `drover resume`",
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The claim, once CDI takes an upload for it. One that took an upload takes no other, and is made anew.
    fn ready(&self) -> Result<Value, ProviderError> {
        self.wait("was not made ready for an upload by CDI", || {
            let claim = match self.get()? {
                Ok(Some(claim)) => claim,
                Ok(None) => {
                    let made = passing(self.cluster.create(&self.path(""), &self.fresh, false))?;
                    return Ok(Err(made.err().unwrap_or_else(|| "it was just made".into())));
                }
                Err(why) => return Ok(Err(why)),
            };
            if objects::is_going(&claim) {
                return Ok(Err("the one before is being removed".into()));
            }
            match upload::standing(&claim) {
                Standing::Ready => Ok(Ok(claim)),
                Standing::Waiting(why) => Ok(Err(why)),
                Standing::Done => {
                    let uid = objects::uid(&claim);
                    let gone = passing(self.cluster.delete(&self.path(&self.name), uid))?;
                    Ok(Err(gone.err().unwrap_or_else(|| "it took an upload before, and is made anew".into())))
                }
            }
        })
    }

    fn begin_once(&self, claim: &Value, size: u64) -> Result<Begun, ProviderError> {
        let (path, request) = upload::token_request(&self.kubevirt, claim);
        // CDI's own API server, behind the cluster's, may be away as well.
        let answer = match passing(self.cluster.create(&path, &request, false))? {
            Ok(answer) => answer,
            Err(why) => return Ok(Begun::Later(why)),
        };
        let Some(token) = upload::token(&answer) else {
            let what = format!("CDI answers a request for an upload token of {} with none", self.label());
            return Err(
                ProviderError::new(Cause::Target, what).advise("see the log of its Deployment cdi-apiserver")
            );
        };
        let request = Request::post(UPLOAD_PATH, Vec::new())
            .with_header("Authorization", format!("Bearer {token}"))
            .with_header("Content-Type", "application/octet-stream");
        let mut go_on = || !self.stop.is_set();
        let asked = self.proxy.client.connect_to_upload().and_then(|mut connection| {
            let refused = connection.begin(&request, size, BEGIN_WITHIN, &mut go_on)?;
            Ok((connection, refused))
        });
        let (mut connection, head) = match asked {
            Ok((connection, None)) => return Ok(Begun::Yes(Box::new(connection))),
            Ok((connection, Some(head))) => (connection, head),
            Err(error) if error.is_transient() => return Ok(Begun::Later(error.to_string())),
            Err(error) => return Err(self.proxy.failed(error)),
        };
        let error = self.refused(&mut connection, &head);
        match head.status {
            // It waits for CDI's pod no longer, or the pod has another upload that is not over yet.
            502..=504 => Ok(Begun::Later(error.what)),
            _ => Err(error),
        }
    }

    /// What an answer says that is no success, in the proxy's own words.
    fn refused(&self, connection: &mut Connection, head: &Head) -> ProviderError {
        // What cannot be read any more says nothing.
        let body = connection.read_body(WORDS_BYTES_MAX).unwrap_or_default();
        let words = String::from_utf8_lossy(&body);
        let words = if words.trim().is_empty() { String::new() } else { format!(": {}", words.trim()) };
        let what = format!("CDI's upload proxy answers {} for {}{words}", head.status_line(), self.label());
        let (cause, advice) = match head.status {
            401 | 403 => (
                Cause::Access,
                "it did not believe the token that CDI gave: see the clocks of the cluster's nodes and CDI's log",
            ),
            400 if words.contains("available storage") => (
                Cause::TargetFull,
                "CDI reckons with less room in the volume: see target.size_unit and CDI's filesystemOverhead",
            ),
            502..=504 => (Cause::Connection, "see CDI's upload pod beside the claim, then `drover resume`"),
            _ => (Cause::Target, "see CDI's upload pod beside the claim, then `drover resume`"),
        };
        ProviderError::new(cause, what).advise(advice)
    }

    /// Waits until CDI says that the volume has all of it.
    fn taken(&self, uid: &str) -> Result<(), ProviderError> {
        self.wait("was not said to hold all by CDI", || {
            let claim = match self.get()? {
                Ok(claim) => claim.filter(|claim| objects::uid(claim) == uid),
                Err(why) => return Ok(Err(why)),
            };
            let Some(claim) = claim else {
                let what = format!("claim {} was removed while its disk was sent", self.label());
                return Err(ProviderError::new(Cause::Target, what).advise("see who removed it"));
            };
            Ok(match upload::standing(&claim) {
                Standing::Done => Ok(()),
                Standing::Ready => Err("its upload pod has not ended".into()),
                Standing::Waiting(why) => Err(why),
            })
        })
    }
}

impl OneWay for ToClaim {
    fn way(&self) -> String {
        format!(
            "sent through CDI's upload proxy at {}, since no pod of drover's runs in the namespace",
            self.proxy.url
        )
    }

    fn tag(&self) -> Result<Option<String>, ProviderError> {
        let found = self.wait("could not be looked at", || self.get())?;
        Ok(found.filter(has_taken).map(|claim| tag_of(&claim)))
    }

    fn begin(&self, first: &[u8], size: u64) -> Result<(String, Box<dyn Upload>), ProviderError> {
        if let Some(format) = upload::taken_for(first) {
            let what = format!(
                "the disk of {} begins as an image of the format {format} does, and CDI would unpack it",
                self.label()
            );
            return Err(ProviderError::new(Cause::Target, what)
                .advise("move it with worker pods, which write what they get, or see what the guest keeps at the beginning of this disk"));
        }
        let (claim, connection) = self.wait("took no upload", || {
            let claim = self.ready()?;
            match self.begin_once(&claim, size)? {
                Begun::Yes(connection) => Ok(Ok((claim, connection))),
                Begun::Later(words) => {
                    log!("kubevirt", "{words}");
                    Ok(Err(words))
                }
            }
        })?;
        let uid = objects::uid(&claim).to_string();
        Ok((tag_of(&claim), Box::new(Sending { to: self.clone(), connection, uid, failure: None })))
    }
}

/// Whether CDI has all of a disk, in a claim that stays.
fn has_taken(claim: &Value) -> bool {
    !objects::is_going(claim) && upload::standing(claim) == Standing::Done
}

/// A server that is away, as one that is just restarted, is a reason to look again.
fn passing<T>(asked: Result<T, KubeError>) -> Result<Result<T, String>, ProviderError> {
    match asked {
        Err(error) if matches!(error.kind, KubeErrorKind::Unreachable | KubeErrorKind::Server) => {
            Ok(Err(error.what))
        }
        asked => asked.map(Ok).map_err(failed),
    }
}

fn tag_of(claim: &Value) -> String {
    format!("upload to claim {}", objects::uid(claim))
}

/// A disk on its way.
struct Sending {
    to: ToClaim,
    connection: Box<Connection>,
    /// Of the claim.
    uid: String,
    failure: Option<ProviderError>,
}

impl Sending {
    /// Keeps what the proxy says of a broken upload; if it says nothing, what broke.
    fn broke(&mut self, error: HttpError) -> io::Error {
        let words = error.to_string();
        let mut briefly = 3;
        let mut go_on = || {
            briefly -= 1;
            briefly > 0
        };
        let answer = self.connection.finish(BEGIN_WITHIN, &mut go_on);
        self.failure = Some(match answer {
            Ok(head) if head.status >= 300 => self.to.refused(&mut self.connection, &head),
            Ok(_) | Err(_) => self.to.proxy.failed(error),
        });
        io::Error::other(words)
    }

    fn stopped(&mut self) -> io::Error {
        let what = format!("the upload to {} was stopped", self.to.label());
        self.failure = Some(ProviderError::new(Cause::Cancelled, what.clone()));
        io::Error::other(what)
    }

    /// Waits for bytes that may be sent.
    fn wait_for_leave(&mut self, bytes: u64) -> io::Result<()> {
        while let Err(wait) = self.to.limit.take(bytes) {
            if self.to.stop.is_set() {
                return Err(self.stopped());
            }
            std::thread::sleep(wait);
        }
        Ok(())
    }
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        self.wait_for_leave(piece.len() as u64)?;
        let stop = self.to.stop.clone();
        match self.connection.write_body(piece, &mut || !stop.is_set()) {
            Ok(()) => Ok(piece.len()),
            Err(_) if stop.is_set() => Err(self.stopped()),
            Err(error) => Err(self.broke(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Upload for Sending {
    fn finish(&mut self) -> Result<(), ProviderError> {
        let stop = self.to.stop.clone();
        let asks = |why: &str| log!("kubevirt", "{}: {why}: asking CDI how far it is", self.to.label());
        match self.connection.finish(FINISH_WITHIN, &mut || !stop.is_set()) {
            // Said by what is on the way, which does not wait as long as CDI works.
            Ok(head) if (502..=504).contains(&head.status) => {
                asks(&head.status_line());
                let refused = self.to.refused(&mut self.connection, &head);
                return self.to.taken(&self.uid).map_err(|_| refused);
            }
            Ok(head) if !(200..300).contains(&head.status) => {
                return Err(self.to.refused(&mut self.connection, &head));
            }
            Ok(_) => {}
            // Something on the way does not wait as long as CDI works; CDI says itself when it is done, and never of a part.
            Err(error) if error.is_transient() && !stop.is_set() => {
                asks(&error.to_string());
                return self.to.taken(&self.uid).map_err(|_| self.to.proxy.failed(error));
            }
            Err(error) if stop.is_set() => {
                let what = format!("the upload to {} was stopped", self.to.label());
                return Err(ProviderError::new(Cause::Cancelled, what).because(error));
            }
            Err(error) => return Err(self.to.proxy.failed(error)),
        }
        self.to.taken(&self.uid)
    }

    fn failure(&mut self) -> Option<ProviderError> {
        self.failure.take()
    }
}
