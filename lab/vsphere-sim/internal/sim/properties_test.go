package sim

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// read decodes what a collector wrote.
func read(t *testing.T, text []byte) (content types.ObjectContent) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(text))
	decoder.TypeFunc = types.TypeFunc()
	if err := decoder.Decode(&content); err != nil {
		t.Fatalf("%s: %s", err, text)
	}
	return content
}

// TestPropertiesAreThoseThatGovmomiTells holds what is written here against what govmomi's simulator answers, for every
// property of every object.
func TestPropertiesAreThoseThatGovmomiTells(t *testing.T) {
	l := start(t, false, "30m")
	task, err := l.vm("prod/web/web01").CreateSnapshot(context.Background(), "one & <two>", "ä\n", false, false)
	check(t, err)
	check(t, task.Wait(context.Background()))
	ctx := l.sim.ownContext()
	ctx.Session = &simulator.Session{Registry: simulator.NewRegistry(), Map: l.sim.registry}
	compared := 0
	for _, kind := range []string{
		"VirtualMachine", "VirtualMachineSnapshot", "HostSystem", "Datastore", "Network", "Folder", "Datacenter", "ComputeResource",
		"ResourcePool", "Task", "TaskManager", "EventManager", "PerformanceManager", "HostNetworkSystem", "HostDatastoreSystem",
		"LicenseManager", "AuthorizationManager", "SessionManager", "OptionManager", "EnvironmentBrowser",
	} {
		for _, object := range l.sim.registry.AllReference(kind) {
			ref := object.Reference()
			paths := []string{"nothing", "config.nothing", "config.hardware", "config.hardware.device", "summary.config.name", "info.state", "config.network.vnic"}
			value, _ := (&collection{ctx: ctx}).object(ref)
			paths = append(paths, propertiesOf(value.Type())...)
			set := types.PropertySpec{Type: ref.Type, PathSet: paths}
			req := types.RetrievePropertiesEx{SpecSet: []types.PropertyFilterSpec{{
				PropSet: []types.PropertySpec{set}, ObjectSet: []types.ObjectSpec{{Obj: ref}},
			}}}
			answer := new(simulator.PropertyCollector).RetrievePropertiesEx(ctx, &req).(*methods.RetrievePropertiesExBody)
			objects, fault := l.sim.collect(ctx, req.SpecSet)
			if answer.Res == nil || fault != nil || len(objects) != 1 || len(answer.Res.Returnval.Objects) != 1 {
				t.Fatalf("%s: %v, %v, %d objects", ref, answer.Fault_, fault, len(objects))
			}
			sameContent(t, read(t, objects[0]), answer.Res.Returnval.Objects[0])
			compared++
		}
	}
	if compared < 20 {
		t.Fatalf("%d objects were compared", compared)
	}
}

func propertiesOf(kind reflect.Type) (paths []string) {
	for i := range kind.NumField() {
		switch field := kind.Field(i); {
		case field.Anonymous:
			paths = append(paths, propertiesOf(field.Type)...)
		case field.Name != "Self":
			paths = append(paths, strings.ToLower(field.Name[:1])+field.Name[1:])
		}
	}
	return paths
}

func sameContent(t *testing.T, found, wanted types.ObjectContent) {
	t.Helper()
	if len(found.PropSet) == 0 && len(wanted.PropSet) == 0 {
		found.PropSet, wanted.PropSet = nil, nil
	}
	if reflect.DeepEqual(found, wanted) {
		return
	}
	for i := range min(len(found.PropSet), len(wanted.PropSet)) {
		if a, b := found.PropSet[i], wanted.PropSet[i]; !reflect.DeepEqual(a, b) {
			t.Fatalf("%s: %s is %#v, %#v of govmomi", found.Obj, a.Name, a, b)
		}
	}
	t.Fatalf("%s: %d properties and %d missing, %d and %d of govmomi", found.Obj,
		len(found.PropSet), len(found.MissingSet), len(wanted.PropSet), len(wanted.MissingSet))
}

func TestPropertiesComeInPages(t *testing.T) {
	l := start(t, false, "30m")
	ctx, collector := context.Background(), l.client.ServiceContent.PropertyCollector
	root := l.client.ServiceContent.RootFolder
	view := types.CreateContainerView{This: *l.client.ServiceContent.ViewManager, Container: root, Type: []string{"VirtualMachine"}, Recursive: true}
	made, err := methods.CreateContainerView(ctx, l.client, &view)
	check(t, err)
	skip := true
	spec := types.PropertyFilterSpec{
		PropSet: []types.PropertySpec{{Type: "ManagedEntity", PathSet: []string{"name", "name", "parent"}}},
		ObjectSet: []types.ObjectSpec{{Obj: made.Returnval, Skip: &skip, SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "ContainerView", Path: "view"},
		}}},
	}
	first, err := methods.RetrievePropertiesEx(ctx, l.client, &types.RetrievePropertiesEx{
		This: collector, SpecSet: []types.PropertyFilterSpec{spec}, Options: types.RetrieveOptions{MaxObjects: 3},
	})
	check(t, err)
	if len(first.Returnval.Objects) != 3 || len(first.Returnval.Objects[0].PropSet) != 2 {
		t.Fatalf("%+v", first.Returnval)
	}
	next := types.ContinueRetrievePropertiesEx{This: collector, Token: first.Returnval.Token}
	last, err := methods.ContinueRetrievePropertiesEx(ctx, l.client, &next)
	check(t, err)
	if len(last.Returnval.Objects) != 1 || last.Returnval.Token != "" {
		t.Fatalf("%+v", last.Returnval)
	}
	if _, err := methods.ContinueRetrievePropertiesEx(ctx, l.client, &next); err == nil {
		t.Fatal("a page can be had twice")
	}
	gone := types.ManagedObjectReference{Type: "VirtualMachine", Value: "vm-none"}
	var vm mo.VirtualMachine
	if err := l.client.RetrieveOne(ctx, gone, []string{"name"}, &vm); err == nil {
		t.Fatal("an object that is not there was read")
	}
}
