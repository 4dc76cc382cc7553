//! A server between drover and the vCenter that rewrites answers: elements and properties that are missing, empty or odd, bodies
//! that are cut, late or something else, change tracking that contradicts itself.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_http::{Client, Endpoint, Request, Timeouts, Trust, thumbprint_of};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::dice::Dice;

/// What is done to an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rewrite {
    /// A property is not told: its whole `propSet`.
    NoProperty,
    /// An element with text is not there.
    NoElement,
    /// It is there and empty.
    EmptyElement,
    /// Its text is odd: control and direction characters behind it.
    OddText,
    /// It stands there twice.
    Twice,
    /// No power state in anything.
    NoPower,
    /// A power state that nobody knows.
    UnknownPower,
    /// No body.
    Empty,
    /// The connection ends in its middle.
    Cut,
    /// 500 or 503 without a fault.
    Status,
    /// A web page.
    Page,
    Late,
    /// Changed areas beyond the answer's own end.
    AreaBeyond,
    /// Pages of one byte.
    TinyPage,
    /// Areas that begin before the answer does.
    AreaBefore,
    /// No snapshots in what is told of VMs. In no round: those of `NoProperty` strike it now and then.
    NoSnapshots,
}

pub const REWRITES: &[Rewrite] = &[
    Rewrite::NoProperty,
    Rewrite::NoElement,
    Rewrite::EmptyElement,
    Rewrite::OddText,
    Rewrite::Twice,
    Rewrite::NoPower,
    Rewrite::UnknownPower,
    Rewrite::Empty,
    Rewrite::Cut,
    Rewrite::Status,
    Rewrite::Page,
    Rewrite::Late,
    Rewrite::AreaBeyond,
    Rewrite::TinyPage,
    Rewrite::AreaBefore,
];

/// To which answers it is done.
#[derive(Clone, Debug)]
pub struct Rule {
    pub rewrite: Rewrite,
    /// Answers of a kind that go by before it strikes.
    pub skip: u64,
    pub count: u64,
    pub seed: u64,
}

#[derive(Default)]
struct Orders {
    rules: Vec<Rule>,
    cookies: Vec<String>,
}

pub struct Proxy {
    pub endpoint: String,
    pub thumbprint: String,
    orders: Arc<Mutex<Orders>>,
}

impl Proxy {
    /// Before the server at `port` of this host.
    pub fn start(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let orders: Arc<Mutex<Orders>> = Arc::default();
        let upstream: Endpoint = format!("https://127.0.0.1:{port}").parse().unwrap();
        let upstream = Arc::new(Client::new(upstream, &Trust::Insecure, Timeouts::default()).unwrap());
        let (config, shared) = (Arc::new(server_config()), orders.clone());
        // Ends with the test program.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, upstream, orders) = (config.clone(), upstream.clone(), shared.clone());
                std::thread::spawn(move || serve(socket, config, &upstream, &orders));
            }
        });
        let endpoint: Endpoint = here.to_string().parse().unwrap();
        let thumbprint = thumbprint_of(&endpoint, &Trust::Insecure, &Timeouts::default()).unwrap();
        Proxy { endpoint: here.to_string(), thumbprint: thumbprint.to_string(), orders }
    }

    pub fn order(&self, rules: &[Rule]) {
        self.orders.lock().unwrap().rules = rules.to_vec();
    }

    /// Session cookies that went by.
    pub fn cookies(&self) -> Vec<String> {
        self.orders.lock().unwrap().cookies.clone()
    }
}

fn server_config() -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap().self_signed(&key).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap()
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, upstream: &Client, orders: &Mutex<Orders>) {
    let end = socket.try_clone().unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    while let Some(request) = read_request(&mut stream) {
        let Ok(answer) = upstream.send(&request) else { break };
        let method = method_of(&request.body);
        let mut headers = String::new();
        for (name, value) in &answer.head.headers {
            if !matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection") {
                headers += &format!("{name}: {value}\r\n");
            }
            if name == "set-cookie" {
                let token = value.split(';').next().unwrap().split('=').next_back().unwrap();
                orders.lock().unwrap().cookies.push(token.trim_matches('"').to_string());
            }
        }
        let mut sent = Sent { status: answer.head.status, body: answer.body, cut: false };
        // Nothing is done to the disks' bytes: that is what verification is for, and other tests show.
        if let Some(method) = method.filter(|_| request.path.starts_with("/sdk")) {
            sent.spoil(&method, orders);
        }
        // A HEAD has the length of what it does not have.
        let length = match request.method {
            "HEAD" => answer.head.header("content-length").unwrap_or("0").to_string(),
            _ => sent.body.len().to_string(),
        };
        let head = format!("HTTP/1.1 {} OK\r\nContent-Length: {length}\r\n{headers}\r\n", sent.status);
        let half = if sent.cut { sent.body.len() / 2 } else { sent.body.len() };
        let written = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&sent.body[..half]));
        if written.and_then(|()| stream.flush()).is_err() || sent.cut {
            break;
        }
    }
    // The client may have gone already.
    let _ = end.shutdown(Shutdown::Both);
}

fn read_request(stream: &mut impl Read) -> Option<Request> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let method = match first.next()? {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "DELETE" => "DELETE",
        _ => "POST",
    };
    let mut request = Request { method, ..Request::get(first.next()?) };
    let mut length = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "host" | "user-agent" => {}
            _ => request = request.with_header(name, value),
        }
    }
    request.body = vec![0; length];
    stream.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// The method that an envelope calls.
fn method_of(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let call = text.split_once("Body><")?.1;
    call.split([' ', '>', '/']).next().map(str::to_string)
}

struct Sent {
    status: u16,
    body: Vec<u8>,
    cut: bool,
}

impl Sent {
    fn spoil(&mut self, method: &str, orders: &Mutex<Orders>) {
        let Ok(text) = String::from_utf8(self.body.clone()) else { return };
        let mut text = text;
        let mut struck = Vec::new();
        for rule in &mut orders.lock().unwrap().rules {
            let meant = rule.rewrite.is_for(method, &text);
            match (meant, rule.skip, rule.count) {
                (false, ..) | (_, _, 0) => {}
                (_, 1.., _) => rule.skip -= 1,
                _ => {
                    rule.count -= 1;
                    struck.push((rule.rewrite, rule.seed.wrapping_add(rule.count)));
                }
            }
        }
        for (rewrite, seed) in struck {
            let mut dice = Dice::new(seed);
            match rewrite {
                Rewrite::Empty => text.clear(),
                Rewrite::Cut => self.cut = true,
                Rewrite::Status => self.status = *dice.one_of(&[500, 503]),
                Rewrite::Page => text = "<html><body>please log in</body></html>".to_string(),
                Rewrite::Late => std::thread::sleep(Duration::from_millis(100 + dice.roll(1500))),
                rewrite => text = rewritten(rewrite, &text, &mut dice),
            }
        }
        self.body = text.into_bytes();
    }
}

impl Rewrite {
    fn is_for(self, method: &str, answer: &str) -> bool {
        match self {
            Rewrite::AreaBeyond | Rewrite::TinyPage | Rewrite::AreaBefore => {
                method == "QueryChangedDiskAreas"
            }
            Rewrite::NoPower | Rewrite::UnknownPower => answer.contains("powered"),
            Rewrite::NoProperty => answer.contains("<propSet>"),
            Rewrite::NoSnapshots => answer.contains(SNAPSHOTS),
            // The first ones: nothing begins without them.
            _ => !matches!(method, "RetrieveServiceContent" | "Login"),
        }
    }
}

const SNAPSHOTS: &str = "<name>snapshot</name>";

fn rewritten(rewrite: Rewrite, text: &str, dice: &mut Dice) -> String {
    let power = |state: &str| text.replace(">poweredOn<", state).replace(">poweredOff<", state);
    match rewrite {
        Rewrite::NoProperty => {
            let all = places(text, "<propSet>", "</propSet>");
            without(text, (!all.is_empty()).then(|| all[dice.roll(all.len() as u64) as usize]))
        }
        Rewrite::NoPower => {
            let sets = places(text, "<propSet>", "</propSet>");
            let told = sets.into_iter().find(|(from, to)| text[*from..*to].contains("powerState</name>"));
            match told {
                Some(_) => without(text, told),
                None => without(text, places(text, "<powerState>", "</powerState>").first().copied()),
            }
        }
        Rewrite::NoSnapshots => {
            let sets = places(text, "<propSet>", "</propSet>");
            without(text, sets.into_iter().find(|(from, to)| text[*from..*to].contains(SNAPSHOTS)))
        }
        Rewrite::UnknownPower => power(">poweredSomehow<"),
        Rewrite::AreaBeyond => {
            // An answer that speaks for one block, and tells of nothing but what lies farthest behind it.
            let areas = places(text, "<changedArea>", "</changedArea>");
            let Some((last, others)) = areas.split_last() else { return text.to_string() };
            let first = others.first().map_or(last.0, |area| area.0);
            let text = without(text, Some((first, last.0)));
            number_after(&text, "<length>", 0, |length| length.min(64 << 10))
        }
        Rewrite::TinyPage => number_after(text, "<length>", 0, |_| 1),
        Rewrite::AreaBefore => number_after(text, "<startOffset>", 0, |start| start + (64 << 10)),
        rewrite => {
            let all = leaves(text);
            if all.is_empty() {
                return text.to_string();
            }
            let (from, to) = all[dice.roll(all.len() as u64) as usize];
            let leaf = &text[from..to];
            let (open, close) = (leaf.find('>').unwrap() + 1, leaf.rfind('<').unwrap());
            let instead = match rewrite {
                Rewrite::EmptyElement => format!("{}{}", &leaf[..open], &leaf[close..]),
                Rewrite::OddText => {
                    let odd =
                        dice.one_of(&["\u{9b}31m", "\u{85}", "\u{202e}", "&#10;error: no", "\u{2066}/.."]);
                    format!("{}{odd}{}", &leaf[..close], &leaf[close..])
                }
                Rewrite::Twice => format!("{leaf}{leaf}"),
                _ => String::new(),
            };
            format!("{}{instead}{}", &text[..from], &text[to..])
        }
    }
}

/// From `open` to the end of the next `close`, again and again.
fn places(text: &str, open: &str, close: &str) -> Vec<(usize, usize)> {
    let starts = text.match_indices(open).map(|(at, _)| at);
    starts.filter_map(|at| text[at..].find(close).map(|end| (at, at + end + close.len()))).collect()
}

fn without(text: &str, place: Option<(usize, usize)>) -> String {
    place.map_or(text.to_string(), |(from, to)| format!("{}{}", &text[..from], &text[to..]))
}

/// Elements that hold text and nothing else.
fn leaves(text: &str) -> Vec<(usize, usize)> {
    let closes = text.match_indices("</").filter_map(|(close, _)| {
        let end = close + text[close..].find('>')? + 1;
        let open = text[..close].rfind('<')?;
        let name = &text[close + 2..end - 1];
        let is_leaf = text[open + 1..].starts_with(name) && !text[open..close].contains("/>");
        is_leaf.then_some((open, end))
    });
    closes.collect()
}

/// Changes the number behind the `nth` such tag.
fn number_after(text: &str, tag: &str, nth: usize, change: impl Fn(u64) -> u64) -> String {
    let Some((at, _)) = text.match_indices(tag).nth(nth) else { return text.to_string() };
    let from = at + tag.len();
    let to = from + text[from..].find('<').unwrap();
    let Ok(number) = text[from..to].parse() else { return text.to_string() };
    format!("{}{}{}", &text[..from], change(number), &text[to..])
}
