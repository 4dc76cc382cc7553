//! Sending spans: OTLP over HTTP as JSON, by a thread of its own behind a queue of bounded length.
//!
//! A collector that is slow or away loses spans, and costs a run [`END_TIME`] at its end.
//!
//! Written here, and not by OpenTelemetry's crates, because all of it is one POST of one document (opentelemetry-proto,
//! `docs/specification.md`, "OTLP/HTTP"; JSON as in "JSON Protobuf Encoding").

use std::env;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_engine::chain;
use drover_http::{Client, HttpError, Request, Timeouts, Trust, Url};
use drover_log::log;
use serde_json::{Value, json};

use super::text;

/// What is left of the spans at the end of a run has to be sent within that.
const END_TIME: Duration = Duration::from_secs(2);
/// Spans that wait to be sent; further ones are lost.
const QUEUE_MAX: usize = 4096;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// A span waits so long at most for others to go with.
const BATCH_TIME: Duration = Duration::from_secs(5);
/// A collector's answer is not longer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// For a request, if `OTEL_EXPORTER_OTLP_TIMEOUT` does not say otherwise.
const TIMEOUT_MS: u64 = 10_000;

/// Where spans go. They are sent when it ends, at the latest.
pub struct Export {
    queue: SyncSender<Value>,
    told: Arc<Told>,
    /// Is closed when the thread has ended.
    over: Mutex<Receiver<()>>,
}

#[derive(Default)]
struct Told {
    lost: AtomicU64,
    /// Why the latest spans did not arrive.
    failed: Mutex<Option<String>>,
}

/// Spans were not taken.
pub struct NotSent {
    why: String,
    /// A later try may go well.
    is_passing: bool,
}

impl Export {
    /// An export to the collector that the environment names, if it names one.
    ///
    /// # Errors
    /// What is wrong with the variables.
    pub fn begin() -> Result<Option<Export>, String> {
        Collector::of(|name| env::var(name).ok())?
            .map(|collector| Export::by(move |spans| collector.send(spans), BATCH_TIME))
            .transpose()
    }

    pub(super) fn by(
        send: impl Fn(&[Value]) -> Result<(), NotSent> + Send + 'static,
        batch_time: Duration,
    ) -> Result<Export, String> {
        let (queue, spans) = sync_channel(QUEUE_MAX);
        let (is_at_work, over) = sync_channel::<()>(0);
        let told = Arc::<Told>::default();
        let (own, name) = (told.clone(), "traces".to_string());
        let work = move || {
            let _is_at_work = is_at_work;
            own.work(&spans, send, batch_time);
        };
        Builder::new().name(name).spawn(work).map_err(|error| format!("no thread can be had: {error}"))?;
        Ok(Export { queue, told, over: Mutex::new(over) })
    }

    /// Sends a span when it is its turn. Never waits.
    pub(super) fn send(&self, span: Value) {
        if self.queue.try_send(span).is_err() {
            self.told.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what is left; gives why spans did not arrive.
    pub(super) fn end(self) -> Option<String> {
        let Export { queue, told, over } = self;
        drop(queue);
        let over = over.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_late = over.recv_timeout(END_TIME) == Err(RecvTimeoutError::Timeout);
        let failed = told.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let late =
            is_late.then(|| format!("the collector did not take them within {} s", END_TIME.as_secs()));
        match (failed.or(late), told.lost.load(Ordering::Relaxed)) {
            (why, 0) => why,
            (why, lost) => {
                Some(format!("{lost} spans are lost; {}", why.unwrap_or("the queue was full".into())))
            }
        }
    }
}

impl Told {
    fn work(
        &self,
        queue: &Receiver<Value>,
        send: impl Fn(&[Value]) -> Result<(), NotSent>,
        batch_time: Duration,
    ) {
        let (mut spans, mut until) = (Vec::new(), Instant::now() + batch_time);
        let mut is_over = false;
        while !is_over {
            match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(span) => {
                    spans.push(span);
                    if spans.len() < BATCH_MAX {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_over = true,
            }
            until = Instant::now() + batch_time;
            if spans.is_empty() {
                continue;
            }
            let sent = send(&spans);
            let may_come =
                matches!(&sent, Err(error) if error.is_passing && spans.len() < BATCH_MAX && !is_over);
            if let Err(error) = &sent {
                log!("trace", "{} spans were not sent: {}", spans.len(), error.why);
            }
            if sent.is_ok() {
                spans.clear();
            } else if !may_come {
                self.lost.fetch_add(take(&mut spans).len() as u64, Ordering::Relaxed);
            }
            // What arrived in a later try is no loss.
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = sent.err().map(|error| error.why);
        }
    }
}

/// A collector, and what all spans of this process have in common.
#[derive(Debug)]
struct Collector {
    url: Url,
    trust: Trust,
    timeout: Duration,
    headers: Vec<(String, String)>,
    resource: Vec<Value>,
}

impl Collector {
    /// That of the variables of OpenTelemetry. An empty one is as none.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Collector>, String> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let exporter = |name: &str| {
            let own = variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
            own.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let own = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let all = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
        let all = all.map(|url| format!("{}/v1/traces", url.trim_end_matches('/')));
        let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
        let Some(url) = own.or(all).filter(|_| !is_disabled) else { return Ok(None) };
        match variable("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                return Err(format!("OTEL_TRACES_EXPORTER is {other}, and drover knows otlp and none"));
            }
        }
        if exporter("PROTOCOL").is_some_and(|protocol| protocol == "grpc") {
            return Err("OTEL_EXPORTER_OTLP_PROTOCOL is grpc; name the collector's address for HTTP".into());
        }
        let timeout_ms = exporter("TIMEOUT").map_or(Ok(TIMEOUT_MS), |text| text.trim().parse());
        let timeout_ms = timeout_ms.map_err(|_| "OTEL_EXPORTER_OTLP_TIMEOUT is no number of milliseconds")?;
        let mut resource = pairs(&variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let named = resource.iter().find(|(key, _)| key == "service.name").map(|(_, name)| name.clone());
        let service = variable("OTEL_SERVICE_NAME").or(named).unwrap_or_else(|| "drover".into());
        resource.retain(|(key, _)| key != "service.name");
        resource.push(("service.name".into(), service));
        Ok(Some(Collector {
            url: url.parse().map_err(|error: HttpError| chain(&error))?,
            trust: exporter("CERTIFICATE").map_or(Trust::System, |path| Trust::CaFile(path.into())),
            timeout: Duration::from_millis(timeout_ms),
            headers: pairs(&exporter("HEADERS").unwrap_or_default()),
            resource: resource.iter().map(|(key, value)| text(key, value)).collect(),
        }))
    }

    fn send(&self, spans: &[Value]) -> Result<(), NotSent> {
        let not_sent = |why: &str, is_passing| NotSent { why: format!("{}: {why}", self.url), is_passing };
        match self.post(spans) {
            Ok(200..=299) => Ok(()),
            Ok(status) => {
                // OTLP/HTTP, "Retryable Response Codes".
                let is_passing = matches!(status, 429 | 502..=504);
                Err(not_sent(&format!("it answered with status {status}"), is_passing))
            }
            Err(error) => Err(not_sent(&chain(&error), true)),
        }
    }

    fn post(&self, spans: &[Value]) -> Result<u16, HttpError> {
        let scope = json!({ "name": "drover", "version": env!("CARGO_PKG_VERSION") });
        let document = json!({ "resourceSpans": [{
            "resource": { "attributes": self.resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }] });
        let request = Request::post(self.url.path.clone(), document.to_string());
        let request = request.with_header("Content-Type", "application/json");
        let request = self
            .headers
            .iter()
            .fold(request, |request, (name, value)| request.with_header(name, value.clone()));
        let timeouts = Timeouts { connect: self.timeout, stall: self.timeout, answer: self.timeout };
        let mut connection = Client::new(self.url.endpoint.clone(), &self.trust, timeouts)?.connect()?;
        connection.send(&request)?;
        let status = connection.read_head()?.status;
        connection.read_body(ANSWER_BYTES_MAX)?;
        Ok(status)
    }
}

/// `key=value,key=value`, values percent-encoded.
fn pairs(list: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim().to_string(), decoded(value.trim())))
    };
    list.split(',').filter_map(pair).collect()
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|it| std::str::from_utf8(it).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Collector>, String> {
        Collector::of(|name| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn the_variables_of_opentelemetry_say_where_spans_go_and_what_they_are_from() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c.lab:4318/");
        assert!(of(&[]).unwrap().is_none() && of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).unwrap().is_none());
        assert!(of(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap().is_none());
        assert!(of(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
        for (name, value) in [
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ] {
            let error = of(&[endpoint, (name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
        let plain = of(&[endpoint]).unwrap().unwrap();
        assert_eq!(plain.url.to_string(), "http://c.lab:4318/v1/traces");
        assert_eq!(plain.resource, [text("service.name", "drover")]);
        let all = of(&[
            endpoint,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t.lab:1/own"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, y=c=d"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,site=a"),
            ("OTEL_SERVICE_NAME", "mine"),
        ]);
        let all = all.unwrap().unwrap();
        assert_eq!(all.url.to_string(), "http://t.lab:1/own");
        assert_eq!(all.headers, [("x-key".into(), "a b".to_string()), ("y".into(), "c=d".into())]);
        assert_eq!(all.resource, [text("site", "a"), text("service.name", "mine")]);
        assert_eq!(decoded("100%, %zz %e2%82%ac %"), "100%, %zz € %");
    }

    #[test]
    fn what_a_collector_does_not_take_now_is_sent_again_and_what_it_refuses_is_lost() {
        for (is_passing, lost) in [(true, None), (false, Some("1 spans are lost; "))] {
            let tries = Arc::new(AtomicU64::new(0));
            let own = tries.clone();
            let send = move |_: &[Value]| match own.fetch_add(1, Ordering::SeqCst) {
                0 => Err(NotSent { why: "not now".into(), is_passing }),
                _ => Ok(()),
            };
            let export = Export::by(send, Duration::from_millis(50)).unwrap();
            export.send(json!(1));
            while tries.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            export.send(json!(2));
            let told = export.end();
            assert_eq!(told.is_some(), lost.is_some(), "{told:?}");
            assert!(lost.is_none_or(|lost| told.unwrap().starts_with(lost)));
        }
    }

    #[test]
    fn a_collector_that_never_answers_costs_no_more_than_its_time() {
        let never = |_: &[Value]| loop {
            std::thread::park();
        };
        let (export, began) = (Export::by(never, Duration::ZERO).unwrap(), Instant::now());
        (0..2 * QUEUE_MAX).for_each(|number| export.send(json!(number)));
        let told = export.end().unwrap();
        assert!(told.contains("spans are lost; the collector did not take them within 2 s"), "{told}");
        assert!(began.elapsed() < END_TIME + Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
