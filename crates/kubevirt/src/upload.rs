//! Uploads to claims by way of CDI: what is asked of its API, and what its controllers say of a claim.
//!
//! ```text
//! drover ── claim with UPLOAD ──────────> API server <── CDI's controllers: a pod of CDI's, then READY on the claim
//!        ── UploadTokenRequest ─────────> CDI's API: a token, good for minutes, looked at when an upload begins
//!        ── POST /v1beta1/upload, token > CDI's upload proxy ──> that pod ──> the volume
//! ```
//!
//! Source: CDI `doc/upload.md`, `pkg/uploadproxy`, `pkg/uploadserver` (c07cdb6f).

use drover_plan::Kubevirt;
use serde_json::{Value, json};

use crate::objects::{annotation, claim_name_of};

/// Where what an upload sends is posted to. The answer comes when all of it is on the volume.
pub const UPLOAD_PATH: &str = "/v1beta1/upload";
/// The group of token requests.
pub const GROUP: &str = "upload.cdi.kubevirt.io";
/// Where CDI says how it is set up.
pub const CONFIG_PATH: &str = "/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config";

/// Has CDI make a claim ready for an upload.
const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
/// Has the claim get a volume although nobody uses it yet.
const BIND_NOW: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Why a claim is not ready, from the nearest cause on.
const WORDS: [&str; 3] = [
    "cdi.kubevirt.io/storage.condition.running.message",
    "cdi.kubevirt.io/storage.condition.bound.message",
    "cdi.kubevirt.io/storage.condition.running.reason",
];

/// What begins an image that CDI would unpack or convert, at which byte: a disk that begins so would not arrive as it is.
const IMAGES: [(&str, usize, &[u8]); 9] = [
    ("gzip", 0, b"\x1f\x8b"),
    ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("xz", 0, b"\xfd7zXZ\x00"),
    ("qcow2", 0, b"QFI\xfb"),
    ("VMDK", 0, b"KDMV"),
    ("VHD", 0, b"conectix"),
    ("VHDX", 0, b"vhdxfile"),
    ("VDI", 0x40, b"\x7f\x10\xda\xbe"),
    ("tar", 0x101, b"ustar"),
];

/// How far the claim of an upload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not ready, and why, as far as CDI says.
    Waiting(String),
    /// An upload may begin.
    Ready,
    /// An upload has ended well; there will be no other.
    Done,
}

/// Makes a fresh claim one that disks are uploaded to.
pub fn for_upload(claim: &mut Value) {
    for (name, value) in [(UPLOAD, ""), (BIND_NOW, "true"), (CONTENT, "kubevirt")] {
        claim["metadata"]["annotations"][name] = json!(value);
    }
}

/// Whether the disk of a claim is uploaded.
pub fn is_for_upload(claim: &Value) -> bool {
    annotation(claim, UPLOAD).is_some()
}

/// How far a claim is.
pub fn standing(claim: &Value) -> Standing {
    let said = |name| annotation(claim, name).filter(|words| !words.is_empty());
    match (said(POD_PHASE), said(POD_READY)) {
        (Some("Succeeded"), _) => Standing::Done,
        (_, Some("true")) => Standing::Ready,
        (phase, _) => Standing::Waiting(match WORDS.into_iter().find_map(said) {
            Some(words) => words.to_string(),
            None if phase.is_some() => format!("CDI's pod is {}", phase.unwrap_or_default()),
            None => "CDI's controllers say nothing of it".to_string(),
        }),
    }
}

/// Asks for leave to upload to a claim.
pub fn token_request(kubevirt: &Kubevirt, claim: &Value) -> (String, Value) {
    let (namespace, name) = (&kubevirt.namespace, claim_name_of(claim));
    let path = format!("/apis/{GROUP}/v1beta1/namespaces/{namespace}/uploadtokenrequests");
    let request = json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "UploadTokenRequest",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"pvcName": name},
    });
    (path, request)
}

/// The leave in the answer.
pub fn token(answer: &Value) -> Option<&str> {
    answer["status"]["token"].as_str().filter(|token| !token.is_empty())
}

/// Where CDI says its proxy is, and who vouches for it (PEM).
pub fn proxy(config: &Value) -> (Option<&str>, Option<&str>) {
    let said = |key: &str| config["status"][key].as_str().map(str::trim).filter(|text| !text.is_empty());
    (said("uploadProxyURL"), said("uploadProxyCA"))
}

/// What CDI would take a disk for that begins with these bytes, if not for a disk.
pub fn taken_for(first: &[u8]) -> Option<&'static str> {
    let fits = |(_, at, mark): &&(&str, usize, &[u8])| first.get(*at..at + mark.len()) == Some(*mark);
    IMAGES.iter().find(fits).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(annotations: Value) -> Value {
        json!({"metadata": {"name": "a-0", "annotations": annotations}})
    }

    #[test]
    fn a_claim_is_ready_when_cdi_says_so_and_done_only_once() {
        let mut fresh = claim(json!({"drover.dev/owner": "x"}));
        assert!(!is_for_upload(&fresh));
        for_upload(&mut fresh);
        assert!(is_for_upload(&fresh) && annotation(&fresh, "drover.dev/owner") == Some("x"));
        assert_eq!(standing(&fresh), Standing::Waiting("CDI's controllers say nothing of it".into()));
        let of = |annotations| standing(&claim(annotations));
        assert_eq!(
            of(json!({POD_READY: "false", POD_PHASE: "Pending"})),
            Standing::Waiting("CDI's pod is Pending".into())
        );
        assert_eq!(
            of(json!({POD_PHASE: "Pending", WORDS[1]: "no volume fits"})),
            Standing::Waiting("no volume fits".into())
        );
        assert_eq!(of(json!({POD_READY: "true", POD_PHASE: "Running"})), Standing::Ready);
        assert_eq!(of(json!({POD_READY: "true", POD_PHASE: "Succeeded"})), Standing::Done);
    }

    #[test]
    fn disks_that_begin_as_images_do_are_told_from_others() {
        let mut disk = vec![0; 4096];
        assert_eq!(taken_for(&disk), None);
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(taken_for(&disk), None);
        for (name, at, mark) in IMAGES {
            let mut image = disk.clone();
            image[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(taken_for(&image), Some(name));
        }
        assert_eq!(taken_for(b"QFI"), None, "too short to be one");
    }

    #[test]
    fn an_address_that_cdi_does_not_tell_is_none() {
        assert_eq!(proxy(&json!({"status": {"uploadProxyURL": " "}})), (None, None));
        let told = json!({"status": {"uploadProxyURL": "cdi.example.org", "uploadProxyCA": "PEM"}});
        assert_eq!(proxy(&told), (Some("cdi.example.org"), Some("PEM")));
        assert_eq!(token(&json!({"status": {"token": ""}})), None);
    }
}
