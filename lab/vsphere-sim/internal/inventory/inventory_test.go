package inventory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBadInventoriesAreRefusedWithAReason(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"unknown key":        {"vms: [{name: a, colour: red}]", "colour"},
		"unknown top key":    {"vm: []", "field vm not found"},
		"two of one name":    {"vms: [{name: a}, {name: a}]", `two of the name vm "a"`},
		"unknown host":       {"vms: [{name: a, host: nowhere}]", "nowhere"},
		"unknown controller": {"vms: [{name: a, disks: [{capacity: 1, controller: floppy}]}]", "floppy"},
		"missing file":       {"vms: [{name: a, disks: [{file: none.img}]}]", "none.img"},
		"no file or size":    {"vms: [{name: a, disks: [{}]}]", "neither file nor capacity"},
		"bad size":           {"vms: [{name: a, disks: [{capacity: 3 apples}]}]", "3 apples"},
		"bad tag":            {"vms: [{name: a, tags: [prod]}]", "category:tag"},
		"bad guest address":  {"datastores: [{name: d}]\nhosts: [{name: h}]\nnetworks: [{name: n}]\nvms: [{name: v, nics: [{network: n, addresses: [192.0.2.7]}]}]", "with a prefix"},
		"bad service":        {"hosts: [{name: h, vmknics: [{device: vmk0, address: 127.0.0.9, services: [tea]}]}]", "tea"},
		"one address twice":  {"hosts: [{name: h, vmknics: [{address: 127.0.0.9}]}, {name: i, vmknics: [{address: 127.0.0.9}]}]", "taken"},
	}
	for name, c := range cases {
		_, err := Parse([]byte(c.text), t.TempDir())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestOddCapacitiesAndRepeatedNamesInFoldersAreTaken(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.img"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := Parse([]byte(`
vms:
  - {name: "file srv ä", folder: x, disks: [{file: a.img}, {file: a.img, capacity: 1001}, {capacity: 0}, {capacity: 20GiB}]}
  - {name: "file srv ä", folder: y}
`), dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Size{5, 1001, 0, 20 << 30} {
		if got := *inv.VMs[0].Disks[i].Capacity; got != want {
			t.Errorf("disk %d: capacity %d, want %d", i, got, want)
		}
	}
}

func TestTheExampleLoads(t *testing.T) {
	if _, err := Load("../../testdata/small.yaml"); err != nil {
		t.Fatal(err)
	}
}
