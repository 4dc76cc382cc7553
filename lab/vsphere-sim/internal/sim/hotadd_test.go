package sim

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
)

// hotAdd attaches a file to a VM, or removes the device with a key.
func (l *lab) hotAdd(vm *object.VirtualMachine, file, mode string, unit int32) error {
	device := &types.VirtualDisk{
		VirtualDevice: types.VirtualDevice{
			Key: -1, ControllerKey: 1000, UnitNumber: &unit,
			Backing: &types.VirtualDiskFlatVer2BackingInfo{
				VirtualDeviceFileBackingInfo: types.VirtualDeviceFileBackingInfo{FileName: file}, DiskMode: mode,
			},
		},
	}
	return l.reconfigure(vm, types.VirtualDeviceConfigSpecOperationAdd, device)
}

func (l *lab) reconfigure(vm *object.VirtualMachine, operation types.VirtualDeviceConfigSpecOperation, device types.BaseVirtualDevice) error {
	ctx := context.Background()
	task, err := vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{DeviceChange: []types.BaseVirtualDeviceConfigSpec{
		&types.VirtualDeviceConfigSpec{Operation: operation, Device: device},
	}})
	if err != nil {
		return err
	}
	return task.Wait(ctx)
}

func TestADiskOfASnapshotIsAttachedReadOnlyAndBlocksTheSnapshotsRemoval(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm, proxy := l.vm("prod/web/web01"), l.vm("old")
	folder := t.TempDir()
	l.control("POST", "/hotadd/guest", `{"vm":"old","folder":"`+folder+`"}`, nil)
	task, err := vm.CreateSnapshot(ctx, "s", "", false, false)
	check(t, err)
	info, err := task.WaitForResult(ctx)
	check(t, err)
	frozen := l.config(info.Result.(types.ManagedObjectReference)).Hardware.Device
	backing := object.VirtualDeviceList(frozen).SelectByType((*types.VirtualDisk)(nil))[0].GetVirtualDevice().Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	live := l.config(vm.Reference()).Hardware.Device
	running := object.VirtualDeviceList(live).SelectByType((*types.VirtualDisk)(nil))[0].GetVirtualDevice().Backing.(*types.VirtualDiskFlatVer2BackingInfo)

	const nonpersistent = "independent_nonpersistent"
	if err := l.hotAdd(proxy, backing.FileName, "persistent", 3); !fault.Is(err, &types.InvalidDeviceSpec{}) {
		t.Errorf("a disk that can be written to: %v", err)
	}
	if err := l.hotAdd(proxy, running.FileName, nonpersistent, 3); !fault.Is(err, &types.FileLocked{}) {
		t.Errorf("the live file: %v", err)
	}
	if err := l.hotAdd(proxy, backing.FileName, nonpersistent, 7); !fault.Is(err, &types.InvalidDeviceSpec{}) {
		t.Errorf("the controller's own unit: %v", err)
	}
	check(t, l.hotAdd(proxy, backing.FileName, nonpersistent, 3))
	if err := l.hotAdd(proxy, backing.FileName, nonpersistent, 3); !fault.Is(err, &types.InvalidDeviceSpec{}) {
		t.Errorf("a unit that is taken: %v", err)
	}
	link := filepath.Join(folder, "wwn-0x"+serialOf(backing.Uuid))
	if _, err := os.Stat(link); err != nil {
		t.Error(err)
	}

	remove, err := vm.RemoveSnapshot(ctx, "s", false, nil)
	check(t, err)
	if err := remove.Wait(ctx); !fault.Is(err, &types.FileLocked{}) {
		t.Errorf("removal of the snapshot: %v", err)
	}
	ref := vm.Reference()
	consolidate := func() error {
		answer, err := methods.ConsolidateVMDisks_Task(ctx, l.client.Client, &types.ConsolidateVMDisks_Task{This: ref})
		check(t, err)
		return object.NewTask(l.client.Client, answer.Returnval).Wait(ctx)
	}
	if err := consolidate(); !fault.Is(err, &types.FileLocked{}) {
		t.Errorf("consolidation: %v", err)
	}
	devices := object.VirtualDeviceList(l.config(proxy.Reference()).Hardware.Device)
	check(t, l.reconfigure(proxy, types.VirtualDeviceConfigSpecOperationRemove, devices.FindByKey(2003)))
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Errorf("the link of a disk that was detached: %v", err)
	}
	check(t, consolidate())
	if m := l.sim.machines[ref.Value]; m.disks.Left() || len(l.sim.hotAdds.all) != 0 {
		t.Error("something is left")
	}
	l.control("POST", "/privileges", `{"vm":"old","deny":["VirtualMachine.Config.AddExistingDisk"]}`, nil)
	if err := l.hotAdd(proxy, backing.FileName, nonpersistent, 3); !fault.Is(err, &types.NoPermission{}) {
		t.Errorf("without the privilege: %v", err)
	}
}
