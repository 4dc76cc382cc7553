//! Certificates and keys, made for each test.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use crate::Dir;

/// The serial number of [`Authority::server`]'s certificates.
const SERVER_SERIAL: u64 = 77;

/// Somebody who issues certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A folder for a server whose certificate it signed itself, and that calls itself an authority, as appliances do.
pub fn self_signed(name: &str) -> Dir {
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let dir = Dir::new();
    std::fs::write(dir.file("server-cert.pem"), &pem).unwrap();
    std::fs::write(dir.file("server-key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(dir.file("ca-cert.pem"), &pem).unwrap();
    dir
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self, folder: &Path, role: &str, names: &[&str], purpose: ExtendedKeyUsagePurpose) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, role);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.serial_number = Some(SerialNumber::from(SERVER_SERIAL));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.join(format!("{role}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{role}-key.pem")), key.serialize_pem()).unwrap();
    }

    /// A folder for a server that is known by these names, and believes this authority.
    pub fn server(&self, names: &[&str]) -> Dir {
        let dir = self.client_without_key();
        self.issue(&dir.file(""), "server", names, ExtendedKeyUsagePurpose::ServerAuth);
        dir
    }

    /// A folder for a client that has a certificate of its own.
    pub fn client(&self) -> Dir {
        let dir = self.client_without_key();
        self.issue(&dir.file(""), "client", &[], ExtendedKeyUsagePurpose::ClientAuth);
        dir
    }

    /// A folder for a client that only believes this authority.
    pub fn client_without_key(&self) -> Dir {
        let dir = Dir::new();
        std::fs::write(dir.file("ca-cert.pem"), &self.pem).unwrap();
        dir
    }

    /// Puts a list into the folder that revokes the server's certificates.
    pub fn revoke_server(&self, folder: &Dir) {
        let (now, later) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2100, 1, 1));
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(SERVER_SERIAL),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: later,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        std::fs::write(folder.file("ca-crl.pem"), list.signed_by(&self.issuer).unwrap().pem().unwrap())
            .unwrap();
    }
}
