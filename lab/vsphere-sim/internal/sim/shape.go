package sim

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// shape makes every data response slower, as a far or busy host would.
type shape struct {
	latency     atomic.Int64 // nanoseconds before each response
	bytesPerS   atomic.Int64 // 0 is unlimited
	perHost     atomic.Bool  // one budget for a host's address instead of one per connection
	mu          sync.Mutex
	paceOfHosts map[string]*pace
}

// pace spreads bytes over time.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

// take gives how long to wait before n bytes may go at a rate.
func (p *pace) take(n int, bytesPerS int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(bytesPerS) * float64(time.Second)))
	return wait
}

// paceOf gives the budget that a connection draws on.
func (s *shape) paceOf(c *connection) *pace {
	if !s.perHost.Load() {
		return &c.pace
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paceOfHosts == nil {
		s.paceOfHosts = map[string]*pace{}
	}
	p := s.paceOfHosts[c.endpoint.address]
	if p == nil {
		p = &pace{}
		s.paceOfHosts[c.endpoint.address] = p
	}
	return p
}

// wait lets n bytes pass at the rate set.
func (s *Sim) paceBytes(ctx context.Context, c *connection, n int) {
	if rate := s.shape.bytesPerS.Load(); rate > 0 {
		s.sleep(ctx, s.shape.paceOf(c).take(n, rate))
	}
}

// pieceBytes is how much to send at once so that a slow rate is even.
func (s *shape) pieceBytes(most int) int {
	rate := s.bytesPerS.Load()
	if rate == 0 {
		return most
	}
	const piecesPerS, least = 50, 512
	return min(most, max(least, int(rate/piecesPerS)))
}
