package sim

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	ticketLife   = 30 * time.Second
	ticketCookie = "vmware_cgi_ticket"
)

// tickets are what vCenter gives for one HTTP request to a host without the host's password:
// one path, one method, once, and soon.
type tickets struct {
	mu   sync.Mutex
	open map[string]ticket
}

type ticket struct {
	method string
	path   string
	until  time.Time
}

var ticketMethods = map[string]string{
	"": http.MethodGet, "httpGet": http.MethodGet, "httpHead": http.MethodHead, "httpPut": http.MethodPut,
	"httpPost": http.MethodPost, "httpDelete": http.MethodDelete,
}

// issueTicket gives an id and the address of the host that the URL names.
func (s *Sim) issueTicket(method, rawURL string) (id, host string, err error) {
	target, err := url.Parse(rawURL)
	verb, known := ticketMethods[method]
	if err != nil || !known || target.Path == "" {
		return "", "", errors.New("no url of a service on a host")
	}
	id = uuid.NewString()
	s.tickets.mu.Lock()
	defer s.tickets.mu.Unlock()
	if s.tickets.open == nil {
		s.tickets.open = map[string]ticket{}
	}
	for old, t := range s.tickets.open {
		if time.Now().After(t.until) {
			delete(s.tickets.open, old)
		}
	}
	s.tickets.open[id] = ticket{method: verb, path: target.Path, until: time.Now().Add(ticketLife)}
	return id, s.addressOf(target.Hostname()), nil
}

// addressOf gives where the host of a name or address answers, or the name again if nowhere.
func (s *Sim) addressOf(name string) string {
	for _, host := range s.inv.Hosts {
		for _, nic := range host.VMKNICs {
			if s.endpoints[nic.Address] != nil && (host.Name == name || nic.Address == name) {
				return net.JoinHostPort(nic.Address, strconv.Itoa(s.Ready.Port))
			}
		}
	}
	return name
}

// redeem tells if the request has a ticket for just what it asks, and uses it up.
func (t *tickets) redeem(r *http.Request) bool {
	cookie, err := r.Cookie(ticketCookie)
	if err != nil {
		return false
	}
	id := strings.Trim(cookie.Value, `"`)
	t.mu.Lock()
	defer t.mu.Unlock()
	found, known := t.open[id]
	if !known || found.method != r.Method || found.path != r.URL.Path || time.Now().After(found.until) {
		return false
	}
	delete(t.open, id)
	return true
}
