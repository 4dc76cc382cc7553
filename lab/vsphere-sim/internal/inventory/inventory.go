// Package inventory reads the YAML file that says what a simulated vSphere holds.
//
// A key that is not known here is refused: a typing error in a test inventory must not
// silently turn into a default.
package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Inventory is one whole vCenter, or one ESXi host with its VMs.
type Inventory struct {
	About              About       `yaml:"about"`
	Credentials        Credentials `yaml:"credentials"`
	SessionIdleTimeout Duration    `yaml:"session_idle_timeout"`
	Datacenter         string      `yaml:"datacenter"`
	Folders            []string    `yaml:"folders"`
	Networks           []Network   `yaml:"networks"`
	Datastores         []Datastore `yaml:"datastores"`
	Hosts              []Host      `yaml:"hosts"`
	VMs                []VM        `yaml:"vms"`
}

// About is what ServiceContent.about says of the product.
type About struct {
	Version    string `yaml:"version"`
	APIVersion string `yaml:"api_version"`
	Build      string `yaml:"build"`
}

// Credentials are one user and password.
type Credentials struct {
	Username string `yaml:"username"`
	Password string `yaml:"password"`
}

// Network is a standard port group.
type Network struct {
	Name string `yaml:"name"`
}

// Datastore is mounted on every host, or on those that are named.
type Datastore struct {
	Name     string   `yaml:"name"`
	Capacity Size     `yaml:"capacity"`
	Hosts    []string `yaml:"hosts"`
}

// Host is an ESXi host. Hosts that name the same Cluster share it; without one they stand alone.
type Host struct {
	Name        string      `yaml:"name"`
	Cluster     string      `yaml:"cluster"`
	PowerPolicy string      `yaml:"power_policy"`
	NICs        []HostNIC   `yaml:"nics"`
	VMKNICs     []VMKNIC    `yaml:"vmknics"`
	Credentials Credentials `yaml:"credentials"`
}

// HostNIC is a physical network card.
type HostNIC struct {
	Device   string `yaml:"device"`
	LinkMbps int32  `yaml:"link_mbps"`
}

// VMKNIC is a VMkernel adapter. One in 127.0.0.0/8 is listened on in vCenter mode.
type VMKNIC struct {
	Device   string   `yaml:"device"`
	Address  string   `yaml:"address"`
	Services []string `yaml:"services"`
}

// VM is one virtual machine.
type VM struct {
	Name            string     `yaml:"name"`
	Folder          string     `yaml:"folder"`
	Host            string     `yaml:"host"`
	Datastore       string     `yaml:"datastore"`
	GuestID         string     `yaml:"guest_id"`
	GuestFullName   string     `yaml:"guest_full_name"`
	Firmware        string     `yaml:"firmware"`
	SecureBoot      bool       `yaml:"secure_boot"`
	CPUs            int32      `yaml:"cpus"`
	CoresPerSocket  int32      `yaml:"cores_per_socket"`
	MemoryMiB       int64      `yaml:"memory_mib"`
	Power           string     `yaml:"power"`
	Tools           string     `yaml:"tools"`
	Tags            []string   `yaml:"tags"`
	CBT             bool       `yaml:"cbt"`
	WriteBytesPerS  Size       `yaml:"write_bytes_per_s"`
	HardwareVersion string     `yaml:"hardware_version"`
	VTPM            bool       `yaml:"vtpm"`
	Encrypted       bool       `yaml:"encrypted"`
	Passthrough     bool       `yaml:"passthrough"`
	ManagedBy       string     `yaml:"managed_by"`
	NICs            []NIC      `yaml:"nics"`
	Disks           []Disk     `yaml:"disks"`
	Snapshots       []Snapshot `yaml:"snapshots"`

	ExtraConfig map[string]string `yaml:"extra_config"`
}

// NIC is a virtual network card. Connected is true unless it says otherwise. Slot is its pciSlotNumber, if it has one.
// Addresses, with their prefixes, Gateway and DNS are what the guest was given, which its tools tell while they run.
type NIC struct {
	Network   string `yaml:"network"`
	MAC       string `yaml:"mac"`
	Model     string `yaml:"model"`
	Connected *bool  `yaml:"connected"`
	Slot      int32  `yaml:"slot"`

	Addresses []string `yaml:"addresses"`
	Gateway   string   `yaml:"gateway"`
	DNS       []string `yaml:"dns"`
}

// Disk is a virtual disk. Without a file it is one hole; without a capacity it is as long as its file. The content of one
// on vSAN is an object and no file.
type Disk struct {
	File       string `yaml:"file"`
	Capacity   *Size  `yaml:"capacity"`
	Datastore  string `yaml:"datastore"`
	Thin       *bool  `yaml:"thin"`
	Controller string `yaml:"controller"`
	Unit       *int32 `yaml:"unit"`
	Mode       string `yaml:"mode"`
	RDM        string `yaml:"rdm"`
	Format     string `yaml:"format"`
	Sharing    string `yaml:"sharing"`
	CBT        *bool  `yaml:"cbt"`
}

// Snapshot is one that exists before the test begins; the last one made is the current one.
type Snapshot struct {
	Name     string     `yaml:"name"`
	Children []Snapshot `yaml:"children"`
}

// Load reads, completes and checks the inventory at path. Relative disk files are made relative to it.
func Load(path string) (*Inventory, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	inv, err := Parse(text, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("inventory %s: %w", path, err)
	}
	return inv, nil
}

// Parse does what Load does for text whose disk files are relative to dir.
func Parse(text []byte, dir string) (*Inventory, error) {
	inv := &Inventory{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(inv); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	inv.complete(dir)
	if err := inv.check(); err != nil {
		return nil, err
	}
	return inv, nil
}

// complete fills in the defaults, so that the builder need not know them.
func (inv *Inventory) complete(dir string) {
	orDefault(&inv.About.Version, "8.0.2")
	orDefault(&inv.About.APIVersion, "8.0.2.0")
	orDefault(&inv.About.Build, "22617221")
	orDefault(&inv.Credentials.Username, "administrator@vsphere.local")
	orDefault(&inv.Credentials.Password, "s3cret")
	orDefault(&inv.Datacenter, "DC0")
	if inv.SessionIdleTimeout == 0 {
		inv.SessionIdleTimeout = Duration(30 * time.Minute)
	}
	if len(inv.Networks) == 0 {
		inv.Networks = []Network{{Name: "VM Network"}}
	}
	if len(inv.Datastores) == 0 {
		inv.Datastores = []Datastore{{Name: "ds1"}}
	}
	for i := range inv.Datastores {
		if inv.Datastores[i].Capacity == 0 {
			inv.Datastores[i].Capacity = 1 << 40
		}
	}
	if len(inv.Hosts) == 0 {
		inv.Hosts = []Host{{Name: "esx1.lab"}}
	}
	for i := range inv.Hosts {
		inv.Hosts[i].complete()
	}
	for i := range inv.VMs {
		inv.VMs[i].complete(inv, dir)
	}
}

func (h *Host) complete() {
	orDefault(&h.PowerPolicy, "balanced")
	orDefault(&h.Credentials.Username, "root")
	orDefault(&h.Credentials.Password, "rootpw")
	if len(h.NICs) == 0 {
		h.NICs = []HostNIC{{Device: "vmnic0", LinkMbps: 10000}}
	}
}

func (vm *VM) complete(inv *Inventory, dir string) {
	orDefault(&vm.Host, inv.Hosts[0].Name)
	orDefault(&vm.GuestID, "otherGuest64")
	orDefault(&vm.Power, "off")
	orDefault(&vm.HardwareVersion, "vmx-19")
	orDefault(&vm.Tools, "notInstalled")
	if vm.CPUs == 0 {
		vm.CPUs = 1
	}
	if vm.CoresPerSocket == 0 {
		vm.CoresPerSocket = 1
	}
	if vm.MemoryMiB == 0 {
		vm.MemoryMiB = 1024
	}
	for i := range vm.Disks {
		disk := &vm.Disks[i]
		orDefault(&disk.Datastore, vm.Datastore)
		orDefault(&disk.Datastore, inv.Datastores[0].Name)
		orDefault(&disk.Controller, "pvscsi")
		orDefault(&disk.Mode, "persistent")
		orDefault(&disk.Sharing, "none")
		orDefault(&disk.Format, "flat")
		if disk.File != "" && !filepath.IsAbs(disk.File) {
			disk.File = filepath.Join(dir, disk.File)
		}
	}
	if vm.Datastore == "" && len(vm.Disks) > 0 {
		vm.Datastore = vm.Disks[0].Datastore
	}
	orDefault(&vm.Datastore, inv.Datastores[0].Name)
	for i := range vm.NICs {
		orDefault(&vm.NICs[i].Network, inv.Networks[0].Name)
		orDefault(&vm.NICs[i].Model, "vmxnet3")
	}
}

// HardwareNumber is 19 for vmx-19, and 0 for what is no version.
func (vm *VM) HardwareNumber() int {
	number, err := strconv.Atoi(strings.TrimPrefix(vm.HardwareVersion, "vmx-"))
	if err != nil || !strings.HasPrefix(vm.HardwareVersion, "vmx-") {
		return 0
	}
	return number
}

func orDefault(value *string, fallback string) {
	if *value == "" {
		*value = fallback
	}
}
