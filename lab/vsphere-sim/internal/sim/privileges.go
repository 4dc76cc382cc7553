package sim

import (
	"slices"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// privileges are those that users lack, whoever they are.
type privileges struct {
	mu     sync.Mutex
	denied map[*machine][]string // by VM; nil is every VM
}

type privilegeOrder struct {
	VM   string   `json:"vm,omitempty"` // default all
	Deny []string `json:"deny"`         // replaces what was denied before; none grants all again
}

func (s *Sim) orderPrivileges(order privilegeOrder) (any, error) {
	var m *machine
	if order.VM != "" {
		var err error
		if m, err = s.machineOf(order.VM); err != nil {
			return nil, err
		}
	}
	s.privileges.mu.Lock()
	defer s.privileges.mu.Unlock()
	if s.privileges.denied == nil {
		s.privileges.denied = map[*machine][]string{}
	}
	s.privileges.denied[m] = order.Deny
	return done, nil
}

func (p *privileges) lacks(m *machine, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.denied[nil], id) || slices.Contains(p.denied[m], id)
}

// required is what the methods want that drover calls, as the API reference has it.
var required = map[string]string{
	"CreateSnapshot_Task":     "VirtualMachine.State.CreateSnapshot",
	"RemoveSnapshot_Task":     "VirtualMachine.State.RemoveSnapshot",
	"ConsolidateVMDisks_Task": "VirtualMachine.State.RemoveSnapshot",
	"ShutdownGuest":           "VirtualMachine.Interact.PowerOff",
	"PowerOffVM_Task":         "VirtualMachine.Interact.PowerOff",
	"PowerOnVM_Task":          "VirtualMachine.Interact.PowerOn",
	"ReconfigVM_Task":         "VirtualMachine.Config.ChangeTracking",
	"QueryChangedDiskAreas":   "VirtualMachine.Provisioning.DiskRandomRead",

	// By the names of the privileges; nobody has seen it.
	"NfcGetVmFiles":               "VirtualMachine.Provisioning.GetVmFiles",
	"NfcRandomAccessOpenReadonly": "VirtualMachine.Provisioning.DiskRandomRead",
	"NfcRandomAccessOpenDisk":     "VirtualMachine.Provisioning.DiskRandomAccess",
}

// needed are the privileges that a call takes.
func needed(method *simulator.Method) (ids []string) {
	for _, operation := range changesDisks(method) {
		id := "VirtualMachine.Config.AddExistingDisk"
		if operation == types.VirtualDeviceConfigSpecOperationRemove {
			id = "VirtualMachine.Config.RemoveDisk"
		}
		ids = append(ids, id)
	}
	if id, known := required[method.Name]; known && ids == nil {
		ids = append(ids, id)
	}
	return ids
}

// refusal is the fault of a call that takes a privilege which users lack on m, or nil.
func (s *Sim) refusal(method *simulator.Method, m *machine) types.BaseMethodFault {
	for _, id := range needed(method) {
		if m != nil && s.privileges.lacks(m, id) {
			return &types.NoPermission{Object: &m.ref, PrivilegeId: id}
		}
	}
	return nil
}

// HasPrivilegeOnEntities tells which privileges a session has. The simulator's own grants all to everyone.
func (e *extension) HasPrivilegeOnEntities(ctx *simulator.Context, req *types.HasPrivilegeOnEntities) soap.HasFault {
	body := new(methods.HasPrivilegeOnEntitiesBody)
	if req.SessionId != ctx.Session.Key {
		body.Fault_ = invalidArgument("sessionId")
		return body
	}
	body.Res = new(types.HasPrivilegeOnEntitiesResponse)
	for _, entity := range req.Entity {
		told := types.EntityPrivilege{Entity: entity}
		for _, id := range req.PrivId {
			told.PrivAvailability = append(told.PrivAvailability, types.PrivilegeAvailability{
				PrivId: id, IsGranted: !e.sim.privileges.lacks(e.sim.owner(entity), id),
			})
		}
		body.Res.Returnval = append(body.Res.Returnval, told)
	}
	return body
}
