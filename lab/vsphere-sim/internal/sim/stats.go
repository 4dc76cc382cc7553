package sim

import (
	"context"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// endpoint is one listening address: the main SDK, or a VMkernel adapter of a host.
type endpoint struct {
	address string
	service string // vcenter, esxi or host
	host    *inventory.Host
	nic     *inventory.VMKNIC

	connections atomic.Int64
	requests    atomic.Int64 // for /folder
	bytes       atomic.Int64 // of /folder bodies sent
}

// stats counts SOAP calls, and which properties they asked for.
type stats struct {
	mu         sync.Mutex
	calls      map[string]int64
	properties map[string]int64
}

// asked notes the properties that a read asks for, as `VirtualMachine.config.hardware`.
func (s *stats) asked(specs []types.PropertyFilterSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.properties == nil {
		s.properties = map[string]int64{}
	}
	for _, spec := range specs {
		for _, set := range spec.PropSet {
			for _, path := range set.PathSet {
				s.properties[set.Type+"."+path]++
			}
		}
	}
}

func (s *stats) call(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int64{}
	}
	s.calls[method]++
}

func (s *stats) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.properties = nil, nil
}

func (s *stats) list() (calls, properties map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, properties = map[string]int64{}, map[string]int64{}
	maps.Copy(calls, s.calls)
	maps.Copy(properties, s.properties)
	return calls, properties
}

// endpointStats is what the control API says of an endpoint.
type endpointStats struct {
	Address     string   `json:"address"`
	Service     string   `json:"service"`
	Host        string   `json:"host,omitempty"`
	Device      string   `json:"device,omitempty"`
	Services    []string `json:"services,omitempty"`
	Connections int64    `json:"connections"`
	Requests    int64    `json:"folder_requests"`
	Bytes       int64    `json:"folder_bytes"`
}

func (e *endpoint) stats() endpointStats {
	out := endpointStats{
		Address: e.address, Service: e.service, Connections: e.connections.Load(),
		Requests: e.requests.Load(), Bytes: e.bytes.Load(),
	}
	if e.host != nil {
		out.Host = e.host.Name
	}
	if e.nic != nil {
		out.Device, out.Services = e.nic.Device, e.nic.Services
	}
	return out
}

func (e *endpoint) reset() {
	e.connections.Store(0)
	e.requests.Store(0)
	e.bytes.Store(0)
}

// connection is what is kept for one client connection.
type connection struct {
	endpoint *endpoint
	pace     pace
}

type connectionKey struct{}

func (s *Sim) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{endpoint: s.endpointOf(c.LocalAddr())})
}

// endpointOf finds the endpoint by the local address; the main one may listen on all of them.
func (s *Sim) endpointOf(address net.Addr) *endpoint {
	if tcp, ok := address.(*net.TCPAddr); ok {
		if e := s.endpoints[tcp.IP.String()]; e != nil {
			return e
		}
	}
	return s.main
}

func connectionOf(r *http.Request) *connection {
	return r.Context().Value(connectionKey{}).(*connection)
}

// connections are those open now, so that they can all be closed by order.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (s *Sim) connState(c net.Conn, state http.ConnState) {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	switch state {
	case http.StateNew:
		s.endpointOf(c.LocalAddr()).connections.Add(1)
		if s.connections.open == nil {
			s.connections.open = map[net.Conn]struct{}{}
		}
		s.connections.open[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.connections.open, c)
	}
}

func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}
