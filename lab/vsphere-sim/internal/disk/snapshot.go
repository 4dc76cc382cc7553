package disk

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// Backing is what the API shows of a disk's file.
type Backing struct {
	FileName string
	ChangeID string
	Parents  []string // nearest first
	Capacity int64
}

// stun is a moment when the guest stands still, so tracking that was asked for can start.
// Older snapshots prevent it, as on real hosts.
func (vm *VM) stun() {
	if !vm.tracking || len(vm.snapshots) > 0 || vm.left {
		return
	}
	for _, d := range vm.disks {
		if !d.independent && !d.untracked && !d.tracker.on {
			d.tracker.start()
		}
	}
}

// SetTracking asks for changed block tracking, or ends it.
func (vm *VM) SetTracking(on bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.tracking = on
	if !on {
		for _, d := range vm.disks {
			d.tracker.stop()
		}
	}
}

// ResetTracking makes every change id handed out so far unknown.
func (vm *VM) ResetTracking() {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, d := range vm.disks {
		if d.tracker.on {
			d.tracker.start()
		}
	}
}

// Freeze makes the disks as they are now the content of snapshot; the VM goes on in new files.
func (vm *VM) Freeze(snapshot string) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.stun()
	vm.snapshots[snapshot] = true
	for _, d := range vm.disks {
		if d.independent {
			continue
		}
		d.tracker.epoch++
		d.points[snapshot] = &point{
			node: d.live, changeID: d.tracker.changeID(), epoch: d.tracker.epoch, blocks: copyMap(d.tracker.blocks),
		}
		if err := d.branch(d.live); err != nil {
			return err
		}
	}
	return nil
}

func copyMap(from map[int64]uint32) map[int64]uint32 {
	to := make(map[int64]uint32, len(from))
	for key, value := range from {
		to[key] = value
	}
	return to
}

// branch lets the disk go on in a new file on top of parent.
func (d *Disk) branch(parent *node) error {
	child := &node{number: d.freeNumber(), parent: parent}
	d.close()
	if err := os.Link(d.content(parent), d.content(child)); err != nil {
		return fmt.Errorf("snapshot of %s: %w", d.name(parent), err)
	}
	if err := d.describe(child); err != nil {
		return err
	}
	d.vm.store.moveLive(d.vm, d.content(d.live), d.content(child))
	d.nodes = append(d.nodes, child)
	d.live = child
	return nil
}

// freeNumber is the lowest file number that is not in use.
func (d *Disk) freeNumber() int {
	for number := 1; ; number++ {
		if !slices.ContainsFunc(d.nodes, func(n *node) bool { return n.number == number }) {
			return number
		}
	}
}

// Remove forgets snapshot and merges every file that nothing needs any more.
func (vm *VM) Remove(snapshot string) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if !vm.snapshots[snapshot] {
		return nil
	}
	delete(vm.snapshots, snapshot)
	for _, d := range vm.disks {
		delete(d.points, snapshot)
	}
	if vm.leaveNext {
		vm.leaveNext, vm.left = false, true
	}
	if vm.left {
		return nil
	}
	err := vm.merge()
	vm.stun()
	return err
}

func (vm *VM) merge() error {
	var err error
	for _, d := range vm.disks {
		err = errors.Join(err, d.consolidate())
	}
	return err
}

// LeaveNext lets the next removal of a snapshot leave its files, as when another program holds one open.
func (vm *VM) LeaveNext() {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.leaveNext = true
}

// SetLeft makes the VM say that it needs consolidation. Removals then leave their files, too.
func (vm *VM) SetLeft() {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.left = true
}

// Left tells if files of removed snapshots were left.
func (vm *VM) Left() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.left
}

// Consolidate merges what removals left.
func (vm *VM) Consolidate() error {
	vm.data.Lock()
	defer vm.data.Unlock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.left = false
	return vm.merge()
}

// consolidate goes on until no file is left that is neither live, nor a snapshot's, nor shared
// by two branches.
func (d *Disk) consolidate() error {
	for {
		n, child := d.idle()
		if n == nil {
			return nil
		}
		if err := d.drop(n, child); err != nil {
			return err
		}
	}
}

// idle finds a file to drop, and the only file on top of it if there is one.
func (d *Disk) idle() (n, child *node) {
	for _, n := range d.nodes {
		if n == d.live || d.frozen(n) {
			continue
		}
		children := 0
		for _, other := range d.nodes {
			if other.parent == n {
				children, child = children+1, other
			}
		}
		if children == 0 {
			return n, nil
		}
		if children == 1 {
			return n, child
		}
	}
	return nil, nil
}

func (d *Disk) frozen(n *node) bool {
	for _, point := range d.points {
		if point.node == n {
			return true
		}
	}
	return false
}

// drop removes n; its child, if any, takes over its name, as vSphere merges a delta into its parent.
func (d *Disk) drop(n, child *node) error {
	d.close()
	d.nodes = slices.DeleteFunc(d.nodes, func(other *node) bool { return other == n })
	if child == nil {
		return errors.Join(os.Remove(d.content(n)), os.Remove(d.descriptor(n)))
	}
	oldContent, oldDescriptor := d.content(child), d.descriptor(child)
	// Renaming one hard link over another of the same file does nothing, so the target goes first.
	if err := os.Remove(d.content(n)); err != nil {
		return err
	}
	child.number, child.parent = n.number, n.parent
	if err := os.Rename(oldContent, d.content(child)); err != nil {
		return err
	}
	if err := os.Remove(oldDescriptor); err != nil {
		return err
	}
	if child == d.live {
		d.vm.store.moveLive(d.vm, oldContent, d.content(child))
	}
	for _, other := range d.nodes {
		if other == child || other.parent == child {
			if err := d.describe(other); err != nil {
				return err
			}
		}
	}
	return nil
}

// Revert puts the disks back to snapshot. What was written since is lost, and so are change ids.
func (vm *VM) Revert(snapshot string) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if !vm.snapshots[snapshot] {
		return ErrSnapshot
	}
	vm.left = false // Below everything is merged.
	for _, d := range vm.disks {
		point := d.points[snapshot]
		if point == nil {
			continue
		}
		if err := d.branch(point.node); err != nil {
			return err
		}
		if d.tracker.on {
			d.tracker.start()
		}
		if err := d.consolidate(); err != nil {
			return err
		}
	}
	return nil
}

// Backings gives for each device key the file of snapshot, or the live one if snapshot is "".
// A disk without part in the snapshot shows its live file.
func (vm *VM) Backings(snapshot string) map[int32]Backing {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	backings := map[int32]Backing{}
	for _, d := range vm.disks {
		n, changeID := d.live, d.tracker.changeID()
		if point := d.points[snapshot]; point != nil {
			n, changeID = point.node, point.changeID
		}
		backing := Backing{FileName: d.name(n), ChangeID: changeID, Capacity: d.Capacity}
		for parent := n.parent; parent != nil; parent = parent.parent {
			backing.Parents = append(backing.Parents, d.name(parent))
		}
		backings[d.Key] = backing
	}
	return backings
}

// close forgets the open live file before names change.
func (d *Disk) close() {
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
}

// Tracking tells if changed block tracking was asked for.
func (vm *VM) Tracking() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.tracking
}
