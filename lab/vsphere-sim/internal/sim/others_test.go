package sim

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// refused sends an order that must be answered with 400.
func (l *lab) refused(path, body string) {
	l.Helper()
	response, err := http.Post(l.sim.Ready.Control+path, "", strings.NewReader(body))
	check(l.T, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		l.Errorf("%s %s: status %d", path, body, response.StatusCode)
	}
}

func (l *lab) look(vm *object.VirtualMachine) mo.VirtualMachine {
	l.Helper()
	var found mo.VirtualMachine
	check(l.T, l.client.RetrieveOne(context.Background(), vm.Reference(), nil, &found))
	return found
}

func disksOf(config *types.VirtualMachineConfigInfo) []*types.VirtualDisk {
	var disks []*types.VirtualDisk
	for _, device := range object.VirtualDeviceList(config.Hardware.Device).SelectByType((*types.VirtualDisk)(nil)) {
		disks = append(disks, device.(*types.VirtualDisk))
	}
	return disks
}

func TestAVMMovesToAnotherHostAndDatastore(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	before := l.look(vm)
	_, was := firstDisk(*before.Config)
	l.control("POST", "/vm/move", `{"vm":"prod/web/web01","host":"esx2.lab"}`, nil)
	moved := l.look(vm)
	if *moved.Runtime.Host == *before.Runtime.Host || *moved.Runtime.Host != l.sim.hostRefs["esx2.lab"] {
		t.Errorf("host %v", moved.Runtime.Host)
	}
	if _, now := firstDisk(*moved.Config); now.ChangeId != was.ChangeId || now.FileName != was.FileName {
		t.Errorf("vMotion changed the disk: %s in %s", now.ChangeId, now.FileName)
	}
	l.refused("/vm/move", `{"vm":"prod/web/web01","host":"nowhere"}`)
	l.refused("/vm/move", `{"vm":"prod/web/web01"}`)

	// The second disk is on ds2 already, so that both can only go to a third.
	l.refused("/vm/move", `{"vm":"prod/web/web01","datastore":"ds2"}`)
	other := l.vm("file srv ä")
	l.control("POST", "/vm/move", `{"vm":"file srv ä","datastore":"ds2"}`, nil)
	moved = l.look(other)
	_, now := firstDisk(*moved.Config)
	if now.FileName != "[ds2] file srv ä/file srv ä.vmdk" || len(moved.Datastore) != 2 {
		t.Errorf("disk in %s, datastores %v", now.FileName, moved.Datastore)
	}
	file := fetch{file: srvFile, cookie: l.cookie(), span: "0-9"}
	if got := l.status(file); got != 404 {
		t.Errorf("the old file: %d", got)
	}
	file.ds = "ds2"
	if got := l.status(file); got != 206 {
		t.Errorf("the new file: %d", got)
	}
}

func TestStorageVMotionBeginsANewEpoch(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("old")
	task, err := vm.Reconfigure(context.Background(), types.VirtualMachineConfigSpec{ChangeTrackingEnabled: types.NewBool(true)})
	check(t, err)
	check(t, task.Wait(context.Background()))
	l.control("POST", "/vm/power", `{"vm":"old","state":"off"}`, nil)
	l.control("POST", "/vm/power", `{"vm":"old","state":"on"}`, nil)
	epoch := func() string {
		_, backing := firstDisk(*l.look(vm).Config)
		epoch, _, found := strings.Cut(backing.ChangeId, "/")
		if !found {
			t.Fatalf("change id %q", backing.ChangeId)
		}
		return epoch
	}
	first := epoch()
	l.control("POST", "/vm/move", `{"vm":"old","datastore":"ds2","keep_change_ids":true}`, nil)
	if epoch() != first {
		t.Error("the epoch was to be kept")
	}
	l.control("POST", "/vm/move", `{"vm":"old","datastore":"ds1"}`, nil)
	if epoch() == first {
		t.Error("the epoch is the same")
	}
}

func TestDisksAreGrownAddedAndRemoved(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	snapshot := l.snapshot(vm, "one")
	l.refused("/disk/grow", `{"vm":"prod/web/web01","disk":0,"capacity":"16MiB"}`)
	l.refused("/disk/remove", `{"vm":"prod/web/web01","disk":1}`)
	l.removeSnapshot(snapshot)
	l.control("POST", "/disk/grow", `{"vm":"prod/web/web01","disk":0,"capacity":"16MiB"}`, nil)
	l.control("POST", "/disk/add", `{"vm":"prod/web/web01","capacity":"3MiB","controller":"nvme","datastore":"ds2"}`, nil)
	disks := disksOf(l.look(vm).Config)
	if len(disks) != 3 || disks[0].CapacityInBytes != 16<<20 || disks[2].CapacityInBytes != 3<<20 {
		t.Fatalf("disks: %+v", disks)
	}
	added := disks[2].Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	if added.ChangeId != "" || added.FileName != "[ds2] web01/web01_2.vmdk" {
		t.Errorf("the added disk is %s with change id %q, which it has only after a stun", added.FileName, added.ChangeId)
	}
	l.removeSnapshot(l.snapshot(vm, "stun"))
	if got := disksOf(l.look(vm).Config)[2].Backing.(*types.VirtualDiskFlatVer2BackingInfo).ChangeId; got == "" {
		t.Error("the added disk is not tracked after a stun")
	}
	l.control("POST", "/write", `{"vm":"prod/web/web01","disk":2,"offset":0,"hex":"00ff"}`, nil)
	l.control("POST", "/disk/remove", `{"vm":"prod/web/web01","disk":1}`, nil)
	left := disksOf(l.look(vm).Config)
	if len(left) != 2 || left[0].Key != disks[0].Key || left[1].Key != disks[2].Key {
		t.Errorf("disks left: %+v", left)
	}
	l.refused("/disk/add", `{"vm":"prod/web/web01","capacity":"3MiB","controller":"floppy"}`)
	l.refused("/disk/remove", `{"vm":"prod/web/web01","disk":2}`)
}

func TestARemovalThatFailsToConsolidate(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm := l.vm("prod/web/web01")
	snapshot := l.snapshot(vm, "one")
	l.control("POST", "/vm/consolidation", `{"vm":"prod/web/web01","fail_next_removal":true}`, nil)
	res, err := methods.RemoveSnapshot_Task(ctx, l.client, &types.RemoveSnapshot_Task{This: snapshot})
	check(t, err)
	if err := object.NewTask(l.client.Client, res.Returnval).Wait(ctx); !fault.Is(err, &types.FileLocked{}) {
		t.Errorf("removal: %v", err)
	}
	now := l.look(vm)
	if now.Snapshot != nil || !now.Runtime.ConsolidationNeeded {
		t.Errorf("snapshot %v, consolidation needed %v", now.Snapshot, now.Runtime.ConsolidationNeeded)
	}
	if _, backing := firstDisk(*now.Config); backing.Parent == nil {
		t.Error("the files are merged all the same")
	}
	consolidate := func() {
		t.Helper()
		res, err := methods.ConsolidateVMDisks_Task(ctx, l.client, &types.ConsolidateVMDisks_Task{This: vm.Reference()})
		check(t, err)
		check(t, object.NewTask(l.client.Client, res.Returnval).Wait(ctx))
	}
	consolidate()
	now = l.look(vm)
	if _, backing := firstDisk(*now.Config); backing.Parent != nil || now.Runtime.ConsolidationNeeded {
		t.Errorf("after consolidation: parent %v, needed %v", backing.Parent, now.Runtime.ConsolidationNeeded)
	}
	l.control("POST", "/vm/consolidation", `{"vm":"prod/web/web01","needed":true}`, nil)
	if !l.look(vm).Runtime.ConsolidationNeeded {
		t.Error("it was to say that it needs consolidation")
	}
	consolidate()
	l.removeSnapshot(l.snapshot(vm, "fine again"))
	l.refused("/vm/consolidation", `{"vm":"prod/web/web01"}`)
}

func TestOthersSwitchAVMOnAndOff(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	for _, state := range []string{"off", "on", "suspended", "on"} {
		l.control("POST", "/vm/power", fmt.Sprintf(`{"vm":"prod/web/web01","state":%q}`, state), nil)
		want := map[string]string{"on": "poweredOn", "off": "poweredOff", "suspended": "suspended"}[state]
		if got := string(l.look(vm).Runtime.PowerState); got != want || l.sim.order[0].disks.Running() != (state == "on") {
			t.Errorf("ordered %s, it is %s", state, got)
		}
	}
	l.refused("/vm/power", `{"vm":"prod/web/web01","state":"on"}`)
	l.refused("/vm/power", `{"vm":"prod/web/web01","state":"half"}`)
}

func TestQuiesceFaultsHitOnlySnapshotsThatQuiesce(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	l.control("POST", "/fault/soap", `{"method":"CreateSnapshot_Task","fault":"ApplicationQuiesceFault","message":"VSS",`+
		`"as":"task","quiesced":true,"vm":"prod/web/web01","count":-1}`, nil)
	vm := l.vm("prod/web/web01")
	take := func(vm *object.VirtualMachine, quiesce bool) error {
		task, err := vm.CreateSnapshot(ctx, "s", "", false, quiesce)
		check(t, err)
		return task.Wait(ctx)
	}
	check(t, take(vm, false))
	if err := take(vm, true); !fault.Is(err, &types.ApplicationQuiesceFault{}) || !strings.Contains(err.Error(), "VSS") {
		t.Errorf("quiesced: %v", err)
	}
	check(t, take(l.vm("file srv ä"), true))
	l.control("POST", "/vm/power", `{"vm":"prod/web/web01","state":"off"}`, nil)
	check(t, take(vm, true)) // Nothing to quiesce: the flag is ignored.
	l.refused("/fault/soap", `{"method":"CreateSnapshot_Task","fault":"ApplicationQuiesceFault","quiesced":true}`)
}

func TestTrackingIsASettingOfEachDisk(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm := l.vm("prod/web/web01")
	set := func(value string) {
		t.Helper()
		task, err := vm.Reconfigure(ctx, types.VirtualMachineConfigSpec{
			ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: "sata0:0.ctkEnabled", Value: value}},
		})
		check(t, err)
		check(t, task.Wait(ctx))
	}
	seen := func() (setting, id string) {
		config := l.look(vm).Config
		for _, option := range config.ExtraConfig {
			if option.GetOptionValue().Key == "sata0:0.ctkEnabled" {
				setting = option.GetOptionValue().Value.(string)
			}
		}
		return setting, disksOf(config)[1].Backing.(*types.VirtualDiskFlatVer2BackingInfo).ChangeId
	}
	if setting, id := seen(); setting != "TRUE" || id == "" {
		t.Errorf("at first: %s %q", setting, id)
	}
	set("FALSE")
	if setting, id := seen(); setting != "FALSE" || id != "" {
		t.Errorf("switched off: %s %q", setting, id)
	}
	set("TRUE")
	if setting, id := seen(); setting != "TRUE" || id != "" {
		t.Errorf("switched on, before a stun: %s %q", setting, id)
	}
	l.removeSnapshot(l.snapshot(vm, "stun"))
	if _, id := seen(); id == "" {
		t.Error("no change id after a stun")
	}
	if old := l.look(l.vm("file srv ä")); old.Config.Version != "vmx-04" || old.Capability.ChangeTrackingSupported {
		t.Errorf("hardware %s can be tracked: %v", old.Config.Version, old.Capability.ChangeTrackingSupported)
	}
}

func TestLiesAreToldToClients(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	first := l.snapshot(vm, "one")
	disk, frozen := firstDisk(l.config(first))
	l.control("POST", "/cbt/lie", `{"vm":"prod/web/web01","disk":0,"writes":1,"widen":"1MiB","pad":"777"}`, nil)
	l.control("POST", "/write", `{"vm":"prod/web/web01","disk":0,"offset":0,"hex":"01"}`, nil)
	l.control("POST", "/write", `{"vm":"prod/web/web01","disk":0,"offset":3145728,"hex":"01"}`, nil)
	second := l.snapshot(vm, "two")
	areas, _ := l.changed(vm, second, disk.Key, frozen.ChangeId, disk.CapacityInBytes)
	want := []types.DiskChangeExtent{{Start: 3145728 - 777, Length: 1<<20 + 2*777}, {Start: disk.CapacityInBytes, Length: 777}}
	if fmt.Sprint(areas) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", areas, want)
	}
	l.refused("/cbt/lie", `{"vm":"prod/web/web01","disk":0,"span":"5-1"}`)
	l.refused("/cbt/lie", `{"vm":"prod/web/web01","disk":9}`)
}

func TestManyWritesInOneOrder(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	first := l.snapshot(vm, "one")
	disk, frozen := firstDisk(l.config(first))
	l.control("POST", "/write", `{"vm":"prod/web/web01","disk":0,"offset":0,"hex":"ff","every":131072,"count":64}`, nil)
	areas, _ := l.changed(vm, l.snapshot(vm, "two"), disk.Key, frozen.ChangeId, disk.CapacityInBytes)
	if len(areas) != 64 {
		t.Errorf("%d areas", len(areas))
	}
	l.refused("/write", `{"vm":"prod/web/web01","disk":0,"offset":0,"hex":"ff","count":2}`)
	l.refused("/write", `{"vm":"prod/web/web01","disk":0,"offset":0,"hex":"ff","every":8388608,"count":2}`)
}

func TestAWriterThatIsStoppedLeavesAKnownDisk(t *testing.T) {
	l := start(t, false, "30m")
	l.control("POST", "/writer", `{"vm":"prod/web/web01","disk":0,"bytes_per_s":4000000,"span":"0-1MiB"}`, nil)
	hash := func() string {
		var vms []struct {
			Disks []struct {
				SHA256 string `json:"sha256"`
			} `json:"disks"`
		}
		l.control("GET", "/disks?hash=1&vm="+l.vm("prod/web/web01").Reference().Value, "", &vms)
		return vms[0].Disks[0].SHA256
	}
	for first := hash(); hash() == first; { // It writes until it is stopped.
	}
	var wrote struct{ Bytes, Writes int64 }
	l.control("DELETE", "/writer?vm=prod/web/web01", "", &wrote)
	if wrote.Writes == 0 || wrote.Bytes != wrote.Writes*4096 {
		t.Errorf("wrote %+v", wrote)
	}
	final := hash()
	l.control("DELETE", "/writer?vm=prod/web/web01", "", &wrote)
	if wrote.Writes != 0 || hash() != final {
		t.Error("it wrote after it was stopped")
	}
}
