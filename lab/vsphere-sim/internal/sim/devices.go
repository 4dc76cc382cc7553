package sim

import (
	"fmt"

	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// controllerKind says how vSphere numbers a kind of controller and the disks on it.
type controllerKind struct {
	controllerKey int32 // of the first controller
	diskKey       int32 // of unit 0 on the first controller
	units         int32 // per controller
	skip          int32 // unit the controller itself has, or -1
	made          bool  // controllers exist in every VM
	make          func(types.VirtualController) types.BaseVirtualDevice
}

var controllerKinds = map[string]controllerKind{
	"pvscsi": {1000, 2000, 16, 7, false, func(c types.VirtualController) types.BaseVirtualDevice {
		return &types.ParaVirtualSCSIController{VirtualSCSIController: scsi(c)}
	}},
	"lsilogic": {1000, 2000, 16, 7, false, func(c types.VirtualController) types.BaseVirtualDevice {
		return &types.VirtualLsiLogicController{VirtualSCSIController: scsi(c)}
	}},
	"lsisas": {1000, 2000, 16, 7, false, func(c types.VirtualController) types.BaseVirtualDevice {
		return &types.VirtualLsiLogicSASController{VirtualSCSIController: scsi(c)}
	}},
	"sata": {15000, 16000, 30, -1, false, func(c types.VirtualController) types.BaseVirtualDevice {
		return &types.VirtualAHCIController{VirtualSATAController: types.VirtualSATAController{VirtualController: c}}
	}},
	"nvme": {31000, 32000, 15, -1, false, func(c types.VirtualController) types.BaseVirtualDevice {
		return &types.VirtualNVMEController{VirtualController: c}
	}},
	"ide": {200, 3000, 2, -1, true, nil},
}

func scsi(c types.VirtualController) types.VirtualSCSIController {
	return types.VirtualSCSIController{
		VirtualController: c, SharedBus: types.VirtualSCSISharingNoSharing, ScsiCtlrUnitNumber: 7,
		HotAddRemove: types.NewBool(true),
	}
}

// slots hands out controllers and units to the disks of one VM.
type slots struct {
	devices []types.BaseVirtualDevice
	kinds   map[string][]int32 // keys of the controllers of a kind
	family  map[int32]int32    // controllers made so far, by first key of their numbering
	taken   map[[2]int32]bool  // controller key and unit
	bus     map[int32]int32    // bus number by controller key
}

func newSlots() *slots {
	return &slots{
		kinds: map[string][]int32{"ide": {200, 201}}, family: map[int32]int32{},
		taken: map[[2]int32]bool{}, bus: map[int32]int32{200: 0, 201: 1},
	}
}

// place finds a place for a disk and gives its controller, unit and own key.
func (s *slots) place(given *inventory.Disk) (controller, unit, key int32, err error) {
	kind := controllerKinds[given.Controller]
	for {
		for _, controller := range s.kinds[given.Controller] {
			for unit := range kind.units {
				if unit == kind.skip || s.taken[[2]int32{controller, unit}] || given.Unit != nil && *given.Unit != unit {
					continue
				}
				s.taken[[2]int32{controller, unit}] = true
				return controller, unit, kind.diskKey + s.bus[controller]*kind.units + unit, nil
			}
		}
		bus := s.family[kind.controllerKey]
		if kind.made || bus == 4 || given.Unit != nil && (*given.Unit < 0 || *given.Unit >= kind.units || *given.Unit == kind.skip) {
			return 0, 0, 0, fmt.Errorf("no place on a controller of kind %s", given.Controller)
		}
		s.family[kind.controllerKey]++
		key := kind.controllerKey + bus
		s.kinds[given.Controller] = append(s.kinds[given.Controller], key)
		s.bus[key] = bus
		s.devices = append(s.devices, kind.make(types.VirtualController{
			VirtualDevice: types.VirtualDevice{Key: key, ControllerKey: 100, UnitNumber: types.NewInt32(3 + bus)},
			BusNumber:     bus,
		}))
	}
}

// diskDevice is the API's view of a disk just made.
func diskDevice(given *inventory.Disk, d *disk.Disk, backing disk.Backing, controller, unit int32, number int) *types.VirtualDisk {
	file := types.VirtualDeviceFileBackingInfo{FileName: backing.FileName}
	device := &types.VirtualDisk{
		VirtualDevice: types.VirtualDevice{
			Key: d.Key, ControllerKey: controller, UnitNumber: types.NewInt32(unit),
			DeviceInfo: &types.Description{
				Label: fmt.Sprintf("Hard disk %d", number), Summary: fmt.Sprintf("%d KB", d.Capacity/1024),
			},
		},
		CapacityInBytes: d.Capacity, CapacityInKB: d.Capacity / 1024,
	}
	if given.RDM != "" {
		device.Backing = &types.VirtualDiskRawDiskMappingVer1BackingInfo{
			VirtualDeviceFileBackingInfo: file, CompatibilityMode: given.RDM + "Mode", DiskMode: given.Mode,
			LunUuid: "02000000006000c29" + fmt.Sprintf("%08x", d.Key), DeviceName: fmt.Sprintf("vml.%08x", d.Key),
			ChangeId: backing.ChangeID, Sharing: sharing(given), Uuid: d.UUID,
		}
		return device
	}
	device.Backing = &types.VirtualDiskFlatVer2BackingInfo{
		VirtualDeviceFileBackingInfo: file, DiskMode: given.Mode, Sharing: sharing(given),
		ThinProvisioned: types.NewBool(given.Thin == nil || *given.Thin), ChangeId: backing.ChangeID, Uuid: d.UUID,
	}
	return device
}

func sharing(given *inventory.Disk) string {
	if given.Sharing == "multi_writer" {
		return string(types.VirtualDiskSharingSharingMultiWriter)
	}
	return string(types.VirtualDiskSharingSharingNone)
}

// contentSuffix is how the file beside the descriptor is called.
func contentSuffix(given *inventory.Disk) string {
	switch given.RDM {
	case "physical":
		return "-rdmp"
	case "virtual":
		return "-rdm"
	}
	if given.Format == "vsan" {
		return "-object"
	}
	return "-flat"
}

func nicDevice(given inventory.NIC, index int, on bool) types.BaseVirtualDevice {
	connected := given.Connected == nil || *given.Connected
	addressType := types.VirtualEthernetCardMacTypeGenerated
	if given.MAC != "" {
		addressType = types.VirtualEthernetCardMacTypeManual
	}
	card := types.VirtualEthernetCard{
		VirtualDevice: types.VirtualDevice{
			Key: int32(4000 + index), ControllerKey: 100, UnitNumber: types.NewInt32(int32(7 + index)),
			DeviceInfo: &types.Description{Label: fmt.Sprintf("Network adapter %d", index+1), Summary: given.Network},
			Backing: &types.VirtualEthernetCardNetworkBackingInfo{
				VirtualDeviceDeviceBackingInfo: types.VirtualDeviceDeviceBackingInfo{DeviceName: given.Network},
			},
			Connectable: &types.VirtualDeviceConnectInfo{
				StartConnected: connected, AllowGuestControl: true, Connected: connected && on, Status: "ok",
			},
		},
		AddressType: string(addressType), MacAddress: given.MAC, WakeOnLanEnabled: types.NewBool(true),
	}
	if given.Slot != 0 {
		card.SlotInfo = &types.VirtualDevicePciBusSlotInfo{PciSlotNumber: given.Slot}
	}
	switch given.Model {
	case "e1000":
		return &types.VirtualE1000{VirtualEthernetCard: card}
	case "e1000e":
		return &types.VirtualE1000e{VirtualEthernetCard: card}
	}
	return &types.VirtualVmxnet3{VirtualVmxnet: types.VirtualVmxnet{VirtualEthernetCard: card}}
}

func vtpmDevice() types.BaseVirtualDevice {
	return &types.VirtualTPM{VirtualDevice: types.VirtualDevice{
		Key: 11000, DeviceInfo: &types.Description{Label: "Virtual TPM", Summary: "Trusted Platform Module"},
	}}
}

func passthroughDevice() types.BaseVirtualDevice {
	return &types.VirtualPCIPassthrough{VirtualDevice: types.VirtualDevice{
		Key: 13000, ControllerKey: 100, UnitNumber: types.NewInt32(18),
		DeviceInfo: &types.Description{Label: "PCI device 0", Summary: "0000:3b:00.0"},
		Backing: &types.VirtualPCIPassthroughDeviceBackingInfo{
			VirtualDeviceDeviceBackingInfo: types.VirtualDeviceDeviceBackingInfo{DeviceName: "GPU"},
			Id:                             "0000:3b:00.0", DeviceId: "1eb8", SystemId: "sim", VendorId: 0x10de,
		},
	}}
}
