// Package nfc is the NFC server of simulated ESXi hosts: the authd on TCP 902, the classic messages, and the
// asynchronous frames by which disks are read and written.
//
// It was written from the project's protocol note and VMware's public documents alone. No source of
// another NFC client or server was opened. It is strict where the note is sure, so that a client's misreading shows.
package nfc

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// Services that a host has. Each has its own memory.
const (
	VPXA  = "vpxa-nfc" // tickets of vCenter
	Hostd = "nfc"      // tickets of the host itself
)

// Backend has the disks.
type Backend interface {
	// Find gives the file of a disk by its name as in a backing.
	Find(name string) (File, bool)
}

// File is one file of a disk's chain, which is always read as the whole disk.
type File struct {
	Path     string // real file
	VM       string // moid
	Key      int32  // device key
	Capacity int64  // bytes, a multiple of 512
	Live     bool   // of a VM that runs
	DDB      map[string]string
	// Open gets the file ready to be written and gives what writes; nil where nothing may be written.
	Open func() (func(offset int64, data []byte) error, error)
}

// Server is the NFC of all hosts.
type Server struct {
	backend Backend
	key     func() (*rsa.PrivateKey, error)
	locks   *Locks
	tickets tickets
	faults  faults

	mu    sync.Mutex
	hosts map[string]*host
	names []string

	ctx  context.Context
	stop context.CancelFunc
}

// host is one ESXi host.
type host struct {
	name      string
	behaviour atomic.Pointer[Behaviour]
	cert      func() (*certificate, error)
	other     func() (*certificate, error) // of somebody in between
	pace      pace
	services  map[string]*service
	listeners []net.Listener

	mu    sync.Mutex
	conns map[*conn]struct{}
	total atomic.Int64 // connections so far
}

// New gives a server without hosts.
func New(backend Backend, locks *Locks) *Server {
	s := &Server{backend: backend, locks: locks, hosts: map[string]*host{}}
	s.key = sync.OnceValues(newKey)
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// AddHost serves a host on listeners. It closes them in the end.
func (s *Server) AddHost(name string, listeners []net.Listener) {
	h := &host{name: name, listeners: listeners, conns: map[*conn]struct{}{}, services: map[string]*service{}}
	for _, name := range []string{VPXA, Hostd} {
		h.services[name] = &service{name: name}
	}
	var addresses []net.IP
	for _, listener := range listeners {
		addresses = append(addresses, listener.Addr().(*net.TCPAddr).IP)
	}
	// RSA keys take time, so they are made when first needed.
	h.cert = sync.OnceValues(func() (*certificate, error) { return newCertificate(s.key, name, addresses) })
	h.other = sync.OnceValues(func() (*certificate, error) { return newCertificate(s.key, name, addresses) })
	behaviour := defaults()
	h.behaviour.Store(&behaviour)
	s.mu.Lock()
	s.hosts[name] = h
	s.names = append(s.names, name)
	s.mu.Unlock()
	for _, listener := range listeners {
		go s.accept(h, listener)
	}
}

func (s *Server) accept(h *host, listener net.Listener) {
	for {
		socket, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		tcp, ok := socket.(*net.TCPConn)
		if !ok {
			continue
		}
		c := newConn(s, h, tcp)
		h.mu.Lock()
		h.conns[c] = struct{}{}
		h.mu.Unlock()
		h.total.Add(1)
		go c.run()
	}
}

// Close ends everything.
func (s *Server) Close() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		for _, listener := range h.listeners {
			_ = listener.Close()
		}
		h.cut(func(*conn) bool { return true })
	}
}

// cut closes the connections that match, and frees at once what they hold.
func (h *host) cut(match func(*conn) bool) int {
	h.mu.Lock()
	var found []*conn
	for c := range h.conns {
		if match(c) {
			found = append(found, c)
		}
	}
	h.mu.Unlock()
	for _, c := range found {
		c.cutByOrder()
	}
	return len(found)
}

func (s *Server) host(name string) (*host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[name]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("host %q: there is none that serves NFC", name)
}

// each gives the host of a name, or all of them for "".
func (s *Server) each(name string) ([]*host, error) {
	if name != "" {
		h, err := s.host(name)
		return []*host{h}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*host
	for _, name := range s.names {
		all = append(all, s.hosts[name])
	}
	return all, nil
}

// Restart is the end of a service on a host, all its connections, memory and tickets. service is VPXA, Hostd or "".
func (s *Server) Restart(name, service string) (int, error) {
	hosts, err := s.each(name)
	if err != nil {
		return 0, err
	}
	if service != "" && service != VPXA && service != Hostd {
		return 0, fmt.Errorf("service %q: want %s or %s", service, VPXA, Hostd)
	}
	count := 0
	for _, h := range hosts {
		s.tickets.forget(h, service)
		for _, v := range h.services {
			if service == "" || v.name == service {
				v.restart()
			}
		}
		count += h.cut(func(c *conn) bool { return service == "" || c.ticketService() == service })
	}
	return count, nil
}

// CutVM closes the connections that have disks of a VM open, as when its host is lost.
func (s *Server) CutVM(vm string) int {
	hosts, _ := s.each("")
	count := 0
	for _, h := range hosts {
		count += h.cut(func(c *conn) bool { return c.ticketVM() == vm })
	}
	return count
}
