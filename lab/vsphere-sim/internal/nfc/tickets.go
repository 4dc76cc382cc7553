package nfc

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Grant is what a ticket is for.
type Grant struct {
	Host    string
	Service string // VPXA or Hostd
	VM      string // moid
	Key     int32  // device key of the disk, or 0 for all
	Write   bool
}

// Ticket is what SOAP hands out.
type Ticket struct {
	Address     string // of the host
	Port        int    // 0: not told
	Thumbprint  string
	Certificate string
	Service     string
	SessionID   string
}

// ticket is one that was handed out.
type ticket struct {
	Grant
	host     *host
	until    time.Time
	reusable bool
	used     bool
}

type tickets struct {
	mu     sync.Mutex
	byID   map[string]*ticket
	issued int64
	spent  int64
	bad    int64 // session ids that were unknown, used or too old
}

// Issue gives a ticket. preferred is the address that it should name, if the host has it.
func (s *Server) Issue(grant Grant, preferred []string) (Ticket, error) {
	h, err := s.host(grant.Host)
	if err != nil {
		return Ticket{}, err
	}
	cert, err := h.cert()
	if err != nil {
		return Ticket{}, err
	}
	b := h.behaviour.Load()
	out := Ticket{Service: grant.Service, SessionID: uuid.NewString()}
	out.Address, out.Port = h.address(preferred)
	if b.TicketNoPort {
		out.Port = 0
	}
	switch b.TicketPin {
	case "thumbprint":
		out.Thumbprint = cert.sha1
	case "wrong":
		out.Thumbprint = strings.Repeat("AB:", 19) + "AB"
	case "certificate":
		out.Certificate = string(cert.pem)
	}
	t := &s.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]*ticket{}
	}
	now := time.Now()
	for id, old := range t.byID {
		if now.After(old.until) {
			delete(t.byID, id)
		}
	}
	t.issued++
	t.byID[out.SessionID] = &ticket{
		Grant: grant, host: h, until: now.Add(time.Duration(b.TicketLifeMS) * time.Millisecond), reusable: b.TicketReusable,
	}
	return out, nil
}

// IDs are the session ids of all tickets that are not too old, used or not.
func (s *Server) IDs() []string {
	s.tickets.mu.Lock()
	defer s.tickets.mu.Unlock()
	return slices.Sorted(maps.Keys(s.tickets.byID))
}

// address is the first of preferred that the host listens on, else its first one.
func (h *host) address(preferred []string) (string, int) {
	found := h.listeners[0].Addr().(*net.TCPAddr)
search:
	for _, want := range preferred {
		for _, listener := range h.listeners {
			if at := listener.Addr().(*net.TCPAddr); at.IP.String() == want {
				found = at
				break search
			}
		}
	}
	ip := found.IP.String()
	if found.IP.IsUnspecified() {
		ip = "127.0.0.1"
	}
	return ip, found.Port
}

// redeem gives the ticket of a session id and uses it up.
func (t *tickets) redeem(id string, h *host) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := t.byID[id]
	if found == nil || found.host != h || found.used || time.Now().After(found.until) {
		t.bad++
		return nil
	}
	t.spent++
	found.used = !found.reusable
	return found
}

// forget drops the tickets of a host's service, or of all services.
func (t *tickets) forget(h *host, service string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, one := range t.byID {
		if one.host == h && (service == "" || one.Service == service) {
			delete(t.byID, id)
		}
	}
}

// ExpireTickets makes all tickets too old that were not used yet.
func (s *Server) ExpireTickets() int {
	t := &s.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	count := len(t.byID)
	t.byID = nil
	return count
}

// LibVersion is what NfcGetServerNfcLibVersion says of a host; false for a host too old to know the call.
func (s *Server) LibVersion(name string) (int, bool, error) {
	h, err := s.host(name)
	if err != nil {
		return 0, false, err
	}
	version := h.behaviour.Load().LibVersion
	return version, version >= 0, nil
}

// Addresses lists where hosts answer.
func (s *Server) Addresses() map[string][]string {
	out := map[string][]string{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, h := range s.hosts {
		for _, listener := range h.listeners {
			out[name] = append(out[name], fmt.Sprint(listener.Addr()))
		}
	}
	return out
}
