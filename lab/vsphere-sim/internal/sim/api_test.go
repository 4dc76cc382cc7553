package sim

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

func TestTheInventoryIsShownAsGiven(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	var vm mo.VirtualMachine
	check(t, l.client.RetrieveOne(ctx, l.vm("prod/web/web01").Reference(), nil, &vm))
	if vm.Config.Firmware != "efi" || !*vm.Config.BootOptions.EfiSecureBootEnabled || !*vm.Config.ChangeTrackingEnabled {
		t.Errorf("config: %+v", vm.Config)
	}
	if vm.Runtime.FaultToleranceState == "" || vm.Guest.ToolsRunningStatus != "guestToolsRunning" {
		t.Errorf("runtime %+v guest %+v", vm.Runtime, vm.Guest)
	}
	if net := vm.Guest.Net; len(net) != 1 || net[0].MacAddress != "00:50:56:aa:00:01" || net[0].IpConfig.IpAddress[0].Origin != "manual" ||
		vm.Guest.IpStack[0].IpRouteConfig.IpRoute[0].Gateway.IpAddress != "192.0.2.1" {
		t.Errorf("net %+v stack %+v", vm.Guest.Net, vm.Guest.IpStack)
	}
	var exact bool
	for _, device := range vm.Config.Hardware.Device {
		if disk, ok := device.(*types.VirtualDisk); ok && disk.CapacityInBytes == 1000003 {
			exact = true
		}
	}
	if !exact {
		t.Error("no disk has the odd capacity")
	}
	var other mo.VirtualMachine
	check(t, l.client.RetrieveOne(ctx, l.vm("file srv ä").Reference(), nil, &other))
	if other.Config.Firmware != "" || other.Config.KeyId == nil || other.Runtime.PowerState != "poweredOff" {
		t.Errorf("second vm: firmware %q, key %v", other.Config.Firmware, other.Config.KeyId)
	}
	_ = l.vm("test/web01")

	var host mo.HostSystem
	check(t, l.client.RetrieveOne(ctx, *vm.Runtime.Host, []string{"config", "summary", "configManager"}, &host))
	if host.Config.PowerSystemInfo.CurrentPolicy.ShortName != "static" || host.Config.Network.Pnic[0].LinkSpeed.SpeedMb != 25000 {
		t.Error("power policy or link speed is wrong")
	}
	if host.Summary.Config.SslThumbprint != l.sim.Ready.ThumbprintSHA1 {
		t.Error("thumbprint is wrong")
	}
	config, err := methods.QueryNetConfig(ctx, l.client, &types.QueryNetConfig{
		This: *host.ConfigManager.VirtualNicManager, NicType: "vSphereBackupNFC",
	})
	check(t, err)
	if got := config.Returnval; len(got.CandidateVnic) != 2 || len(got.SelectedVnic) != 1 || !strings.HasSuffix(got.SelectedVnic[0], "vmk1") {
		t.Errorf("backup adapters: %+v", got)
	}
}

func TestPowerAndGuestShutdown(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	old, web := l.vm("old"), l.vm("prod/web/web01")
	if err := old.ShutdownGuest(ctx); !fault.Is(err, &types.ToolsUnavailable{}) {
		t.Errorf("shutdown without tools: %v", err)
	}
	check(t, web.ShutdownGuest(ctx))
	check(t, property.Wait(ctx, property.DefaultCollector(l.client.Client), web.Reference(), []string{"runtime.powerState"},
		func(changes []types.PropertyChange) bool {
			return changes[len(changes)-1].Val == types.VirtualMachinePowerStatePoweredOff
		}))
	task, err := web.PowerOff(ctx)
	check(t, err)
	if err := task.Wait(ctx); !fault.Is(err, &types.InvalidPowerState{}) {
		t.Errorf("second power off: %v", err)
	}
	if got := l.status(fetch{file: "web01/web01-flat.vmdk", cookie: l.cookie(), span: "0-9"}); got != 206 {
		t.Errorf("data of a VM that is off: %d", got)
	}
	task, err = old.CreateSnapshot(ctx, "no", "", false, false)
	check(t, err)
	if err := task.Wait(ctx); err == nil || !strings.Contains(err.Error(), "multi-writer") {
		t.Errorf("snapshot with a shared disk: %v", err)
	}
}

func TestIdleSessionsEndAndAllEndByOrder(t *testing.T) {
	l := start(t, false, "600ms")
	ctx := context.Background()
	file := fetch{file: srvFile, cookie: l.cookie(), span: "0-9"}
	for range 4 { // Calls keep it alive.
		time.Sleep(250 * time.Millisecond)
		_, err := methods.GetCurrentTime(ctx, l.client)
		check(t, err)
	}
	if got := l.status(file); got != 206 {
		t.Fatalf("live session: %d", got)
	}
	time.Sleep(1200 * time.Millisecond)
	if got := l.status(file); got != 401 {
		t.Errorf("data after expiry: %d", got)
	}
	var vm mo.VirtualMachine
	ref := types.ManagedObjectReference{Type: "VirtualMachine", Value: l.sim.order[0].ref.Value}
	err := l.client.RetrieveOne(ctx, ref, []string{"name"}, &vm)
	if !fault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("property read after expiry: %v", err)
	}
	l.client = l.login()
	id := l.cookie().Value
	if !l.sim.sessions.isValid(id) {
		t.Error("a new session is not valid")
	}
	l.control("GET", "/sessions/"+id, "", nil)
	l.control("POST", "/sessions/expire", "", nil)
	if got := l.status(fetch{file: srvFile, cookie: l.cookie(), span: "0-9"}); got != 401 {
		t.Errorf("data after the order: %d", got)
	}
	if l.sim.sessions.isValid(id) {
		t.Error("an ended session is valid")
	}
}

func TestAWrongPasswordIsAnInvalidLogin(t *testing.T) {
	l := start(t, false, "30m")
	check(t, l.client.Logout(context.Background()))
	err := l.client.Login(context.Background(), url.UserPassword("administrator@vsphere.local", "wrong"))
	if !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("got %v", err)
	}
	var stats struct{ Soap map[string]int }
	l.control("GET", "/stats", "", &stats)
	if stats.Soap["Login"] != 2 || stats.Soap["Logout"] != 1 {
		t.Errorf("calls: %v", stats.Soap)
	}
}

func TestSoapFaultsOfCallsAndOfTasks(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm := l.vm("prod/web/web01")
	l.control("POST", "/fault/soap", `{"method":"CreateSnapshot_Task","fault":"ApplicationQuiesceFault","message":"VSS failed","skip":1}`, nil)
	l.removeSnapshot(l.snapshot(vm, "skipped"))
	if _, err := vm.CreateSnapshot(ctx, "a", "", false, true); !fault.Is(err, &types.ApplicationQuiesceFault{}) || !strings.Contains(err.Error(), "VSS failed") {
		t.Errorf("call: %v", err)
	}
	l.control("POST", "/fault/soap", `{"method":"CreateSnapshot_Task","fault":"SnapshotFault","message":"no space","as":"task"}`, nil)
	task, err := vm.CreateSnapshot(ctx, "a", "", false, true)
	check(t, err)
	if err := task.Wait(ctx); !fault.Is(err, &types.SnapshotFault{}) || !strings.Contains(err.Error(), "no space") {
		t.Errorf("task: %v", err)
	}
	l.control("POST", "/fault/soap", `{"method":"RemoveSnapshot_Task","fault":"FileFault","as":"task","count":-1}`, nil)
	l.control("POST", "/fault/clear", "", nil)
	l.removeSnapshot(l.snapshot(vm, "fine again"))
	if response, err := http.Post(l.sim.Ready.Control+"/fault/soap", "", strings.NewReader(`{"method":"X","fault":"NoSuch"}`)); err != nil || response.StatusCode != 400 {
		t.Error("an unknown fault was taken")
	}
}

func TestTagsAreThere(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	client := rest.NewClient(&vim25.Client{Client: l.client.Client.Client, RoundTripper: l.client.RoundTripper})
	check(t, client.Login(ctx, l.sim.credentials()))
	attached, err := tags.NewManager(client).GetAttachedTags(ctx, l.vm("prod/web/web01").Reference())
	check(t, err)
	if len(attached) != 2 {
		t.Errorf("tags: %v", attached)
	}
	l.control("POST", "/sessions/expire", "", nil)
	if _, err := tags.NewManager(client).ListTags(ctx); err == nil {
		t.Error("the REST session outlived the order")
	}
}

func TestRotatedCertificateIsSeenAtOnce(t *testing.T) {
	l := start(t, false, "30m")
	before, cookie := l.roots(), l.cookie()
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: before}}
	_, err := old.Get(strings.TrimSuffix(l.sim.Ready.URL, "/sdk") + "/folder/x")
	check(t, err)
	var fresh struct {
		SHA1 string `json:"thumbprint_sha1"`
	}
	was := l.sim.Ready.ThumbprintSHA1
	l.control("POST", "/cert/rotate", "", &fresh)
	if fresh.SHA1 == was || fresh.SHA1 == "" {
		t.Error("the thumbprint is the same")
	}
	if _, err := old.Get(strings.TrimSuffix(l.sim.Ready.URL, "/sdk") + "/folder/x"); err == nil {
		t.Error("the old certificate is still trusted")
	}
	if got := l.status(fetch{file: srvFile, cookie: cookie, span: "0-9"}); got != 206 {
		t.Errorf("the session did not outlive the certificate: %d", got)
	}
}

func TestAHostAlone(t *testing.T) {
	l := start(t, true, "30m")
	ctx := context.Background()
	if l.client.IsVC() || len(l.sim.order) != 3 {
		t.Errorf("not a host alone, or %d VMs", len(l.sim.order))
	}
	_, err := methods.SessionIsActive(ctx, l.client, &types.SessionIsActive{This: *l.client.ServiceContent.SessionManager})
	if !fault.Is(err, &types.NotImplemented{}) {
		t.Errorf("SessionIsActive: %v", err)
	}
	vm := l.vm("old")
	task, err := vm.PowerOff(ctx)
	check(t, err)
	check(t, task.Wait(ctx))
	file := fetch{file: "old/old-flat.vmdk", dc: "ha-datacenter", cookie: l.cookie(), span: "0-9"}
	if got := l.status(file); got != 206 {
		t.Errorf("data: %d", got)
	}
	file.address = "127.0.72.1" // The same service on all its adapters.
	if got := l.status(file); got != 206 {
		t.Errorf("data over the other adapter: %d", got)
	}
}
