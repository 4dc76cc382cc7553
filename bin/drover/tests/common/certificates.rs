//! Certificates as QEMU wants them.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A CA, and certificates of it for both sides, by the names that QEMU wants. Those are in the name of `host-b`.
pub fn certificates(folder: &Path) {
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca-cert.pem"), ca.pem()).unwrap();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["host-b".to_string()]).unwrap().signed_by(&key, &ca).unwrap();
        std::fs::write(folder.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }
}
