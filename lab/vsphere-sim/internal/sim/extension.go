package sim

import (
	"errors"
	"log"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
)

// handle sees every SOAP call before govmomi's simulator does, and may hand back another object
// to carry it out.
//
// For a caller with a session the simulator looks the object up again afterwards and would drop
// ours. Changing the type in method.This makes that second look-up miss.
func (s *Sim) handle(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
	s.stats.call(method.Name)
	if ctx.Session == nil && slices.Contains(propertyReads, method.Name) {
		// The simulator lets strangers read; a real one does not, which matters after expiry.
		return nil, &types.NotAuthenticated{NoPermission: types.NoPermission{
			Object: &method.This, PrivilegeId: "System.View",
		}}
	}
	if ctx.Session == nil {
		return nil, nil
	}
	m := s.owner(method.This)
	if m == nil && method.This.Type == "VirtualMachineSnapshot" {
		// It may be on its way out, where the simulator's own code would stumble over it.
		return nil, &types.ManagedObjectNotFound{Obj: method.This}
	}
	if fault := s.refusal(method, m); fault != nil {
		return nil, fault
	}
	instead := s.instead(method, m)
	if instead == nil {
		return nil, nil
	}
	method.This.Type += "Extension"
	return instead, nil
}

var propertyReads = []string{"Fetch", "RetrieveProperties", "RetrievePropertiesEx"}

// extended are the methods that extension has.
var extended = []string{
	"QueryChangedDiskAreas", "ShutdownGuest", "ConsolidateVMDisks_Task", "RevertToCurrentSnapshot_Task",
	"RevertToSnapshot_Task", "RemoveSnapshot_Task", "AcquireGenericServiceTicket", "HasPrivilegeOnEntities",
	"ReconfigVM_Task", "QueryPerf",
}

// ofManagers are those of them that are no VM's.
var ofManagers = []string{"AcquireGenericServiceTicket", "HasPrivilegeOnEntities", "QueryPerf"}

// instead gives what is to carry out a call on an object of m, or nil for the object itself.
func (s *Sim) instead(method *simulator.Method, m *machine) mo.Reference {
	if rule := s.taskFaults.take(method, m); rule != nil {
		return &failing{sim: s, ref: method.This, rule: *rule}
	}
	if m == nil && s.collects(method) {
		return &collector{sim: s, ref: method.This}
	}
	if m != nil && isSnapshotCall(method.Name) && m.sharesDisks() && m.disks.Running() {
		fault := &types.SnapshotFault{}
		return &failing{sim: s, ref: method.This, rule: faultRule{
			method: method.Name, fault: fault, message: "Cannot take a snapshot of a running VM with a multi-writer disk",
		}}
	}
	if m != nil && (method.Name == "PowerOffVM_Task" && !m.disks.Running() || method.Name == "PowerOnVM_Task" && m.disks.Running()) {
		return &failing{sim: s, ref: method.This, rule: m.wrongPower(method.Name)}
	}
	isPlain := method.Name == "ReconfigVM_Task" && len(changesDisks(method)) == 0
	if isPlain || !slices.Contains(extended, method.Name) {
		return nil
	}
	if m == nil && !slices.Contains(ofManagers, method.Name) {
		return nil
	}
	return &extension{sim: s, ref: method.This, machine: m}
}

// owner is the machine that a VM or snapshot is of, or nil.
func (s *Sim) owner(ref types.ManagedObjectReference) *machine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if ref.Type == "VirtualMachineSnapshot" {
		return s.snapshots[ref.Value]
	}
	return s.machines[ref.Value]
}

// wrongPower is what govmomi's simulator does as well, but with a Go type for a message.
func (m *machine) wrongPower(method string) faultRule {
	on, off := types.VirtualMachinePowerStatePoweredOn, types.VirtualMachinePowerStatePoweredOff
	if m.disks.Running() {
		return faultRule{
			method: method, fault: &types.InvalidPowerState{RequestedState: on, ExistingState: on},
			message: "The attempted operation cannot be performed in the current state (Powered on).",
		}
	}
	return faultRule{
		method: method, fault: &types.InvalidPowerState{RequestedState: off, ExistingState: off},
		message: "The attempted operation cannot be performed in the current state (Powered off).",
	}
}

func isSnapshotCall(name string) bool {
	return name == "CreateSnapshot_Task" || name == "CreateSnapshotEx_Task"
}

func (m *machine) sharesDisks() bool {
	for _, d := range m.given.Disks {
		if d.Sharing == "multi_writer" && d.Mode == "persistent" {
			return true
		}
	}
	return false
}

// extension has the methods that govmomi's simulator lacks, or does too simply.
type extension struct {
	sim     *Sim
	ref     types.ManagedObjectReference
	machine *machine
}

// Reference is the object's own, so that its lock is held during the call.
func (e *extension) Reference() types.ManagedObjectReference { return e.ref }

// QueryChangedDiskAreas tells which areas of a disk changed since a change id.
func (e *extension) QueryChangedDiskAreas(_ *simulator.Context, req *types.QueryChangedDiskAreas) soap.HasFault {
	body := new(methods.QueryChangedDiskAreasBody)
	d := e.machine.disks.Find(req.DeviceKey)
	if d == nil {
		body.Fault_ = invalidArgument("deviceKey")
		return body
	}
	query := disk.Query{Start: req.StartOffset, ChangeID: req.ChangeId, AreasMax: int(e.sim.areasMax.Load())}
	if req.Snapshot != nil {
		query.Snapshot = req.Snapshot.Value
	} else if e.machine.disks.Running() {
		body.Fault_ = invalidArgument("snapshot")
		return body
	}
	areas, length, err := d.Changed(query)
	if err != nil {
		body.Fault_ = queryFault(err, e.machine.disks.Backings("")[d.Key].FileName)
		return body
	}
	info := types.DiskChangeInfo{StartOffset: req.StartOffset, Length: length}
	for _, area := range areas {
		info.ChangedArea = append(info.ChangedArea, types.DiskChangeExtent{Start: area.Start, Length: area.Length})
	}
	body.Res = &types.QueryChangedDiskAreasResponse{Returnval: info}
	return body
}

func invalidArgument(property string) *soap.Fault {
	return simulator.Fault("A specified parameter was not correct: "+property, &types.InvalidArgument{InvalidProperty: property})
}

func queryFault(err error, file string) *soap.Fault {
	switch {
	case errors.Is(err, disk.ErrOffset):
		return invalidArgument("startOffset")
	case errors.Is(err, disk.ErrSnapshot):
		return invalidArgument("snapshot")
	}
	log.Printf("changed areas of %s: %s", file, err)
	return simulator.Fault("Error caused by file "+file, &types.FileFault{File: file})
}

// guestShutdownTime is how long a guest takes to stop by itself.
const guestShutdownTime = 300 * time.Millisecond

// ShutdownGuest asks the guest to stop, which needs the tools inside it.
func (e *extension) ShutdownGuest(ctx *simulator.Context, _ *types.ShutdownGuest) soap.HasFault {
	body := new(methods.ShutdownGuestBody)
	vm := e.machine.vm
	if vm.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOn {
		body.Fault_ = simulator.Fault("The attempted operation cannot be performed in the current state (Powered off).",
			&types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: vm.Runtime.PowerState})
		return body
	}
	if vm.Guest.ToolsRunningStatus != string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		body.Fault_ = simulator.Fault("Cannot complete operation because VMware Tools is not running in this virtual machine.",
			&types.ToolsUnavailable{})
		return body
	}
	own := *ctx // A context of its own, so that it does not share the caller's locks.
	go func() {
		e.sim.sleep(e.sim.stopped, guestShutdownTime)
		vm.PowerOffVMTask(&own, &types.PowerOffVM_Task{This: e.ref})
	}()
	body.Res = new(types.ShutdownGuestResponse)
	return body
}

// ConsolidateVMDisksTask merges what removals left; else files are merged as soon as nothing needs them.
func (e *extension) ConsolidateVMDisksTask(ctx *simulator.Context, _ *types.ConsolidateVMDisks_Task) soap.HasFault {
	task := simulator.CreateTask(e.machine.vm, "consolidateVMDisks", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if e.sim.hotAdds.holds(e.machine) {
			return nil, &types.FileLocked{FileFault: types.FileFault{File: e.machine.vm.Config.Files.VmPathName}}
		}
		if err := e.machine.disks.Consolidate(); err != nil {
			log.Printf("consolidation of %s: %s", e.machine.given.Name, err)
			return nil, &types.FileFault{File: e.machine.vm.Config.Files.VmPathName}
		}
		e.sim.showAll(ctx, e.machine)
		e.sim.showLeft(ctx, e.machine)
		return nil, nil
	})
	return &methods.ConsolidateVMDisks_TaskBody{
		Res: &types.ConsolidateVMDisks_TaskResponse{Returnval: task.Run(ctx)},
	}
}

// RevertToSnapshotTask puts data and power state back, too.
func (e *extension) RevertToSnapshotTask(ctx *simulator.Context, req *types.RevertToSnapshot_Task) soap.HasFault {
	return &methods.RevertToSnapshot_TaskBody{
		Res: &types.RevertToSnapshot_TaskResponse{Returnval: e.revert(ctx, req.This)},
	}
}

// RevertToCurrentSnapshotTask is the same for the current snapshot.
func (e *extension) RevertToCurrentSnapshotTask(ctx *simulator.Context, _ *types.RevertToCurrentSnapshot_Task) soap.HasFault {
	body := new(methods.RevertToCurrentSnapshot_TaskBody)
	info := e.machine.vm.Snapshot
	if info == nil || info.CurrentSnapshot == nil {
		body.Fault_ = simulator.Fault("snapshot not found", &types.NotFound{})
		return body
	}
	body.Res = &types.RevertToCurrentSnapshot_TaskResponse{Returnval: e.revert(ctx, *info.CurrentSnapshot)}
	return body
}

// revert starts the task. A snapshot without memory leaves the VM switched off.
func (e *extension) revert(ctx *simulator.Context, snapshot types.ManagedObjectReference) types.ManagedObjectReference {
	vm := e.machine.vm
	task := simulator.CreateTask(vm, "revertToSnapshot", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		if err := e.machine.disks.Revert(snapshot.Value); err != nil {
			log.Printf("revert of %s: %s", e.machine.given.Name, err)
			return nil, &types.FileFault{File: vm.Config.Files.VmPathName}
		}
		ctx.Update(vm, []types.PropertyChange{
			{Name: "snapshot.currentSnapshot", Val: snapshot},
			{Name: "runtime.powerState", Val: types.VirtualMachinePowerStatePoweredOff},
			{Name: "summary.runtime.powerState", Val: types.VirtualMachinePowerStatePoweredOff},
		})
		e.sim.showAll(ctx, e.machine)
		e.sim.showLeft(ctx, e.machine)
		return nil, nil
	})
	return task.Run(ctx)
}

// AcquireGenericServiceTicket gives a ticket for one request to a host, see tickets.
func (e *extension) AcquireGenericServiceTicket(_ *simulator.Context, req *types.AcquireGenericServiceTicket) soap.HasFault {
	body := new(methods.AcquireGenericServiceTicketBody)
	spec, ok := req.Spec.(*types.SessionManagerHttpServiceRequestSpec)
	if !ok {
		body.Fault_ = invalidArgument("spec")
		return body
	}
	id, host, err := e.sim.issueTicket(spec.Method, spec.Url)
	if err != nil {
		body.Fault_ = invalidArgument("spec.url")
		return body
	}
	body.Res = &types.AcquireGenericServiceTicketResponse{Returnval: types.SessionManagerGenericServiceTicket{
		Id: id, HostName: host, SslThumbprint: e.sim.cert.Load().sha1, TicketType: "HttpServiceTicket",
	}}
	return body
}
