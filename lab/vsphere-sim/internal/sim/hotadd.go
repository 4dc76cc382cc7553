package sim

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// attachment is a file of one VM's disk that another VM has as well.
type attachment struct {
	owner, proxy *machine
	key          int32 // of the device at the proxy
	controller   int32
	unit         int32
	name         string // as in a backing
	path         string // of the content
	serial       string // as the guest sees it
	unlock       func()
}

// hotAdds are the disks that VMs have of others, and how guests are told.
type hotAdds struct {
	mu       sync.Mutex
	all      []*attachment
	guests   map[*machine]plug
	attaches int
	most     int
	refuse   atomic.Bool // removals of snapshots are refused as a whole while a disk is attached
}

// holds tells if a file of m's disks is attached to another VM.
func (h *hotAdds) holds(m *machine) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.all, func(a *attachment) bool { return a.owner == m })
}

func (h *hotAdds) plugOf(m *machine) plug {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guests[m]
}

func (h *hotAdds) find(proxy *machine, key int32) *attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.all {
		if a.proxy == proxy && a.key == key {
			return a
		}
	}
	return nil
}

func (h *hotAdds) add(a *attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, a)
	h.attaches++
	h.most = max(h.most, len(h.all))
}

func (h *hotAdds) forget(a *attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = slices.DeleteFunc(h.all, func(it *attachment) bool { return it == a })
}

// changesDisks tells if a call adds or removes disks, and which operations it has.
func changesDisks(method *simulator.Method) (operations []types.VirtualDeviceConfigSpecOperation) {
	req, ok := method.Body.(*types.ReconfigVM_Task)
	if !ok {
		return nil
	}
	for _, change := range req.Spec.DeviceChange {
		spec := change.GetVirtualDeviceConfigSpec()
		if _, ok := spec.Device.(*types.VirtualDisk); ok {
			operations = append(operations, spec.Operation)
		}
	}
	return operations
}

// ReconfigVMTask adds and removes disks that exist; the VM may run. All else goes to govmomi's simulator.
func (e *extension) ReconfigVMTask(ctx *simulator.Context, req *types.ReconfigVM_Task) soap.HasFault {
	task := simulator.CreateTask(e.machine.vm, "reconfigVm", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		for i, change := range req.Spec.DeviceChange {
			spec := change.GetVirtualDeviceConfigSpec()
			device, ok := spec.Device.(*types.VirtualDisk)
			if !ok || spec.FileOperation != "" {
				// To destroy a file here would destroy the source.
				log.Printf("reconfigure %s: a change with file operation %q is refused", e.machine.given.Name, spec.FileOperation)
				return nil, &types.InvalidDeviceSpec{DeviceIndex: int32(i)}
			}
			var fault types.BaseMethodFault
			switch spec.Operation {
			case types.VirtualDeviceConfigSpecOperationAdd:
				fault = e.sim.attach(ctx, e.machine, device, int32(i))
			case types.VirtualDeviceConfigSpecOperationRemove:
				fault = e.sim.detach(ctx, e.machine, device.Key, int32(i))
			default:
				fault = &types.InvalidDeviceSpec{DeviceIndex: int32(i)}
			}
			if fault != nil {
				return nil, fault
			}
		}
		return nil, nil
	})
	return &methods.ReconfigVM_TaskBody{Res: &types.ReconfigVM_TaskResponse{Returnval: task.Run(ctx)}}
}

func (s *Sim) attach(ctx *simulator.Context, m *machine, device *types.VirtualDisk, index int32) types.BaseMethodFault {
	wrong := func(why string) types.BaseMethodFault {
		log.Printf("attach to %s: %s", m.given.Name, why)
		return &types.InvalidDeviceSpec{DeviceIndex: index}
	}
	backing, ok := device.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	if !ok || backing.DiskMode != string(types.VirtualDiskModeIndependent_nonpersistent) {
		return wrong("only existing files, independent and nonpersistent: all else could be written to")
	}
	controller, ok := object.VirtualDeviceList(m.vm.Config.Hardware.Device).FindByKey(device.ControllerKey).(types.BaseVirtualSCSIController)
	if !ok {
		return wrong(fmt.Sprintf("there is no SCSI controller %d", device.ControllerKey))
	}
	unit, fault := m.freeUnit(device)
	if fault != nil {
		return fault
	}
	owner, file, fault := s.attachable(m, backing.FileName)
	if fault != nil {
		return fault
	}
	unlock, free := s.locks.Lock(file.Path, nfc.Reader)
	if !free || file.Live && owner.disks.Running() {
		if free {
			unlock()
		}
		return &types.FileLocked{FileFault: types.FileFault{File: backing.FileName}}
	}
	a := &attachment{
		owner: owner, proxy: m, controller: device.ControllerKey, unit: unit, name: backing.FileName, path: file.Path,
		key:    2000 + controller.GetVirtualSCSIController().BusNumber*16 + unit,
		serial: serialOf(file.UUID), unlock: unlock,
	}
	if plug := s.hotAdds.plugOf(m); plug != nil {
		if err := plug.attach(a); err != nil {
			log.Printf("attach %s to the guest of %s: %s", a.name, m.given.Name, err)
			unlock()
			return &types.GenericVmConfigFault{Reason: err.Error()}
		}
	}
	s.hotAdds.add(a)
	m.places.taken[[2]int32{a.controller, a.unit}] = true
	s.showDevices(ctx, m, append(slices.Clone(m.vm.Config.Hardware.Device), a.device(file)))
	log.Printf("attached %s to %s as unit %d", a.name, m.given.Name, unit)
	return nil
}

// freeUnit is the unit that a device asks for, or a free one.
func (m *machine) freeUnit(device *types.VirtualDisk) (int32, types.BaseMethodFault) {
	kind := controllerKinds["pvscsi"]
	isFree := func(unit int32) bool {
		return unit != kind.skip && !m.places.taken[[2]int32{device.ControllerKey, unit}]
	}
	if device.UnitNumber != nil && *device.UnitNumber >= 0 {
		if unit := *device.UnitNumber; unit < kind.units && isFree(unit) {
			return unit, nil
		}
		return 0, &types.InvalidDeviceSpec{}
	}
	for unit := range kind.units {
		if isFree(unit) {
			return unit, nil
		}
	}
	return 0, &types.TooManyDevices{}
}

// attachable finds a file that m's host can open.
func (s *Sim) attachable(m *machine, name string) (*machine, disk.File, types.BaseMethodFault) {
	datastore, _, _ := strings.Cut(strings.TrimPrefix(name, "["), "]")
	host := s.registry.Get(*m.vm.Runtime.Host).(*simulator.HostSystem)
	if s.registry.FindByName(datastore, host.Datastore) == nil {
		return nil, disk.File{}, &types.InvalidDatastorePath{InvalidDatastore: types.InvalidDatastore{Name: datastore}, DatastorePath: name}
	}
	for _, owner := range s.all() {
		if file, found := owner.disks.File(name); found && owner != m {
			return owner, file, nil
		}
	}
	return nil, disk.File{}, &types.FileNotFound{FileFault: types.FileFault{File: name}}
}

// serialOf is a disk's UUID as a guest with disk.EnableUUID sees it.
func serialOf(uuid string) string { return strings.ToLower(strings.ReplaceAll(uuid, "-", "")) }

func (a *attachment) device(file disk.File) *types.VirtualDisk {
	return &types.VirtualDisk{
		VirtualDevice: types.VirtualDevice{
			Key: a.key, ControllerKey: a.controller, UnitNumber: types.NewInt32(a.unit),
			DeviceInfo: &types.Description{Label: fmt.Sprintf("Hard disk %d", a.key), Summary: a.name},
			Backing: &types.VirtualDiskFlatVer2BackingInfo{
				VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: a.name},
				DiskMode:                     string(types.VirtualDiskModeIndependent_nonpersistent), Uuid: file.UUID,
				ThinProvisioned: types.NewBool(true),
			},
		},
		CapacityInBytes: file.Capacity, CapacityInKB: file.Capacity / 1024,
	}
}

func (s *Sim) detach(ctx *simulator.Context, m *machine, key, index int32) types.BaseMethodFault {
	a := s.hotAdds.find(m, key)
	if a == nil {
		log.Printf("detach from %s: device %d is no disk of another VM", m.given.Name, key)
		return &types.InvalidDeviceSpec{DeviceIndex: index}
	}
	plug := s.hotAdds.plugOf(m)
	// A guest that is off has nothing to take away; a folder stays.
	if _, isFolder := plug.(folderPlug); plug != nil && (isFolder || m.disks.Running()) {
		if err := plug.detach(a); err != nil {
			log.Printf("detach %s from the guest of %s: %s", a.name, m.given.Name, err)
			return &types.GenericVmConfigFault{Reason: err.Error()}
		}
	}
	s.hotAdds.forget(a)
	a.unlock()
	delete(m.places.taken, [2]int32{a.controller, a.unit})
	devices := object.VirtualDeviceList(m.vm.Config.Hardware.Device).Select(func(device types.BaseVirtualDevice) bool {
		return device.GetVirtualDevice().Key != key
	})
	s.showDevices(ctx, m, devices)
	log.Printf("detached %s from %s", a.name, m.given.Name)
	return nil
}

// hotAddMux adds what a test orders and looks at.
func (s *Sim) hotAddMux(mux *http.ServeMux) {
	mux.HandleFunc("POST /hotadd/guest", control(s.orderGuest))
	mux.HandleFunc("POST /hotadd/set", control(func(order struct {
		Removal string `json:"removal"`
	}) (any, error) {
		if order.Removal != "left" && order.Removal != "refused" {
			return nil, fmt.Errorf("removal %q: want left or refused", order.Removal)
		}
		s.hotAdds.refuse.Store(order.Removal == "refused")
		return done, nil
	}))
	mux.HandleFunc("GET /hotadd", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.hotAdds.show()) })
}

type guestOrder struct {
	VM     string `json:"vm"`
	Folder string `json:"folder,omitempty"`
	QMP    string `json:"qmp,omitempty"`
	Bus    string `json:"bus,omitempty"`
}

// orderGuest says how the guest of a VM gets to see its disks.
func (s *Sim) orderGuest(order guestOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	var guest plug
	switch {
	case order.Folder != "" && order.QMP == "":
		guest = folderPlug{order.Folder}
	case order.Folder == "" && order.QMP != "":
		guest = qmpPlug{socket: order.QMP, bus: order.Bus}
	default:
		return nil, errors.New("want a folder, or qmp with a bus")
	}
	s.hotAdds.mu.Lock()
	defer s.hotAdds.mu.Unlock()
	if s.hotAdds.guests == nil {
		s.hotAdds.guests = map[*machine]plug{}
	}
	s.hotAdds.guests[m] = guest
	return done, nil
}

func (h *hotAdds) show() any {
	h.mu.Lock()
	defer h.mu.Unlock()
	attached := []map[string]any{}
	for _, a := range h.all {
		attached = append(attached, map[string]any{
			"proxy": a.proxy.given.Name, "vm": a.owner.given.Name, "file": a.name, "unit": a.unit, "serial": a.serial,
		})
	}
	return map[string]any{"attached": attached, "attaches": h.attaches, "most": h.most}
}
