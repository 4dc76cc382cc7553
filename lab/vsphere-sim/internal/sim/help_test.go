package sim

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

const testInventory = `
session_idle_timeout: IDLE
datastores: [{name: ds1, capacity: 1TiB}, {name: ds2, capacity: 100GiB}]
networks: [{name: VM Network}, {name: Storage Net}]
hosts:
  - name: esx1.lab
    power_policy: high_performance
    nics: [{device: vmnic0, link_mbps: 25000}]
    vmknics:
      - {device: vmk0, address: 127.0.71.1, services: [management]}
      - {device: vmk1, address: 127.0.72.1, services: [vSphereBackupNFC]}
    credentials: {username: root, password: rootpw}
  - name: esx2.lab
    power_policy: low_power
vms:
  - name: web01
    folder: prod/web
    power: on
    tools: running
    firmware: efi
    secure_boot: true
    cbt: true
    tags: ["env:prod", "tier:web"]
    nics: [{network: Storage Net, mac: "00:50:56:aa:00:01", addresses: [192.0.2.7/24], gateway: 192.0.2.1, dns: [192.0.2.53]}]
    disks:
      - {file: data.img, capacity: 8MiB, datastore: ds1}
      - {capacity: 1000003, datastore: ds2, controller: sata}
  - name: "file srv ä"
    host: esx2.lab
    power: off
    vtpm: true
    hardware_version: vmx-04
    encrypted: true
    passthrough: true
    disks: [{file: data.img}, {capacity: 1MiB, mode: independent_persistent}, {capacity: 1MiB, rdm: virtual}]
  - name: old
    power: on
    disks: [{capacity: 1MiB, sharing: multi_writer}]
  - {name: web01, folder: test, datastore: ds2, disks: [{capacity: 0, datastore: ds2}, {capacity: 513, datastore: ds1}]}
`

// lab is a simulator with a logged-in client.
type lab struct {
	*testing.T
	sim    *Sim
	client *govmomi.Client
	data   []byte
}

func start(t *testing.T, esxi bool, idle string) *lab {
	t.Helper()
	dir := t.TempDir()
	data := bytes.Repeat([]byte("drover's simulator "), 60_000)[:1_000_000]
	check(t, os.WriteFile(filepath.Join(dir, "data.img"), data, 0o600))
	inv, err := inventory.Parse([]byte(strings.ReplaceAll(testInventory, "IDLE", idle)), dir)
	check(t, err)
	s, err := Start(Options{Inventory: inv, Listen: "127.0.0.1:0", ESXi: esxi, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	l := &lab{T: t, sim: s, data: data}
	l.client = l.login()
	return l
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) roots() *tls.Config {
	text, err := os.ReadFile(l.sim.Ready.CAFile)
	check(l.T, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool}
}

func (l *lab) login() *govmomi.Client {
	l.Helper()
	address, err := url.Parse(l.sim.Ready.URL)
	check(l.T, err)
	transport := soap.NewClient(address, false)
	transport.DefaultTransport().TLSClientConfig = l.roots()
	vim, err := vim25.NewClient(context.Background(), transport)
	check(l.T, err)
	client := &govmomi.Client{Client: vim, SessionManager: session.NewManager(vim)}
	check(l.T, client.Login(context.Background(), l.sim.credentials()))
	return client
}

func (l *lab) vm(path string) *object.VirtualMachine {
	l.Helper()
	finder := find.NewFinder(l.client.Client)
	dc, err := finder.DefaultDatacenter(context.Background())
	check(l.T, err)
	vm, err := finder.SetDatacenter(dc).VirtualMachine(context.Background(), path)
	check(l.T, err)
	return vm
}

func (l *lab) config(ref types.ManagedObjectReference) types.VirtualMachineConfigInfo {
	l.Helper()
	if ref.Type == "VirtualMachineSnapshot" {
		var snapshot mo.VirtualMachineSnapshot
		check(l.T, l.client.RetrieveOne(context.Background(), ref, []string{"config"}, &snapshot))
		return snapshot.Config
	}
	var vm mo.VirtualMachine
	check(l.T, l.client.RetrieveOne(context.Background(), ref, []string{"config"}, &vm))
	return *vm.Config
}

func firstDisk(config types.VirtualMachineConfigInfo) (*types.VirtualDisk, *types.VirtualDiskFlatVer2BackingInfo) {
	disk := object.VirtualDeviceList(config.Hardware.Device).SelectByType((*types.VirtualDisk)(nil))[0].(*types.VirtualDisk)
	return disk, disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
}

func (l *lab) snapshot(vm *object.VirtualMachine, name string) types.ManagedObjectReference {
	l.Helper()
	task, err := vm.CreateSnapshot(context.Background(), name, "", false, true)
	check(l.T, err)
	info, err := task.WaitForResult(context.Background())
	check(l.T, err)
	return info.Result.(types.ManagedObjectReference)
}

func (l *lab) removeSnapshot(ref types.ManagedObjectReference) {
	l.Helper()
	res, err := methods.RemoveSnapshot_Task(context.Background(), l.client, &types.RemoveSnapshot_Task{This: ref})
	check(l.T, err)
	check(l.T, object.NewTask(l.client.Client, res.Returnval).Wait(context.Background()))
}

// changed asks for all changed areas in as many calls as it takes.
func (l *lab) changed(vm *object.VirtualMachine, snapshot types.ManagedObjectReference, key int32, id string, capacity int64) (areas []types.DiskChangeExtent, calls int) {
	l.Helper()
	for offset := int64(0); offset < capacity; calls++ {
		res, err := methods.QueryChangedDiskAreas(context.Background(), l.client, &types.QueryChangedDiskAreas{
			This: vm.Reference(), Snapshot: &snapshot, DeviceKey: key, StartOffset: offset, ChangeId: id,
		})
		check(l.T, err)
		areas = append(areas, res.Returnval.ChangedArea...)
		offset = res.Returnval.StartOffset + res.Returnval.Length
	}
	return areas, calls
}

// control sends an order and gives the answer.
func (l *lab) control(method, path, body string, answer any) {
	l.Helper()
	request, err := http.NewRequest(method, l.sim.Ready.Control+path, strings.NewReader(body))
	check(l.T, err)
	response, err := http.DefaultClient.Do(request)
	check(l.T, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	check(l.T, err)
	if response.StatusCode != http.StatusOK {
		l.Fatalf("%s %s: %s", path, body, text)
	}
	if answer != nil {
		check(l.T, json.Unmarshal(text, answer))
	}
}

// fetch is one request for data.
type fetch struct {
	method  string
	address string // of a host, or "" for the main one
	file    string
	dc      string
	ds      string
	span    string
	cookie  *http.Cookie
	user    string
	pass    string
}

// do sends the request without any session but the one given.
func (l *lab) do(f fetch) (*http.Response, []byte, error) {
	l.Helper()
	base, err := url.Parse(l.sim.Ready.URL)
	check(l.T, err)
	if f.address != "" {
		base.Host = f.address + ":" + base.Port()
	}
	base.Path = "/folder/" + f.file
	base.RawQuery = url.Values{"dcPath": {or(f.dc, "DC0")}, "dsName": {or(f.ds, "ds1")}}.Encode()
	request, err := http.NewRequest(or(f.method, "GET"), base.String(), nil)
	check(l.T, err)
	if f.span != "" {
		request.Header.Set("Range", "bytes="+f.span)
	}
	if f.cookie != nil {
		request.AddCookie(f.cookie)
	}
	if f.user != "" {
		request.SetBasicAuth(f.user, f.pass)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: l.roots(), DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

func (l *lab) status(f fetch) int {
	l.Helper()
	response, _, err := l.do(f)
	check(l.T, err)
	return response.StatusCode
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

// cookie is the client's session.
func (l *lab) cookie() *http.Cookie {
	l.Helper()
	base, err := url.Parse(l.sim.Ready.URL)
	check(l.T, err)
	for _, cookie := range l.client.Jar.Cookies(base) {
		if cookie.Name == soap.SessionCookieName {
			return cookie
		}
	}
	l.Fatal("no session cookie")
	return nil
}
