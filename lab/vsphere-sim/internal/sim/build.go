package sim

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/simulator/vpx"
	_ "github.com/vmware/govmomi/vapi/simulator" // tags
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// build makes the whole inventory. Nothing is served yet, so objects are changed without locks.
func (s *Sim) build() error {
	content, root := vpx.ServiceContent, vpx.RootFolder
	if s.esxi {
		content, root = esx.ServiceContent, esx.RootFolder
	}
	s.fillAbout(&content.About)
	s.ctx = simulator.NewContext()
	s.service = simulator.New(simulator.NewServiceInstance(s.ctx, content, root))
	s.registry = s.ctx.Map
	dc, err := s.buildDatacenter()
	if err != nil {
		return err
	}
	if err := s.buildHosts(dc); err != nil {
		return err
	}
	if err := s.buildDatastores(); err != nil {
		return err
	}
	if err := s.buildNetworks(dc); err != nil {
		return err
	}
	s.startService()
	s.registry.AddHandler(newHook(s))
	s.registry.Handler = s.handle
	for i := range s.inv.VMs {
		vm := &s.inv.VMs[i]
		if s.esxi && vm.Host != s.inv.Hosts[0].Name {
			continue
		}
		if err := s.buildVM(dc, vm); err != nil {
			return fmt.Errorf("vm %q: %w", vm.Name, err)
		}
	}
	s.showCapacity()
	return nil
}

func (s *Sim) fillAbout(about *types.AboutInfo) {
	given := s.inv.About
	about.Version, about.ApiVersion, about.Build = given.Version, given.APIVersion, given.Build
	about.Name = "VMware vCenter Server"
	if s.esxi {
		about.Name = "VMware ESXi"
	}
	about.FullName = fmt.Sprintf("%s %s build-%s", about.Name, given.Version, given.Build)
	about.InstanceUuid = uuid.NewString()
}

func (s *Sim) credentials() *url.Userinfo {
	given := s.inv.Credentials
	if s.esxi {
		given = s.inv.Hosts[0].Credentials
	}
	return url.UserPassword(given.Username, given.Password)
}

// startService registers the endpoints of govmomi's simulator. Its own server has no
// authentication on data, so it is shut at once and only its handlers are used.
func (s *Sim) startService() {
	s.service.Listen = &url.URL{Host: "127.0.0.1:0", User: s.credentials()}
	s.service.RegisterEndpoints = true
	s.service.NewServer().Close()
	s.service.Listen = s.sdkURL()
	s.service.Listen.User = s.credentials()
	s.registry.OptionManager().UpdateOptions(&types.UpdateOptions{ChangedValue: []types.BaseOptionValue{
		// Sessions are ended by our own watch, which is more exact; this one must not interfere.
		&types.OptionValue{Key: "config.vmacore.soap.sessionTimeout", Value: "24h"},
	}})
}

func (s *Sim) buildDatacenter() (*simulator.Datacenter, error) {
	if s.esxi {
		return s.registry.Any("Datacenter").(*simulator.Datacenter), nil
	}
	root := s.registry.Get(vpx.RootFolder.Self).(*simulator.Folder)
	body := root.CreateDatacenter(s.ctx, &types.CreateDatacenter{This: root.Self, Name: s.inv.Datacenter})
	if err := faultOf(body); err != nil {
		return nil, fmt.Errorf("datacenter: %w", err)
	}
	ref := body.(*methods.CreateDatacenterBody).Res.Returnval
	return s.registry.Get(ref).(*simulator.Datacenter), nil
}

func (s *Sim) buildDatastores() error {
	for _, datastore := range s.inv.Datastores {
		dir := filepath.Join(s.dir, "datastores", url.PathEscape(datastore.Name))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		s.datastores[datastore.Name] = dir
		for name, ref := range s.hostRefs {
			if len(datastore.Hosts) > 0 && !slices.Contains(datastore.Hosts, name) {
				continue
			}
			host := s.registry.Get(ref).(*simulator.HostSystem)
			system := s.registry.Get(*host.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem)
			body := system.CreateLocalDatastore(s.ctx, &types.CreateLocalDatastore{Name: datastore.Name, Path: dir})
			if err := faultOf(body); err != nil {
				return fmt.Errorf("datastore %q: %w", datastore.Name, err)
			}
		}
	}
	return nil
}

// showCapacity sets what the simulator overwrites whenever a host or a VM is added.
func (s *Sim) showCapacity() {
	for _, entity := range s.registry.All("Datastore") {
		datastore := entity.(*simulator.Datastore)
		for _, given := range s.inv.Datastores {
			if given.Name != datastore.Name {
				continue
			}
			used := datastore.Summary.Capacity - datastore.Summary.FreeSpace
			datastore.Summary.Capacity = int64(given.Capacity)
			datastore.Summary.FreeSpace = max(0, int64(given.Capacity)-used)
			datastore.Summary.Type = "VMFS"
			datastore.Info.GetDatastoreInfo().FreeSpace = datastore.Summary.FreeSpace
		}
	}
}

func (s *Sim) buildNetworks(dc *simulator.Datacenter) error {
	host := s.registry.Get(s.hostRefs[s.inv.Hosts[0].Name]).(*simulator.HostSystem)
	system := s.registry.Get(*host.ConfigManager.NetworkSystem).(*simulator.HostNetworkSystem)
	for _, network := range s.inv.Networks {
		if s.registry.FindByName(network.Name, dc.Network) != nil {
			continue // "VM Network" is always there.
		}
		body := system.AddPortGroup(s.ctx, &types.AddPortGroup{Portgrp: types.HostPortGroupSpec{
			Name: network.Name, VswitchName: "vSwitch0",
		}})
		if err := faultOf(body); err != nil {
			return fmt.Errorf("network %q: %w", network.Name, err)
		}
	}
	for _, ref := range s.hostRefs {
		host := s.registry.Get(ref).(*simulator.HostSystem)
		host.Network = dc.Network
		switch parent := s.registry.Get(*host.Parent).(type) {
		case *mo.ComputeResource:
			parent.Network = dc.Network
		case *simulator.ClusterComputeResource:
			parent.Network = dc.Network
		}
	}
	return nil
}

// vmFolder gives the folder of a path such as prod/web, and makes what is missing of it.
func (s *Sim) vmFolder(dc *simulator.Datacenter, path string) (*simulator.Folder, error) {
	folder := s.registry.Get(dc.VmFolder).(*simulator.Folder)
	if s.esxi {
		return folder, nil // A host alone has no folders.
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		if found, ok := s.registry.FindByName(name, folder.ChildEntity).(*simulator.Folder); ok {
			folder = found
			continue
		}
		body := folder.CreateFolder(s.ctx, &types.CreateFolder{This: folder.Self, Name: name})
		if err := faultOf(body); err != nil {
			return nil, fmt.Errorf("folder %q: %w", path, err)
		}
		folder = s.registry.Get(body.(*methods.CreateFolderBody).Res.Returnval).(*simulator.Folder)
	}
	return folder, nil
}

func faultOf(body soap.HasFault) error {
	if fault := body.Fault(); fault != nil {
		return soap.WrapSoapFault(fault)
	}
	return nil
}

// wait lets a task end and gives its result.
func (s *Sim) wait(ref types.ManagedObjectReference) (types.AnyType, error) {
	const poll, limit = time.Millisecond, time.Minute
	task := s.registry.Get(ref).(*simulator.Task)
	for begin := time.Now(); time.Since(begin) < limit; time.Sleep(poll) {
		var info types.TaskInfo
		s.registry.WithLock(&simulator.Context{}, task, func() { info = task.Info })
		switch info.State {
		case types.TaskInfoStateSuccess:
			return info.Result, nil
		case types.TaskInfoStateError:
			return nil, fmt.Errorf("%s: %T %+v", info.Name, info.Error.Fault, info.Error.Fault)
		}
	}
	return nil, fmt.Errorf("%s took longer than %s", task.Info.Name, limit)
}
