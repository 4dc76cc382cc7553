//! The target of a world.

use super::*;

impl TargetProvider for World {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("prepare", &vm.target_name, |_| std::fs::create_dir_all(&vm.folder).unwrap())
    }

    fn places(&self, vm: &PlannedVm, _: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        let needs = vm.disks.iter().map(|disk| disk.disk.capacity_bytes).enumerate().collect();
        let at = self.folder.path().to_path_buf();
        let place = if self.silent.contains(&vm.vm.name) { "silence" } else { "world" };
        Ok(vec![TargetPlace {
            key: place.into(),
            label: format!("the {place}"),
            at,
            needs,
            overcommits: self.overcommits,
        }])
    }

    fn free_bytes(&self, _: &PlannedVm, place: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        let others_arrived = || {
            let rows = self.store.vms(PLAN).unwrap();
            rows.iter().all(|row| row.state == VmState::Done || self.silent.contains(&row.name))
        };
        let mut looks = if place.key == "silence" { 1500 } else { 0 };
        while looks > 0 {
            if others_arrived() {
                self.was_silent.store(true, Ordering::SeqCst);
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
            looks -= 1;
        }
        Ok(self.free_bytes)
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        self.call("open target", &vm.target_name, |state| {
            let is_new = !state.images.contains_key(&disk.path);
            let name = disk.path.display().to_string();
            std::fs::write(&disk.path, "").unwrap();
            let image = state.images.entry(disk.path.clone()).or_insert_with(|| MemDisk::blank(&name, size));
            if self.is_full.load(Ordering::SeqCst) {
                image.add_fault(DiskOp::Write, Nth::From(1), Effect::Fail(DiskErrorKind::OutOfSpace));
            }
            OpenedTarget { disk: Arc::new(image.clone()), tag: name, is_new, zeroed: is_new, link: None }
        })
    }

    fn has_image(&self, disk: &PlannedDisk, _: &PlannedVm) -> Result<bool, ProviderError> {
        match self.state().next_trouble("has image") {
            Some(_) => Err(ordered("has image")),
            None => Ok(disk.path.exists()),
        }
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        self.call("open for verify", &vm.target_name, |state| {
            self.at_work.open(state.images[&disk.path].clone(), vm)
        })
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        let given = vm.first_boot.addresses.iter().map(|it| format!(", given {}", it.with_prefix()));
        self.call("convert", &vm.target_name, |_| {
            Converted::Skipped(format!("a fake{}", given.collect::<String>()))
        })
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("forget conversion", &vm.target_name, |_| ())
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        self.call("define", &vm.target_name, |state| {
            state.defined.insert(vm.target_name.clone());
            state.machines.insert(vm.target_name.clone(), vm.clone());
            "defined".into()
        })
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("undo define", &vm.target_name, |state| {
            state.defined.remove(&vm.target_name);
        })
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("make ready", &vm.target_name, |_| ())
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        let watched = self.state().watched;
        self.clock.sleep(watched);
        self.call("start", &vm.target_name, |state| {
            assert!(state.defined.contains(&vm.target_name), "started without a definition");
            assert!(state.running_at_target.insert(vm.target_name.clone()), "started twice");
            Started { line: "started".into(), watched }
        })
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.call("is running", &vm.target_name, |state| state.running_at_target.contains(&vm.target_name))
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("stop", &vm.target_name, |state| {
            state.running_at_target.remove(&vm.target_name);
        })
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("remove images", &vm.target_name, |state| {
            for disk in &vm.disks {
                state.images.remove(&disk.path);
                let _ = std::fs::remove_file(&disk.path);
                let _ = std::fs::remove_file(journal_path(&disk.path));
            }
        })
    }
}
