package sim

import (
	"log"
	"strings"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
)

// hook follows what happens to govmomi's objects. A new snapshot is put after its config was
// copied and inside its task, with the VM locked, so data can be frozen right there.
type hook struct {
	sim  *Sim
	Self types.ManagedObjectReference
}

func newHook(s *Sim) *hook {
	return &hook{sim: s, Self: types.ManagedObjectReference{Type: "DiskHook", Value: "disk-hook"}}
}

func (h *hook) Reference() types.ManagedObjectReference { return h.Self }

// PutObject freezes the disks for a new snapshot, and names tasks by their methods.
func (h *hook) PutObject(ctx *simulator.Context, item mo.Reference) {
	if task, ok := item.(*simulator.Task); ok {
		task.Info.Name = h.methodOf(task)
	}
	snapshot, ok := item.(*simulator.VirtualMachineSnapshot)
	if !ok {
		return
	}
	m := h.sim.byMoid(snapshot.Vm.Value)
	if m == nil {
		return
	}
	id := snapshot.Self.Value
	h.sim.mu.Lock()
	h.sim.snapshots[id] = m
	h.sim.mu.Unlock()
	log.Printf("snapshot %s of %s", id, m.given.Name)
	if err := m.disks.Freeze(id); err != nil {
		log.Printf("freeze for %s of %s: %s", id, m.given.Name, err)
	}
	h.sim.showSnapshot(snapshot, m)
	h.sim.showLive(ctx, m)
}

// methodOf is the method that began a task, as vSphere tells it; govmomi's simulator has names of its own. VMware's Python
// SDK knows no others, and fails while it waits.
func (h *hook) methodOf(task *simulator.Task) string {
	switch name := task.Info.Name; name {
	case "CreateSnapshotEx":
		return "CreateSnapshot_Task"
	case "ReconfigVm":
		return "ReconfigVM_Task"
	case "PowerVm_Task":
		m := h.sim.byMoid(task.Info.Entity.Value)
		if m != nil && m.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn {
			return "PowerOffVM_Task"
		}
		return "PowerOnVM_Task"
	default:
		return strings.TrimSuffix(name, "_Task") + "_Task"
	}
}

// RemoveObject merges the files of snapshots that are gone. govmomi's simulator forgets to remove
// the objects of children removed together with their parent, so all are looked at.
func (h *hook) RemoveObject(ctx *simulator.Context, ref types.ManagedObjectReference) {
	h.sim.mu.RLock()
	m := h.sim.snapshots[ref.Value]
	h.sim.mu.RUnlock()
	if m == nil {
		return
	}
	alive := map[string]bool{}
	if m.vm.Snapshot != nil {
		walkSnapshots(m.vm.Snapshot.RootSnapshotList, func(tree types.VirtualMachineSnapshotTree) {
			alive[tree.Snapshot.Value] = true
		})
	}
	for _, id := range h.sim.snapshotsOf(m) {
		if alive[id] && id != ref.Value {
			continue
		}
		log.Printf("removal of %s of %s", id, m.given.Name)
		if err := m.disks.Remove(id); err != nil {
			log.Printf("remove %s of %s: %s", id, m.given.Name, err)
		}
		h.sim.mu.Lock()
		delete(h.sim.snapshots, id)
		h.sim.mu.Unlock()
	}
	h.sim.showAll(ctx, m)
	h.sim.showLeft(ctx, m)
}

// UpdateObject follows power and tracking.
func (h *hook) UpdateObject(ctx *simulator.Context, item mo.Reference, changes []types.PropertyChange) {
	if item.Reference().Type != "VirtualMachine" {
		return
	}
	m := h.sim.byMoid(item.Reference().Value)
	if m == nil {
		return
	}
	for _, change := range changes {
		if change.Name == "runtime.powerState" {
			on := m.vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
			if on != m.disks.Running() {
				log.Printf("%s is now %s", m.given.Name, m.vm.Runtime.PowerState)
			}
			m.disks.SetRunning(on)
			h.sim.fillGuest(m, on)
			h.sim.showLive(ctx, m) // Tracking may have started.
		}
		if change.Name == "config" || change.Name == "config.changeVersion" {
			h.sim.followTracking(ctx, m)
		}
	}
}

// followTracking takes over a change of config.changeTrackingEnabled.
func (s *Sim) followTracking(ctx *simulator.Context, m *machine) {
	on := m.vm.Config.ChangeTrackingEnabled != nil && *m.vm.Config.ChangeTrackingEnabled
	changed := s.followDiskTracking(m)
	if on != m.disks.Tracking() {
		m.disks.SetTracking(on)
		changed = true
		log.Printf("changed block tracking of %s: %v", m.given.Name, on)
	}
	if changed {
		s.showTracking(m)
		s.showLive(ctx, m)
	}
}

// followDiskTracking takes over the settings of disks of their own, such as scsi0:0.ctkEnabled.
func (s *Sim) followDiskTracking(m *machine) (changed bool) {
	settings := object.OptionValueList(m.vm.Config.ExtraConfig)
	devices := object.VirtualDeviceList(m.vm.Config.Hardware.Device)
	for _, device := range devices.SelectByType((*types.VirtualDisk)(nil)) {
		d := device.GetVirtualDevice()
		controller, ok := devices.FindByKey(d.ControllerKey).(types.BaseVirtualController)
		if !ok || d.UnitNumber == nil {
			continue
		}
		if value, set := settings.GetString(trackingKey(controller, *d.UnitNumber)); set {
			on := strings.EqualFold(value, "true")
			changed = m.disks.SetDiskTracking(d.Key, on) || changed
		}
	}
	return changed
}

func (s *Sim) byMoid(moid string) *machine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.machines[moid]
}

func (s *Sim) snapshotsOf(m *machine) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ids []string
	for id, owner := range s.snapshots {
		if owner == m {
			ids = append(ids, id)
		}
	}
	return ids
}

func walkSnapshots(trees []types.VirtualMachineSnapshotTree, visit func(types.VirtualMachineSnapshotTree)) {
	for _, tree := range trees {
		visit(tree)
		walkSnapshots(tree.ChildSnapshotList, visit)
	}
}

// showAll brings the files shown for the VM and its snapshots up to date.
func (s *Sim) showAll(ctx *simulator.Context, m *machine) {
	for _, id := range s.snapshotsOf(m) {
		ref := types.ManagedObjectReference{Type: "VirtualMachineSnapshot", Value: id}
		if snapshot, ok := s.registry.Get(ref).(*simulator.VirtualMachineSnapshot); ok {
			s.showSnapshot(snapshot, m)
		}
	}
	s.showLive(ctx, m)
}

func (s *Sim) showSnapshot(snapshot *simulator.VirtualMachineSnapshot, m *machine) {
	backings := m.disks.Backings(snapshot.Self.Value)
	snapshot.Config.Hardware.Device = withBackings(snapshot.Config.Hardware.Device, backings)
}

func (s *Sim) showLive(ctx *simulator.Context, m *machine) {
	devices := withBackings(m.vm.Config.Hardware.Device, m.disks.Backings(""))
	ctx.Update(m.vm, []types.PropertyChange{{Name: "config.hardware.device", Val: devices}})
	m.vm.RefreshStorageInfo(ctx, nil)
	// It goes by the length of files, as if nothing were thin.
	s.fillStorage(m)
}

// withBackings gives devices with other disk files. Disks are copied, since a client's answer
// may be written from the old ones at this moment.
func withBackings(devices []types.BaseVirtualDevice, backings map[int32]disk.Backing) []types.BaseVirtualDevice {
	out := make([]types.BaseVirtualDevice, 0, len(devices))
	for _, device := range object.VirtualDeviceList(devices) {
		old, ok := device.(*types.VirtualDisk)
		if backing, known := backings[device.GetVirtualDevice().Key]; ok && known {
			fresh := *old
			fresh.Backing = withFile(old.Backing, backing)
			fresh.CapacityInBytes, fresh.CapacityInKB = backing.Capacity, backing.Capacity/1024
			device = &fresh
		}
		out = append(out, device)
	}
	return out
}

func withFile(old types.BaseVirtualDeviceBackingInfo, backing disk.Backing) types.BaseVirtualDeviceBackingInfo {
	switch old := old.(type) {
	case *types.VirtualDiskFlatVer2BackingInfo:
		fresh := *old
		fresh.FileName, fresh.ChangeId, fresh.Parent = backing.FileName, backing.ChangeID, nil
		below := &fresh
		for _, name := range backing.Parents {
			parent := *old
			parent.FileName, parent.ChangeId, parent.Parent = name, "", nil
			below.Parent = &parent
			below = &parent
		}
		return &fresh
	case *types.VirtualDiskRawDiskMappingVer1BackingInfo:
		fresh := *old
		fresh.FileName, fresh.ChangeId = backing.FileName, backing.ChangeID
		return &fresh
	}
	return old
}
