//! Texts that may never end: the logs of pods.

use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use kube::Client;
use kube::client::Body;
use tokio::sync::mpsc;

use crate::access::words_of;
use crate::cluster::{Cluster, KubeError, KubeErrorKind, answered};

/// A longer line comes in pieces.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How much of a refusal is read.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Lines that are read ahead of whoever takes them.
const AHEAD: usize = 64;

impl Cluster {
    /// Tells each line of a text, without its end, until the text is over or `tell` gives `false`. It may be silent for any time.
    ///
    /// # Errors
    /// As all requests; what was told before is told.
    pub fn read_lines(&self, path: &str, mut tell: impl FnMut(&str) -> bool) -> Result<(), KubeError> {
        let (sender, mut receiver) = mpsc::channel(AHEAD);
        let (client, uri) = (self.client(), path.to_string());
        self.runtime().spawn(async move {
            if let Err(error) = send(&client, &uri, &sender).await {
                // Whoever listened may have left.
                let _ = sender.send(Err(error)).await;
            }
        });
        while let Some(line) = receiver.blocking_recv() {
            if !tell(&line?) {
                break;
            }
        }
        Ok(())
    }
}

async fn send(
    client: &Client,
    uri: &str,
    sender: &mpsc::Sender<Result<String, KubeError>>,
) -> Result<(), KubeError> {
    let about = uri.split('?').next().unwrap_or_default();
    let failed = |kind, why: String| KubeError::new(kind, format!("GET {about}: {why}"));
    let away = |why: String| failed(KubeErrorKind::Unreachable, why);
    let request = Request::builder().method(Method::GET).uri(uri).body(Body::empty());
    let request = request.map_err(|error| failed(KubeErrorKind::Refused, error.to_string()))?;
    let answer = client.send(request).await.map_err(|error| away(words_of(&error)))?;
    let code = answer.status().as_u16();
    if code != 200 {
        let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let (kind, why) = match answered(code, &body) {
            Err(told) => told,
            Ok(_) => (KubeErrorKind::Server, format!("the server answers {code}")),
        };
        return Err(failed(kind, why));
    }
    let mut body = answer.into_body();
    let mut held: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| away(error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        held.extend_from_slice(data);
        while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = held.drain(..=end).collect();
            if sender.send(Ok(text_of(&line[..end]))).await.is_err() {
                return Ok(());
            }
        }
        if held.len() >= LINE_BYTES_MAX {
            let piece = std::mem::take(&mut held);
            if sender.send(Ok(text_of(&piece))).await.is_err() {
                return Ok(());
            }
        }
    }
    if !held.is_empty() {
        // Nobody may listen any more.
        let _ = sender.send(Ok(text_of(&held))).await;
    }
    Ok(())
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\r').to_string()
}
