package sim

import (
	"net/http"
	"strings"
)

// front is the first to see a request. Ordered faults come before everything else.
func (s *Sim) front(w http.ResponseWriter, r *http.Request) {
	conn := connectionOf(r)
	if rule := s.httpFaults.take(r, conn.endpoint.address); rule != nil {
		faulty := &faultWriter{ResponseWriter: w, sim: s, request: r, rule: *rule}
		if faulty.before() {
			return
		}
		s.dispatch(faulty, r, conn)
		faulty.after()
		return
	}
	s.dispatch(w, r, conn)
}

func (s *Sim) dispatch(w http.ResponseWriter, r *http.Request, conn *connection) {
	path := r.URL.Path
	switch {
	case strings.HasPrefix(path, "/folder"):
		s.serveFolder(w, r, conn)
	case conn.endpoint.service == "host":
		s.serveHost(w, r, conn.endpoint.host)
	case path == "/sdk" || strings.HasPrefix(path, "/sdk/"):
		done := s.sessions.call(r)
		defer done()
		// govmomi's simulator knows no other path for calls.
		if path == "/sdk/" {
			r.URL.Path = "/sdk"
		}
		if s.nfcSOAP(w, r) {
			return
		}
		s.service.ServeMux.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/rest") || strings.HasPrefix(path, "/api"):
		if !s.sessions.restAlive(r) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.service.ServeMux.ServeHTTP(w, r)
	case path == "/about" || strings.HasPrefix(path, "/nfc/"):
		s.service.ServeMux.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}
