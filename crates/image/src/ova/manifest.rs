use std::io;

use aws_lc_rs::digest::{self, Algorithm};

use crate::fault::{damaged, unsupported};

/// A line of a manifest: `SHA256(web01-disk1.vmdk)= 0123...`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) file: String,
    pub(crate) digest: Vec<u8>,
}

/// A manifest has a line for each file.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Reads a manifest. Source: DMTF DSP0243, "Manifest file".
pub(crate) fn parse(text: &str) -> io::Result<Vec<Line>> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(line).collect()
}

fn line(line: &str) -> io::Result<Line> {
    let fault = || damaged(format!("a line '{}' in the manifest", line.escape_default()));
    let (name, rest) = line.split_once('(').ok_or_else(fault)?;
    let (file, digest) = rest.rsplit_once('=').ok_or_else(fault)?;
    let file = file.trim_end().strip_suffix(')').ok_or_else(fault)?;
    let digest = unhex(digest.trim()).ok_or_else(fault)?;
    let Some((_, algorithm)) = ALGORITHMS.iter().find(|(known, _)| name.trim().eq_ignore_ascii_case(known))
    else {
        let names = ALGORITHMS.map(|(known, _)| known).join(", ");
        return Err(unsupported(format!("a digest by {}; {names} are known", name.escape_default())));
    };
    if digest.len() != algorithm.output_len() {
        return Err(fault());
    }
    Ok(Line { file: file.to_string(), digest })
}

/// The lengths differ, so a digest tells its own algorithm.
static ALGORITHMS: [(&str, &Algorithm); 4] = [
    ("SHA1", &digest::SHA1_FOR_LEGACY_USE_ONLY),
    ("SHA256", &digest::SHA256),
    ("SHA384", &digest::SHA384),
    ("SHA512", &digest::SHA512),
];

impl Line {
    pub(crate) fn algorithm(&self) -> &'static Algorithm {
        let found = ALGORITHMS.iter().find(|(_, algorithm)| algorithm.output_len() == self.digest.len());
        found.expect("parsing checked the length").1
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_writer_are_read() {
        let sha1 = "a9993e364706816aba3e25717850c26c9cd0d89d";
        for text in [
            format!("SHA1(a (1).vmdk)= {sha1}\r\n\n"),
            format!("sha1 (a (1).vmdk) = {}", sha1.to_uppercase()),
        ] {
            let lines = parse(&text).unwrap();
            assert_eq!(lines[0].file, "a (1).vmdk");
            assert_eq!(digest::digest(lines[0].algorithm(), b"abc").as_ref(), lines[0].digest);
        }
        for text in ["SHA1(a)", "SHA1 a = 00", "SHA256(a)= 00", "SHA1(a)= zz", "SHA1(a)= \u{e4}\u{e4}", "="] {
            assert_eq!(parse(text).unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
        }
        assert_eq!(parse("MD5(a)= 00").unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
