use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConnection, RootCertStore, ServerConnection, StreamOwned};

use super::*;

const BYTES: usize = 3_000_000;

/// What both sides of a test need to shake hands.
struct Trust {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Trust {
    fn new() -> Trust {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["agent".into()]).unwrap().self_signed(&key).unwrap();
        let certificate: CertificateDer<'static> = certificate.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        Trust { client: identity::client(&client), server: identity::server(&server.unwrap()) }
    }

    fn name() -> ServerName<'static> {
        ServerName::try_from("agent").unwrap()
    }
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Both ends by our own records.
fn pair() -> (Tls, Tls) {
    let (trust, (near, far)) = (Trust::new(), sockets());
    let server = trust.server.clone();
    let accepting = thread::spawn(move || Tls::accept(far, server, soon()).unwrap());
    let near = Tls::connect(near, trust.client, Trust::name(), soon()).unwrap();
    (near, accepting.join().unwrap())
}

fn some(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251) as u8 ^ at as u8).collect()
}

/// Takes bytes, and has room for every other record.
#[derive(Default)]
struct Taker {
    all: Vec<u8>,
    asked: usize,
    room: Vec<u8>,
}

impl Taking for Taker {
    fn take(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.all.extend_from_slice(bytes);
        Ok(())
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.asked += 1;
        self.room = vec![0x55; bytes + 1];
        self.asked.is_multiple_of(2).then_some(&mut self.room)
    }

    fn filled(&mut self, bytes: usize) -> Result<(), WireError> {
        let room = std::mem::take(&mut self.room);
        self.take(&room[..bytes])
    }
}

/// Reads until so many bytes have come, or the end.
fn read(reader: &mut TlsReader, bytes: usize) -> io::Result<Vec<u8>> {
    let mut taker = Taker::default();
    while taker.all.len() < bytes {
        if reader.read(&mut taker)? == 0 {
            break;
        }
    }
    Ok(taker.all)
}

#[test]
fn bytes_arrive_in_both_directions_and_the_end_is_told() {
    let (near, far) = pair();
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
        (near.split().unwrap(), far.split().unwrap());
    let bytes = some(BYTES);
    thread::scope(|scope| {
        let bytes = &bytes;
        for out in [&mut near_out, &mut far_out] {
            scope.spawn(move || {
                out.put(bytes).and_then(|()| out.flush()).unwrap();
                out.finish();
            });
        }
        for reader in [&mut near_in, &mut far_in] {
            scope.spawn(move || assert!(read(reader, usize::MAX).unwrap() == *bytes));
        }
    });
    assert!(near_in.is_closed && far_in.is_closed);
}

#[test]
fn keys_are_renewed_after_so_many_records() {
    let (near, far) = pair();
    let ((near_in, mut near_out), (mut far_in, _far_out)) = (near.split().unwrap(), far.split().unwrap());
    drop(near_in);
    Arc::get_mut(&mut near_out.source).unwrap().records_max = 10;
    let bytes = some(BYTES);
    thread::scope(|scope| {
        scope.spawn(|| near_out.put(&bytes).and_then(|()| near_out.flush()).unwrap());
        assert!(read(&mut far_in, BYTES).unwrap() == bytes);
    });
    assert!(near_out.keys.records() <= 10, "{}", near_out.keys.records());
}

/// The library's own records at the far end, which renew and follow.
#[test]
fn the_librarys_records_are_understood_and_ours_by_it_across_renewals() {
    let (trust, (near, far)) = (Trust::new(), sockets());
    let server = ServerConnection::new(trust.server.clone()).unwrap();
    let echo = thread::spawn(move || {
        let mut far = StreamOwned::new(server, far);
        let (mut all, mut some) = (0, vec![0; 100_000]);
        loop {
            let came = far.read(&mut some).unwrap();
            if came == 0 {
                break all;
            }
            all += came;
            // Asks for ours, too.
            far.conn.refresh_traffic_keys().unwrap();
            far.write_all(&some[..came]).unwrap();
        }
    });
    let near = Tls::connect(near, trust.client, Trust::name(), soon()).unwrap();
    let (mut reader, mut writer) = near.split().unwrap();
    let bytes = some(BYTES);
    let (mut before, mut renewed) = (writer.keys.records(), 0);
    for piece in bytes.chunks(40_000) {
        writer.put(piece).and_then(|()| writer.flush()).unwrap();
        assert!(read(&mut reader, piece.len()).unwrap() == piece);
        renewed += u32::from(writer.keys.records() <= before);
        before = writer.keys.records();
    }
    assert!(renewed > 10, "ours were asked for: {renewed}");
    writer.finish();
    assert_eq!(echo.join().unwrap(), BYTES);
}

#[test]
fn the_librarys_client_is_understood() {
    let (trust, (near, far)) = (Trust::new(), sockets());
    let client = ClientConnection::new(trust.client.clone(), Trust::name()).unwrap();
    let sending = thread::spawn(move || {
        let mut near = StreamOwned::new(client, near);
        near.write_all(&some(BYTES)).unwrap();
        near.conn.send_close_notify();
        near.flush().unwrap();
        near.sock.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).unwrap();
        answer
    });
    let (mut reader, mut writer) = Tls::accept(far, trust.server, soon()).unwrap().split().unwrap();
    assert!(read(&mut reader, usize::MAX).unwrap() == some(BYTES));
    assert!(reader.is_closed);
    writer.put(b"all of it").and_then(|()| writer.flush()).unwrap();
    writer.finish();
    assert_eq!(sending.join().unwrap(), b"all of it");
}

#[test]
fn alerts_end_it_by_their_name_and_records_without_data_have_a_bound() {
    let (near, far) = pair();
    let ((_near_in, mut near_out), (mut far_in, _far_out)) = (near.split().unwrap(), far.split().unwrap());
    near_out.seal(Kind::Alert, &[2, 42]).and_then(|()| near_out.flush()).unwrap();
    let error = read(&mut far_in, 1).unwrap_err();
    let told = identity::refusal(&error).is_some_and(|text| !text.contains("BadCertificate"));
    assert!(told && error.to_string().contains("BadCertificate"), "{error}");

    let (near, far) = pair();
    let ((_near_in, mut near_out), (mut far_in, _far_out)) = (near.split().unwrap(), far.split().unwrap());
    for at in 0..=EMPTY_MAX {
        if at % 2 == 0 { near_out.renew() } else { near_out.seal(Kind::Data, b"") }.unwrap();
    }
    near_out.flush().unwrap();
    assert!(read(&mut far_in, 1).unwrap_err().to_string().contains("again and again"));
}

#[test]
fn what_is_neither_a_renewal_nor_a_ticket_is_refused() {
    for (message, is_asked) in
        [(&[24, 0, 0, 1, 0][..], Some(false)), (&[24, 0, 0, 1, 1], Some(true)), (&[4, 0, 0, 0], None)]
    {
        assert_eq!(renewal(message).unwrap(), is_asked);
    }
    for message in
        [&[][..], &[24], &[24, 0, 0, 1, 2], &[24, 0, 0, 1, 0, 24], &[24, 0, 0, 2, 0, 0], &[1, 0, 0, 0]]
    {
        assert!(renewal(message).is_err(), "{message:?}");
    }
}

#[test]
fn bytes_that_were_changed_on_their_way_end_it() {
    let (near, far) = pair();
    let ((_near_in, mut near_out), (mut far_in, _far_out)) = (near.split().unwrap(), far.split().unwrap());
    near_out.seal(Kind::Data, b"first").unwrap();
    near_out.seal(Kind::Data, b"second").unwrap();
    let last = near_out.filled - 1;
    near_out.outgoing[last] ^= 1;
    near_out.flush().unwrap();
    let mut came = Taker::default();
    let error = loop {
        match far_in.read(&mut came) {
            Ok(bytes) => assert_ne!(bytes, 0),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("damaged"), "{error}");
    // The second had room.
    assert_eq!((came.all, came.asked), (b"first".to_vec(), 2));
}
