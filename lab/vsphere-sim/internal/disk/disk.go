// Package disk keeps the bytes of simulated virtual disks: chains of snapshot files, changed
// block tracking, and the writes of a pretended guest.
//
// Every file of a chain holds the whole disk as it was, not a delta, so that a reader needs no
// knowledge of a delta format. A freeze costs nothing, however large the disk: the new live file
// is a second hard link to the frozen one, and only the first write after it makes them two.
package disk

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// Store is all disks of all VMs.
type Store struct {
	mu   sync.RWMutex
	live map[string]*VM // by path of the live content file
}

// NewStore gives an empty store.
func NewStore() *Store { return &Store{live: map[string]*VM{}} }

// Locked tells if path is content that a running VM holds open, which ESXi refuses to read.
func (s *Store) Locked(path string) bool {
	s.mu.RLock()
	vm := s.live[path]
	s.mu.RUnlock()
	return vm != nil && vm.running.Load()
}

func (s *Store) moveLive(vm *VM, from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, from)
	s.live[to] = vm
}

func (s *Store) forgetLive(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, path)
}

// VM is the disks of one virtual machine, frozen and written under one lock so that a snapshot
// is one instant for all of them.
type VM struct {
	store   *Store
	running atomic.Bool

	// data is held, and taken before mu, by all that write or change which files there are. The
	// copy before a first write holds only data, so questions need not wait for it.
	data sync.Mutex

	mu        sync.Mutex
	tracking  bool // asked for; a disk's tracker starts at the next stun
	disks     []*Disk
	snapshots map[string]bool
	leaveNext bool // the next removal leaves its files
	left      bool // a removal left files, or so the VM says
}

// NewVM gives a VM without disks. With tracking, disks are tracked from the start.
func (s *Store) NewVM(tracking bool) *VM {
	return &VM{store: s, tracking: tracking, snapshots: map[string]bool{}}
}

// SetRunning tells that the VM was switched on or off. Switching on is a stun.
func (vm *VM) SetRunning(on bool) {
	vm.running.Store(on)
	if on {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		vm.stun()
	}
}

// Running tells if the VM is switched on.
func (vm *VM) Running() bool { return vm.running.Load() }

// Disk is one virtual disk.
type Disk struct {
	Key       int32  // device key
	UUID      string // as the backing shows it
	Capacity  int64  // bytes, of any value; changes under VM.data and VM.mu
	Datastore string // name; changes likewise
	Dir       string // folder inside the datastore
	Stem      string // file name of the base without .vmdk

	vm          *VM
	root        string // folder of Dir in the real file system
	suffix      string // what follows the stem in a content file's name
	independent bool   // takes no part in snapshots and tracking
	untracked   bool   // tracking is switched off for this disk
	lie         Lie

	live    *node
	nodes   []*node
	points  map[string]*point // by snapshot
	tracker tracker
	file    *os.File // live content, opened for writing at the first write; under VM.data
}

// node is one file of the chain.
type node struct {
	number int // 0 for the base
	parent *node
}

// point is what a snapshot remembers of a disk.
type point struct {
	node     *node
	changeID string
	epoch    uint32
	blocks   map[int64]uint32
}

// Spec says how to make a disk.
type Spec struct {
	Key         int32
	Capacity    int64
	Datastore   string
	Dir         string
	Stem        string
	Root        string // real folder of the datastore
	Content     string // file to fill it from, or ""
	Suffix      string // -flat, -rdm or -rdmp
	Independent bool
	Untracked   bool // tracking is switched off for this disk
	Added       bool // tracking starts at the next stun
}

// Add makes a disk and its files.
func (vm *VM) Add(spec Spec) (*Disk, error) {
	d := &Disk{
		Key: spec.Key, UUID: newUUID(), Capacity: spec.Capacity, Datastore: spec.Datastore, Dir: spec.Dir, Stem: spec.Stem,
		vm: vm, root: filepath.Join(spec.Root, spec.Dir), suffix: spec.Suffix, independent: spec.Independent, untracked: spec.Untracked,
		live: &node{}, points: map[string]*point{},
	}
	d.nodes = []*node{d.live}
	if err := os.MkdirAll(d.root, 0o700); err != nil {
		return nil, err
	}
	if err := d.fill(spec.Content); err != nil {
		return nil, fmt.Errorf("disk %s: %w", d.name(d.live), err)
	}
	if err := d.describe(d.live); err != nil {
		return nil, err
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.tracking && !d.independent && !d.untracked && !spec.Added {
		d.tracker.start()
	}
	vm.disks = append(vm.disks, d)
	vm.store.moveLive(vm, "", d.content(d.live))
	return d, nil
}

// newUUID is of the kind that vSphere gives to disks.
func newUUID() string {
	id := make([]byte, 12)
	_, _ = rand.Read(id) // Never fails, see crypto/rand.
	return fmt.Sprintf("6000C29%x-%x-%x-%x-%x", id[0]>>4, id[1:3], id[3:5], id[5:7], append(id[7:12], id[0]))
}

func (d *Disk) fill(content string) error {
	if content != "" {
		return copySparse(content, d.content(d.live), d.Capacity)
	}
	file, err := os.Create(d.content(d.live))
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Truncate(d.Capacity)
}

// stemOf is the file name of n without .vmdk.
func (d *Disk) stemOf(n *node) string {
	if n.number == 0 {
		return d.Stem
	}
	return fmt.Sprintf("%s-%06d", d.Stem, n.number)
}

// name is the backing file name, as in "[ds1] web01/web01-000001.vmdk".
func (d *Disk) name(n *node) string {
	return fmt.Sprintf("[%s] %s/%s.vmdk", d.Datastore, d.Dir, d.stemOf(n))
}

func (d *Disk) descriptor(n *node) string { return filepath.Join(d.root, d.stemOf(n)+".vmdk") }

func (d *Disk) content(n *node) string {
	return filepath.Join(d.root, d.stemOf(n)+d.suffix+".vmdk")
}

// describe writes the text descriptor of n. The last line of every chain names its content.
func (d *Disk) describe(n *node) error {
	parentCID, hint := "ffffffff", ""
	if n.parent != nil {
		parentCID = "fffffffe"
		hint = fmt.Sprintf("parentFileNameHint=%q\n", d.stemOf(n.parent)+".vmdk")
	}
	text := fmt.Sprintf("# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\nCID=fffffffe\nparentCID=%s\n"+
		"createType=\"vmfs\"\n%s\n# Extent description\nRW %d VMFS %q\n\n# The Disk Data Base\n#DDB\n\n"+
		"ddb.adapterType = \"lsilogic\"\nddb.virtualHWVersion = \"19\"\n",
		parentCID, hint, (d.Capacity+511)/512, d.stemOf(n)+d.suffix+".vmdk")
	return os.WriteFile(d.descriptor(n), []byte(text), 0o600)
}
