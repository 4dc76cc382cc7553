//! What an agent takes as a target, and what not.

use std::path::Path;
use std::sync::Arc;

use drover_agent::opening::How;
use drover_agent::{Places, Site};
use drover_disk::{Disk, DiskErrorKind};

use crate::stage::{Stage, source, target};

fn site(folder: &Path) -> Arc<Site> {
    let pools = [("vms".to_string(), folder.to_path_buf())].into();
    Stage::new(Places { pools, state: folder.join("state"), ..Places::default() }).site()
}

fn kind(site: &Arc<Site>, disk: &str, size: u64, how: How) -> Option<DiskErrorKind> {
    target(site, disk, size, how).err().map(|error| error.kind)
}

#[test]
fn what_holds_something_is_overwritten_only_if_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![7; 5000]).unwrap();
    assert_eq!(kind(&site, "vms/a.raw", 5000, How::New), Some(DiskErrorKind::Denied));
    assert_eq!(kind(&site, "vms/a.raw", 6000, How::Resume), Some(DiskErrorKind::Denied));
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; 5000]);
    assert!(!folder.path().join("a.raw.drover-fence").exists(), "nobody wrote");
    let resumed = target(&site, "vms/a.raw", 5000, How::Resume).unwrap();
    assert!(!resumed.features().zeroed && !resumed.opened().is_new);
    drop(resumed);
    let forced = target(&site, "vms/a.raw", 6000, How::Force).unwrap();
    assert!(forced.features().zeroed && forced.opened().is_new);
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; 6000]);
}

#[test]
fn a_source_that_is_written_to_while_it_is_read_is_told_when_it_is_asked_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![7; 5000]).unwrap();
    let disk = source(&site, "vms/a.raw");
    disk.check_same().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 100).unwrap();
    let error = disk.check_same().unwrap_err();
    assert!(
        error.kind == DiskErrorKind::Failed && error.source.to_string().contains("changed at its site"),
        "{error}"
    );
}

#[test]
fn places_that_are_not_there_are_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    for (disk, words) in [
        ("other/a", "no pool 'other'; pools that there are: vms"),
        ("lun", "no device or export 'lun'; there are no devices and exports; a file is POOL/NAME"),
        ("vms/x/a", "no folder"),
    ] {
        let error = target(&site, disk, 100, How::New).err().unwrap();
        assert!(error.source.to_string().contains(words), "{disk}: {}", error.source);
        assert!(site.stat(disk).is_err());
    }
    assert_eq!(kind(&site, "vms/../a", 100, How::New), Some(DiskErrorKind::Denied));
    assert_eq!(
        kind(&site, "vms/a.raw", 100, How::Resume),
        Some(DiskErrorKind::Gone),
        "nothing to go on with"
    );
}

#[test]
fn an_agent_tells_what_it_has_and_what_is_where() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    let info = site.info().unwrap();
    assert_eq!(info.pools[0].name, "vms");
    assert!(info.pools[0].free_bytes.is_some());
    assert_eq!(site.stat("vms/a.raw").unwrap().size, None);
    drop(target(&site, "vms/a.raw", 70_000, How::New).unwrap());
    let stat = site.stat("vms/a.raw").unwrap();
    assert_eq!((stat.size, stat.holds_nothing), (Some(70_000), true));
    let tag = target(&site, "vms/a.raw", 70_000, How::Resume).unwrap().opened().tag.clone();
    assert_eq!(stat.tag, tag);
}

#[test]
fn a_disk_larger_than_any_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    let error = target(&site, "vms/a.raw", 1 << 60, How::New).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Unsupported, "{}", error.source);
    assert!(!folder.path().join("a.raw").exists());
}
