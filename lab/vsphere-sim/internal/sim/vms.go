package sim

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// machine is a VM as the simulator knows it beyond govmomi's object.
type machine struct {
	given *inventory.VM
	ref   types.ManagedObjectReference
	vm    *simulator.VirtualMachine
	disks *disk.VM
	names map[string]string // of snapshots, by moid

	dir    string // of its files, on each datastore
	places *slots
	made   int // disks so far, those that are gone too
}

func (s *Sim) buildVM(dc *simulator.Datacenter, given *inventory.VM) error {
	folder, err := s.vmFolder(dc, given.Folder)
	if err != nil {
		return err
	}
	dir, err := s.vmDir(given)
	if err != nil {
		return err
	}
	m := &machine{given: given, disks: s.store.NewVM(given.CBT), names: map[string]string{}, dir: dir, places: newSlots()}
	devices, err := s.buildDevices(m)
	if err != nil {
		return err
	}
	spec := s.vmSpec(given, dir, devices)
	if err := s.createVM(folder, m, spec); err != nil {
		return err
	}
	s.fillVM(m)
	s.mu.Lock()
	s.machines[m.ref.Value] = m
	s.order = append(s.order, m)
	s.mu.Unlock()
	m.disks.SetRunning(given.Power == "on")
	return s.buildSnapshots(m, given.Snapshots, nil)
}

// vmDir makes the VM's folder on every datastore it uses and gives its name. A second VM of a
// name gets NAME_1, as on a real datastore.
func (s *Sim) vmDir(given *inventory.VM) (string, error) {
	roots := map[string]bool{s.datastores[given.Datastore]: true}
	for _, d := range given.Disks {
		roots[s.datastores[d.Datastore]] = true
	}
	name := pathName(given.Name)
	for i := 1; anyHas(roots, name); i++ {
		name = fmt.Sprintf("%s_%d", pathName(given.Name), i)
	}
	for root := range roots {
		if err := os.Mkdir(filepath.Join(root, name), 0o700); err != nil {
			return "", err
		}
	}
	return name, nil
}

func anyHas(roots map[string]bool, name string) bool {
	for root := range roots {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
			return true
		}
	}
	return false
}

// pathName is a VM's name as part of a path.
func pathName(name string) string {
	out := []rune(name)
	for i, r := range out {
		if r == '/' || r == '\\' || r == 0 {
			out[i] = '_'
		}
	}
	return string(out)
}

// buildDevices makes the disks' files and gives all devices of the VM.
func (s *Sim) buildDevices(m *machine) ([]types.BaseVirtualDevice, error) {
	var disks []types.BaseVirtualDevice
	for i := range m.given.Disks {
		device, err := s.makeDisk(m, &m.given.Disks[i], false)
		if err != nil {
			return nil, fmt.Errorf("disk %d: %w", i, err)
		}
		disks = append(disks, device)
	}
	devices := slices.Concat(m.places.devices, disks)
	for i, nic := range m.given.NICs {
		devices = append(devices, nicDevice(nic, i, m.given.Power == "on"))
	}
	if m.given.VTPM {
		devices = append(devices, vtpmDevice())
	}
	if m.given.Passthrough {
		devices = append(devices, passthroughDevice())
	}
	return devices, nil
}

// makeDisk makes a disk's files and gives its device; added is one that the VM did not have at first.
func (s *Sim) makeDisk(m *machine, given *inventory.Disk, added bool) (*types.VirtualDisk, error) {
	controller, unit, key, err := m.places.place(given)
	if err != nil {
		return nil, err
	}
	stem := pathName(m.given.Name)
	if m.made > 0 {
		stem = fmt.Sprintf("%s_%d", stem, m.made)
	}
	d, err := m.disks.Add(disk.Spec{
		Key: key, Capacity: int64(*given.Capacity), Datastore: given.Datastore, Dir: m.dir, Stem: stem,
		Root: s.datastores[given.Datastore], Content: given.File, Suffix: contentSuffix(given),
		Independent: given.Mode != "persistent" || given.RDM == "physical",
		Untracked:   given.CBT != nil && !*given.CBT, Added: added,
	})
	if err != nil {
		return nil, err
	}
	m.made++
	return diskDevice(given, d, m.disks.Backings("")[key], controller, unit, m.made), nil
}

func (s *Sim) vmSpec(given *inventory.VM, dir string, devices []types.BaseVirtualDevice) types.VirtualMachineConfigSpec {
	spec := types.VirtualMachineConfigSpec{
		Name: given.Name, GuestId: given.GuestID, NumCPUs: given.CPUs, MemoryMB: given.MemoryMiB,
		NumCoresPerSocket: &given.CoresPerSocket, Version: "vmx-19",
		Files: &types.VirtualMachineFileInfo{
			VmPathName: fmt.Sprintf("[%s] %s/%s.vmx", given.Datastore, dir, pathName(given.Name)),
		},
	}
	for _, device := range devices {
		spec.DeviceChange = append(spec.DeviceChange, &types.VirtualDeviceConfigSpec{
			Operation: types.VirtualDeviceConfigSpecOperationAdd, Device: device,
		})
	}
	return spec
}

func (s *Sim) createVM(folder *simulator.Folder, m *machine, spec types.VirtualMachineConfigSpec) error {
	hostRef := s.hostRefs[m.given.Host]
	host := s.registry.Get(hostRef).(*simulator.HostSystem)
	pool, err := s.poolOf(host)
	if err != nil {
		return err
	}
	body := folder.CreateVMTask(s.ctx, &types.CreateVM_Task{This: folder.Self, Config: spec, Pool: pool, Host: &hostRef})
	result, err := s.wait(body.(*methods.CreateVM_TaskBody).Res.Returnval)
	if err != nil {
		return err
	}
	m.ref = result.(types.ManagedObjectReference)
	m.vm = s.registry.Get(m.ref).(*simulator.VirtualMachine)
	return nil
}

func (s *Sim) poolOf(host *simulator.HostSystem) (types.ManagedObjectReference, error) {
	for _, entity := range s.registry.All("ResourcePool") {
		pool := entity.(*simulator.ResourcePool)
		if pool.Owner == *host.Parent {
			return pool.Self, nil
		}
	}
	return types.ManagedObjectReference{}, fmt.Errorf("host %s has no resource pool", host.Name)
}

// hardwareTracked is the first virtual hardware whose changes are tracked.
const hardwareTracked = 7

// fillVM sets what creation left out, or made up.
func (s *Sim) fillVM(m *machine) {
	vm, given := m.vm, m.given
	vm.Config.Firmware = given.Firmware
	vm.Config.BootOptions = &types.VirtualMachineBootOptions{EfiSecureBootEnabled: &given.SecureBoot}
	if given.GuestFullName != "" {
		vm.Config.GuestFullName, vm.Summary.Config.GuestFullName = given.GuestFullName, given.GuestFullName
	}
	if given.CBT {
		vm.Config.ChangeTrackingEnabled = types.NewBool(true)
	}
	for key, value := range given.ExtraConfig {
		vm.Config.ExtraConfig = append(vm.Config.ExtraConfig, &types.OptionValue{Key: key, Value: value})
	}
	vm.Config.Version = given.HardwareVersion
	vm.Capability.ChangeTrackingSupported = given.HardwareNumber() >= hardwareTracked
	// The settings of a VM with a virtual TPM are always encrypted, its disks are not.
	if given.Encrypted || given.VTPM {
		vm.Config.KeyId = &types.CryptoKeyId{KeyId: "sim-key", ProviderId: &types.KeyProviderId{Id: "sim-provider"}}
	}
	if given.ManagedBy != "" {
		vm.Config.ManagedBy = &types.ManagedByInfo{ExtensionKey: given.ManagedBy, Type: "cluster-agent"}
	}
	on := given.Power == "on"
	vm.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOff
	if on {
		vm.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOn
		vm.Runtime.BootTime = types.NewTime(time.Now())
	}
	// Strict clients refuse the empty elements that unset enums would become.
	vm.Runtime.FaultToleranceState = types.VirtualMachineFaultToleranceStateNotConfigured
	vm.Runtime.RecordReplayState = types.VirtualMachineRecordReplayStateInactive
	vm.Runtime.MaxCpuUsage, vm.Runtime.MaxMemoryUsage = given.CPUs*2400, int32(given.MemoryMiB)
	vm.Summary.Runtime = vm.Runtime
	s.fillGuest(m, on)
	s.fillDisks(m)
}

// fillDisks puts back exact capacities, which creation may round, and marks tracked and encrypted disks.
func (s *Sim) fillDisks(m *machine) {
	for _, device := range object.VirtualDeviceList(m.vm.Config.Hardware.Device).SelectByType((*types.VirtualDisk)(nil)) {
		d := device.(*types.VirtualDisk)
		known := m.disks.Find(d.Key)
		d.CapacityInBytes, d.CapacityInKB = known.Capacity, known.Capacity/1024
		if flat, ok := d.Backing.(*types.VirtualDiskFlatVer2BackingInfo); ok && m.given.Encrypted {
			flat.KeyId = m.vm.Config.KeyId
		}
	}
	s.fillStorage(m)
	s.showTracking(m)
}

// fillStorage tells what the VM's files took when it was last looked at, with the swap file that it has while it runs.
func (s *Sim) fillStorage(m *machine) {
	var committed, provisioned int64
	for _, device := range object.VirtualDeviceList(m.vm.Config.Hardware.Device).SelectByType((*types.VirtualDisk)(nil)) {
		known := m.disks.Find(device.GetVirtualDevice().Key)
		// Hot-added, it is another VM's.
		if known == nil {
			continue
		}
		committed += known.AllocatedBytes()
		provisioned += known.Capacity
	}
	summary := &types.VirtualMachineStorageSummary{
		Committed: committed, Uncommitted: max(provisioned-committed, 0), Unshared: committed, Timestamp: time.Now(),
	}
	if m.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
		summary.Committed += m.given.MemoryMiB << 20
	}
	m.vm.Summary.Storage = summary
}

// showTracking keeps the settings by which clients see which disks are tracked.
func (s *Sim) showTracking(m *machine) {
	on := m.vm.Config.ChangeTrackingEnabled != nil && *m.vm.Config.ChangeTrackingEnabled
	var kept []types.BaseOptionValue
	for _, option := range m.vm.Config.ExtraConfig {
		key := option.GetOptionValue().Key
		if len(key) < 10 || key[len(key)-10:] != "ctkEnabled" {
			kept = append(kept, option)
		}
	}
	if on {
		devices := object.VirtualDeviceList(m.vm.Config.Hardware.Device)
		kept = append(kept, &types.OptionValue{Key: "ctkEnabled", Value: "TRUE"})
		for _, device := range devices.SelectByType((*types.VirtualDisk)(nil)) {
			d := device.GetVirtualDevice()
			controller, ok := devices.FindByKey(d.ControllerKey).(types.BaseVirtualController)
			if !ok || d.UnitNumber == nil {
				continue
			}
			value := "FALSE"
			if m.disks.TracksDisk(d.Key) {
				value = "TRUE"
			}
			kept = append(kept, &types.OptionValue{Key: trackingKey(controller, *d.UnitNumber), Value: value})
		}
	}
	m.vm.Config.ExtraConfig = kept
}

// trackingKey is the setting of a disk's own.
func trackingKey(controller types.BaseVirtualController, unit int32) string {
	return fmt.Sprintf("%s%d:%d.ctkEnabled", busName(controller), controller.GetVirtualController().BusNumber, unit)
}

func busName(controller types.BaseVirtualController) string {
	switch controller.(type) {
	case types.BaseVirtualSCSIController:
		return "scsi"
	case types.BaseVirtualSATAController:
		return "sata"
	case *types.VirtualNVMEController:
		return "nvme"
	}
	return "ide"
}

// fillGuest shows the state of the tools inside the guest.
func (s *Sim) fillGuest(m *machine, on bool) {
	guest := m.vm.Guest
	guest.GuestState = string(types.VirtualMachineGuestStateNotRunning)
	guest.ToolsRunningStatus = string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
	guest.ToolsStatus = types.VirtualMachineToolsStatusToolsNotRunning
	guest.ToolsVersion, guest.ToolsVersionStatus2 = "12352", string(types.VirtualMachineToolsVersionStatusGuestToolsCurrent)
	switch {
	case m.given.Tools == "notInstalled":
		guest.ToolsStatus = types.VirtualMachineToolsStatusToolsNotInstalled
		guest.ToolsVersion, guest.ToolsVersionStatus2 = "0", string(types.VirtualMachineToolsVersionStatusGuestToolsNotInstalled)
	case m.given.Tools == "running" && on:
		guest.ToolsStatus = types.VirtualMachineToolsStatusToolsOk
		guest.ToolsRunningStatus = string(types.VirtualMachineToolsRunningStatusGuestToolsRunning)
	}
	if on {
		guest.GuestState = string(types.VirtualMachineGuestStateRunning)
	}
	guest.ToolsVersionStatus = guest.ToolsVersionStatus2
	guest.GuestId, guest.GuestFullName = m.given.GuestID, m.vm.Config.GuestFullName
	guest.HostName = ""
	if guest.ToolsRunningStatus == string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		guest.HostName = m.given.Name
	}
	s.fillGuestNet(m)
	summary := m.vm.Summary.Guest
	summary.ToolsStatus, summary.ToolsRunningStatus = guest.ToolsStatus, guest.ToolsRunningStatus
	summary.ToolsVersionStatus, summary.ToolsVersionStatus2 = guest.ToolsVersionStatus, guest.ToolsVersionStatus2
	summary.GuestId, summary.GuestFullName, summary.HostName = guest.GuestId, guest.GuestFullName, guest.HostName
}

// fillGuestNet tells the addresses of cards, as tools do while they run.
func (s *Sim) fillGuestNet(m *machine) {
	guest := m.vm.Guest
	guest.Net, guest.IpStack = nil, nil
	if guest.ToolsRunningStatus != string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		return
	}
	cards := object.VirtualDeviceList(m.vm.Config.Hardware.Device).SelectByType((*types.VirtualEthernetCard)(nil))
	var routes []types.NetIpRouteConfigInfoIpRoute
	for i, given := range m.given.NICs {
		if i >= len(cards) {
			break
		}
		card := cards[i].(types.BaseVirtualEthernetCard).GetVirtualEthernetCard()
		nic := types.GuestNicInfo{
			Network: given.Network, MacAddress: card.MacAddress, Connected: true, DeviceConfigId: card.Key,
			IpConfig: &types.NetIpConfigInfo{},
		}
		lease := types.NetDhcpConfigInfoDhcpOptions{Enable: len(given.Addresses) == 0}
		nic.IpConfig.Dhcp = &types.NetDhcpConfigInfo{Ipv4: &lease}
		for _, text := range given.Addresses {
			prefix := netip.MustParsePrefix(text)
			nic.IpAddress = append(nic.IpAddress, prefix.Addr().String())
			nic.IpConfig.IpAddress = append(nic.IpConfig.IpAddress, types.NetIpConfigInfoIpAddress{
				IpAddress: prefix.Addr().String(), PrefixLength: int32(prefix.Bits()), State: "preferred", Origin: "manual",
			})
		}
		if len(given.DNS) > 0 {
			nic.DnsConfig = &types.NetDnsConfigInfo{IpAddress: given.DNS}
		}
		if given.Gateway != "" {
			routes = append(routes, types.NetIpRouteConfigInfoIpRoute{
				Network: "0.0.0.0", PrefixLength: 0,
				Gateway: types.NetIpRouteConfigInfoGateway{IpAddress: given.Gateway, Device: strconv.Itoa(i)},
			})
		}
		guest.Net = append(guest.Net, nic)
	}
	guest.IpStack = []types.GuestStackInfo{{IpRouteConfig: &types.NetIpRouteConfigInfo{IpRoute: routes}}}
}

// buildSnapshots makes the given tree below parent; a second child needs a way back to it first.
func (s *Sim) buildSnapshots(m *machine, given []inventory.Snapshot, parent *types.ManagedObjectReference) error {
	for i, one := range given {
		if i > 0 && parent != nil {
			ext := &extension{sim: s, ref: m.ref, machine: m}
			if _, err := s.wait(ext.revert(s.ctx, *parent)); err != nil {
				return err
			}
		}
		body := m.vm.CreateSnapshotTask(s.ctx, &types.CreateSnapshot_Task{This: m.ref, Name: one.Name})
		if err := faultOf(body); err != nil {
			return err
		}
		result, err := s.wait(body.(*methods.CreateSnapshot_TaskBody).Res.Returnval)
		if err != nil {
			return fmt.Errorf("snapshot %q: %w", one.Name, err)
		}
		ref := result.(types.ManagedObjectReference)
		if err := s.buildSnapshots(m, one.Children, &ref); err != nil {
			return err
		}
	}
	return nil
}
