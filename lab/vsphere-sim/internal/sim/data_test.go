package sim

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

const srvFile = "file srv ä/file srv ä-flat.vmdk"

func TestDataNeedsALoginAndHonoursRanges(t *testing.T) {
	l := start(t, false, "30m")
	cookie := l.cookie()
	if got := l.status(fetch{file: srvFile}); got != http.StatusUnauthorized {
		t.Errorf("without login: %d", got)
	}
	if got := l.status(fetch{file: srvFile, user: "administrator@vsphere.local", pass: "wrong"}); got != http.StatusUnauthorized {
		t.Errorf("wrong password: %d", got)
	}
	cases := []struct {
		fetch  fetch
		status int
		want   []byte
	}{
		{fetch{file: srvFile}, 200, l.data},
		{fetch{file: srvFile, span: "10-19"}, 206, l.data[10:20]},
		{fetch{file: srvFile, span: "-7"}, 206, l.data[len(l.data)-7:]},
		{fetch{file: srvFile, span: "999990-5000000"}, 206, l.data[999990:]},
		{fetch{file: srvFile, span: "1000000-"}, 416, nil},
		{fetch{file: srvFile, method: "HEAD"}, 200, []byte{}},
		{fetch{file: srvFile, method: "PUT"}, 403, nil},
		{fetch{file: "file srv ä/none.vmdk"}, 404, nil},
		{fetch{file: srvFile, ds: "ds9"}, 404, nil},
		{fetch{file: srvFile, dc: "DC9"}, 404, nil},
		{fetch{file: "../ca-1.pem"}, 404, nil},
		{fetch{file: "web01/web01-flat.vmdk"}, 500, []byte("file is locked\n")},
		{fetch{file: "web01_1/web01-flat.vmdk", ds: "ds2"}, 200, []byte{}},
		{fetch{file: "web01_1/web01-flat.vmdk", ds: "ds2", span: "0-0"}, 416, nil},
		{fetch{file: "web01_1/web01_1-flat.vmdk"}, 200, make([]byte, 513)},
	}
	for _, c := range cases {
		c.fetch.cookie = cookie
		response, body, err := l.do(c.fetch)
		check(t, err)
		if response.StatusCode != c.status || c.want != nil && !bytes.Equal(body, c.want) {
			t.Errorf("%+v: status %d, %d bytes; want %d, %d bytes", c.fetch, response.StatusCode, len(body), c.status, len(c.want))
		}
	}
	basic := fetch{file: srvFile, user: "administrator@vsphere.local", pass: "s3cret", span: "0-0"}
	if got := l.status(basic); got != 206 {
		t.Errorf("basic: %d", got)
	}
}

func TestSnapshotFreezesDataAndChangedAreasTellWhatWasWritten(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	first := l.snapshot(vm, "one")
	disk, frozen := firstDisk(l.config(first))
	if frozen.FileName != "[ds1] web01/web01.vmdk" || !strings.HasPrefix(frozen.ChangeId, "5") && !strings.Contains(frozen.ChangeId, "/") {
		t.Errorf("frozen disk is %q with change id %q", frozen.FileName, frozen.ChangeId)
	}
	_, live := firstDisk(l.config(vm.Reference()))
	if live.FileName != "[ds1] web01/web01-000001.vmdk" || live.Parent == nil || live.Parent.FileName != frozen.FileName {
		t.Errorf("live disk is %q, parent %v", live.FileName, live.Parent)
	}
	areas, _ := l.changed(vm, first, disk.Key, "*", disk.CapacityInBytes)
	if len(areas) != 1 || areas[0].Start != 0 || areas[0].Length < int64(len(l.data)) {
		t.Errorf("allocated areas: %v", areas)
	}

	l.control("POST", "/writer", `{"vm":"prod/web/web01","disk":0,"bytes_per_s":4000000,"block":4096,"span":"4MiB-6MiB"}`, nil)
	time.Sleep(200 * time.Millisecond)
	var wrote struct{ Bytes int64 }
	l.control("DELETE", "/writer?vm="+url.QueryEscape("prod/web/web01"), "", &wrote)
	if wrote.Bytes == 0 {
		t.Fatal("the writer wrote nothing")
	}
	l.control("POST", "/write", `{"vm":"prod/web/web01","disk":0,"offset":65530,"hex":"00112233445566778899"}`, nil)
	response, body, err := l.do(fetch{file: "web01/web01-flat.vmdk", cookie: l.cookie()})
	check(t, err)
	if response.StatusCode != 200 || !bytes.Equal(body[:len(l.data)], l.data) {
		t.Error("the frozen file changed")
	}

	second := l.snapshot(vm, "two")
	l.control("POST", "/cbt/max_areas", `{"n":1}`, nil)
	areas, calls := l.changed(vm, second, disk.Key, frozen.ChangeId, disk.CapacityInBytes)
	if calls < 2 || areas[0].Start != 0 || areas[0].Length != 131072 || areas[1].Start < 4<<20 {
		t.Errorf("changed areas in %d calls: %v", calls, areas)
	}
	// The changed areas on top of the first copy must give the second one.
	_, now, err := l.do(fetch{file: "web01/web01-000001-flat.vmdk", cookie: l.cookie()})
	check(t, err)
	for _, area := range areas {
		copy(body[area.Start:area.Start+area.Length], now[area.Start:])
	}
	if !bytes.Equal(body, now) {
		t.Error("the changed areas miss something")
	}

	l.removeSnapshot(first)
	if _, moved := firstDisk(l.config(second)); moved.FileName != "[ds1] web01/web01.vmdk" {
		t.Errorf("after consolidation the second snapshot is in %q", moved.FileName)
	}
	l.removeSnapshot(second)
	if _, base := firstDisk(l.config(vm.Reference())); base.FileName != "[ds1] web01/web01.vmdk" || base.Parent != nil {
		t.Errorf("without snapshots the disk is %q", base.FileName)
	}
	var disks []vmDisks
	l.control("GET", "/disks?hash=1&vm=web01", "", &disks)
	if content, err := os.ReadFile(disks[0].Disks[0].Live); err != nil || !bytes.Equal(content, now) {
		t.Error("consolidation lost writes")
	}
	if files, _ := filepath.Glob(filepath.Join(filepath.Dir(disks[0].Disks[0].Live), "*-0000*")); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestRemovalTwiceAtOnceAndWithChildren(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm := l.vm("prod/web/web01")
	var tasks []*object.Task
	ref := l.snapshot(vm, "twice")
	for range 2 {
		res, err := methods.RemoveSnapshot_Task(ctx, l.client, &types.RemoveSnapshot_Task{This: ref})
		if err != nil {
			continue // The first may be through already.
		}
		tasks = append(tasks, object.NewTask(l.client.Client, res.Returnval))
	}
	check(t, tasks[0].Wait(ctx))
	for _, second := range tasks[1:] {
		if err := second.Wait(ctx); !fault.Is(err, &types.ManagedObjectNotFound{}) {
			t.Errorf("second removal: %v", err)
		}
	}

	top, middle, leaf := l.snapshot(vm, "top"), l.snapshot(vm, "middle"), l.snapshot(vm, "leaf")
	res, err := methods.RemoveSnapshot_Task(ctx, l.client, &types.RemoveSnapshot_Task{This: middle, RemoveChildren: true})
	check(t, err)
	check(t, object.NewTask(l.client.Client, res.Returnval).Wait(ctx))
	var props mo.VirtualMachine
	check(t, l.client.RetrieveOne(ctx, vm.Reference(), []string{"snapshot"}, &props))
	if *props.Snapshot.CurrentSnapshot != top {
		t.Errorf("current is %v, want %v; removed were %v and %v", props.Snapshot.CurrentSnapshot, top, middle, leaf)
	}
	next := l.snapshot(vm, "next") // Needs a current snapshot that exists.
	l.removeSnapshot(top)
	l.removeSnapshot(next)
	if _, base := firstDisk(l.config(vm.Reference())); base.FileName != "[ds1] web01/web01.vmdk" {
		t.Errorf("in the end the disk is %q", base.FileName)
	}
}

func TestBadQueriesGiveTheFaultsOfRealHosts(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	snapshot := l.snapshot(vm, "one")
	disk, frozen := firstDisk(l.config(snapshot))
	query := func(change func(*types.QueryChangedDiskAreas)) error {
		q := &types.QueryChangedDiskAreas{This: vm.Reference(), Snapshot: &snapshot, DeviceKey: disk.Key, ChangeId: "*"}
		change(q)
		_, err := methods.QueryChangedDiskAreas(context.Background(), l.client, q)
		return err
	}
	invalid, file := &types.InvalidArgument{}, &types.FileFault{}
	if err := query(func(q *types.QueryChangedDiskAreas) { q.StartOffset = disk.CapacityInBytes }); !fault.Is(err, invalid) {
		t.Errorf("offset at capacity: %v", err)
	}
	if err := query(func(q *types.QueryChangedDiskAreas) { q.DeviceKey = 7 }); !fault.Is(err, invalid) {
		t.Errorf("bad key: %v", err)
	}
	if err := query(func(q *types.QueryChangedDiskAreas) { q.Snapshot = nil }); !fault.Is(err, invalid) {
		t.Errorf("no snapshot: %v", err)
	}
	if err := query(func(q *types.QueryChangedDiskAreas) { q.ChangeId = "52 de/9" }); !fault.Is(err, file) {
		t.Errorf("unknown id: %v", err)
	}
	l.control("POST", "/cbt/reset", `{"vm":"prod/web/web01"}`, nil)
	if err := query(func(q *types.QueryChangedDiskAreas) { q.ChangeId = frozen.ChangeId }); !fault.Is(err, file) {
		t.Errorf("id from before the reset: %v", err)
	}
	task, err := vm.Reconfigure(context.Background(), types.VirtualMachineConfigSpec{ChangeTrackingEnabled: types.NewBool(false)})
	check(t, err)
	check(t, task.Wait(context.Background()))
	if err := query(func(*types.QueryChangedDiskAreas) {}); !fault.Is(err, file) {
		t.Errorf("tracking off: %v", err)
	}
}

func TestAHostGivesDataForItsSessionItsPasswordOrATicketOnly(t *testing.T) {
	l := start(t, false, "30m")
	host := fetch{address: "127.0.72.1", file: srvFile, dc: "ha-datacenter"}
	with := func(change func(*fetch)) fetch { f := host; change(&f); return f }
	if got := l.status(with(func(f *fetch) { f.cookie = l.cookie() })); got != 401 {
		t.Errorf("vCenter's session: %d", got)
	}
	if got := l.status(with(func(f *fetch) { f.user, f.pass = "root", "rootpw" })); got != 200 {
		t.Errorf("basic: %d", got)
	}
	if got := l.status(with(func(f *fetch) { f.user, f.pass, f.dc = "root", "rootpw", "DC0" })); got != 404 {
		t.Errorf("vCenter's datacenter: %d", got)
	}

	target := url.URL{Scheme: "https", Host: "esx1.lab", Path: "/folder/" + srvFile, RawQuery: "dcPath=ha-datacenter&dsName=ds1"}
	ticket, err := methods.AcquireGenericServiceTicket(context.Background(), l.client, &types.AcquireGenericServiceTicket{
		This: *l.client.ServiceContent.SessionManager,
		Spec: &types.SessionManagerHttpServiceRequestSpec{Method: "httpGet", Url: target.String()},
	})
	check(t, err)
	cookie := &http.Cookie{Name: "vmware_cgi_ticket", Value: ticket.Returnval.Id}
	use := func(change func(*fetch)) int { return l.status(with(func(f *fetch) { f.cookie = cookie; change(f) })) }
	if got := use(func(f *fetch) { f.file = "file srv ä/file srv ä.vmdk" }); got != 401 {
		t.Errorf("ticket for another file: %d", got)
	}
	if got := use(func(f *fetch) { f.method = "HEAD" }); got != 401 {
		t.Errorf("ticket for another method: %d", got)
	}
	if got := use(func(*fetch) {}); got != 200 {
		t.Errorf("ticket: %d", got)
	}
	if got := use(func(*fetch) {}); got != 401 {
		t.Errorf("ticket used twice: %d", got)
	}

	session, wrong := l.hostLogin("127.0.71.1", "rootpw"), l.hostLogin("127.0.71.1", "nonsense")
	if session == nil || wrong != nil {
		t.Fatalf("login at the host: %v, with a wrong password %v", session, wrong)
	}
	if got := l.status(with(func(f *fetch) { f.cookie = session })); got != 200 {
		t.Errorf("host session: %d", got)
	}
	var stats struct{ Endpoints map[string]endpointStats }
	// What was written is counted after that: the last of it may have come before.
	for tries := 0; tries < 1000 && stats.Endpoints["127.0.72.1"].Bytes != 3*int64(len(l.data)); tries++ {
		time.Sleep(10 * time.Millisecond)
		l.control("GET", "/stats", "", &stats)
	}
	backup := stats.Endpoints["127.0.72.1"]
	if backup.Bytes != 3*int64(len(l.data)) || backup.Services[0] != "vSphereBackupNFC" || stats.Endpoints["127.0.0.1"].Bytes != 0 {
		t.Errorf("bytes were counted wrong: %+v", stats.Endpoints)
	}
	l.control("POST", "/sessions/expire", "", nil)
	if got := l.status(with(func(f *fetch) { f.cookie = session })); got != 401 {
		t.Errorf("expired host session: %d", got)
	}
}

// hostLogin logs in at a host by hand, as a client with its own SOAP code does.
func (l *lab) hostLogin(address, password string) *http.Cookie {
	l.Helper()
	base, err := url.Parse(l.sim.Ready.URL)
	check(l.T, err)
	body := `<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><Login xmlns="urn:vim25">` +
		`<_this type="SessionManager">ha-sessionmgr</_this><userName>root</userName><password>` + password +
		`</password></Login></Body></Envelope>`
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: l.roots()}}
	response, err := client.Post("https://"+address+":"+base.Port()+"/sdk", "text/xml", strings.NewReader(body))
	check(l.T, err)
	defer response.Body.Close()
	for _, cookie := range response.Cookies() {
		return cookie
	}
	return nil
}

func TestASnapshotThatIsGoneLeavesWhatIsCommittedAsItWas(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	committed := func() int64 {
		return l.look(vm).Summary.Storage.Committed
	}
	before := committed()
	l.removeSnapshot(l.snapshot(vm, "s"))
	if after := committed(); after != before || before == 0 {
		t.Errorf("%d bytes are committed, and %d were", after, before)
	}
}
