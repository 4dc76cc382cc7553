//! A simulated vCenter with many VMs of small disks, and plans that move them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use drover_lab::{Drover, Scene, Sim};
use serde_json::{Value, json};

use crate::clone::copy::cases::program;

/// Disks of the first VM, of the second and so on: 12,000 disks of 5,000 VMs.
const DISKS: [usize; 5] = [1, 2, 2, 3, 4];
/// Bytes at the beginning of each disk; the rest is a hole.
const DATA_BYTES: u64 = 256 << 10;
const CAPACITY_BYTES: u64 = 1 << 20;
/// Disks of different content.
const CONTENTS: usize = 16;
const DATASTORES: usize = 20;
/// VMs of one folder of the inventory.
const FOLDER_VMS: usize = 200;

/// What the VMs are like.
#[derive(Clone, Copy)]
pub struct Shape {
    pub vms: usize,
    pub hosts: usize,
    /// Disks of each VM; absent: 1 to 4.
    pub disks: Option<usize>,
    pub data_bytes: u64,
    pub capacity_bytes: u64,
    /// Scenes of different numbers do not share addresses.
    pub number: u8,
}

impl Shape {
    /// Small disks, 1 to 4 of each VM.
    pub fn of(vms: usize, hosts: usize) -> Shape {
        Shape { vms, hosts, disks: None, data_bytes: DATA_BYTES, capacity_bytes: CAPACITY_BYTES, number: 90 }
    }

    fn disks_of(&self, vm: usize) -> usize {
        self.disks.unwrap_or(DISKS[vm % DISKS.len()])
    }

    pub fn disks(&self) -> usize {
        (0..self.vms).map(|vm| self.disks_of(vm)).sum()
    }
}

/// The vCenter, and a folder for plans, state and images.
pub struct Fleet {
    pub sim: Sim,
    pub shape: Shape,
    pub folder: PathBuf,
    scene: Scene,
    contents: Vec<PathBuf>,
}

impl Fleet {
    pub fn new(folder: &Path, shape: Shape) -> Result<Fleet> {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        std::fs::create_dir_all(folder)?;
        let contents = contents(folder, shape.data_bytes)?;
        let vms = (0..shape.vms).map(|number| vm(&shape, number, &contents)).collect();
        let mut scene = Scene::with_hosts(shape.number, shape.hosts, vms);
        let datastore = |number: usize| json!({"name": format!("ds{number}"), "capacity": "64TiB"});
        scene.inventory["datastores"] = (0..DATASTORES).map(datastore).collect();
        scene.inventory["folders"] = (0..shape.vms.div_ceil(FOLDER_VMS)).map(folder_name).collect();
        let sim = Sim::start(&scene.inventory, &folder.join("vsphere"))?;
        Ok(Fleet { sim, shape, folder: folder.to_path_buf(), scene, contents })
    }

    /// A drover with a state of its own.
    pub fn drover(&self, state: &str) -> Result<Drover> {
        Ok(Drover::new(program()?, self.folder.join(state)))
    }

    /// A plan of some of the VMs, with these lines more.
    pub fn plan(&self, name: &str, vms: Range<usize>, lines: &str) -> Result<String> {
        self.plan_into(name, &self.folder.join("vms"), vms, lines)
    }

    /// The same into a folder.
    pub fn plan_into(&self, name: &str, target: &Path, vms: Range<usize>, lines: &str) -> Result<String> {
        let all = self.scene.inventory["vms"].as_array().context("VMs")?;
        let part = Scene { inventory: json!({ "vms": all[vms] }) };
        let path = self.folder.join(format!("{name}.yaml"));
        std::fs::write(&path, part.plan(name, &self.sim, target) + "start: false\n" + lines)?;
        Ok(path.display().to_string())
    }

    /// Every image of these VMs has what its disk had.
    pub fn check_images(&self, target: &Path, vms: Range<usize>) -> Result<usize> {
        let contents: Vec<Vec<u8>> = self.contents.iter().map(std::fs::read).collect::<Result<_, _>>()?;
        let mut checked = 0;
        for vm in vms {
            let name = vm_name(vm);
            for disk in 0..self.shape.disks_of(vm) {
                let image = target.join(&name).join(format!("{name}-{disk}.raw"));
                self.check_image(&image, &contents[content_of(vm, disk)])
                    .with_context(|| image.display().to_string())?;
                checked += 1;
            }
        }
        Ok(checked)
    }

    fn check_image(&self, image: &Path, content: &[u8]) -> Result<()> {
        let mut file = File::open(image)?;
        ensure!(file.metadata()?.len() == self.shape.capacity_bytes, "it has another size than its disk");
        let mut data = vec![0; content.len()];
        file.read_exact(&mut data)?;
        ensure!(data == content, "it has other bytes than its disk");
        file.seek(SeekFrom::Start(content.len() as u64))?;
        let mut rest = Vec::new();
        file.read_to_end(&mut rest)?;
        ensure!(rest.iter().all(|byte| *byte == 0), "it has bytes where its disk has none");
        Ok(())
    }

    /// No VM has a snapshot any more.
    pub fn check_snapshots(&self) -> Result<()> {
        let told = self.sim.get("/vms")?;
        let vms = told.as_array().or_else(|| told["vms"].as_array()).context("a list of VMs")?;
        ensure!(vms.len() == self.shape.vms, "the vCenter tells of {} VMs", vms.len());
        let left = vms.iter().filter(|vm| vm["snapshots"].as_array().is_some_and(|list| !list.is_empty()));
        let left = left.count();
        ensure!(left == 0, "{left} VMs have a snapshot");
        Ok(())
    }
}

pub fn vm_name(number: usize) -> String {
    format!("vm{number:05}")
}

fn folder_name(number: usize) -> Value {
    format!("part{number}").into()
}

fn content_of(vm: usize, disk: usize) -> usize {
    (vm + 7 * disk) % CONTENTS
}

fn contents(folder: &Path, bytes: u64) -> Result<Vec<PathBuf>> {
    let mut random = File::open("/dev/urandom")?;
    let mut content = |number: usize| -> Result<PathBuf> {
        let path = folder.join(format!("content{number}.raw"));
        std::io::copy(&mut random.by_ref().take(bytes), &mut File::create(&path)?)?;
        Ok(path)
    };
    (0..CONTENTS).map(&mut content).collect()
}

fn vm(shape: &Shape, number: usize, contents: &[PathBuf]) -> Value {
    let disk = |disk: usize| {
        json!({
            "file": contents[content_of(number, disk)], "capacity": shape.capacity_bytes, "thin": true,
            "datastore": format!("ds{}", (number / shape.hosts + disk) % DATASTORES), "controller": "pvscsi", "unit": disk,
        })
    };
    json!({
        "name": vm_name(number), "folder": folder_name(number / FOLDER_VMS),
        "host": format!("esx{}.lab", number % shape.hosts + 1), "guest_id": "debian12_64Guest", "firmware": "efi",
        "cpus": 2, "memory_mib": 2048, "power": "off", "cbt": true,
        "nics": [{"network": "VM Network", "mac": format!("00:50:56:a0:{:02x}:{:02x}", number >> 8 & 0xff, number & 0xff)}],
        "disks": (0..shape.disks_of(number)).map(disk).collect::<Vec<_>>(),
    })
}
