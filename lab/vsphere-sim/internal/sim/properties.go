package sim

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/vimxml"
)

// collector answers reads of properties in place of govmomi's simulator, which copies each object by writing it as XML
// and reading it back. Here it is written once, while the object is locked. What it does not know is govmomi's to answer.
type collector struct {
	sim *Sim
	ref types.ManagedObjectReference
}

// Reference is that of the property collector.
func (c *collector) Reference() types.ManagedObjectReference { return c.ref }

// Lock does nothing: reads of properties run beside each other.
func (c *collector) Lock() {}

// Unlock does nothing.
func (c *collector) Unlock() {}

// collects tells if a read of properties can be answered by a collector.
func (s *Sim) collects(method *simulator.Method) bool {
	switch req := method.Body.(type) {
	case *types.RetrievePropertiesEx:
		for _, spec := range req.SpecSet {
			for _, set := range spec.PropSet {
				isKeyed := func(path string) bool { return strings.Contains(path, "[") }
				if set.All != nil && *set.All || slices.ContainsFunc(set.PathSet, isKeyed) {
					return false
				}
			}
		}
		return true
	case *types.ContinueRetrievePropertiesEx:
		return s.pages.has(req.Token)
	}
	return false
}

// written is a result that is XML already.
type written struct {
	XML []byte `xml:",innerxml"`
}

type retrievedBody struct {
	Res   *written `xml:"urn:vim25 RetrievePropertiesExResponse,omitempty"`
	fault *soap.Fault
}

// Fault is what the call ended in, or nil.
func (b *retrievedBody) Fault() *soap.Fault { return b.fault }

type continuedBody struct {
	Res *written `xml:"urn:vim25 ContinueRetrievePropertiesExResponse,omitempty"`
}

// Fault is none.
func (b *continuedBody) Fault() *soap.Fault { return nil }

// pages are those of answers that were not asked for yet, by token.
type pages struct {
	mu   sync.Mutex
	rest map[string]page
}

type page struct {
	objects [][]byte
	most    int
}

func (p *pages) has(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.rest[token]
	return known
}

func (p *pages) take(token string) page {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := p.rest[token]
	delete(p.rest, token)
	return rest
}

// first is the first of some pages as XML, and keeps the rest.
func (p *pages) first(all page) *written {
	now, rest := all.objects, [][]byte(nil)
	if all.most > 0 && len(now) > all.most {
		now, rest = now[:all.most], now[all.most:]
	}
	out := []byte("<returnval>")
	if len(rest) > 0 {
		token := uuid.NewString()
		p.mu.Lock()
		if p.rest == nil {
			p.rest = map[string]page{}
		}
		p.rest[token] = page{objects: rest, most: all.most}
		p.mu.Unlock()
		out = append(out, "<token>"+token+"</token>"...)
	}
	for _, object := range now {
		out = append(out, object...)
	}
	return &written{append(out, "</returnval>"...)}
}

// RetrievePropertiesEx gives the first page of the properties asked for.
func (c *collector) RetrievePropertiesEx(ctx *simulator.Context, req *types.RetrievePropertiesEx) soap.HasFault {
	c.sim.stats.asked(req.SpecSet)
	objects, err := c.sim.collect(ctx, req.SpecSet)
	if err != nil {
		return &retrievedBody{fault: simulator.Fault(err.message, err.fault)}
	}
	return &retrievedBody{Res: c.sim.pages.first(page{objects: objects, most: int(req.Options.MaxObjects)})}
}

// ContinueRetrievePropertiesEx gives the next one.
func (c *collector) ContinueRetrievePropertiesEx(_ *simulator.Context, req *types.ContinueRetrievePropertiesEx) soap.HasFault {
	return &continuedBody{Res: c.sim.pages.first(c.sim.pages.take(req.Token))}
}

type collectFault struct {
	message string
	fault   types.BaseMethodFault
}

// collection is one read of properties.
type collection struct {
	ctx   *simulator.Context
	specs []types.PropertyFilterSpec
	ways  map[string]*types.TraversalSpec // by name
	seen  map[types.ManagedObjectReference]bool
	wants map[wanted][]string // paths
	out   [][]byte
}

// wanted is what decides which properties of an object are asked for.
type wanted struct {
	kind string
	of   reflect.Type
}

func (s *Sim) collect(ctx *simulator.Context, specs []types.PropertyFilterSpec) ([][]byte, *collectFault) {
	c := &collection{
		ctx: ctx, specs: specs, ways: map[string]*types.TraversalSpec{},
		seen: map[types.ManagedObjectReference]bool{}, wants: map[wanted][]string{},
	}
	var refs []types.ManagedObjectReference
	for _, spec := range specs {
		for _, from := range spec.ObjectSet {
			if fault := c.begin(spec, from, &refs); fault != nil {
				return nil, fault
			}
		}
	}
	for _, ref := range refs {
		var err error
		ctx.WithLock(ref, func() { err = c.add(ref) })
		if err != nil {
			return nil, &collectFault{err.Error(), &types.RuntimeFault{}}
		}
	}
	return c.out, nil
}

// begin takes in the object that a selection begins at, and finds those that it leads to.
func (c *collection) begin(spec types.PropertyFilterSpec, from types.ObjectSpec, refs *[]types.ManagedObjectReference) *collectFault {
	unlock := c.ctx.Map.AcquireLock(c.ctx, from.Obj)
	defer unlock()
	value, there := c.object(from.Obj)
	if !there {
		if spec.ReportMissingObjectsInResults != nil && *spec.ReportMissingObjectsInResults {
			return nil
		}
		return &collectFault{
			"The object has already been deleted or has not been completely created", &types.ManagedObjectNotFound{Obj: from.Obj},
		}
	}
	if from.SelectSet == nil || from.Skip == nil || !*from.Skip {
		if err := c.add(from.Obj); err != nil {
			return &collectFault{err.Error(), &types.RuntimeFault{}}
		}
	}
	return c.follow(value, from.SelectSet, refs)
}

// object is the managed object behind a reference, as this session sees it.
func (c *collection) object(ref types.ManagedObjectReference) (reflect.Value, bool) {
	object := c.ctx.Session.Get(ref)
	if object == nil {
		return reflect.Value{}, false
	}
	// Some have fields of other types than the API.
	if other, is := object.(interface{ Get() mo.Reference }); is {
		object = other.Get()
	}
	value := reflect.ValueOf(object).Elem()
	for !isManaged(value.Type()) {
		if value.Kind() != reflect.Struct || value.NumField() == 0 {
			return reflect.Value{}, false
		}
		if value = value.Field(0); value.Kind() == reflect.Pointer {
			value = value.Elem()
		}
	}
	return value, true
}

var managed sync.Map // bool by reflect.Type

// isManaged tells the API's own types from the simulator's around them.
func isManaged(kind reflect.Type) bool {
	if known, ok := managed.Load(kind); ok {
		return known.(bool)
	}
	is := path.Base(kind.PkgPath()) == "mo"
	managed.Store(kind, is)
	return is
}

// follow finds the objects that a selection leads to.
func (c *collection) follow(from reflect.Value, set []types.BaseSelectionSpec, refs *[]types.ManagedObjectReference) *collectFault {
	for _, one := range set {
		if way, is := one.(*types.TraversalSpec); is && way.Name != "" {
			c.ways[way.Name] = way
		}
	}
	for _, one := range set {
		way, is := one.(*types.TraversalSpec)
		if !is {
			if way = c.ways[one.GetSelectionSpec().Name]; way == nil {
				return &collectFault{"", &types.InvalidArgument{InvalidProperty: "undefined TraversalSpec name"}}
			}
		}
		value, _ := propertyAt(from, way.Path)
		for _, ref := range references(value) {
			if way.Skip == nil || !*way.Skip {
				*refs = append(*refs, ref)
			}
			if len(way.SelectSet) == 0 {
				continue
			}
			if next, there := c.object(ref); there {
				if fault := c.follow(next, way.SelectSet, refs); fault != nil {
					return fault
				}
			}
		}
	}
	return nil
}

func references(value reflect.Value) []types.ManagedObjectReference {
	if !value.IsValid() {
		return nil
	}
	switch found := value.Interface().(type) {
	case types.ManagedObjectReference:
		return []types.ManagedObjectReference{found}
	case []types.ManagedObjectReference:
		return found
	}
	return nil
}

// paths are the properties asked for of objects of a kind, each once; nil if there are no questions about them.
func (c *collection) paths(kind string, of reflect.Type) []string {
	key := wanted{kind, of}
	if known, ok := c.wants[key]; ok {
		return known
	}
	var paths []string
	for _, spec := range c.specs {
		for _, set := range spec.PropSet {
			if set.Type != kind && set.Type != of.Name() {
				if base, is := of.FieldByName(set.Type); !is || !base.Anonymous {
					continue
				}
			}
			if paths == nil {
				paths = []string{}
			}
			for _, one := range set.PathSet {
				if !slices.Contains(paths, one) {
					paths = append(paths, one)
				}
			}
		}
	}
	c.wants[key] = paths
	return paths
}

// add writes an object, which is locked.
func (c *collection) add(ref types.ManagedObjectReference) error {
	if c.seen[ref] {
		return nil
	}
	object, there := c.object(ref)
	if !there {
		return nil
	}
	c.seen[ref] = true
	paths := c.paths(ref.Type, object.Type())
	if paths == nil {
		return nil
	}
	out, err := vimxml.Append([]byte("<objects>"), "obj", reflect.ValueOf(ref), false)
	if err != nil {
		return err
	}
	var missing []types.MissingProperty
	for _, name := range paths {
		value, known := propertyAt(object, name)
		switch {
		case !known:
			fault := types.LocalizedMethodFault{Fault: &types.InvalidProperty{Name: name}}
			missing = append(missing, types.MissingProperty{Path: name, Fault: fault})
		case value.IsValid():
			if value.Kind() == reflect.Slice {
				if value, err = vimxml.ArrayOf(value); err != nil {
					return fmt.Errorf("%s of %s: %w", name, ref.Value, err)
				}
			}
			out = append(append(append(out, "<propSet><name>"...), name...), "</name>"...)
			if out, err = vimxml.Append(out, "val", value, true); err != nil {
				return fmt.Errorf("%s of %s: %w", name, ref.Value, err)
			}
			out = append(out, "</propSet>"...)
		}
	}
	if out, err = vimxml.Append(out, "missingSet", reflect.ValueOf(missing), false); err != nil {
		return err
	}
	c.out = append(c.out, append(out, "</objects>"...))
	return nil
}

// propertyAt is the value at a path; not known if there is no such property, and not valid if it is unset.
func propertyAt(of reflect.Value, path string) (value reflect.Value, known bool) {
	for name := range strings.SplitSeq(path, ".") {
		for of.Kind() == reflect.Interface || of.Kind() == reflect.Pointer {
			if of.IsNil() {
				return reflect.Value{}, true
			}
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || name == "" {
			return reflect.Value{}, false
		}
		index := fieldOf(of.Type(), name)
		if index == nil {
			return reflect.Value{}, false
		}
		of = of.FieldByIndex(index)
	}
	for of.Kind() == reflect.Interface || of.Kind() == reflect.Pointer {
		if of.IsNil() {
			return reflect.Value{}, true
		}
		of = of.Elem()
	}
	if of.Kind() == reflect.String && of.Len() == 0 {
		return reflect.Value{}, true
	}
	return of, true
}

type fieldName struct {
	of   reflect.Type
	name string
}

var fields sync.Map // []int by fieldName

// fieldOf is the field of a property; nil if there is none.
func fieldOf(of reflect.Type, name string) []int {
	key := fieldName{of, name}
	if known, ok := fields.Load(key); ok {
		return known.([]int)
	}
	found, _ := of.FieldByName(strings.ToUpper(name[:1]) + name[1:])
	fields.Store(key, found.Index)
	return found.Index
}
