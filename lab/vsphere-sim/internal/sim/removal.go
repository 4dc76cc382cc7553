package sim

import (
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// RemoveSnapshotTask runs the removal of govmomi's simulator as the inner one of two tasks. Alone
// it would end the whole program when a client asks twice, as it does after a lost answer, and
// it leaves the current snapshot among children removed with their parent.
func (e *extension) RemoveSnapshotTask(ctx *simulator.Context, req *types.RemoveSnapshot_Task) soap.HasFault {
	task := simulator.CreateTask(e.machine.vm, "removeSnapshot", func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
		snapshot, ok := e.sim.registry.Get(req.This).(*simulator.VirtualMachineSnapshot)
		if !ok || e.machine.vm.Snapshot == nil {
			return nil, &types.ManagedObjectNotFound{Obj: req.This}
		}
		if e.sim.hotAdds.holds(e.machine) {
			if e.sim.hotAdds.refuse.Load() {
				return nil, &types.FileLocked{FileFault: types.FileFault{File: e.machine.vm.Config.Files.VmPathName}}
			}
			// The classic: the snapshot goes, its files stay, for a host has one of them open.
			e.machine.disks.LeaveNext()
		}
		left := e.machine.disks.Left()
		parent, below := around(e.machine.vm.Snapshot.RootSnapshotList, req.This, nil)
		body := snapshot.RemoveSnapshotTask(ctx, req).(*methods.RemoveSnapshot_TaskBody)
		inner := e.sim.registry.Get(body.Res.Returnval).(*simulator.Task)
		inner.Wait()
		if req.RemoveChildren {
			e.forget(ctx, below, parent)
		}
		if !left && e.machine.disks.Left() {
			return nil, &types.FileLocked{FileFault: types.FileFault{File: e.machine.vm.Config.Files.VmPathName}}
		}
		return nil, nil
	})
	return &methods.RemoveSnapshot_TaskBody{Res: &types.RemoveSnapshot_TaskResponse{Returnval: task.Run(ctx)}}
}

// around finds the parent of a snapshot, nil for a root, and all snapshots below it.
func around(trees []types.VirtualMachineSnapshotTree, ref types.ManagedObjectReference,
	above *types.ManagedObjectReference) (parent *types.ManagedObjectReference, below []types.ManagedObjectReference) {
	for i := range trees {
		if trees[i].Snapshot == ref {
			walkSnapshots(trees[i].ChildSnapshotList, func(tree types.VirtualMachineSnapshotTree) {
				below = append(below, tree.Snapshot)
			})
			return above, below
		}
		if parent, below := around(trees[i].ChildSnapshotList, ref, &trees[i].Snapshot); parent != nil {
			return parent, below
		}
	}
	return nil, nil
}

// forget removes the objects of children and moves the current snapshot up to parent.
func (e *extension) forget(ctx *simulator.Context, children []types.ManagedObjectReference, parent *types.ManagedObjectReference) {
	vm := e.machine.vm
	for _, child := range children {
		if vm.Snapshot != nil && vm.Snapshot.CurrentSnapshot != nil && *vm.Snapshot.CurrentSnapshot == child {
			ctx.Update(vm, []types.PropertyChange{{Name: "snapshot.currentSnapshot", Val: parent}})
		}
		e.sim.registry.Remove(ctx, child)
	}
}
