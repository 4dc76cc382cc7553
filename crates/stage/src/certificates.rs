//! Certificates as QEMU wants them.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A CA, and certificates of it for both sides, by the names that QEMU wants. Those are in the name of `host-b`.
pub fn certificates(folder: &Path) {
    certificates_for(folder, "host-b");
}

/// The same in another name, which may be an address; those of the client by the names that `virsh` wants, too.
pub fn certificates_for(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let mut ca = CertificateParams::new(vec![]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let put = |file: &str, text: String| std::fs::write(folder.join(file), text).unwrap();
    put("ca-cert.pem", ca.pem());
    put("cacert.pem", ca.pem());
    for side in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_string()]).unwrap().signed_by(&key, &ca).unwrap();
        for dash in ["-", ""] {
            put(&format!("{side}{dash}cert.pem"), certificate.pem());
            put(&format!("{side}{dash}key.pem"), key.serialize_pem());
        }
    }
}
