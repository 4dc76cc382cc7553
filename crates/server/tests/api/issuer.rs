//! An OpenID Connect issuer on loopback at which browsers log in: it holds each request against what RFC 6749, RFC 7636 and OpenID
//! Connect say of public clients, and writes down what was wrong.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use drover_server::{Grant, IssuerDocuments, LoginClient, OidcOptions, Role};
use serde_json::json;

pub const CLIENT: &str = "drover";

fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What one login asked for.
#[derive(Clone, Debug)]
struct Login {
    challenge: String,
    redirect: String,
    nonce: String,
    renews: bool,
}

/// What the issuer knows, and what happened there.
#[derive(Default)]
struct Book {
    /// Logins by their codes, each for one use.
    codes: HashMap<String, Login>,
    made: usize,
    refresh_tokens: Vec<String>,
    /// What was asked, in one word each.
    asked: Vec<&'static str>,
    wrong: Vec<String>,
}

struct Inner {
    url: String,
    key: EcdsaKeyPair,
    book: Mutex<Book>,
    stopping: AtomicBool,
}

/// Its documents are given to the daemon without a way over the network.
impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

pub struct Issuer {
    inner: Arc<Inner>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl IssuerDocuments for Inner {
    fn get(&self, url: &str, _: usize) -> Result<Vec<u8>, String> {
        let base = &self.url;
        let document = match url.strip_prefix(base.as_str()) {
            Some("/.well-known/openid-configuration") => json!({
                "issuer": base, "jwks_uri": format!("{base}/keys"), "authorization_endpoint": format!("{base}/authorize"),
                "token_endpoint": format!("{base}/token"), "end_session_endpoint": format!("{base}/end"),
            }),
            Some("/keys") => {
                let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
                json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "one", "x": part(x), "y": part(y) }] })
            }
            _ => return Err(format!("there is no {url}")),
        };
        Ok(document.to_string().into_bytes())
    }
}

impl Issuer {
    pub fn start() -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let (url, book, stopping) = (format!("http://{address}"), Mutex::default(), AtomicBool::new(false));
        let inner = Arc::new(Inner { url, key, book, stopping });
        let served = inner.clone();
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept()
                && !served.stopping.load(Ordering::SeqCst)
            {
                served.serve(stream);
            }
        });
        Issuer { inner, address, thread: Some(thread) }
    }

    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Settings of a daemon whose page logs in here.
    pub fn options(&self) -> OidcOptions {
        OidcOptions {
            issuer: self.inner.url.clone(),
            audience: CLIENT.into(),
            claim: "groups".into(),
            roles: vec![("boss".into(), Grant { role: Role::Admin, project: None })],
            client: Some(LoginClient { id: CLIENT.into(), scope: "openid groups".into() }),
            documents: self.inner.clone(),
        }
    }

    /// A token that has ended.
    pub fn ended_token(&self) -> String {
        self.inner.id_token(-60, None)
    }

    pub fn asked(&self) -> Vec<&'static str> {
        self.inner.book.lock().unwrap().asked.clone()
    }

    pub fn wrong(&self) -> Vec<String> {
        self.inner.book.lock().unwrap().wrong.clone()
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        // Lets it look whether it is time to end.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request: method, path, parameters of its URL or of its form, and its head.
struct Asked {
    method: String,
    path: String,
    parameters: HashMap<String, String>,
    head: String,
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let form = String::from_utf8(body).ok()?;
    let text = if form.is_empty() { query } else { &form };
    let parameters = text
        .split('&')
        .filter_map(|it| it.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)));
    Some(Asked { method, path: path.into(), parameters: parameters.collect(), head: lower })
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

impl Inner {
    fn serve(&self, mut stream: TcpStream) {
        // A browser opens connections that it then does not use.
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(500)));
        let Some(asked) = read(&stream) else { return };
        let (status, fields, body) = match (asked.method.as_str(), asked.path.as_str()) {
            ("GET", "/authorize") => self.authorize(&asked),
            ("POST", "/token") => self.token(&asked),
            ("GET", "/end") => self.end(&asked),
            // Nothing but the page's policy keeps it from this.
            ("GET", "/open") => ("200 OK", "Access-Control-Allow-Origin: *\r\n".into(), "{}".into()),
            _ => ("404 Not Found", String::new(), String::new()),
        };
        let length = body.len();
        // Who asked may be gone.
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nConnection: close\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        );
    }

    fn hold(&self, is: bool, what: &str) {
        if !is {
            self.book.lock().unwrap().wrong.push(what.into());
        }
    }

    /// RFC 6749, 4.1.1 and RFC 7636, 4.3. Its page has a link for each thing that may come of it.
    fn authorize(&self, asked: &Asked) -> (&'static str, String, String) {
        let value = |name: &str| asked.parameters.get(name).cloned().unwrap_or_default();
        self.book.lock().unwrap().asked.push("authorize");
        self.hold(value("response_type") == "code", "response_type");
        self.hold(value("client_id") == CLIENT, "client_id");
        self.hold(value("scope") == "openid groups", "scope");
        self.hold(value("code_challenge_method") == "S256", "code_challenge_method");
        self.hold(value("code_challenge").len() == 43, "code_challenge");
        self.hold(value("state").len() >= 43 && value("nonce").len() >= 43, "state and nonce");
        self.hold(!asked.parameters.contains_key("client_secret"), "a secret");
        self.hold(!asked.head.contains("referer:"), "the issuer was told where the browser comes from");
        let link = |text: &str, nonce: &str, renews: bool| {
            let (challenge, redirect) = (value("code_challenge"), value("redirect_uri"));
            let login = Login { challenge, redirect: redirect.clone(), nonce: nonce.into(), renews };
            let mut book = self.book.lock().unwrap();
            let code = format!("code-{}", book.made);
            book.made += 1;
            book.codes.insert(code.clone(), login);
            format!(
                "<p><a href=\"{redirect}?code={code}&state={}&iss={}\">{text}</a>",
                value("state"),
                self.url
            )
        };
        let mut links = [
            link("Continue", &value("nonce"), false),
            link("Continue and stay", &value("nonce"), true),
            link("Another nonce", "another", false),
        ]
        .join("");
        let redirect = value("redirect_uri");
        links += &format!(
            "<p><a href=\"{redirect}?error=access_denied&error_description=not+today&state={}\">Deny</a>",
            value("state")
        );
        links += &format!("<p><a href=\"{redirect}?code=code-0&state=another\">Another state</a>");
        (
            "200 OK",
            "Content-Type: text/html\r\n".into(),
            format!("<!DOCTYPE html><title>issuer</title>{links}"),
        )
    }

    /// RFC 6749, 4.1.3 and 6, RFC 7636, 4.5.
    fn token(&self, asked: &Asked) -> (&'static str, String, String) {
        let value = |name: &str| asked.parameters.get(name).cloned().unwrap_or_default();
        self.hold(asked.head.contains("content-type: application/x-www-form-urlencoded"), "type of the form");
        self.hold(!asked.head.contains("authorization:") && !asked.head.contains("cookie:"), "credentials");
        self.hold(value("client_id") == CLIENT && !asked.parameters.contains_key("client_secret"), "client");
        let origin = asked.head.lines().find_map(|line| line.strip_prefix("origin: ")).unwrap_or_default();
        let fields = format!(
            "Content-Type: application/json\r\nCache-Control: no-store\r\nAccess-Control-Allow-Origin: {origin}\r\n"
        );
        let mut book = self.book.lock().unwrap();
        let answer = match value("grant_type").as_str() {
            "authorization_code" => {
                book.asked.push("code");
                let login = book.codes.remove(&value("code"));
                let challenge = part(digest(&SHA256, value("code_verifier").as_bytes()));
                let fits =
                    |login: &Login| login.challenge == challenge && login.redirect == value("redirect_uri");
                login.filter(fits).map(|login| {
                    let refresh = login.renews.then(|| format!("refresh-{}", book.refresh_tokens.len()));
                    book.refresh_tokens.extend(refresh.clone());
                    json!({ "id_token": self.id_token(600, Some(&login.nonce)), "access_token": "opaque", "refresh_token": refresh })
                })
            }
            "refresh_token" => {
                book.asked.push("refresh");
                let at = book.refresh_tokens.iter().position(|it| *it == value("refresh_token"));
                at.map(|at| {
                    // Each is for one use (RFC 9700, 4.14.2).
                    book.refresh_tokens.remove(at);
                    json!({ "id_token": self.id_token(600, None), "access_token": "opaque" })
                })
            }
            _ => None,
        };
        match answer {
            Some(answer) => ("200 OK", fields, answer.to_string()),
            None => {
                book.wrong.push("a code or refresh token that is not known".into());
                ("400 Bad Request", fields, json!({ "error": "invalid_grant" }).to_string())
            }
        }
    }

    /// OpenID Connect RP-Initiated Logout 1.0, 2.
    fn end(&self, asked: &Asked) -> (&'static str, String, String) {
        let value = |name: &str| asked.parameters.get(name).cloned().unwrap_or_default();
        self.book.lock().unwrap().asked.push("end");
        self.hold(value("client_id") == CLIENT, "client_id at the end");
        self.hold(value("id_token_hint").split('.').count() == 3, "id_token_hint");
        ("302 Found", format!("Location: {}\r\n", value("post_logout_redirect_uri")), String::new())
    }

    fn id_token(&self, lives_s: i64, nonce: Option<&str>) -> String {
        let now_s = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
        let mut claims = json!({ "iss": self.url, "aud": CLIENT, "sub": "ann", "exp": now_s + lives_s, "groups": ["boss"] });
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        let header = json!({ "alg": "ES256", "kid": "one" });
        let message = format!("{}.{}", part(header.to_string()), part(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", part(signature))
    }
}
