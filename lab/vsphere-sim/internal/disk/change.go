package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// ErrSnapshots refuses what vSphere refuses while there are snapshots.
var ErrSnapshots = errors.New("the virtual machine has snapshots")

// Move puts all disks on another datastore, whose folder is root, as storage vMotion does. With newIDs
// tracking begins anew, which it does on real hosts.
func (vm *VM) Move(datastore, root string, newIDs bool) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, d := range vm.disks {
		if err := d.move(datastore, filepath.Join(root, d.Dir)); err != nil {
			return err
		}
		if newIDs && d.tracker.on {
			d.tracker.start()
		}
	}
	return nil
}

func (d *Disk) move(datastore, root string) error {
	if root == d.root {
		return fmt.Errorf("disk %s is on datastore %s already", d.name(d.live), datastore)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	d.close()
	from := *d
	to := *d
	to.Datastore, to.root = datastore, root
	for _, n := range d.nodes {
		for _, names := range [][2]string{{from.content(n), to.content(n)}, {from.descriptor(n), to.descriptor(n)}} {
			if _, err := os.Lstat(names[1]); err == nil {
				return fmt.Errorf("%s exists already", to.name(n))
			}
			if err := os.Rename(names[0], names[1]); err != nil {
				return err
			}
		}
	}
	d.vm.store.moveLive(d.vm, from.content(d.live), to.content(d.live))
	d.Datastore, d.root = datastore, root
	return nil
}

// Grow makes disk number index larger. Tracking goes on, as it does on real hosts.
func (vm *VM) Grow(index int, capacity int64) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	d := vm.disk(index)
	if d == nil {
		return fmt.Errorf("there is no disk %d", index)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(vm.snapshots) > 0 || vm.left {
		return ErrSnapshots
	}
	if capacity < d.Capacity {
		return fmt.Errorf("disk %d has %d bytes already", index, d.Capacity)
	}
	if err := os.Truncate(d.content(d.live), capacity); err != nil {
		return err
	}
	d.Capacity = capacity
	return d.describe(d.live)
}

// Detach takes disk number index from the VM and gives its key. Its files stay.
func (vm *VM) Detach(index int) (int32, error) {
	vm.data.Lock()
	defer vm.data.Unlock()
	d := vm.disk(index)
	if d == nil {
		return 0, fmt.Errorf("there is no disk %d", index)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(vm.snapshots) > 0 || vm.left {
		return 0, ErrSnapshots
	}
	d.close()
	vm.disks = slices.DeleteFunc(vm.disks, func(other *Disk) bool { return other == d })
	vm.store.forgetLive(d.content(d.live))
	return d.Key, nil
}

// SetDiskTracking switches tracking on or off for the disk with a device key. It works only while
// tracking is on for the VM, and starts at the next stun. Tells if that changed anything.
func (vm *VM) SetDiskTracking(key int32, on bool) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, d := range vm.disks {
		if d.Key == key && d.untracked == on {
			d.untracked = !on
			if !on {
				d.tracker.stop()
			}
			return true
		}
	}
	return false
}

// TracksDisk tells if tracking is switched on for the disk with a device key.
func (vm *VM) TracksDisk(key int32) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.tracking && slices.ContainsFunc(vm.disks, func(d *Disk) bool { return d.Key == key && !d.untracked })
}
