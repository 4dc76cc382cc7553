package disk

import "fmt"

// File is one file of a disk's chain.
type File struct {
	Key      int32
	UUID     string
	Path     string // of its content
	Capacity int64
	Live     bool // the one that the VM writes
}

// File finds a file by its name as in a backing.
func (vm *VM) File(name string) (File, bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for _, d := range vm.disks {
		for _, n := range d.nodes {
			if d.name(n) == name {
				return File{Key: d.Key, UUID: d.UUID, Path: d.content(n), Capacity: d.Capacity, Live: n == d.live}, true
			}
		}
	}
	return File{}, false
}

// Writer gets the live file of the disk with a device key ready to be written, and gives what writes to it. The rest
// of a last sector that is not whole is dropped.
func (vm *VM) Writer(key int32) (func(offset int64, data []byte) error, error) {
	d := vm.Find(key)
	if d == nil {
		return nil, fmt.Errorf("there is no disk with key %d", key)
	}
	vm.data.Lock()
	defer vm.data.Unlock()
	if err := d.openLive(); err != nil {
		return nil, err
	}
	return func(offset int64, data []byte) error {
		vm.data.Lock()
		defer vm.data.Unlock()
		return vm.write(d, offset, data[:min(int64(len(data)), max(0, d.Capacity-offset))])
	}, nil
}
