//! A collector of OpenTelemetry on loopback, and the spans that it was sent.

use std::sync::{Arc, Mutex};

use drover_lab::served::serve;
use serde_json::Value;

pub struct Collector {
    pub url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    /// It ends with the test.
    pub fn start() -> Collector {
        let spans = Arc::<Mutex<Vec<Value>>>::default();
        let kept = spans.clone();
        let url = serve(move |asked| {
            assert!(asked.head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{}", asked.head);
            let document: Value = serde_json::from_slice(&asked.body).unwrap();
            let scope = &document["resourceSpans"][0]["scopeSpans"][0];
            kept.lock().unwrap().extend(scope["spans"].as_array().unwrap().clone());
            (200, "{}".to_string())
        });
        let url = url.unwrap();
        Collector { url, spans }
    }

    pub fn spans(&self) -> Vec<Value> {
        self.spans.lock().unwrap().clone()
    }
}
