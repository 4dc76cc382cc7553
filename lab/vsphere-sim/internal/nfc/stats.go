package nfc

// ServiceStats is what the control API says of one of a host's NFC services.
type ServiceStats struct {
	Memory            int64 `json:"memory"`
	MemoryMost        int64 `json:"memory_most"`
	Sessions          int64 `json:"sessions"`
	SessionsMost      int64 `json:"sessions_most"`
	SessionsOpened    int64 `json:"sessions_opened"`
	Held              int   `json:"held"` // sessions of clients that vanished
	Refused           int64 `json:"refused"`
	Connections       int64 `json:"connections"`
	ConnectionsMost   int64 `json:"connections_most"`
	Requests          int64 `json:"requests"`
	InFlight          int64 `json:"in_flight"`
	InFlightMost      int64 `json:"in_flight_most"`
	InFlightMostOfOne int64 `json:"in_flight_most_of_one"`
	BytesRead         int64 `json:"bytes_read"`
	BytesSent         int64 `json:"bytes_sent"`
	BytesWritten      int64 `json:"bytes_written"`
	Errors            int64 `json:"errors"`
}

// HostStats is what it says of a host.
type HostStats struct {
	Addresses        []string                `json:"addresses"`
	ConnectionsSoFar int64                   `json:"connections_so_far"`
	Services         map[string]ServiceStats `json:"services"`
}

// Stats is what it says of all.
type Stats struct {
	TicketsIssued int64                `json:"tickets_issued"`
	TicketsUsed   int64                `json:"tickets_used"`
	TicketsBad    int64                `json:"tickets_bad"`
	FaultsStruck  int64                `json:"faults_struck"`
	Hosts         map[string]HostStats `json:"hosts"`
}

// Stats counts.
func (s *Server) Stats() Stats {
	out := Stats{Hosts: map[string]HostStats{}}
	s.tickets.mu.Lock()
	out.TicketsIssued, out.TicketsUsed, out.TicketsBad = s.tickets.issued, s.tickets.spent, s.tickets.bad
	s.tickets.mu.Unlock()
	out.FaultsStruck = s.faults.struck.Load()
	addresses := s.Addresses()
	hosts, _ := s.each("")
	for _, h := range hosts {
		one := HostStats{Addresses: addresses[h.name], ConnectionsSoFar: h.total.Load(), Services: map[string]ServiceStats{}}
		for name, v := range h.services {
			one.Services[name] = v.stats()
		}
		out.Hosts[h.name] = one
	}
	return out
}

func (v *service) stats() ServiceStats {
	v.mu.Lock()
	defer v.mu.Unlock()
	return ServiceStats{
		Memory: v.memory.now, MemoryMost: v.memory.most, Sessions: v.sessions.now, SessionsMost: v.sessions.most,
		SessionsOpened: v.opened.Load(), Held: len(v.held), Refused: v.refused,
		Connections: v.connections.now.Load(), ConnectionsMost: v.connections.most.Load(),
		Requests: v.requests.Load(), InFlight: v.inFlight.now.Load(), InFlightMost: v.inFlight.most.Load(),
		InFlightMostOfOne: v.inFlightOfOne.most.Load(),
		BytesRead:         v.read.Load(), BytesSent: v.wire.Load(), BytesWritten: v.written.Load(), Errors: v.errors.Load(),
	}
}

// ResetStats starts counting anew; what is open now stays counted.
func (s *Server) ResetStats() {
	s.tickets.mu.Lock()
	s.tickets.issued, s.tickets.spent, s.tickets.bad = 0, 0, 0
	s.tickets.mu.Unlock()
	s.faults.struck.Store(0)
	hosts, _ := s.each("")
	for _, h := range hosts {
		h.total.Store(0)
		for _, v := range h.services {
			v.reset()
		}
	}
}

func (v *service) reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.most, v.sessions.most, v.refused = v.memory.now, v.sessions.now, 0
	v.connections.most.Store(v.connections.now.Load())
	v.inFlight.most.Store(v.inFlight.now.Load())
	v.inFlightOfOne.most.Store(0)
	v.opened.Store(0)
	v.requests.Store(0)
	v.read.Store(0)
	v.wire.Store(0)
	v.written.Store(0)
	v.errors.Store(0)
}
