package sim

import (
	"fmt"
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

func (s *Sim) buildHosts(dc *simulator.Datacenter) error {
	if s.esxi {
		host := s.registry.Any("HostSystem").(*simulator.HostSystem)
		host.Name, host.Summary.Config.Name = s.inv.Hosts[0].Name, s.inv.Hosts[0].Name
		s.fillHost(host, &s.inv.Hosts[0])
		return nil
	}
	folder := s.registry.Get(dc.HostFolder).(*simulator.Folder)
	clusters := map[string]*simulator.ClusterComputeResource{}
	for i := range s.inv.Hosts {
		given := &s.inv.Hosts[i]
		host, err := s.addHost(folder, clusters, given)
		if err != nil {
			return fmt.Errorf("host %q: %w", given.Name, err)
		}
		s.fillHost(host, given)
	}
	return nil
}

func (s *Sim) addHost(folder *simulator.Folder, clusters map[string]*simulator.ClusterComputeResource,
	given *inventory.Host) (*simulator.HostSystem, error) {
	spec := types.HostConnectSpec{HostName: given.Name}
	if given.Cluster == "" {
		host, fault := simulator.CreateStandaloneHost(s.ctx, folder, spec)
		if fault != nil {
			return nil, fmt.Errorf("%T", fault)
		}
		host.Runtime.ConnectionState = types.HostSystemConnectionStateConnected
		return host, nil
	}
	cluster := clusters[given.Cluster]
	if cluster == nil {
		made, fault := simulator.CreateClusterComputeResource(s.ctx, folder, given.Cluster, types.ClusterConfigSpecEx{})
		if fault != nil {
			return nil, fmt.Errorf("cluster %q: %T", given.Cluster, fault)
		}
		cluster, clusters[given.Cluster] = made, made
	}
	body := cluster.AddHostTask(s.ctx, &types.AddHost_Task{This: cluster.Self, Spec: spec, AsConnected: true})
	if err := faultOf(body); err != nil {
		return nil, err
	}
	result, err := s.wait(body.(*methods.AddHost_TaskBody).Res.Returnval)
	if err != nil {
		return nil, err
	}
	return s.registry.Get(result.(types.ManagedObjectReference)).(*simulator.HostSystem), nil
}

// fillHost shows what the inventory says of a host in all the places where clients look.
func (s *Sim) fillHost(host *simulator.HostSystem, given *inventory.Host) {
	s.hostRefs[given.Name] = host.Self
	about := *s.hostAbout()
	host.Config.Product, host.Summary.Config.Product = about, &about
	s.fillPower(host, given.PowerPolicy)

	pnics := []types.PhysicalNic{}
	for _, nic := range given.NICs {
		pnics = append(pnics, physicalNIC(nic))
	}
	vnics := []types.HostVirtualNic{}
	for i, nic := range given.VMKNICs {
		vnics = append(vnics, virtualNIC("key-vim.host.VirtualNic-", i, nic))
	}
	network := host.Config.Network
	network.Pnic, network.Vnic = pnics, vnics

	configs := []types.VirtualNicManagerNetConfig{}
	for _, service := range inventory.VMKServices {
		configs = append(configs, netConfig(service, given.VMKNICs))
	}
	host.Config.VirtualNicManagerInfo = &types.HostVirtualNicManagerInfo{NetConfig: configs}
	manager := s.registry.Get(*host.ConfigManager.VirtualNicManager).(*simulator.HostVirtualNicManager)
	manager.Info.NetConfig = configs
	system := s.registry.Get(*host.ConfigManager.NetworkSystem).(*simulator.HostNetworkSystem)
	system.NetworkInfo.Pnic, system.NetworkInfo.Vnic = pnics, vnics
	s.showHostCert(host)
}

func (s *Sim) hostAbout() *types.AboutInfo {
	about := types.AboutInfo{
		Name: "VMware ESXi", Version: s.inv.About.Version, ApiVersion: s.inv.About.APIVersion, Build: s.inv.About.Build,
		Vendor: "VMware, Inc.", OsType: "vmnix-x86", ProductLineId: "embeddedEsx", ApiType: "HostAgent",
		LocaleVersion: "INTL", LocaleBuild: "000",
		LicenseProductName: "VMware ESX Server", LicenseProductVersion: "8.0",
	}
	about.FullName = fmt.Sprintf("%s %s build-%s", about.Name, about.Version, about.Build)
	return &about
}

func (s *Sim) showHostCert(host *simulator.HostSystem) {
	cert := s.cert.Load()
	host.Summary.Config.SslThumbprint = cert.sha1
	host.Config.Certificate = types.ByteSlice(cert.signedBytes())
}

// showCert lets all hosts show the current certificate.
func (s *Sim) showCert() {
	for _, ref := range s.hostRefs {
		host := s.registry.Get(ref).(*simulator.HostSystem)
		s.registry.WithLock(&simulator.Context{}, host, func() { s.showHostCert(host) })
	}
}

var powerPolicies = map[string]types.HostPowerPolicy{
	"high_performance": {Key: 1, Name: "PowerPolicy.static.name", ShortName: "static", Description: "PowerPolicy.static.description"},
	"balanced":         {Key: 2, Name: "PowerPolicy.dynamic.name", ShortName: "dynamic", Description: "PowerPolicy.dynamic.description"},
	"low_power":        {Key: 3, Name: "PowerPolicy.low.name", ShortName: "low", Description: "PowerPolicy.low.description"},
}

var cpuPolicyNames = map[string]string{
	"high_performance": "High Performance", "balanced": "Balanced", "low_power": "Low Power",
}

func (s *Sim) fillPower(host *simulator.HostSystem, policy string) {
	info := types.PowerSystemInfo{CurrentPolicy: powerPolicies[policy]}
	capability := types.PowerSystemCapability{AvailablePolicy: []types.HostPowerPolicy{
		powerPolicies["high_performance"], powerPolicies["balanced"], powerPolicies["low_power"],
	}}
	host.Config.PowerSystemInfo, host.Config.PowerSystemCapability = &info, &capability
	system := s.registry.Put(&mo.HostPowerSystem{Info: info, Capability: capability}).Reference()
	host.ConfigManager.PowerSystem = &system
	host.Hardware.CpuPowerManagementInfo = &types.HostCpuPowerManagementInfo{
		CurrentPolicy: cpuPolicyNames[policy], HardwareSupport: "ACPI P-states, ACPI C-states",
	}
}

func physicalNIC(nic inventory.HostNIC) types.PhysicalNic {
	link := types.PhysicalNicLinkInfo{SpeedMb: nic.LinkMbps, Duplex: true}
	out := types.PhysicalNic{
		Key: "key-vim.host.PhysicalNic-" + nic.Device, Device: nic.Device, Pci: "0000:03:00.0", Driver: "nvmxnet3",
		Spec: types.PhysicalNicSpec{Ip: &types.HostIpConfig{}}, Mac: "00:0c:29:81:d8:a0",
		ValidLinkSpecification: []types.PhysicalNicLinkInfo{link},
	}
	if nic.LinkMbps > 0 {
		out.LinkSpeed = &link // Absent when the link is down.
	}
	return out
}

func virtualNIC(prefix string, index int, nic inventory.VMKNIC) types.HostVirtualNic {
	mac := fmt.Sprintf("00:50:56:60:00:%02x", index)
	return types.HostVirtualNic{
		Device: nic.Device, Key: prefix + nic.Device, Portgroup: "Management Network",
		Spec: types.HostVirtualNicSpec{
			Ip:  &types.HostIpConfig{IpAddress: nic.Address, SubnetMask: "255.255.255.0"},
			Mac: mac, Portgroup: "Management Network", Mtu: 1500, TsoEnabled: types.NewBool(true),
			NetStackInstanceKey: "defaultTcpipStack",
		},
	}
}

// netConfig tells which adapters could carry service, and which do.
func netConfig(service string, nics []inventory.VMKNIC) types.VirtualNicManagerNetConfig {
	config := types.VirtualNicManagerNetConfig{NicType: service, MultiSelectAllowed: true}
	for i, nic := range nics {
		candidate := virtualNIC(service+".key-vim.host.VirtualNic-", i, nic)
		config.CandidateVnic = append(config.CandidateVnic, candidate)
		if slices.Contains(nic.Services, service) {
			config.SelectedVnic = append(config.SelectedVnic, candidate.Key)
		}
	}
	return config
}
