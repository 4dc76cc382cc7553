package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

// oracle keeps whole copies: slow, and obviously right.
type oracle struct {
	live   []byte
	frozen map[string][]byte
}

const (
	testBlocks   = 12
	testCapacity = testBlocks*BlockBytes - 777 // not a multiple of anything
)

func TestRandomHistoriesMatchWholeCopies(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runHistory(t, seed) })
	}
}

func runHistory(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	vm := NewStore().NewVM(true)
	d, err := vm.Add(Spec{Key: 2000, Capacity: testCapacity, Datastore: "ds", Dir: "vm", Stem: "vm", Root: t.TempDir(), Suffix: "-flat"})
	if err != nil {
		t.Fatal(err)
	}
	model := oracle{live: make([]byte, testCapacity), frozen: map[string][]byte{}}
	var snapshots []string
	for step := range 40 {
		switch random.IntN(6) {
		case 0, 1, 2:
			data := make([]byte, 1+random.IntN(100_000))
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			offset := random.Int64N(testCapacity - int64(len(data)))
			must(t, vm.Write(0, offset, data))
			copy(model.live[offset:], data)
		case 3:
			name := fmt.Sprintf("s%d", step)
			must(t, vm.Freeze(name))
			model.frozen[name] = bytes.Clone(model.live)
			snapshots = append(snapshots, name)
		case 4:
			if len(snapshots) > 0 {
				i := random.IntN(len(snapshots))
				must(t, vm.Remove(snapshots[i]))
				delete(model.frozen, snapshots[i])
				snapshots = append(snapshots[:i], snapshots[i+1:]...)
			}
		case 5:
			if len(snapshots) > 0 && random.IntN(3) == 0 {
				name := snapshots[random.IntN(len(snapshots))]
				must(t, vm.Revert(name))
				model.live = bytes.Clone(model.frozen[name])
			}
		}
		compare(t, vm, model)
	}
	for _, name := range snapshots {
		must(t, vm.Remove(name))
	}
	if got := vm.Backings("")[2000].FileName; got != "[ds] vm/vm.vmdk" {
		t.Errorf("without snapshots the disk is %s", got)
	}
	if files, _ := os.ReadDir(d.root); len(files) != 2 {
		t.Errorf("%d files are left, want descriptor and content", len(files))
	}
}

func compare(t *testing.T, vm *VM, model oracle) {
	t.Helper()
	state := vm.State()[0]
	if got, err := os.ReadFile(state.Live); err != nil || !bytes.Equal(got, model.live) {
		t.Fatalf("live content differs (%v)", err)
	}
	if len(state.Frozen) != len(model.frozen) {
		t.Fatalf("%d snapshots, want %d", len(state.Frozen), len(model.frozen))
	}
	for name, want := range model.frozen {
		if got, err := os.ReadFile(state.Frozen[name].Path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("content of %s differs (%v)", name, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newTestDisk(t *testing.T, tracking bool) (*VM, *Disk) {
	t.Helper()
	vm := NewStore().NewVM(tracking)
	d, err := vm.Add(Spec{Key: 2000, Capacity: testCapacity, Datastore: "ds", Dir: "vm", Stem: "vm", Root: t.TempDir(), Suffix: "-flat"})
	must(t, err)
	return vm, d
}

func (q Query) all(t *testing.T, d *Disk) []Extent {
	t.Helper()
	var areas []Extent
	for q.Start < d.Capacity {
		page, length, err := d.Changed(q)
		must(t, err)
		if length <= 0 {
			t.Fatal("no progress")
		}
		areas = append(areas, page...)
		q.Start += length
	}
	return areas
}

func TestChangedAreasComeInPagesAndAreThoseWritten(t *testing.T) {
	vm, d := newTestDisk(t, true)
	must(t, vm.Freeze("one"))
	id := vm.Backings("one")[2000].ChangeID
	for _, block := range []int64{1, 2, 5, 9, 11} {
		must(t, vm.Write(0, block*BlockBytes+3, []byte("x")))
	}
	must(t, vm.Freeze("two"))
	must(t, vm.Write(0, 0, []byte("after")))
	got := Query{Snapshot: "two", ChangeID: id, AreasMax: 1}.all(t, d)
	want := []Extent{{1 * BlockBytes, 2 * BlockBytes}, {5 * BlockBytes, BlockBytes}, {9 * BlockBytes, BlockBytes}, {11 * BlockBytes, BlockBytes - 777}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	must(t, vm.Remove("one"))
	got = Query{Snapshot: "two", ChangeID: id, AreasMax: 100}.all(t, d)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after the removal of the older snapshot: got %v, want %v", got, want)
	}
	if name := vm.Backings("two")[2000].FileName; name != "[ds] vm/vm.vmdk" {
		t.Errorf("snapshot two is now in %s, want the base", name)
	}
}

func TestAllocatedAreasSkipHoles(t *testing.T) {
	vm, d := newTestDisk(t, true)
	must(t, vm.Write(0, 4*BlockBytes, make([]byte, BlockBytes)))
	must(t, vm.Freeze("one"))
	got := Query{Snapshot: "one", ChangeID: "*", AreasMax: 100}.all(t, d)
	if fmt.Sprint(got) != fmt.Sprint([]Extent{{4 * BlockBytes, BlockBytes}}) {
		t.Errorf("got %v", got)
	}
}

func TestTrackingStartsAtAStunWithoutOlderSnapshots(t *testing.T) {
	vm, _ := newTestDisk(t, false)
	must(t, vm.Freeze("old"))
	vm.SetTracking(true)
	must(t, vm.Freeze("new"))
	if id := vm.Backings("new")[2000].ChangeID; id != "" {
		t.Errorf("an older snapshot is there, yet the change id is %q", id)
	}
	must(t, vm.Remove("old"))
	must(t, vm.Remove("new"))
	must(t, vm.Freeze("newer"))
	if id := vm.Backings("newer")[2000].ChangeID; id == "" {
		t.Error("no change id although tracking could start")
	}
}

func TestQueriesThatAreRefused(t *testing.T) {
	vm, d := newTestDisk(t, true)
	must(t, vm.Freeze("one"))
	id := vm.Backings("one")[2000].ChangeID
	check := func(name string, q Query, want error) {
		t.Helper()
		q.AreasMax = 10
		if _, _, err := d.Changed(q); err != want {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	check("offset at capacity", Query{Snapshot: "one", ChangeID: "*", Start: testCapacity}, ErrOffset)
	check("unknown snapshot", Query{Snapshot: "none", ChangeID: "*"}, ErrSnapshot)
	check("unknown id", Query{Snapshot: "one", ChangeID: "52 00/1"}, ErrUnknownChange)
	check("good id", Query{Snapshot: "one", ChangeID: id}, nil)
	vm.ResetTracking()
	check("id from before a reset", Query{Snapshot: "one", ChangeID: id}, ErrUnknownChange)
	vm.SetTracking(false)
	check("tracking off", Query{Snapshot: "one", ChangeID: "*"}, ErrNotTracked)
}

func TestAFreezeCopiesNothing(t *testing.T) {
	vm := NewStore().NewVM(true)
	_, err := vm.Add(Spec{Key: 2000, Capacity: 64 << 30, Datastore: "ds", Dir: "vm", Stem: "vm", Root: t.TempDir(), Suffix: "-flat"})
	must(t, err)
	must(t, vm.Write(0, 32<<30, bytes.Repeat([]byte("x"), 1<<20)))
	for i := range 50 {
		must(t, vm.Freeze(fmt.Sprint(i)))
	}
	state := vm.State()[0]
	if count, _ := links(state.Live); count != 51 {
		t.Errorf("the live file has %d names, want all 51 chain files to be one", count)
	}
}
