//! Following all objects of a kind: a list in pages, then a stream of what changes.

use std::time::{Duration, Instant};

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::cluster::{Cluster, KubeError, KubeErrorKind};

/// Objects of one page of a list.
const PAGE: usize = 500;
/// After how long the server ends a stream, so that one that died unseen is noticed.
const STREAM_SECONDS: u64 = 240;
/// The longest silence of a stream: its end is due before that.
const SILENCE_MAX: Duration = Duration::from_secs(STREAM_SECONDS + 60);
/// One object may be as large as etcd lets it be, and its JSON more.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Events that are read ahead of whoever takes them.
const AHEAD: usize = 64;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is told to a follower.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A list begins: what is not in it any more is gone.
    Begin,
    /// An object is there, or changed.
    There(Value),
    /// The list is complete.
    Complete,
    /// An object is gone; as it was last.
    Gone(Value),
    /// The server cannot be asked now; it is tried again.
    Trouble(KubeError),
}

/// Why a stream is over.
enum Over {
    /// It goes on at its last version.
    Ended,
    /// The server does not have that version any more.
    Stale,
    Trouble(KubeError),
    /// Nobody listens.
    Left,
}

impl Cluster {
    /// Tells all objects at `path` that fit `query` (`labelSelector=...`, may be empty), and all that becomes of them, until `tell`
    /// gives `false`. Lists come in pages and are asked anew only where the server has forgotten what changed since.
    pub fn follow(&self, path: &str, query: &str, mut tell: impl FnMut(Seen) -> bool) {
        let mut version: Option<String> = None;
        let mut pause = PAUSE_MIN;
        loop {
            let over = match &mut version {
                None => match self.list(path, query, &mut tell) {
                    Ok(Some(listed)) => {
                        version = Some(listed);
                        Over::Ended
                    }
                    Ok(None) => Over::Left,
                    Err(error) => Over::Trouble(error),
                },
                Some(version) => {
                    let begun = Instant::now();
                    let over = self.stream(path, query, version, &mut tell);
                    // A proxy may end them at once.
                    if matches!(over, Over::Ended) && begun.elapsed() < PAUSE_MIN {
                        std::thread::sleep(PAUSE_MIN);
                    }
                    over
                }
            };
            match over {
                Over::Left => return,
                Over::Ended => pause = PAUSE_MIN,
                Over::Stale => version = None,
                Over::Trouble(error) => {
                    // Only one that cannot be asked at all keeps its place.
                    if error.kind != KubeErrorKind::Unreachable {
                        version = None;
                    }
                    if !tell(Seen::Trouble(error)) {
                        return;
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// All objects at `path`, in pages.
    ///
    /// # Errors
    /// As all requests; `NotServed` if there are no such objects.
    pub fn all(&self, path: &str) -> Result<Vec<Value>, KubeError> {
        let mut all = Vec::new();
        self.list(path, "", &mut |seen| {
            if let Seen::There(object) = seen {
                all.push(object);
            }
            true
        })?;
        Ok(all)
    }

    /// The version of the list, or nothing if nobody listens.
    fn list(
        &self,
        path: &str,
        query: &str,
        tell: &mut impl FnMut(Seen) -> bool,
    ) -> Result<Option<String>, KubeError> {
        if !tell(Seen::Begin) {
            return Ok(None);
        }
        let (mut next, mut page) = (String::new(), PAGE);
        loop {
            let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
            let list = match self.ask(Method::GET, &format!("{path}?limit={page}&{query}{more}"), None, "") {
                // Large objects: the rest of the list comes in smaller pages.
                Err(error) if error.kind == KubeErrorKind::TooLarge && page > 1 => {
                    page /= 2;
                    continue;
                }
                list => list?,
            };
            let Value::Object(mut list) = list else { return Err(unread(path)) };
            let metadata = list.remove("metadata").unwrap_or_default();
            let Some(Value::Array(items)) = list.remove("items") else { return Err(unread(path)) };
            if !items.into_iter().all(|item| tell(Seen::There(lean(item)))) {
                return Ok(None);
            }
            next = metadata["continue"].as_str().unwrap_or_default().to_string();
            if next.is_empty() {
                let version = metadata["resourceVersion"].as_str().unwrap_or_default().to_string();
                return Ok(tell(Seen::Complete).then_some(version));
            }
        }
    }

    fn stream(
        &self,
        path: &str,
        query: &str,
        version: &mut String,
        tell: &mut impl FnMut(Seen) -> bool,
    ) -> Over {
        let uri = format!(
            "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={STREAM_SECONDS}&resourceVersion={version}&{query}"
        );
        let about = format!("watch of {path}");
        let (sender, mut receiver) = mpsc::channel(AHEAD);
        let client = self.client();
        self.runtime().spawn(async move {
            if let Err(error) = lines(&client, &uri, &about, &sender).await {
                // Whoever listened may have left.
                let _ = sender.send(Err(error)).await;
            }
        });
        while let Some(line) = receiver.blocking_recv() {
            let mut event = match line {
                Ok(event) => event,
                Err(error) => return Over::Trouble(error),
            };
            let object = lean(event["object"].take());
            if event["type"] == "ERROR" {
                return match object["code"].as_u64() {
                    Some(410) => Over::Stale,
                    _ => Over::Trouble(KubeError::new(
                        KubeErrorKind::Server,
                        format!(
                            "watch of {path}: {}",
                            object["message"].as_str().unwrap_or("an error without words")
                        ),
                    )),
                };
            }
            if let Some(at) = object["metadata"]["resourceVersion"].as_str() {
                *version = at.to_string();
            }
            let goes_on = match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => tell(Seen::There(object)),
                Some("DELETED") => tell(Seen::Gone(object)),
                _ => true,
            };
            if !goes_on {
                return Over::Left;
            }
        }
        Over::Ended
    }
}

fn unread(path: &str) -> KubeError {
    KubeError::new(KubeErrorKind::Server, format!("GET {path}: the answer is no list"))
}

/// Without what nobody reads, which is often the larger part.
fn lean(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// Sends each line of a stream as JSON.
async fn lines(
    client: &Client,
    uri: &str,
    about: &str,
    sender: &mpsc::Sender<Result<Value, KubeError>>,
) -> Result<(), KubeError> {
    let failed = |kind, why: String| KubeError::new(kind, format!("{about}: {why}"));
    let away = |why: String| failed(KubeErrorKind::Unreachable, why);
    let request = Request::builder().method(Method::GET).uri(uri).body(Body::empty());
    let request = request.map_err(|error| failed(KubeErrorKind::Refused, error.to_string()))?;
    let answer = tokio::time::timeout(SILENCE_MAX, client.send(request)).await;
    let answer = answer.map_err(|_| away("no answer".into()))?.map_err(|error| away(error.to_string()))?;
    let code = answer.status().as_u16();
    if code == 410 {
        let gone = serde_json::json!({"type": "ERROR", "object": {"code": 410}});
        let _ = sender.send(Ok(gone)).await;
        return Ok(());
    }
    if code != 200 {
        let kind = if matches!(code, 401 | 403) { KubeErrorKind::Denied } else { KubeErrorKind::Server };
        return Err(failed(kind, format!("the server answers {code}")));
    }
    let mut body = answer.into_body();
    let mut held: Vec<u8> = Vec::new();
    loop {
        let frame = tokio::time::timeout(SILENCE_MAX, body.frame()).await;
        let Some(frame) = frame.map_err(|_| away("it fell silent".into()))? else { return Ok(()) };
        let frame = frame.map_err(|error| away(error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        held.extend_from_slice(data);
        while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = held.drain(..=end).collect();
            let event = serde_json::from_slice(&line)
                .map_err(|error| failed(KubeErrorKind::Server, format!("no JSON: {error}")))?;
            if sender.send(Ok(event)).await.is_err() {
                return Ok(());
            }
        }
        if held.len() > LINE_BYTES_MAX {
            return Err(failed(KubeErrorKind::Server, "an event is too large".into()));
        }
    }
}
