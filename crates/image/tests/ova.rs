//! Appliances as VMware and VirtualBox write them.
#![allow(clippy::unwrap_used)]

mod support;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_image::{Format, ManifestCheck, Ova};
use drover_types::inventory::{DiskBus, Firmware};
use support::{Folder, Random, has_qemu, mixture, read_all};

const MIB: usize = 1 << 20;

/// As ovftool writes it, with a second disk that starts empty.
const VMWARE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<Envelope vmw:buildId="build-1" xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
  xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData" xmlns:vmw="http://www.vmware.com/schema/ovf">
  <References><File ovf:href="web%2001-disk1.vmdk" ovf:id="file1" ovf:size="SIZE"/></References>
  <DiskSection><Info>Disks</Info>
    <Disk ovf:capacity="3" ovf:capacityAllocationUnits="byte * 2^20" ovf:diskId="vmdisk1" ovf:fileRef="file1"
      ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized" ovf:populatedSize="1"/>
    <Disk ovf:capacity="20" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk2"
      ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
  </DiskSection>
  <NetworkSection><Info/><Network ovf:name="VM Network"><Description/></Network></NetworkSection>
  <DeploymentOptionSection><Info/>
    <Configuration ovf:id="small"><Label/></Configuration>
    <Configuration ovf:id="large" ovf:default="true"><Label/></Configuration></DeploymentOptionSection>
  <VirtualSystem ovf:id="web01"><Info/><Name>web 01 &amp; more</Name>
    <OperatingSystemSection ovf:id="96" vmw:osType="debian11_64Guest"><Info/></OperatingSystemSection>
    <VirtualHardwareSection><Info/>
      <System><vssd:ElementName>x</vssd:ElementName><vssd:VirtualSystemType>vmx-14</vssd:VirtualSystemType></System>
      <Item><rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits><rasd:InstanceID>1</rasd:InstanceID>
        <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>2</rasd:VirtualQuantity></Item>
      <Item ovf:configuration="large huge"><rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits>
        <rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>
        <rasd:VirtualQuantity>4</rasd:VirtualQuantity><vmw:CoresPerSocket ovf:required="false">2</vmw:CoresPerSocket></Item>
      <Item ovf:configuration="small"><rasd:InstanceID>1</rasd:InstanceID>
        <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
      <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>4096</rasd:VirtualQuantity></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>3</rasd:InstanceID>
        <rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:Address>1</rasd:Address><rasd:InstanceID>5</rasd:InstanceID>
        <rasd:ResourceSubType>vmware.nvme.controller</rasd:ResourceSubType><rasd:ResourceType>20</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>4</rasd:AddressOnParent><rasd:ElementName>Hard disk 2</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/vmdisk2</rasd:HostResource><rasd:InstanceID>9</rasd:InstanceID>
        <rasd:Parent>5</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard disk 1</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource><rasd:InstanceID>8</rasd:InstanceID>
        <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>7</rasd:AddressOnParent><rasd:AutomaticAllocation>true</rasd:AutomaticAllocation>
        <rasd:Connection>VM Network</rasd:Connection><rasd:ElementName>Network adapter 1</rasd:ElementName>
        <rasd:InstanceID>11</rasd:InstanceID><rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>
        <rasd:ResourceType>10</rasd:ResourceType></Item>
      <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="efi"/>
      <vmw:Config ovf:required="false" vmw:key="bootOptions.efiSecureBootEnabled" vmw:value="true"/>
    </VirtualHardwareSection>
    <ProductSection><Info/><Property ovf:key="ip" ovf:type="string"/></ProductSection>
  </VirtualSystem>
</Envelope>
"#;

struct Parts {
    folder: Folder,
    content: Vec<u8>,
}

/// A folder with an appliance: descriptor, disk, manifest by `program` (`sha1sum` and so on).
fn parts(algorithm: &str) -> Parts {
    let folder = Folder::new();
    let content = mixture(3 * MIB, 7);
    std::fs::write(folder.file("a.raw"), &content).unwrap();
    folder.qemu_img("convert -f raw -O vmdk -o subformat=streamOptimized a.raw stream");
    std::fs::rename(folder.file("stream"), folder.file("web 01-disk1.vmdk")).unwrap();
    std::fs::remove_file(folder.file("a.raw")).unwrap();
    let size = std::fs::metadata(folder.file("web 01-disk1.vmdk")).unwrap().len();
    std::fs::write(folder.file("web.ovf"), VMWARE.replace("SIZE", &size.to_string())).unwrap();
    write_manifest(&folder, algorithm);
    Parts { folder, content }
}

fn write_manifest(folder: &Folder, algorithm: &str) {
    let mut lines = String::new();
    for name in ["web.ovf", "web 01-disk1.vmdk"] {
        let program = format!("{}sum", algorithm.to_lowercase());
        let output = Command::new(program).arg(folder.file(name)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        lines += &format!("{algorithm}({name})= {}\n", text.split_whitespace().next().unwrap());
    }
    std::fs::write(folder.file("web.mf"), lines).unwrap();
}

fn pack(folder: &Folder, format: &str) {
    let format = format!("--format={format}");
    folder.run("tar", &[&format, "-cf", "web.ova", "web.ovf", "web.mf", "web 01-disk1.vmdk"]);
}

fn checked(ova: &Ova) -> ManifestCheck {
    let mut last = (0, 0);
    let check = ova.check_manifest(|done, total| {
        assert!(done > last.0 && done <= total);
        last = (done, total);
        ControlFlow::Continue(())
    });
    assert_eq!(last.0, last.1);
    check.unwrap()
}

fn fault(path: &Path) -> (DiskErrorKind, String) {
    let error = Ova::open(path).err().unwrap_or_else(|| panic!("{} was opened", path.display()));
    (error.kind, error.source.to_string())
}

#[test]
fn the_machine_is_told_in_the_inventorys_words() {
    if !has_qemu() {
        return;
    }
    let Parts { folder, .. } = parts("SHA256");
    let ova = Ova::open(folder.path()).unwrap();
    let vm = ova.vm();
    assert_eq!((vm.id.as_str(), vm.name.as_str()), ("web01", "web 01 & more"));
    assert_eq!((vm.cpus, vm.cores_per_socket, vm.memory_mib), (4, 2, 4096));
    assert_eq!((vm.firmware, vm.secure_boot), (Some(Firmware::Uefi), true));
    assert_eq!((vm.guest_id.as_str(), vm.hardware_version.as_str()), ("debian11_64Guest", "vmx-14"));
    let nic = &vm.nics[0];
    assert_eq!((nic.network.as_str(), nic.model.as_str(), nic.connected), ("VM Network", "vmxnet3", true));
    let disks: Vec<_> = vm.disks.iter().map(|disk| (disk.label.as_str(), disk.bus, disk.address)).collect();
    assert_eq!(disks, [("Hard disk 1", DiskBus::Scsi, (0, 0)), ("Hard disk 2", DiskBus::Nvme, (1, 4))]);
    assert_eq!((vm.disks[0].capacity_bytes, vm.disks[1].capacity_bytes), (3 << 20, 20 << 30));
    assert!(ova.notes()[0].contains("1 properties"), "{:?}", ova.notes());
    let [first, second] = &ova.disks()[..] else { panic!("{:?}", ova.disks()) };
    assert_eq!((first.href.as_deref(), first.format), (Some("web%2001-disk1.vmdk"), Some(Format::Vmdk)));
    assert_eq!(first.stored_bytes, std::fs::metadata(folder.file("web 01-disk1.vmdk")).unwrap().len());
    assert_eq!((second.href.as_deref(), second.stored_bytes), (None, 0));
}

#[test]
fn disks_are_read_inside_archives_of_every_kind_and_from_a_folder() {
    if !has_qemu() {
        return;
    }
    let Parts { folder, content } = parts("SHA256");
    for format in ["ustar", "gnu", "pax", "v7"] {
        pack(&folder, format);
        let ova = Ova::open(folder.file("web.ova")).unwrap();
        conformance::check_reader(&ova.open_disk(0).unwrap(), &content);
        assert!(checked(&ova).is_good(), "{format}");
    }
    std::fs::remove_file(folder.file("web.ova")).unwrap();
    for path in [folder.path().to_path_buf(), folder.file("web.ovf")] {
        let ova = Ova::open(path).unwrap();
        assert_eq!(read_all(&ova.open_disk(0).unwrap()).unwrap(), content);
        let empty = ova.open_disk(1).unwrap();
        assert_eq!(empty.size(), 20 << 30);
        assert_eq!(ova.open_disk(2).err().unwrap().kind, DiskErrorKind::Unsupported);
        assert!(checked(&ova).is_good());
    }
}

#[test]
fn long_names_and_binary_sizes_are_read() {
    if !has_qemu() {
        return;
    }
    let Parts { folder, content } = parts("SHA256");
    let long = format!("{}.vmdk", "long name ".repeat(20));
    std::fs::rename(folder.file("web 01-disk1.vmdk"), folder.file(&long)).unwrap();
    let text = std::fs::read_to_string(folder.file("web.ovf")).unwrap();
    std::fs::write(folder.file("web.ovf"), text.replace("web%2001-disk1.vmdk", &long)).unwrap();
    for format in ["pax", "gnu"] {
        folder.run("tar", &[&format!("--format={format}"), "-cf", "web.ova", "web.ovf", &long]);
        let disk = Ova::open(folder.file("web.ova")).unwrap().open_disk(0).unwrap();
        assert_eq!(read_all(&disk).unwrap(), content);
    }
    // The size of the first file, as GNU writes sizes from 8 GiB on.
    let mut bytes = std::fs::read(folder.file("web.ova")).unwrap();
    let size = std::fs::metadata(folder.file("web.ovf")).unwrap().len();
    bytes[124..136].fill(0);
    bytes[124] = 0x80;
    bytes[128..136].copy_from_slice(&size.to_be_bytes());
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    std::fs::write(folder.file("web.ova"), bytes).unwrap();
    Ova::open(folder.file("web.ova")).unwrap().open_disk(0).unwrap();
}

#[test]
fn the_manifest_finds_every_difference() {
    if !has_qemu() {
        return;
    }
    for algorithm in ["SHA1", "SHA256", "SHA512"] {
        let Parts { folder, .. } = parts(algorithm);
        let ova = Ova::open(folder.path()).unwrap();
        let good = checked(&ova);
        assert!(good.is_good() && good.equal.len() == 2 && !good.certificate, "{good:?}");
        let disk = folder.file("web 01-disk1.vmdk");
        let mut bytes = std::fs::read(&disk).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&disk, &bytes).unwrap();
        let check = checked(&ova);
        assert_eq!(check.different, ["web 01-disk1.vmdk"]);
        assert!(!check.is_good());
        let broken_off = ova.check_manifest(|_, _| ControlFlow::Break(()));
        assert!(broken_off.is_err());
        std::fs::remove_file(&disk).unwrap();
        assert_eq!(checked(&ova).missing, ["web 01-disk1.vmdk"]);
        std::fs::write(folder.file("web.mf"), "").unwrap();
        std::fs::write(folder.file("web.cert"), "").unwrap();
        let check = ova.check_manifest(|_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(check.unlisted, ["web.ovf", "web%2001-disk1.vmdk"]);
        assert!(check.certificate && !check.is_good());
        std::fs::remove_file(folder.file("web.mf")).unwrap();
        let check = ova.check_manifest(|_, _| ControlFlow::Continue(())).unwrap();
        assert!(!check.present && !check.is_good());
    }
}

#[test]
fn what_cannot_be_imported_is_told_why() {
    if !has_qemu() {
        return;
    }
    let Parts { folder, .. } = parts("SHA256");
    let path = folder.file("web.ovf");
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
    };
    for (from, to, expected) in [
        ("<Envelope", "<Envelop", "expected 'Envelop'"),
        ("</Envelope>", "", "never closed"),
        ("ovf:fileRef=\"file1\"", "ovf:fileRef=\"file2\"", "not listed"),
        ("/disk/vmdisk1", "/disk/vmdisk7", "not listed"),
        ("ovf:capacity=\"3\"", "ovf:capacity=\"${size}\"", "a number of bytes"),
        ("byte * 2^30", "byte * 2^62", "a number of bytes"),
        ("<rasd:ResourceType>4<", "<rasd:ResourceType>99<", "how much memory"),
        ("ovf:diskId=\"vmdisk2\"", "ovf:diskId=\"vmdisk2\" ovf:parentRef=\"vmdisk1\"", "parent disk"),
        ("</VirtualSystem>", "</VirtualSystem><VirtualSystem/>", "2 machines"),
        ("<?xml version=\"1.0\" encoding=\"UTF-8\"?>", "<!DOCTYPE x [<!ENTITY a 'b'>]>", "document type"),
        ("<Info/>", &"<a>".repeat(1000), "too deeply"),
    ] {
        changed(from, to);
        let (_, message) = fault(&path);
        assert!(message.contains(expected), "{to}: {message}");
    }
    for (from, to, expected) in [
        ("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:compression=\"gzip\"", "unpack it"),
        ("ovf:id=\"file1\"", "ovf:id=\"file1\" ovf:chunkSize=\"1000\"", "unpack it"),
        ("ovf:size=\"", "ovf:size=\"1", "the descriptor says"),
        ("web%2001-disk1.vmdk", "http://example.org/a.vmdk", "plain paths"),
        ("web%2001-disk1.vmdk", "../../../../../etc/passwd", "outside"),
        ("web%2001-disk1.vmdk", "missing.vmdk", "No such file"),
    ] {
        changed(from, to);
        let error = Ova::open(&path).unwrap().open_disk(0).err().unwrap();
        assert!(error.source.to_string().contains(expected), "{to}: {}", error.source);
    }
    std::fs::write(folder.file("other.ovf"), "").unwrap();
    assert!(fault(folder.path()).1.contains("2 .ovf files"));
    std::fs::remove_file(folder.file("other.ovf")).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(fault(folder.path()).1.contains("no .ovf file"));
}

#[test]
fn archives_that_lie_do_no_harm() {
    if !has_qemu() {
        return;
    }
    let Parts { folder, .. } = parts("SHA256");
    pack(&folder, "pax");
    let path = folder.file("web.ova");
    let whole = std::fs::read(&path).unwrap();
    let poke = || {
        let Ok(ova) = Ova::open(&path) else { return };
        let _ = ova.check_manifest(|_, _| ControlFlow::Continue(()));
        for number in 0..ova.disks().len().min(4) {
            let _ = ova.open_disk(number).map(|disk| disk.size() < 1 << 24 && read_all(&disk).is_ok());
        }
    };
    let metadata = whole.windows(7).position(|seven| seven == b"KDMV\x03\0\0").unwrap();
    for length in (0..metadata).step_by(512) {
        std::fs::write(&path, &whole[..length]).unwrap();
        poke();
    }
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(8) {
            bytes[random.below(metadata as u64) as usize] = random.next() as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        poke();
    }
    std::fs::write(&path, vec![b'a'; 5000]).unwrap();
    assert!(fault(&path).1.contains("is it a tar archive"));
    folder.run("tar", &["--hard-dereference", "-cf", "web.ova", "web.ovf", "web.ovf"]);
    assert!(fault(&path).1.contains("twice"));
}
