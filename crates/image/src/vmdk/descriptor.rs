use std::io;

use crate::fault::{damaged, unsupported};
use crate::files::FILES_MAX;

/// The text that says what a VMDK consists of: lines `key=value`, and one line for each extent.
///
/// ```text
/// # Disk DescriptorFile
/// CID=fffffffe
/// parentCID=ffffffff
/// createType="twoGbMaxExtentSparse"
/// RW 4192256 SPARSE "disk-s001.vmdk"
/// RW 4192256 FLAT "disk-f001.vmdk" 0
/// ```
/// Source: VMware, "Virtual Disk Format 5.0".
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) content_id: Option<u32>,
    /// Absent if there is no parent.
    pub(crate) parent_id: Option<u32>,
    pub(crate) parent: Option<String>,
    pub(crate) create_type: String,
    pub(crate) extents: Vec<ExtentLine>,
}

/// A line `RW SECTORS KIND "FILE" OFFSET`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExtentLine {
    pub(crate) sectors: u64,
    pub(crate) kind: ExtentKind,
    pub(crate) file: String,
    /// Where in the file, in sectors; flat extents only.
    pub(crate) offset: u64,
}

/// How an extent is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    /// As raw bytes.
    Flat,
    /// With tables.
    Sparse,
    /// As an ESXi snapshot's delta, up to VMFS 5.
    Cowd,
    /// As an ESXi snapshot's delta, from VMFS 6 on and for large disks.
    SeSparse,
    /// Not at all: zeros.
    Zero,
}

/// A descriptor is some hundred bytes, and 30 more for each extent.
pub(crate) const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;

/// "There is no parent."
const NO_PARENT: u32 = 0xffff_ffff;

/// Kinds of disks whose content is in files that are read here.
const CREATE_TYPES: [&str; 9] = [
    "monolithicSparse",
    "monolithicFlat",
    "twoGbMaxExtentSparse",
    "twoGbMaxExtentFlat",
    "streamOptimized",
    "vmfs",
    "vmfsSparse",
    "seSparse",
    "custom",
];

pub(crate) fn is_descriptor(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    head.len() >= MARK.len() && head[..MARK.len()].eq_ignore_ascii_case(MARK)
}

const MARK: &[u8] = b"# Disk DescriptorFile";

impl Descriptor {
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Descriptor> {
        // Inside a sparse file the text is padded with zero bytes.
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let bytes = &bytes[..end];
        if !is_descriptor(bytes) {
            return Err(damaged("its descriptor does not start as one"));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| unsupported("its descriptor is not UTF-8; save it as UTF-8 or rename its files"))?;
        let mut descriptor = Descriptor::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            descriptor.take_line(line)?;
        }
        descriptor.check()?;
        Ok(descriptor)
    }

    fn take_line(&mut self, line: &str) -> io::Result<()> {
        if let Some(extent) = extent_line(line)? {
            if self.extents.len() >= FILES_MAX {
                return Err(unsupported(format!("it consists of more than {FILES_MAX} extents")));
            }
            self.extents.push(extent);
            return Ok(());
        }
        let Some((key, value)) = line.split_once('=') else { return Ok(()) };
        let value = value.trim().trim_matches('"');
        match key.trim().to_ascii_lowercase().as_str() {
            "cid" => self.content_id = Some(id(value)?),
            "parentcid" => self.parent_id = Some(id(value)?).filter(|id| *id != NO_PARENT),
            "parentfilenamehint" => self.parent = Some(value.to_string()),
            "createtype" => self.create_type = value.to_string(),
            "encryption.keysafe" => {
                return Err(unsupported("it is encrypted; decrypt it where it comes from first"));
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        if CREATE_TYPES.iter().any(|known| known.eq_ignore_ascii_case(&self.create_type)) {
            return Ok(());
        }
        Err(unsupported(format!(
            "a VMDK of type '{}'; {} are read. Copy others through vSphere, or convert them where they are \
             with `vmkfstools -i`",
            self.create_type.escape_default(),
            CREATE_TYPES.join(", ")
        )))
    }
}

fn id(text: &str) -> io::Result<u32> {
    u32::from_str_radix(text, 16)
        .map_err(|_| damaged(format!("a content id '{}' in its descriptor", text.escape_default())))
}

/// An extent, if the line is one.
fn extent_line(line: &str) -> io::Result<Option<ExtentLine>> {
    let mut words = line.splitn(4, char::is_whitespace);
    let (Some(access), Some(sectors), Some(kind)) = (words.next(), words.next(), words.next()) else {
        return Ok(None);
    };
    if !matches!(access, "RW" | "RDONLY" | "NOACCESS") {
        return Ok(None);
    }
    let fault = || damaged(format!("an extent '{}' in its descriptor", line.escape_default()));
    let sectors = sectors.parse().map_err(|_| fault())?;
    let kind = match kind {
        "FLAT" | "VMFS" => ExtentKind::Flat,
        "SPARSE" => ExtentKind::Sparse,
        "VMFSSPARSE" => ExtentKind::Cowd,
        "SESPARSE" => ExtentKind::SeSparse,
        "ZERO" => ExtentKind::Zero,
        other => {
            return Err(unsupported(format!(
                "an extent of kind {}; FLAT, VMFS, SPARSE, VMFSSPARSE, SESPARSE and ZERO are read",
                other.escape_default()
            )));
        }
    };
    if access == "NOACCESS" {
        return Err(unsupported("an extent without access"));
    }
    let rest = words.next().unwrap_or("").trim();
    if kind == ExtentKind::Zero {
        return Ok(Some(ExtentLine { sectors, kind, file: String::new(), offset: 0 }));
    }
    let (file, rest) = rest.strip_prefix('"').and_then(|rest| rest.rsplit_once('"')).ok_or_else(fault)?;
    let offset = rest.split_whitespace().next().unwrap_or("0").parse().map_err(|_| fault())?;
    Ok(Some(ExtentLine { sectors, kind, file: file.to_string(), offset }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> io::Result<Descriptor> {
        Descriptor::parse(format!("# Disk DescriptorFile\ncreateType=\"vmfs\"\n{lines}").as_bytes())
    }

    #[test]
    fn reads_ids_types_and_extents_with_odd_names() {
        let found =
            of("CID=0a\r\nparentCID=ffffffff\nRW 8 VMFS \"a \"b\" 2-flat.vmdk\"\nRW 9 ZERO\n\0\0RW").unwrap();
        assert_eq!((found.content_id, found.parent_id, found.create_type.as_str()), (Some(10), None, "vmfs"));
        let file = "a \"b\" 2-flat.vmdk".to_string();
        let first = ExtentLine { sectors: 8, kind: ExtentKind::Flat, file, offset: 0 };
        let second = ExtentLine { sectors: 9, kind: ExtentKind::Zero, file: String::new(), offset: 0 };
        assert_eq!(found.extents, [first, second]);
        let found = of("parentCID=12\nparentFileNameHint=\"base.vmdk\"\nRW 1 FLAT \"x\" 63").unwrap();
        assert_eq!((found.parent_id, found.parent.as_deref()), (Some(0x12), Some("base.vmdk")));
        assert_eq!(found.extents[0].offset, 63);
    }

    #[test]
    fn what_is_not_read_is_named_and_nonsense_is_damage() {
        let kind = |lines: &str| of(lines).unwrap_err().kind();
        for lines in ["RW 1 VMFSRDM \"x\"", "NOACCESS 1 FLAT \"x\"", "createType=\"fullDevice\""] {
            assert_eq!(kind(lines), io::ErrorKind::Unsupported, "{lines}");
        }
        for lines in ["RW -1 FLAT \"x\"", "RW 1 FLAT x", "RW 1 FLAT \"x\" y", "CID=xyz"] {
            assert_eq!(kind(lines), io::ErrorKind::InvalidData, "{lines}");
        }
        assert!(Descriptor::parse(b"createType=\"vmfs\"").is_err());
        let many = "RW 1 ZERO\n".repeat(FILES_MAX + 1);
        assert_eq!(kind(&many), io::ErrorKind::Unsupported);
    }
}
