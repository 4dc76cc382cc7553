package disk

import (
	"fmt"
	"os"
)

// Write is the guest writing data at offset of disk number index.
func (vm *VM) Write(index int, offset int64, data []byte) error {
	vm.data.Lock()
	defer vm.data.Unlock()
	d := vm.disk(index)
	if d == nil {
		return fmt.Errorf("there is no disk %d", index)
	}
	return vm.write(d, offset, data)
}

func (vm *VM) write(d *Disk, offset int64, data []byte) error {
	if offset < 0 || offset > d.Capacity || int64(len(data)) > d.Capacity-offset {
		return fmt.Errorf("write of %d bytes at %d: the disk has %d bytes", len(data), offset, d.Capacity)
	}
	if err := d.openLive(); err != nil {
		return err
	}
	if _, err := d.file.WriteAt(data, offset); err != nil {
		return err
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if !d.lie.forget() {
		d.tracker.wrote(offset, int64(len(data)))
	}
	return nil
}

func (vm *VM) disk(index int) *Disk {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if index < 0 || index >= len(vm.disks) {
		return nil
	}
	return vm.disks[index]
}

// openLive opens the live file for writing; if a snapshot still shares it, the live one becomes
// a copy first.
func (d *Disk) openLive() error {
	if d.file != nil {
		return nil
	}
	path := d.content(d.live)
	count, err := links(path)
	if err != nil {
		return err
	}
	if count > 1 {
		if err := copySparse(path, path+".new", d.Capacity); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	d.file, err = os.OpenFile(path, os.O_RDWR, 0)
	return err
}

// Capacity gives the size of disk number index, or -1 if there is none.
func (vm *VM) Capacity(index int) int64 {
	d := vm.disk(index)
	if d == nil {
		return -1
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return d.Capacity
}

// Find gives the disk with a device key, or nil.
func (vm *VM) Find(key int32) *Disk {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, d := range vm.disks {
		if d.Key == key {
			return d
		}
	}
	return nil
}

// Query asks which areas changed.
type Query struct {
	Snapshot string // "" for the live disk
	Start    int64
	ChangeID string // "*" for all allocated areas
	AreasMax int
}

// Changed answers with areas in order, and the length from q.Start on for which they are complete.
func (d *Disk) Changed(q Query) ([]Extent, int64, error) {
	d.vm.mu.Lock()
	defer d.vm.mu.Unlock()
	if q.Snapshot != "" && !d.vm.snapshots[q.Snapshot] {
		return nil, 0, ErrSnapshot
	}
	if q.Start < 0 || q.Start >= d.Capacity {
		return nil, 0, ErrOffset
	}
	if !d.tracker.on {
		return nil, 0, ErrNotTracked
	}
	areas, err := d.changedAreas(q)
	if err != nil {
		return nil, 0, err
	}
	end := d.Capacity
	if q.ChangeID != "*" {
		areas, end = d.lie.tell(areas, d.Capacity)
	}
	areas, length := page(areas, q.Start, end, q.AreasMax)
	return areas, length, nil
}

func (d *Disk) changedAreas(q Query) ([]Extent, error) {
	at := &point{node: d.live, epoch: d.tracker.epoch, blocks: d.tracker.blocks}
	if q.Snapshot != "" {
		at = d.points[q.Snapshot]
	}
	if q.ChangeID == "*" {
		return d.allocated(at.node)
	}
	epoch, err := d.tracker.parse(q.ChangeID)
	if err != nil {
		return nil, err
	}
	// A snapshot from before the present id or older than the change can't tell.
	if q.Snapshot != "" && (epoch > at.epoch || !d.current(at)) {
		return nil, ErrUnknownChange
	}
	return since(at.blocks, epoch, d.Capacity), nil
}

// current tells if at was made under the id that tracking has now.
func (d *Disk) current(at *point) bool {
	_, err := d.tracker.parse(at.changeID)
	return err == nil
}

// AllocatedBytes is what the content that the VM writes takes, in whole 64 KiB.
func (d *Disk) AllocatedBytes() int64 {
	extents, err := d.allocated(d.live)
	if err != nil {
		return 0
	}
	var sum int64
	for _, extent := range extents {
		sum += extent.Length
	}
	return sum
}

func (d *Disk) allocated(n *node) ([]Extent, error) {
	file, err := os.Open(d.content(n))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	extents, err := dataExtents(file, d.Capacity)
	if err != nil {
		return nil, err
	}
	return roundOut(extents, d.Capacity), nil
}

// State is what a test may know of a disk.
type State struct {
	Index    int               `json:"disk"`
	Key      int32             `json:"key"`
	Capacity int64             `json:"capacity"`
	Name     string            `json:"name"`
	Live     string            `json:"live"`
	ChangeID string            `json:"change_id,omitempty"`
	Frozen   map[string]Frozen `json:"frozen"`
	SHA256   string            `json:"sha256,omitempty"`
}

// Frozen is a disk as a snapshot keeps it.
type Frozen struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ChangeID string `json:"change_id,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
}

// State lists the VM's disks with their real files; frozen ones by snapshot.
func (vm *VM) State() []State {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	states := []State{}
	for i, d := range vm.disks {
		state := State{
			Index: i, Key: d.Key, Capacity: d.Capacity, Name: d.name(d.live), Live: d.content(d.live),
			ChangeID: d.tracker.changeID(), Frozen: map[string]Frozen{},
		}
		for snapshot, point := range d.points {
			state.Frozen[snapshot] = Frozen{Name: d.name(point.node), Path: d.content(point.node), ChangeID: point.changeID}
		}
		states = append(states, state)
	}
	return states
}
