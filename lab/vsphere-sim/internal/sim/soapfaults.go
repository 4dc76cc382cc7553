package sim

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// soapOrder is an order for a fault of a SOAP call, as it comes over the control API.
type soapOrder struct {
	Method   string `json:"method,omitempty"`
	Fault    string `json:"fault,omitempty"`
	Message  string `json:"message,omitempty"`
	VM       string `json:"vm,omitempty"`    // only for calls to this VM
	As       string `json:"as,omitempty"`    // "call" (default) or "task"
	Count    int    `json:"count,omitempty"` // 0 is 1, -1 until cleared
	Skip     int    `json:"skip,omitempty"`
	Quiesced bool   `json:"quiesced,omitempty"` // only for snapshots that quiesce the guest; of tasks
}

// order puts a fault in place.
func (s *Sim) orderSoapFault(order soapOrder) error {
	fault, err := newFault(order.Fault)
	if err != nil {
		return err
	}
	count := order.Count
	if count == 0 {
		count = 1
	}
	switch order.As {
	case "task":
		if reflect.ValueOf(&failing{}).MethodByName(taskMethod(order.Method)).Kind() != reflect.Func {
			return fmt.Errorf("method %q: no task of it can be made to fail", order.Method)
		}
		rule := faultRule{
			method: order.Method, fault: fault, message: order.Message, left: count, skip: order.Skip, quiesced: order.Quiesced,
		}
		if order.VM != "" {
			if rule.only, err = s.machineOf(order.VM); err != nil {
				return err
			}
		}
		s.taskFaults.add(rule)
	case "", "call":
		if order.Quiesced {
			return errors.New("quiesced: want it together with as task")
		}
		if strings.HasPrefix(order.Method, "Nfc") {
			return s.orderNFCFault(order, fault, count)
		}
		name := "*"
		if order.VM != "" {
			name = order.VM
		}
		s.service.AddFaultRule(&simulator.FaultInjectionRule{
			MethodName: order.Method, ObjectType: "*", ObjectName: name, Probability: 1, Enabled: true,
			FaultType: simulator.FaultTypeCustom, Fault: fault, Message: order.Message,
			MaxCount: max(count, 0), SkipCount: order.Skip,
		})
	default:
		return fmt.Errorf("as %q: want call or task", order.As)
	}
	return nil
}

// newFault makes a fault by the name of its type in the API.
func newFault(name string) (types.BaseMethodFault, error) {
	kind, known := types.TypeFunc()(name)
	if known {
		if fault, ok := reflect.New(kind).Interface().(types.BaseMethodFault); ok {
			return fault, nil
		}
	}
	return nil, fmt.Errorf("fault %q is no fault type of the API", name)
}

func taskMethod(name string) string {
	const suffix = "_Task"
	if len(name) > len(suffix) && name[len(name)-len(suffix):] == suffix {
		return name[:len(name)-len(suffix)] + "Task"
	}
	return name
}

// faultRule is a fault that tasks of a method end in.
type faultRule struct {
	method   string
	fault    types.BaseMethodFault
	message  string
	left     int // -1 for ever
	skip     int
	only     *machine // or nil for all
	quiesced bool
}

// taskFaults are the rules in place.
type taskFaults struct {
	mu    sync.Mutex
	rules []*faultRule
}

func (t *taskFaults) add(rule faultRule) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = append(t.rules, &rule)
}

func (t *taskFaults) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = nil
}

// quiesces tells if a call makes a snapshot for which the guest is quiesced, which takes tools that run.
func quiesces(method *simulator.Method, m *machine) bool {
	if m == nil || m.given.Tools != "running" || !m.disks.Running() {
		return false
	}
	switch req := method.Body.(type) {
	case *types.CreateSnapshot_Task:
		return req.Quiesce
	case *types.CreateSnapshotEx_Task:
		return req.QuiesceSpec != nil
	}
	return false
}

// take gives the rule for this call of method and counts it.
func (t *taskFaults) take(method *simulator.Method, m *machine) *faultRule {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rule := range t.rules {
		if rule.method != method.Name || rule.left == 0 || rule.only != nil && rule.only != m || rule.quiesced && !quiesces(method, m) {
			continue
		}
		if rule.skip > 0 {
			rule.skip--
			continue
		}
		if rule.left > 0 {
			rule.left--
		}
		return rule
	}
	return nil
}

// failing stands in for an object whose next task is to fail.
type failing struct {
	sim  *Sim
	ref  types.ManagedObjectReference
	rule faultRule
}

// Reference is the object's own.
func (f *failing) Reference() types.ManagedObjectReference { return f.ref }

// taskTime is how long a task runs before it fails.
const taskTime = 50 * time.Millisecond

// fail makes a task that runs and then fails. It is made by hand, since tasks of govmomi's
// simulator say the Go type of the fault for a message.
func (f *failing) fail(ctx *simulator.Context) types.ManagedObjectReference {
	task := &simulator.Task{}
	now := time.Now()
	task.Info = types.TaskInfo{
		Name: f.rule.method, DescriptionId: f.ref.Type + "." + f.rule.method, Entity: &f.ref, EntityName: f.ref.Value,
		State: types.TaskInfoStateRunning, Reason: &types.TaskReasonUser{UserName: "vsphere-sim"},
		QueueTime: now, StartTime: &now,
	}
	registry := f.sim.registry
	ref := registry.Put(task).Reference()
	task.Info.Key, task.Info.Task = ref.Value, ref
	own := *ctx
	go func() {
		f.sim.sleep(f.sim.stopped, taskTime)
		registry.AtomicUpdate(&own, task, []types.PropertyChange{
			{Name: "info.completeTime", Val: time.Now()},
			{Name: "info.error", Val: types.LocalizedMethodFault{Fault: f.rule.fault, LocalizedMessage: f.rule.message}},
			{Name: "info.state", Val: types.TaskInfoStateError},
		})
	}()
	return ref
}

func (f *failing) CreateSnapshotTask(ctx *simulator.Context, _ *types.CreateSnapshot_Task) soap.HasFault {
	return &methods.CreateSnapshot_TaskBody{Res: &types.CreateSnapshot_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) CreateSnapshotExTask(ctx *simulator.Context, _ *types.CreateSnapshotEx_Task) soap.HasFault {
	return &methods.CreateSnapshotEx_TaskBody{Res: &types.CreateSnapshotEx_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) RemoveSnapshotTask(ctx *simulator.Context, _ *types.RemoveSnapshot_Task) soap.HasFault {
	return &methods.RemoveSnapshot_TaskBody{Res: &types.RemoveSnapshot_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) RemoveAllSnapshotsTask(ctx *simulator.Context, _ *types.RemoveAllSnapshots_Task) soap.HasFault {
	return &methods.RemoveAllSnapshots_TaskBody{Res: &types.RemoveAllSnapshots_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) RevertToSnapshotTask(ctx *simulator.Context, _ *types.RevertToSnapshot_Task) soap.HasFault {
	return &methods.RevertToSnapshot_TaskBody{Res: &types.RevertToSnapshot_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) ConsolidateVMDisksTask(ctx *simulator.Context, _ *types.ConsolidateVMDisks_Task) soap.HasFault {
	return &methods.ConsolidateVMDisks_TaskBody{Res: &types.ConsolidateVMDisks_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) PowerOffVMTask(ctx *simulator.Context, _ *types.PowerOffVM_Task) soap.HasFault {
	return &methods.PowerOffVM_TaskBody{Res: &types.PowerOffVM_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) PowerOnVMTask(ctx *simulator.Context, _ *types.PowerOnVM_Task) soap.HasFault {
	return &methods.PowerOnVM_TaskBody{Res: &types.PowerOnVM_TaskResponse{Returnval: f.fail(ctx)}}
}

func (f *failing) ReconfigVMTask(ctx *simulator.Context, _ *types.ReconfigVM_Task) soap.HasFault {
	return &methods.ReconfigVM_TaskBody{Res: &types.ReconfigVM_TaskResponse{Returnval: f.fail(ctx)}}
}
