//! CDI as drover sees it, played: its API of token requests behind the true API server's aggregation, its upload proxy, and what its
//! controllers write to claims. What is uploaded goes into a file for each claim. CDI itself cannot be had here.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use drover_lab::Cluster;
use drover_lab::cluster::Hand;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::kubernetes::{CLAIMS, NAMESPACE};

const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
const TARGET: &str = "cdi.kubevirt.io/storage.upload.target";
const POLL: Duration = Duration::from_millis(100);

/// What becomes of the next upload.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is refused before its first byte.
    Refuse(u16, &'static str),
    /// The connection ends without a word before its first byte.
    HangUp,
    /// After so many bytes it is answered, and the rest is not read.
    Answer(u64, u16, &'static str),
    /// After so many bytes the connection ends.
    Cut(u64),
    /// All of it is taken, and the connection ends without an answer.
    Mute,
    /// All of it is taken, and what is on the way has given up: it answers this.
    Late(u16),
}

#[derive(Default)]
struct State {
    faults: VecDeque<Fault>,
    /// By token, the claim that it is for. A token that was used is kept.
    tokens: HashMap<String, String>,
    /// Whether tokens are good for nothing.
    expired: bool,
    /// Whether the proxy takes no connections.
    is_away: bool,
    /// How many requests for a token are answered by an error yet.
    tokenless: u32,
    /// By name, the UID of the claim that there is.
    uids: HashMap<String, String>,
    /// UIDs of claims that an upload ended well for.
    done: Vec<String>,
    /// Whether the controllers do nothing.
    idle: bool,
    /// Bytes that came for each upload, in order.
    came: Vec<u64>,
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

pub struct Cdi {
    pub port: u16,
    /// PEM of the authority of its proxy.
    pub authority: PathBuf,
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    is_over: Arc<AtomicBool>,
    player: Option<JoinHandle<()>>,
}

impl Cdi {
    /// Comes into a cluster, with its true schema of settings; nothing where that is not there.
    pub fn install(cluster: &mut Cluster, folder: &Path) -> Option<Cdi> {
        if !cluster.install_schema("cdiconfigs.cdi.kubevirt.io", "v1beta1").unwrap() {
            return None;
        }
        let (state, is_over) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let (config, pem) = server_config();
        let authority = folder.join("cdi-authority.pem");
        std::fs::write(&authority, pem).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (shared, to) = (state.clone(), folder.to_path_buf());
        // Ends with the test program.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, state, folder) = (config.clone(), shared.clone(), to.clone());
                std::thread::spawn(move || serve(socket, config, &state, &folder));
            }
        });
        aggregate(cluster, port);
        let (hand, shared, over) = (cluster.hand(), state.clone(), is_over.clone());
        let player = std::thread::spawn(move || {
            while !over.load(SeqCst) {
                play(&hand, &shared);
                std::thread::sleep(POLL);
            }
        });
        Some(Cdi { port, authority, folder: folder.to_path_buf(), state, is_over, player: Some(player) })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Has CDI's settings tell where the proxy is, and whose certificate it has.
    pub fn tell(&self, cluster: &Cluster) {
        let authority = std::fs::read_to_string(&self.authority).unwrap();
        let config = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": {"name": "config"}, "spec": {},
            "status": {"uploadProxyURL": format!("127.0.0.1:{}", self.port), "uploadProxyCA": authority}});
        let all = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs";
        let made = cluster.make(all, &config).unwrap();
        if made["status"].is_null() {
            cluster.merge(&format!("{all}/config/status"), &json!({"status": config["status"]})).unwrap();
        }
    }

    pub fn fail(&self, faults: &[Fault]) {
        self.state().faults = faults.iter().cloned().collect();
    }

    pub fn expire_tokens(&self, expired: bool) {
        self.state().expired = expired;
    }

    /// Has the proxy hang up on everybody, while CDI's API is there.
    pub fn go_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    pub fn give_no_tokens(&self, times: u32) {
        self.state().tokenless = times;
    }

    pub fn stand_still(&self, idle: bool) {
        self.state().idle = idle;
    }

    /// Bytes that came for each upload so far.
    pub fn came(&self) -> Vec<u64> {
        self.state().came.clone()
    }

    /// What lies in a claim's volume.
    pub fn volume(&self, claim: &str) -> PathBuf {
        volume(&self.folder, claim)
    }
}

impl Drop for Cdi {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        if let Some(player) = self.player.take() {
            let _ = player.join();
        }
    }
}

fn volume(folder: &Path, claim: &str) -> PathBuf {
    folder.join(format!("{claim}.raw"))
}

/// The API server brings requests of the group to where this listens.
fn aggregate(cluster: &mut Cluster, port: u16) {
    let outside = cluster.let_out(port).unwrap();
    let (host, port) = outside.rsplit_once(':').unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cdi-api"},
        "spec": {"type": "ExternalName", "externalName": host}});
    cluster.make("/api/v1/namespaces/default/services", &service).unwrap();
    let api = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.upload.cdi.kubevirt.io"},
        "spec": {"group": "upload.cdi.kubevirt.io", "version": "v1beta1", "groupPriorityMinimum": 1000, "versionPriority": 15,
                 "insecureSkipTLSVerify": true,
                 "service": {"namespace": "default", "name": "cdi-api", "port": port.parse::<u16>().unwrap()}}});
    cluster.make("/apis/apiregistration.k8s.io/v1/apiservices", &api).unwrap();
    crate::process::wait_until("the API server reaches CDI's", crate::kubernetes::PATIENCE, || {
        cluster.get("/apis/upload.cdi.kubevirt.io/v1beta1").ok().flatten().is_some()
    });
}

/// What its controllers write to claims that are to be uploaded to.
fn play(hand: &Hand, state: &Mutex<State>) {
    // What cannot be read now can be the next time.
    let Ok(Some(list)) = hand.get(CLAIMS) else { return };
    for claim in list["items"].as_array().into_iter().flatten() {
        let (name, annotations) =
            (claim["metadata"]["name"].as_str().unwrap(), &claim["metadata"]["annotations"]);
        let (path, key) =
            (format!("{CLAIMS}/{name}"), claim["metadata"]["uid"].as_str().unwrap().to_string());
        if !claim["metadata"]["deletionTimestamp"].is_null() {
            // Nobody has it, which the controller manager would find.
            let _ = hand.merge(&path, &json!({"metadata": {"finalizers": null, "uid": key}}));
            continue;
        }
        let (idle, is_done) = {
            let mut state = state.lock().unwrap();
            state.uids.insert(name.to_string(), key.clone());
            (state.idle, state.done.contains(&key))
        };
        if annotations[TARGET].is_null() || idle {
            continue;
        }
        let wanted = if is_done {
            json!({PHASE: "Succeeded", READY: "false"})
        } else {
            json!({PHASE: "Running", READY: "true"})
        };
        if annotations[PHASE] != wanted[PHASE] {
            let _ = hand.merge(&path, &json!({"metadata": {"annotations": wanted, "uid": key}}));
        }
    }
}

fn server_config() -> (Arc<ServerConfig>, String) {
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
    let server = server.signed_by(&key, &authority).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    (Arc::new(config), authority.pem())
}

/// The head of a request, and what came behind it.
struct Head {
    line: String,
    fields: Vec<(String, String)>,
}

impl Head {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn length(&self) -> u64 {
        self.field("content-length").map_or(0, |text| text.parse().unwrap())
    }
}

fn read_head(stream: &mut Stream) -> Option<Head> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let mut lines = text.lines();
    let line = lines.next().unwrap().to_string();
    let field = |line: &str| {
        let (key, value) = line.split_once(':')?;
        Some((key.to_lowercase(), value.trim().to_string()))
    };
    Some(Head { line, fields: lines.filter_map(field).collect() })
}

fn answer(stream: &mut Stream, status: u16, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // Whoever asked may be gone.
    let _ = stream.write_all((head + body).as_bytes()).and_then(|()| stream.flush());
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, state: &Mutex<State>, folder: &Path) {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    while let Some(head) = read_head(&mut stream) {
        let mut words = head.line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let path = path.split('?').next().unwrap();
        let is_of_proxy = matches!(path, "/v1beta1/upload" | "/healthz");
        if is_of_proxy && state.lock().unwrap().is_away {
            return;
        }
        if path == "/v1beta1/upload" {
            if upload(&mut stream, &head, state, folder).is_none() {
                return;
            }
            continue;
        }
        let mut body = vec![0; head.length() as usize];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        match (method, path) {
            ("GET", "/healthz") => answer(&mut stream, 200, "OK"),
            ("GET", "/apis/upload.cdi.kubevirt.io/v1beta1") => answer(&mut stream, 200, &resources()),
            ("POST", path) if path.ends_with("/uploadtokenrequests") => {
                assert!(path.contains(&format!("/namespaces/{NAMESPACE}/")), "{path}");
                let mut request: Value = serde_json::from_slice(&body).unwrap();
                let claim = request["spec"]["pvcName"].as_str().unwrap().to_string();
                let mut state = state.lock().unwrap();
                if state.tokenless > 0 {
                    state.tokenless -= 1;
                    answer(&mut stream, 503, "no endpoints");
                    continue;
                }
                let token = format!("token-{}", state.tokens.len());
                state.tokens.insert(token.clone(), claim);
                request["status"] = json!({"token": token});
                answer(&mut stream, 200, &request.to_string());
            }
            _ => answer(&mut stream, 404, "404 page not found"),
        }
    }
}

fn resources() -> String {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "upload.cdi.kubevirt.io/v1beta1",
        "resources": [{"name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
                       "kind": "UploadTokenRequest", "verbs": ["create"]}]})
    .to_string()
}

/// Takes an upload; nothing if the connection is to end.
fn upload(stream: &mut Stream, head: &Head, state: &Mutex<State>, folder: &Path) -> Option<()> {
    let token = head.field("authorization").and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
    let (claim, fault) = {
        let mut state = state.lock().unwrap();
        let claim = state.tokens.get(token).filter(|_| !state.expired).cloned();
        (claim, state.faults.pop_front())
    };
    let Some(claim) = claim else {
        answer(stream, 401, "");
        return None;
    };
    if let Some(Fault::Refuse(status, words)) = fault {
        answer(stream, status, words);
        return None;
    }
    if let Some(Fault::HangUp) = fault {
        return None;
    }
    assert_eq!(head.field("expect"), Some("100-continue"), "a large body is asked for first");
    stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").and_then(|()| stream.flush()).ok()?;
    let number = {
        let mut state = state.lock().unwrap();
        state.came.push(0);
        state.came.len() - 1
    };
    let mut file = File::create(volume(folder, &claim)).unwrap();
    let (mut left, mut piece) = (head.length(), vec![0; 64 << 10]);
    while left > 0 {
        let wanted = left.min(piece.len() as u64) as usize;
        let got = stream.read(&mut piece[..wanted]).ok().filter(|got| *got > 0)?;
        file.write_all(&piece[..got]).unwrap();
        left -= got as u64;
        let came = head.length() - left;
        state.lock().unwrap().came[number] = came;
        match fault {
            Some(Fault::Cut(bytes)) if came >= bytes => return None,
            Some(Fault::Answer(bytes, status, words)) if came >= bytes => {
                answer(stream, status, words);
                // What is on its way is read, so that the answer is not lost with it.
                let _ = std::io::copy(&mut stream.take(4 << 20), &mut std::io::sink());
                return None;
            }
            _ => {}
        }
    }
    {
        let mut state = state.lock().unwrap();
        let uid = state.uids[&claim].clone();
        state.done.push(uid);
    }
    if let Some(Fault::Late(status)) = fault {
        answer(stream, status, "the server did not answer in time");
        return None;
    }
    if matches!(fault, Some(Fault::Mute)) {
        return None;
    }
    answer(stream, 200, "");
    Some(())
}
