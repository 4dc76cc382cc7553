//! Listening: connections up to a bound, TLS, HTTP/1.1, and an orderly end.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::{Extension, Router};
use drover_tls::{KeyPair, TlsError};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::auth::{Gate, TokenFile};
use crate::bounds::Bounds;
use crate::events::{EventHub, Message};
use crate::figures::{self, Figures};
use crate::keys::Keys;
use crate::metrics::Counters;
use crate::oidc::{Oidc, OidcOptions};
use crate::operations::Operations;
use crate::patient::Patient;
use crate::routes::{App, router};
use crate::turns::{Readiness, Turns};

/// Threads that serve connections; what blocks has threads of its own.
const THREADS: usize = 2;
/// How long the answers that are on their way are waited for at the end.
const END_TIME: Duration = Duration::from_secs(5);
/// Rates are told this often to those who watch.
const LIVE_EACH: Duration = Duration::from_secs(1);

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// TLS; in the clear if absent.
    pub tls: Option<KeyPair>,
    /// Tokens.
    pub tokens: TokenFile,
    /// The issuer whose JWTs count beside them, if there is one.
    pub oidc: Option<OidcOptions>,
    /// Whether those without a token may look.
    pub anonymous_view: bool,
    /// Whether those without a token may read `/metrics`.
    pub open_metrics: bool,
    /// What strangers may take.
    pub bounds: Bounds,
}

/// The server could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct ServerError {
    what: String,
    #[source]
    source: io::Error,
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the address is taken, or certificate or key cannot be used.
    pub fn start(
        options: &ServerOptions,
        hub: EventHub,
        operations: Arc<dyn Operations>,
    ) -> Result<Server, ServerError> {
        let tls = options.tls.as_ref().map(tls_acceptor).transpose()?;
        let (stop, stopping) = watch::channel(false);
        let bounds = options.bounds;
        let app = Arc::new(App {
            operations,
            gate: Gate::new(options.tokens.clone()),
            hub,
            bounds,
            keys: Keys::new(bounds.keys, bounds.key_bytes, bounds.key_time),
            counters: Arc::default(),
            turns: Turns::new(&bounds),
            readiness: Readiness::default(),
            oidc: options.oidc.clone().map(|options| Arc::new(Oidc::new(options))),
            told_of_tokens: Mutex::default(),
            event_turns: Arc::new(Semaphore::new(bounds.event_clients)),
            anonymous_view: options.anonymous_view,
            open_metrics: options.open_metrics,
            stopping: stopping.clone(),
        });
        let service = Service { router: router(app.clone()), bounds, counters: app.counters.clone() };
        let runtime = runtime(Turns::threads(&bounds) + THREADS)?;
        runtime.spawn(app.clone().greet_issuer());
        runtime.spawn(tell_rates(app, stopping));
        Server::listen(runtime, options.listen, tls, service, stop)
    }

    /// Begins to tell what a program without an API tells of itself, in the clear and to everybody.
    ///
    /// # Errors
    /// If the address is taken.
    pub fn tell(listen: SocketAddr, figures: Arc<dyn Figures>) -> Result<Server, ServerError> {
        let service =
            Service { router: figures::router(figures), bounds: Bounds::default(), counters: Arc::default() };
        Server::listen(runtime(THREADS)?, listen, None, service, watch::channel(false).0)
    }

    fn listen(
        runtime: Runtime,
        listen: SocketAddr,
        tls: Option<TlsAcceptor>,
        service: Service,
        stop: watch::Sender<bool>,
    ) -> Result<Server, ServerError> {
        let listener = runtime.block_on(TcpListener::bind(listen));
        let listener = listener.map_err(failed(format!("listening on {listen}")))?;
        let address = listener.local_addr().map_err(failed("listening".into()))?;
        let stopping = stop.subscribe();
        let thread = std::thread::Builder::new()
            .name("serve".into())
            .spawn(move || serve(runtime, listener, tls, service, stopping));
        Ok(Server { address, stop, thread: Some(thread.map_err(failed("threads".into()))?) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It has told nobody why, if it panicked.
            let _ = thread.join();
        }
    }
}

fn failed(what: String) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError { what, source }
}

fn runtime(blocking_threads: usize) -> Result<Runtime, ServerError> {
    Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(blocking_threads)
        .thread_name("serve")
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed("threads".into()))
}

fn tls_acceptor(files: &KeyPair) -> Result<TlsAcceptor, ServerError> {
    let failed = |error: TlsError| ServerError {
        what: "TLS".to_string(),
        source: io::Error::new(ErrorKind::InvalidData, error),
    };
    let mut config = drover_tls::server_config(files, None).map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn serve(
    runtime: Runtime,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: Service,
    stopping: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(service.bounds.connections));
    let all = service.bounds.connections as u32;
    runtime.block_on(async {
        accept(listener, tls, service, stopping, connections.clone()).await;
        // Those that do not end in time are cut off.
        let _ = timeout(END_TIME, connections.acquire_many(all)).await;
    });
    runtime.shutdown_timeout(END_TIME);
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: Service,
    mut stopping: watch::Receiver<bool>,
    connections: Arc<Semaphore>,
) {
    let addresses = Addresses::default();
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => return,
        };
        match accepted {
            Ok((stream, from)) => {
                let Some(place) = addresses.enter(from.ip(), service.bounds.address_connections) else {
                    continue;
                };
                let one = One {
                    service: service.clone(),
                    stopping: stopping.clone(),
                    _permit: permit,
                    _place: place,
                };
                tokio::spawn(one.greet(stream, from, tls.clone()));
            }
            // Too many files, or a client that went at once: neither ends the server.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// What answers.
#[derive(Clone)]
struct Service {
    router: Router,
    bounds: Bounds,
    counters: Arc<Counters>,
}

/// One connection.
struct One {
    service: Service,
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

/// Connections by address. It has no more entries than there are connections.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection among those of its address.
struct Place {
    addresses: Addresses,
    address: IpAddr,
}

impl Addresses {
    /// A place for one more connection of an address, if it has not too many.
    fn enter(&self, address: IpAddr, most: usize) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { addresses: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl One {
    async fn greet(self, stream: TcpStream, from: SocketAddr, tls: Option<TlsAcceptor>) {
        // Without it small answers may come late, and nothing else.
        let _ = stream.set_nodelay(true);
        match tls {
            None => self.serve(stream, from).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(self.service.bounds.head_time, tls.accept(stream)).await {
                    self.serve(stream, from).await;
                }
            }
        }
    }

    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, from: SocketAddr) {
        let Service { router, bounds, counters } = self.service;
        let service = TowerToHyperService::new(router.layer(Extension(from)));
        let stream = TokioIo::new(Patient::new(stream, bounds.stall_time));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(bounds.head_time).max_buf_size(bounds.head_bytes);
        let mut connection = std::pin::pin!(http.serve_connection(stream, service));
        counters.connections.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            // What a client did wrong is its own affair.
            _ = connection.as_mut() => {}
            _ = self.stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                let _ = timeout(END_TIME, connection).await;
            }
        }
        counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells those who watch what goes on, while anybody does.
async fn tell_rates(app: Arc<App>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = sleep(LIVE_EACH) => {}
            _ = stopping.changed() => return,
        }
        if !app.hub.is_watched() {
            continue;
        }
        let Ok(live) = app.ask(|operations| Ok(operations.live())).await else { continue };
        for plan in live.plans {
            let data = serde_json::to_string(&plan).unwrap_or_default();
            app.hub.publish(Message { project: plan.project, plan: plan.plan, event: "live", data });
        }
    }
}
