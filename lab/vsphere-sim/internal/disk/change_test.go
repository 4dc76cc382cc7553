package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changedSince asks for changes up to a new snapshot, which it removes.
func changedSince(t *testing.T, vm *VM, d *Disk, id string) []Extent {
	t.Helper()
	must(t, vm.Freeze("ask"))
	defer func() { must(t, vm.Remove("ask")) }()
	return Query{Snapshot: "ask", ChangeID: id, AreasMax: 3}.all(t, d)
}

// frozenID is the change id of a snapshot, which is removed.
func frozenID(t *testing.T, vm *VM) string {
	t.Helper()
	must(t, vm.Freeze("id"))
	defer func() { must(t, vm.Remove("id")) }()
	return vm.Backings("id")[2000].ChangeID
}

func TestWritesAndSpansThatTrackingKeepsSilentAbout(t *testing.T) {
	vm, d := newTestDisk(t, true)
	id := frozenID(t, vm)
	must(t, vm.SetLie(0, Lie{Writes: 1, Span: Extent{5 * BlockBytes, 2 * BlockBytes}}))
	must(t, vm.Write(0, BlockBytes, []byte("first")))
	must(t, vm.Write(0, 3*BlockBytes, []byte("second")))
	must(t, vm.Write(0, 4*BlockBytes, make([]byte, 4*BlockBytes)))
	want := []Extent{{3 * BlockBytes, 2 * BlockBytes}, {7 * BlockBytes, BlockBytes}}
	if got := changedSince(t, vm, d, id); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	must(t, vm.SetLie(0, Lie{}))
	want = []Extent{{3 * BlockBytes, 5 * BlockBytes}}
	if got := changedSince(t, vm, d, id); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("honest again: got %v, want %v: only the first write is lost for ever", got, want)
	}
}

func TestWidenedAreasCoverTheTrueOnes(t *testing.T) {
	vm, d := newTestDisk(t, true)
	id := frozenID(t, vm)
	must(t, vm.SetLie(0, Lie{Widen: 4 * BlockBytes}))
	must(t, vm.Write(0, BlockBytes, []byte("x")))
	must(t, vm.Write(0, 9*BlockBytes, []byte("x")))
	want := []Extent{{0, 4 * BlockBytes}, {8 * BlockBytes, testCapacity - 8*BlockBytes}}
	if got := changedSince(t, vm, d, id); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPaddedAreasLieAcrossBlocksAndReachBeyondTheCapacity(t *testing.T) {
	vm, d := newTestDisk(t, true)
	id := frozenID(t, vm)
	must(t, vm.SetLie(0, Lie{Pad: 1000}))
	must(t, vm.Write(0, 0, []byte("x")))
	must(t, vm.Write(0, 5*BlockBytes, []byte("x")))
	must(t, vm.Freeze("ask"))
	areas, length, err := d.Changed(Query{Snapshot: "ask", ChangeID: id, AreasMax: 100})
	must(t, err)
	want := []Extent{{0, BlockBytes + 1000}, {5*BlockBytes - 1000, BlockBytes + 2000}, {testCapacity, 1000}}
	if fmt.Sprint(areas) != fmt.Sprint(want) || length != testCapacity+1000 {
		t.Errorf("got %v and length %d, want %v and %d", areas, length, want, testCapacity+1000)
	}
	if err := vm.SetLie(0, Lie{Pad: -1}); err == nil {
		t.Error("a negative pad was taken")
	}
	if err := vm.SetLie(7, Lie{}); err == nil {
		t.Error("a lie about no disk was taken")
	}
}

func TestFilesMoveWithTheirSnapshotsAndContent(t *testing.T) {
	vm, d := newTestDisk(t, true)
	must(t, vm.Write(0, 0, []byte("before")))
	must(t, vm.Freeze("one"))
	id := vm.Backings("one")[2000].ChangeID
	must(t, vm.Write(0, 0, []byte("after!")))
	from, to := d.root, t.TempDir()
	must(t, vm.Move("other", to, true))
	backing := vm.Backings("")[2000]
	if backing.FileName != "[other] vm/vm-000001.vmdk" || fmt.Sprint(backing.Parents) != "[[other] vm/vm.vmdk]" {
		t.Errorf("after the move: %+v", backing)
	}
	state := vm.State()[0]
	for path, want := range map[string]string{state.Live: "after!", state.Frozen["one"].Path: "before"} {
		if got, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(got), want) || filepath.Dir(path) != filepath.Join(to, "vm") {
			t.Errorf("%s does not hold %q (%v)", path, want, err)
		}
	}
	if left, _ := os.ReadDir(from); len(left) != 0 {
		t.Errorf("%d files stayed behind", len(left))
	}
	if _, _, err := d.Changed(Query{Snapshot: "one", ChangeID: id, AreasMax: 1}); err != ErrUnknownChange {
		t.Errorf("an id from before the move: %v", err)
	}
	id = backing.ChangeID
	must(t, vm.Move("ds", t.TempDir(), false))
	if got := vm.Backings("")[2000].ChangeID; got != id {
		t.Errorf("the change id was to be kept: %s is now %s", id, got)
	}
	if err := vm.Move("ds", filepath.Dir(d.root), false); err == nil {
		t.Error("a move to where it is was taken")
	}
	must(t, vm.Remove("one"))
	if !vm.store.has(vm.State()[0].Live) {
		t.Error("the live file is not known as such")
	}
}

func (s *Store) has(path string) bool { return s.live[path] != nil }

func TestDisksGrowAndGoOnlyWithoutSnapshots(t *testing.T) {
	vm, d := newTestDisk(t, true)
	id := frozenID(t, vm)
	must(t, vm.Freeze("one"))
	if err := vm.Grow(0, testCapacity*2); err != ErrSnapshots {
		t.Errorf("growth with a snapshot: %v", err)
	}
	if _, err := vm.Detach(0); err != ErrSnapshots {
		t.Errorf("removal with a snapshot: %v", err)
	}
	must(t, vm.Remove("one"))
	if err := vm.Grow(0, testCapacity-1); err == nil {
		t.Error("a disk shrank")
	}
	must(t, vm.Grow(0, testCapacity*2))
	must(t, vm.Write(0, testCapacity*2-5, []byte("there")))
	want := []Extent{{(testCapacity*2 - 5) / BlockBytes * BlockBytes, testCapacity*2 - (testCapacity*2-5)/BlockBytes*BlockBytes}}
	if got := changedSince(t, vm, d, id); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	key, err := vm.Detach(0)
	must(t, err)
	if key != 2000 || len(vm.State()) != 0 || vm.Capacity(0) != -1 {
		t.Errorf("disk %d is still there", key)
	}
	if _, err := os.Stat(d.content(d.live)); err != nil {
		t.Errorf("its file is gone: %v", err)
	}
}

func TestFilesOfARemovalThatFailedStayUntilConsolidation(t *testing.T) {
	vm, d := newTestDisk(t, true)
	must(t, vm.Freeze("one"))
	must(t, vm.Write(0, 0, []byte("new")))
	vm.LeaveNext()
	must(t, vm.Remove("one"))
	if !vm.Left() || vm.Backings("")[2000].FileName != "[ds] vm/vm-000001.vmdk" {
		t.Errorf("left %v, live in %s", vm.Left(), vm.Backings("")[2000].FileName)
	}
	must(t, vm.Freeze("two"))
	if parents := vm.Backings("two")[2000].Parents; len(parents) != 1 {
		t.Errorf("the next snapshot is on %v, want on the file left", parents)
	}
	must(t, vm.Remove("two"))
	if len(d.nodes) != 3 {
		t.Errorf("%d files, want that nothing is merged until it is asked for", len(d.nodes))
	}
	must(t, vm.Consolidate())
	if vm.Left() || vm.Backings("")[2000].FileName != "[ds] vm/vm.vmdk" {
		t.Errorf("after consolidation: left %v, live in %s", vm.Left(), vm.Backings("")[2000].FileName)
	}
	if got, err := os.ReadFile(vm.State()[0].Live); err != nil || !bytes.HasPrefix(got, []byte("new")) {
		t.Errorf("content is lost (%v)", err)
	}
}

func TestAMiddleSnapshotIsMergedIntoTheOneOnTopOfIt(t *testing.T) {
	vm, d := newTestDisk(t, true)
	content := map[string][]byte{}
	for _, name := range []string{"one", "two", "three"} {
		must(t, vm.Write(0, 0, []byte(name)))
		must(t, vm.Freeze(name))
		content[name] = []byte(name)
	}
	ids := vm.Backings("two")[2000].ChangeID
	must(t, vm.Remove("two"))
	if got := vm.Backings("three")[2000]; got.FileName != "[ds] vm/vm-000001.vmdk" || len(got.Parents) != 1 {
		t.Errorf("snapshot three is in %+v, want in the file that was two's", got)
	}
	state := vm.State()[0]
	for _, name := range []string{"one", "three"} {
		if got, err := os.ReadFile(state.Frozen[name].Path); err != nil || !bytes.HasPrefix(got, content[name]) {
			t.Errorf("content of %s differs (%v)", name, err)
		}
	}
	if got := (Query{Snapshot: "three", ChangeID: ids, AreasMax: 9}).all(t, d); fmt.Sprint(got) != fmt.Sprint([]Extent{{0, BlockBytes}}) {
		t.Errorf("changes since two, which is gone: %v", got)
	}
}

func TestTrackingOfOneDiskIsSwitchedByItself(t *testing.T) {
	vm := NewStore().NewVM(true)
	root := t.TempDir()
	for i, stem := range []string{"a", "b", "c"} {
		_, err := vm.Add(Spec{
			Key: int32(2000 + i), Capacity: testCapacity, Dir: "vm", Stem: stem, Root: root, Suffix: "-flat", Untracked: i == 1, Added: i == 2,
		})
		must(t, err)
	}
	tracked := func() string {
		var out []string
		for key, backing := range vm.Backings("") {
			if backing.ChangeID != "" {
				out = append(out, fmt.Sprint(key))
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if got := tracked(); got != "2000" {
		t.Errorf("at first %s are tracked", got)
	}
	if !vm.SetDiskTracking(2001, true) || vm.SetDiskTracking(2001, true) || !vm.TracksDisk(2001) {
		t.Error("the setting was not taken, or taken twice")
	}
	if got := tracked(); got != "2000" {
		t.Errorf("%s are tracked before a stun", got)
	}
	must(t, vm.Freeze("stun"))
	if got := tracked(); got != "2000 2001 2002" {
		t.Errorf("after a stun %s are tracked", got)
	}
	must(t, vm.Remove("stun"))
	vm.SetDiskTracking(2000, false)
	if got := tracked(); got != "2001 2002" {
		t.Errorf("with one switched off %s are tracked", got)
	}
	if _, _, err := vm.Find(2000).Changed(Query{ChangeID: "*", AreasMax: 1}); !errors.Is(err, ErrNotTracked) {
		t.Errorf("a query of it: %v", err)
	}
}
