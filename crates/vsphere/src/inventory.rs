use std::collections::HashMap;

use drover_types::inventory::{
    Datastore, Host, HostAddress, Inventory, Network, PhysicalNic, PowerPolicy, PowerState, Vm,
};

use crate::collect::Object;
use crate::error::VsphereError;
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::vm::{Surroundings, VM_KEY_ID, VM_PROPERTIES, decode_name, is_template, power_of, vm_of};
use crate::xml::Element;

const HOST_PROPERTIES: &[&str] = &[
    "name",
    "parent",
    "config.powerSystemInfo",
    "config.network.pnic",
    "config.network.vnic",
    "config.virtualNicManagerInfo.netConfig",
    "summary.config.sslThumbprint",
];
const PLACE_PROPERTIES: &[&str] = &["name", "parent"];

/// Types in the one view that an inventory is read from. Subtypes are in it too: clusters, portgroups.
const VIEW_TYPES: [&str; 7] =
    ["VirtualMachine", "HostSystem", "Datastore", "Network", "Folder", "Datacenter", "ComputeResource"];

impl Session {
    /// Everything the user may see, in one request for each hundred VMs and a few more. Tags are read too, where there
    /// is a vCenter; if that fails, the reason is in [`Session::warnings`].
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn inventory(&self) -> Result<Inventory, VsphereError> {
        let op = "read the inventory";
        let inventory = self.inner.whole_view(op)?;
        let mut inventory = Inventory { about: self.about().clone(), ..inventory };
        inventory.tags_unknown = self.inner.add_tags(&mut inventory.vms);
        self.take_over(&inventory, &[]);
        Ok(inventory)
    }

    /// Takes an inventory that another session of this account read, and its warnings, as if it had read it itself.
    pub fn take_over(&self, inventory: &Inventory, warnings: &[String]) {
        inventory.vms.iter().for_each(|vm| self.inner.learn_name(&vm.id, &vm.name));
        warnings.iter().for_each(|warning| self.inner.warn(warning.clone()));
    }

    /// A fresh look at one VM, without its tags.
    ///
    /// # Errors
    /// Also when it is not there (any more).
    pub fn vm(&self, id: &str) -> Result<Vm, VsphereError> {
        self.inner.vm(id)
    }
}

impl Inner {
    pub fn vm(&self, id: &str) -> Result<Vm, VsphereError> {
        let op = format!("look at {}", self.name_of(id));
        let paths = self.vm_properties();
        let properties: &[(&str, &[&str])] = &[
            ("VirtualMachine", &paths),
            ("ManagedEntity", PLACE_PROPERTIES),
            ("DistributedVirtualPortgroup", &["name", "key"]),
            ("OpaqueNetwork", &["name", "summary"]),
        ];
        let found = self.retrieve(&op, properties, &around_spec(id))?;
        let mut around = Surroundings::default();
        found.iter().for_each(|object| around.learn(object));
        let vm = found.iter().find(|object| object.moref.id == id).map(|object| vm_of(object, &around));
        let vm = vm.ok_or_else(|| {
            VsphereError::new(crate::VsphereErrorKind::NotFound, &op, format!("{id} is not there"))
        })?;
        self.learn_name(&vm.id, &vm.name);
        Ok(vm)
    }

    pub fn power(&self, op: &str, vm: &str) -> Result<PowerState, VsphereError> {
        let object = self.read(op, &Moref::new("VirtualMachine", vm), &["runtime.powerState"])?;
        Ok(power_of(object.text("runtime.powerState")))
    }

    fn vm_properties(&self) -> Vec<&'static str> {
        let newer = (self.content.action != "urn:vim25/6.0").then_some(VM_KEY_ID);
        VM_PROPERTIES.iter().copied().chain(newer).collect()
    }

    /// All below the root, through one view that is removed afterwards.
    fn whole_view(&self, op: &str) -> Result<Inventory, VsphereError> {
        let types: String = VIEW_TYPES.iter().map(|kind| tag("type", kind)).collect();
        let arguments = self.content.root.tag("container") + &types + &tag("recursive", "true");
        let this = &self.content.views;
        let call = Call { op, method: "CreateContainerView", this, arguments: &arguments, is_read: true };
        let answer = self.call(&call)?;
        let view =
            answer.child("returnval").map(Moref::of).unwrap_or_else(|| Moref::new("ContainerView", ""));
        let found = self.viewed(op, &view);
        // A view that stays behind ends with the session.
        let _ = self.call(&Call { op, method: "DestroyView", this: &view, arguments: "", is_read: true });
        found
    }

    /// First which objects there are, then where VMs may be, which is little, then what these are made of: in pages, which the server
    /// makes beside each other.
    fn viewed(&self, op: &str, view: &Moref) -> Result<Inventory, VsphereError> {
        let is_vm = |member: &Moref| member.kind == "VirtualMachine";
        let (members, places): (Vec<Moref>, Vec<Moref>) =
            self.members(op, view)?.into_iter().partition(is_vm);
        let places = self.retrieve_each(op, AROUND_PROPERTIES, &places, |object| object)?;
        let mut around = Surroundings::default();
        places.iter().for_each(|object| around.learn(object));
        let paths = self.vm_properties();
        let vm = |object: Object| (!is_template(&object)).then(|| vm_of(&object, &around));
        let vms = self.retrieve_each(op, &[("VirtualMachine", &paths)], &members, vm)?;
        let templates = vms.iter().filter(|vm| vm.is_none()).count();
        Ok(Inventory {
            vms: vms.into_iter().flatten().collect(),
            templates,
            ..surroundings_of(&places, &around)
        })
    }

    /// The objects of a view, which may tell none if it is empty.
    fn members(&self, op: &str, view: &Moref) -> Result<Vec<Moref>, VsphereError> {
        let told = self.read(op, view, &["view"])?;
        if let Some(members) = told.get("view") {
            return Ok(members.children.iter().map(Moref::of).collect());
        }
        // One that only does not tell leads to its objects all the same.
        if self.retrieve(op, AROUND_PROPERTIES, &view_spec(view))?.is_empty() {
            return Ok(Vec::new());
        }
        let why = "the view of all objects does not tell which they are";
        Err(VsphereError::new(crate::VsphereErrorKind::NotVsphere, op, why))
    }
}

/// Of all that is no VM.
const AROUND_PROPERTIES: &[(&str, &[&str])] = &[
    ("HostSystem", HOST_PROPERTIES),
    ("Datastore", &["name", "summary.capacity", "summary.freeSpace"]),
    ("Network", &["name"]),
    ("DistributedVirtualPortgroup", &["name", "key"]),
    ("OpaqueNetwork", &["name", "summary"]),
    ("Folder", PLACE_PROPERTIES),
    ("Datacenter", PLACE_PROPERTIES),
    ("ComputeResource", PLACE_PROPERTIES),
];

fn view_spec(view: &Moref) -> String {
    format!(
        "<objectSet>{}<skip>true</skip><selectSet xsi:type=\"TraversalSpec\"><name>view</name>\
         <type>ContainerView</type><path>view</path><skip>false</skip></selectSet></objectSet>",
        view.tag("obj")
    )
}

/// A VM, all that lies above it, its host's way up, and its networks.
fn around_spec(vm: &str) -> String {
    let step = |name: &str, kind: &str, path: &str, next: &str| {
        let next = if next.is_empty() {
            String::new()
        } else {
            format!("<selectSet>{}</selectSet>", tag("name", next))
        };
        format!(
            "<selectSet xsi:type=\"TraversalSpec\"><name>{name}</name><type>{kind}</type><path>{path}</path>\
             <skip>false</skip>{next}</selectSet>"
        )
    };
    format!(
        "<objectSet>{}<skip>false</skip>{}{}{}</objectSet>",
        Moref::new("VirtualMachine", vm).tag("obj"),
        step("up", "ManagedEntity", "parent", "up"),
        step("host", "VirtualMachine", "runtime.host", "up"),
        step("networks", "VirtualMachine", "network", ""),
    )
}

/// An inventory without VMs.
fn surroundings_of(objects: &[Object], around: &Surroundings) -> Inventory {
    let mut inventory = Inventory::default();
    for object in objects {
        match object.moref.kind.as_str() {
            "HostSystem" => inventory.hosts.push(host_of(object, around)),
            "Datastore" => inventory.datastores.push(datastore_of(object)),
            "Network" | "OpaqueNetwork" | "DistributedVirtualPortgroup" => inventory
                .networks
                .push(Network { id: object.moref.id.clone(), name: decode_name(&object.string("name")) }),
            _ => {}
        }
    }
    inventory
}

fn datastore_of(object: &Object) -> Datastore {
    Datastore {
        id: object.moref.id.clone(),
        name: decode_name(&object.string("name")),
        capacity_bytes: object.number("summary.capacity").unwrap_or(0),
        free_bytes: object.number("summary.freeSpace").unwrap_or(0),
    }
}

fn host_of(object: &Object, around: &Surroundings) -> Host {
    Host {
        id: object.moref.id.clone(),
        name: decode_name(&object.string("name")),
        cluster: around.cluster(&object.moref.id),
        power_policy: object.get("config.powerSystemInfo").and_then(power_policy),
        physical_nics: object.get("config.network.pnic").map(physical_nics).unwrap_or_default(),
        addresses: addresses(object),
        thumbprint: object.text("summary.config.sslThumbprint").map(str::to_string),
    }
}

fn power_policy(info: &Element) -> Option<PowerPolicy> {
    match info.text_at("currentPolicy/shortName")? {
        "static" => Some(PowerPolicy::HighPerformance),
        "dynamic" => Some(PowerPolicy::Balanced),
        "low" => Some(PowerPolicy::LowPower),
        _ => Some(PowerPolicy::Custom),
    }
}

fn physical_nics(list: &Element) -> Vec<PhysicalNic> {
    let nic = |nic: &Element| PhysicalNic {
        device: nic.string_at("device"),
        link_mbps: nic.number_at("linkSpeed/speedMb").filter(|speed| *speed > 0),
    };
    list.all("PhysicalNic").map(nic).collect()
}

/// The host's own addresses, each with the services that are switched on for it.
fn addresses(object: &Object) -> Vec<HostAddress> {
    let services = object.get("config.virtualNicManagerInfo.netConfig").map(services).unwrap_or_default();
    let Some(vnics) = object.get("config.network.vnic") else { return Vec::new() };
    let address = |vnic: &Element| {
        let device = vnic.string_at("device");
        HostAddress {
            address: vnic.string_at("spec/ip/ipAddress"),
            services: services.get(&device).cloned().unwrap_or_default(),
            device,
        }
    };
    vnics.all("HostVirtualNic").map(address).collect()
}

/// Services by device. Selected NICs are told by key; the candidates tell which device a key is.
fn services(configs: &Element) -> HashMap<String, Vec<String>> {
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    for config in configs.all("VirtualNicManagerNetConfig") {
        let Some(service) = config.text_at("nicType") else { continue };
        for selected in config.all("selectedVnic") {
            let device = config.all("candidateVnic").find(|vnic| vnic.text_at("key") == Some(&selected.text));
            // Without a candidate the key itself ends in the device: `...VirtualNic-vmk0`.
            let device =
                device.and_then(|vnic| vnic.text_at("device")).or_else(|| selected.text.rsplit('-').next());
            found.entry(device.unwrap_or_default().to_string()).or_default().push(service.to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::object_of;
    use crate::xml;

    #[test]
    fn a_host_tells_its_addresses_and_their_services() {
        let text = "<o><obj type=\"HostSystem\">host-1</obj>\
            <propSet><name>name</name><val>esx1</val></propSet>\
            <propSet><name>config.powerSystemInfo</name><val><currentPolicy><key>1</key><shortName>static</shortName>\
            </currentPolicy></val></propSet>\
            <propSet><name>config.network.pnic</name><val><PhysicalNic><device>vmnic0</device><linkSpeed><speedMb>25000\
            </speedMb></linkSpeed></PhysicalNic><PhysicalNic><device>vmnic1</device></PhysicalNic></val></propSet>\
            <propSet><name>config.network.vnic</name><val><HostVirtualNic><device>vmk0</device><spec><ip><ipAddress>10.0.0.5\
            </ipAddress></ip></spec></HostVirtualNic></val></propSet>\
            <propSet><name>config.virtualNicManagerInfo.netConfig</name><val><VirtualNicManagerNetConfig>\
            <nicType>vSphereBackupNFC</nicType><candidateVnic><device>vmk0</device><key>k-0</key></candidateVnic>\
            <selectedVnic>k-0</selectedVnic></VirtualNicManagerNetConfig><VirtualNicManagerNetConfig>\
            <nicType>management</nicType><selectedVnic>management.key-vim.host.VirtualNic-vmk0</selectedVnic>\
            </VirtualNicManagerNetConfig></val></propSet></o>";
        let host = host_of(&object_of(xml::parse(text).unwrap()), &Surroundings::default());
        assert_eq!((host.power_policy, host.thumbprint), (Some(PowerPolicy::HighPerformance), None));
        assert_eq!(host.physical_nics[0].link_mbps, Some(25000));
        assert_eq!(host.physical_nics[1].link_mbps, None);
        assert_eq!(host.addresses[0].address, "10.0.0.5");
        assert_eq!(host.addresses[0].services, ["vSphereBackupNFC", "management"]);
    }
}
