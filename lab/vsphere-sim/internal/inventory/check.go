package inventory

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// VMKServices are the services a VMkernel adapter can carry, by their names in the API.
var VMKServices = []string{
	"management", "vmotion", "vSphereBackupNFC", "vSphereProvisioning", "vSphereReplication",
	"vSphereReplicationNFC", "faultToleranceLogging", "vsan",
}

// check finds what would make a nonsense vSphere. Odd but possible things, such as a
// capacity that is no multiple of 512, pass: bad-input tests need them.
func (inv *Inventory) check() error {
	if err := inv.checkHosts(); err != nil {
		return err
	}
	if err := unique("datastore", inv.Datastores, func(d Datastore) string { return d.Name }); err != nil {
		return err
	}
	if err := unique("network", inv.Networks, func(n Network) string { return n.Name }); err != nil {
		return err
	}
	full := func(vm VM) string { return vm.Folder + "/" + vm.Name }
	if err := unique("vm", inv.VMs, full); err != nil {
		return err
	}
	for i := range inv.VMs {
		if err := inv.checkVM(&inv.VMs[i]); err != nil {
			return fmt.Errorf("vm %q: %w", inv.VMs[i].Name, err)
		}
	}
	return nil
}

func unique[T any](kind string, items []T, name func(T) string) error {
	seen := map[string]bool{}
	for _, item := range items {
		key := name(item)
		if strings.Trim(key, "/") == "" {
			return fmt.Errorf("a %s has no name", kind)
		}
		if seen[key] {
			return fmt.Errorf("two of the name %s %q", kind, strings.Trim(key, "/"))
		}
		seen[key] = true
	}
	return nil
}

func (inv *Inventory) checkHosts() error {
	if err := unique("host", inv.Hosts, func(h Host) string { return h.Name }); err != nil {
		return err
	}
	addresses := map[string]string{}
	for _, host := range inv.Hosts {
		if err := oneOf("power_policy", host.PowerPolicy, "high_performance", "balanced", "low_power"); err != nil {
			return fmt.Errorf("host %q: %w", host.Name, err)
		}
		for _, nic := range host.VMKNICs {
			if net.ParseIP(nic.Address) == nil {
				return fmt.Errorf("host %q: vmknic %q: address %q is no IP address", host.Name, nic.Device, nic.Address)
			}
			if other, taken := addresses[nic.Address]; taken {
				return fmt.Errorf("host %q: address %s is taken by host %q", host.Name, nic.Address, other)
			}
			addresses[nic.Address] = host.Name
			for _, service := range nic.Services {
				if err := oneOf("services", service, VMKServices...); err != nil {
					return fmt.Errorf("host %q: vmknic %q: %w", host.Name, nic.Device, err)
				}
			}
		}
	}
	return nil
}

func (inv *Inventory) checkVM(vm *VM) error {
	if !slices.ContainsFunc(inv.Hosts, func(h Host) bool { return h.Name == vm.Host }) {
		return fmt.Errorf("host %q is not in hosts", vm.Host)
	}
	if vm.Firmware != "" {
		if err := oneOf("firmware", vm.Firmware, "bios", "efi"); err != nil {
			return err
		}
	}
	if err := oneOf("power", vm.Power, "on", "off"); err != nil {
		return err
	}
	if err := oneOf("tools", vm.Tools, "running", "notRunning", "notInstalled"); err != nil {
		return err
	}
	if vm.HardwareNumber() == 0 {
		return fmt.Errorf("hardware_version %q: want one such as vmx-19", vm.HardwareVersion)
	}
	if err := inv.checkDatastore(vm.Datastore); err != nil {
		return err
	}
	for _, tag := range vm.Tags {
		if category, name, found := strings.Cut(tag, ":"); !found || category == "" || name == "" {
			return fmt.Errorf("tag %q: want category:tag", tag)
		}
	}
	for i, nic := range vm.NICs {
		if err := inv.checkNIC(nic); err != nil {
			return fmt.Errorf("nic %d: %w", i, err)
		}
	}
	for i := range vm.Disks {
		if err := inv.checkDisk(&vm.Disks[i]); err != nil {
			return fmt.Errorf("disk %d: %w", i, err)
		}
	}
	return nil
}

func (inv *Inventory) checkDatastore(name string) error {
	if !slices.ContainsFunc(inv.Datastores, func(d Datastore) bool { return d.Name == name }) {
		return fmt.Errorf("datastore %q is not in datastores", name)
	}
	return nil
}

func (inv *Inventory) checkNIC(nic NIC) error {
	if !slices.ContainsFunc(inv.Networks, func(n Network) bool { return n.Name == nic.Network }) {
		return fmt.Errorf("network %q is not in networks", nic.Network)
	}
	for _, address := range nic.Addresses {
		if _, err := netip.ParsePrefix(address); err != nil {
			return fmt.Errorf("address %q is no address with a prefix", address)
		}
	}
	for _, address := range append(slices.Clone(nic.DNS), nic.Gateway) {
		if address != "" && net.ParseIP(address) == nil {
			return fmt.Errorf("gateway or name server %q is no IP address", address)
		}
	}
	if nic.MAC != "" {
		if _, err := net.ParseMAC(nic.MAC); err != nil {
			return fmt.Errorf("mac %q is no MAC address", nic.MAC)
		}
	}
	return oneOf("model", nic.Model, "vmxnet3", "e1000", "e1000e")
}

func (inv *Inventory) checkDisk(disk *Disk) error {
	if err := inv.checkDatastore(disk.Datastore); err != nil {
		return err
	}
	if err := oneOf("controller", disk.Controller, "pvscsi", "lsilogic", "lsisas", "sata", "nvme", "ide"); err != nil {
		return err
	}
	if err := oneOf("mode", disk.Mode, "persistent", "independent_persistent", "independent_nonpersistent"); err != nil {
		return err
	}
	if err := oneOf("sharing", disk.Sharing, "none", "multi_writer"); err != nil {
		return err
	}
	if err := oneOf("format", disk.Format, "flat", "vsan"); err != nil {
		return err
	}
	if disk.RDM != "" {
		if err := oneOf("rdm", disk.RDM, "physical", "virtual"); err != nil {
			return err
		}
	}
	return disk.checkFile()
}

// checkFile also settles the capacity, since it may be the file's.
func (disk *Disk) checkFile() error {
	if disk.File == "" {
		if disk.Capacity == nil {
			return fmt.Errorf("neither file nor capacity is given")
		}
		return nil
	}
	info, err := os.Stat(disk.File)
	if err != nil {
		return err
	}
	size := Size(info.Size())
	if disk.Capacity == nil {
		disk.Capacity = &size
	}
	if size > *disk.Capacity {
		return fmt.Errorf("file %s has %d bytes, more than the capacity of %d", disk.File, size, *disk.Capacity)
	}
	return nil
}

func oneOf(key, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("%s %q: want one of %s", key, value, strings.Join(allowed, ", "))
	}
	return nil
}
