//! Which way the bytes of a VM take.

use drover_types::inventory::{Host, Vm};

use super::{Choice, Resolver};
use crate::model::{DataFrom, DataPath, HostNetwork, Trust, VsphereSource};
use crate::near::nearest;
use crate::resolution::{HostRoute, Route};

/// The vmknic service that is meant for reading disks.
pub(super) const DATA_SERVICE: &str = "vSphereBackupNFC";
pub(super) const MANAGEMENT_SERVICE: &str = "management";
impl Resolver<'_> {
    pub(super) fn check_hosts(&mut self) {
        for over in self.plan.source.vsphere().iter().flat_map(|source| &source.data.hosts) {
            if !self.inventory.hosts.iter().any(|host| host.name == over.host) {
                let near = nearest(&over.host, self.inventory.hosts.iter().map(|host| host.name.as_str()));
                let advice = near.map_or("see `drover inventory` for the hosts".into(), |near| {
                    format!("did you mean '{near}'?")
                });
                let text = format!("there is no host '{}'", over.host);
                self.error(&format!("source.data.hosts.{}", over.host), over.at, text, advice);
            }
        }
    }

    pub(super) fn route(&mut self, vm: &Vm, choice: &Choice) -> Route {
        let Some(source) = self.plan.source.vsphere() else { return Route::Provider };
        let data = &source.data;
        if data.from == DataFrom::Provider || !self.inventory.about.is_vcenter {
            return Route::Provider;
        }
        let Some(host) = self.inventory.host(&vm.host_id) else {
            self.error_of(
                vm,
                &choice.path,
                choice.at,
                format!("the host of {} is not known", vm.name),
                "use `data: {from: provider}`",
            );
            return Route::Provider;
        };
        let over = data.hosts.iter().find(|over| over.host == host.name);
        let told = over.and_then(|over| over.address.clone());
        let address = told.or_else(|| host_address(data, host)).unwrap_or_else(|| {
            self.no_address(vm, data, host, choice);
            host.name.clone()
        });
        // The vCenter tells the thumbprint of each of its hosts, over a connection that is trusted.
        let known = host.thumbprint.clone().filter(|text| !text.is_empty()).map(Trust::Thumbprint);
        let trust =
            over.and_then(|over| over.trust.clone()).or(known).unwrap_or_else(|| trust_of_hosts(source));
        Route::Host(HostRoute {
            host_id: host.id.clone(),
            host_name: host.name.clone(),
            address,
            port: over.and_then(|over| over.port).unwrap_or(data.port),
            login: over.and_then(|over| over.login.clone()).or(data.login.clone()),
            trust,
        })
    }

    /// Told once for a host, whatever the number of its VMs.
    fn no_address(&mut self, vm: &Vm, data: &DataPath, host: &Host, choice: &Choice) {
        let (wanted, advice) = match &data.network {
            HostNetwork::Auto => {
                ("no address that drover knows".to_string(), "give it under `source.data.hosts`")
            }
            HostNetwork::Device(device) => {
                (format!("no vmknic '{device}'"), "see `drover inventory` for the host's vmknics")
            }
        };
        let message = format!("host {} has {wanted}", host.name);
        match self.problems.iter_mut().find(|problem| problem.message == message) {
            Some(told) => told.vms.push(vm.id.clone()),
            None => self.error_of(vm, "source.data", choice.at, message, advice),
        }
    }
}

/// The vCenter's own thumbprint says nothing of its hosts' certificates.
fn trust_of_hosts(source: &VsphereSource) -> Trust {
    match &source.trust {
        Trust::Thumbprint(_) => Trust::System,
        trust => trust.clone(),
    }
}

fn host_address(data: &DataPath, host: &Host) -> Option<String> {
    let with = |service: &str| host.addresses.iter().find(|it| it.services.iter().any(|tag| tag == service));
    let found = match &data.network {
        HostNetwork::Device(device) => host.addresses.iter().find(|address| address.device == *device),
        HostNetwork::Auto => with(DATA_SERVICE).or_else(|| with(MANAGEMENT_SERVICE)),
    };
    found.map(|address| address.address.clone())
}
