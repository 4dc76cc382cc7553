package sim

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// othersMux adds what other users of the vSphere do to a VM behind the back of its migration.
func (s *Sim) othersMux(mux *http.ServeMux) {
	mux.HandleFunc("POST /cbt/lie", control(s.orderLie))
	mux.HandleFunc("POST /vm/move", control(s.orderMove))
	mux.HandleFunc("POST /vm/power", control(s.orderPower))
	mux.HandleFunc("POST /vm/consolidation", control(s.orderConsolidation))
	mux.HandleFunc("POST /privileges", control(s.orderPrivileges))
	mux.HandleFunc("POST /performance", control(s.orderPerformance))
	mux.HandleFunc("POST /disk/grow", control(s.orderGrow))
	mux.HandleFunc("POST /disk/add", control(s.orderAdd))
	mux.HandleFunc("POST /disk/remove", control(s.orderRemove))
}

// onVM runs change with the VM locked, as a task of its own would.
func (s *Sim) onVM(name string, change func(ctx *simulator.Context, m *machine) error) (any, error) {
	m, err := s.machineOf(name)
	if err != nil {
		return nil, err
	}
	ctx := s.ownContext()
	s.registry.WithLock(ctx, m.vm, func() { err = change(ctx, m) })
	return done, err
}

type lieOrder struct {
	VM     string `json:"vm"`
	Disk   int    `json:"disk"`
	Writes int    `json:"writes,omitempty"`
	Span   string `json:"span,omitempty"`
	Widen  string `json:"widen,omitempty"`
	Pad    string `json:"pad,omitempty"`
}

func (s *Sim) orderLie(order lieOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	lie := disk.Lie{Writes: order.Writes}
	if order.Span != "" {
		from, to, err := inventory.ParseSpan(order.Span)
		if err != nil {
			return nil, err
		}
		lie.Span = disk.Extent{Start: int64(from), Length: int64(to - from)}
	}
	if lie.Widen, err = sizeOr(order.Widen, 0); err != nil {
		return nil, err
	}
	if lie.Pad, err = sizeOr(order.Pad, 0); err != nil {
		return nil, err
	}
	return done, m.disks.SetLie(order.Disk, lie)
}

func sizeOr(text string, fallback int64) (int64, error) {
	if text == "" {
		return fallback, nil
	}
	size, err := inventory.ParseSize(text)
	return int64(size), err
}

type moveOrder struct {
	VM            string `json:"vm"`
	Host          string `json:"host,omitempty"`
	Datastore     string `json:"datastore,omitempty"`
	KeepChangeIDs bool   `json:"keep_change_ids,omitempty"`
	CutNFC        bool   `json:"cut_nfc,omitempty"`
}

// orderMove is vMotion (host), storage vMotion (datastore), or both at once.
func (s *Sim) orderMove(order moveOrder) (any, error) {
	host, hostKnown := s.hostRefs[order.Host]
	root, datastoreKnown := s.datastores[order.Datastore]
	if order.Host == "" && order.Datastore == "" || order.Host != "" && !hostKnown || order.Datastore != "" && !datastoreKnown {
		return nil, fmt.Errorf("host %q, datastore %q: want one of the inventory's", order.Host, order.Datastore)
	}
	return s.onVM(order.VM, func(ctx *simulator.Context, m *machine) error {
		if hostKnown {
			s.moveToHost(ctx, m, host)
		}
		if order.CutNFC {
			s.nfc.CutVM(m.ref.Value)
		}
		if !datastoreKnown {
			return nil
		}
		if err := m.disks.Move(order.Datastore, root, !order.KeepChangeIDs); err != nil {
			return err
		}
		s.moveToDatastore(ctx, m, order.Datastore)
		s.showAll(ctx, m)
		return nil
	})
}

func (s *Sim) moveToHost(ctx *simulator.Context, m *machine, ref types.ManagedObjectReference) {
	from := s.registry.Get(*m.vm.Runtime.Host).(*simulator.HostSystem)
	to := s.registry.Get(ref).(*simulator.HostSystem)
	s.registry.RemoveReference(ctx, from, &from.Vm, m.ref)
	s.registry.AppendReference(ctx, to, &to.Vm, m.ref)
	ctx.Update(m.vm, []types.PropertyChange{
		{Name: "runtime.host", Val: ref}, {Name: "summary.runtime.host", Val: ref},
	})
}

// moveToDatastore shows the datastore beside the old one, where the VM's other files stay.
func (s *Sim) moveToDatastore(ctx *simulator.Context, m *machine, name string) {
	host := s.registry.Get(*m.vm.Runtime.Host).(*simulator.HostSystem)
	found, ok := s.registry.FindByName(name, host.Datastore).(*simulator.Datastore)
	if !ok || slices.Contains(m.vm.Datastore, found.Self) {
		return
	}
	s.registry.AppendReference(ctx, found, &found.Vm, m.ref)
	all := append(slices.Clone(m.vm.Datastore), found.Self)
	ctx.Update(m.vm, []types.PropertyChange{{Name: "datastore", Val: all}})
}

type powerOrder struct {
	VM    string `json:"vm"`
	State string `json:"state"`
}

// orderPower is another user who switches the VM on or off, or suspends it, and waits for that.
func (s *Sim) orderPower(order powerOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	ctx := s.ownContext()
	var task types.ManagedObjectReference
	switch order.State {
	case "on":
		task = taskOf(m.vm.PowerOnVMTask(ctx, &types.PowerOnVM_Task{This: m.ref}))
	case "off":
		task = taskOf(m.vm.PowerOffVMTask(ctx, &types.PowerOffVM_Task{This: m.ref}))
	case "suspended":
		task = taskOf(m.vm.SuspendVMTask(ctx, &types.SuspendVM_Task{This: m.ref}))
	default:
		return nil, fmt.Errorf("state %q: want on, off or suspended", order.State)
	}
	_, err = s.wait(task)
	return done, err
}

func taskOf(body soap.HasFault) types.ManagedObjectReference {
	switch body := body.(type) {
	case *methods.PowerOnVM_TaskBody:
		return body.Res.Returnval
	case *methods.PowerOffVM_TaskBody:
		return body.Res.Returnval
	}
	return body.(*methods.SuspendVM_TaskBody).Res.Returnval
}

type consolidationOrder struct {
	VM              string `json:"vm"`
	Needed          bool   `json:"needed,omitempty"`
	FailNextRemoval bool   `json:"fail_next_removal,omitempty"`
}

func (s *Sim) orderConsolidation(order consolidationOrder) (any, error) {
	if order.Needed == order.FailNextRemoval {
		return nil, errors.New("want needed or fail_next_removal")
	}
	return s.onVM(order.VM, func(ctx *simulator.Context, m *machine) error {
		if order.FailNextRemoval {
			m.disks.LeaveNext()
			return nil
		}
		m.disks.SetLeft()
		s.showLeft(ctx, m)
		return nil
	})
}

// showLeft shows if files of removed snapshots were left.
func (s *Sim) showLeft(ctx *simulator.Context, m *machine) {
	ctx.Update(m.vm, []types.PropertyChange{
		{Name: "runtime.consolidationNeeded", Val: m.disks.Left()},
	})
}

type diskOrder struct {
	VM         string `json:"vm"`
	Disk       int    `json:"disk,omitempty"`
	Capacity   string `json:"capacity,omitempty"`
	Controller string `json:"controller,omitempty"`
	Datastore  string `json:"datastore,omitempty"`
}

func (s *Sim) orderGrow(order diskOrder) (any, error) {
	capacity, err := inventory.ParseSize(order.Capacity)
	if err != nil {
		return nil, err
	}
	return s.onVM(order.VM, func(ctx *simulator.Context, m *machine) error {
		if err := m.disks.Grow(order.Disk, int64(capacity)); err != nil {
			return err
		}
		s.showLive(ctx, m)
		return nil
	})
}

// orderAdd is a new empty disk; a running VM takes it as well.
func (s *Sim) orderAdd(order diskOrder) (any, error) {
	capacity, err := inventory.ParseSize(order.Capacity)
	if err != nil {
		return nil, err
	}
	given := &inventory.Disk{
		Capacity: &capacity, Datastore: order.Datastore, Controller: order.Controller, Mode: "persistent", Sharing: "none",
	}
	if given.Controller == "" {
		given.Controller = "pvscsi"
	}
	return s.onVM(order.VM, func(ctx *simulator.Context, m *machine) error {
		if given.Datastore == "" {
			given.Datastore = m.given.Datastore
		}
		if _, known := s.datastores[given.Datastore]; !known {
			return fmt.Errorf("datastore %q: there is none", given.Datastore)
		}
		if _, known := controllerKinds[given.Controller]; !known {
			return fmt.Errorf("controller %q: there is none", given.Controller)
		}
		controllers := len(m.places.devices)
		device, err := s.makeDisk(m, given, true)
		if err != nil {
			return err
		}
		devices := slices.Concat(m.vm.Config.Hardware.Device, m.places.devices[controllers:], []types.BaseVirtualDevice{device})
		s.showDevices(ctx, m, devices)
		return nil
	})
}

// orderRemove takes a disk away. Numbers of those behind it become one less.
func (s *Sim) orderRemove(order diskOrder) (any, error) {
	return s.onVM(order.VM, func(ctx *simulator.Context, m *machine) error {
		key, err := m.disks.Detach(order.Disk)
		if err != nil {
			return err
		}
		devices := object.VirtualDeviceList(m.vm.Config.Hardware.Device).Select(func(device types.BaseVirtualDevice) bool {
			return device.GetVirtualDevice().Key != key
		})
		s.showDevices(ctx, m, devices)
		return nil
	})
}

func (s *Sim) showDevices(ctx *simulator.Context, m *machine, devices []types.BaseVirtualDevice) {
	ctx.Update(m.vm, []types.PropertyChange{{Name: "config.hardware.device", Val: devices}})
	s.showTracking(m)
	s.showLive(ctx, m)
}
