package nfc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// stages are the moments at which a fault can be ordered: replies, by what they answer.
var stages = []string{
	"greeting", "tls", "session", "banner", "thumbprint", "proxy", "takeover",
	"msg43", "msg33", "msg36", "msg51", "msg54", "msg55", "msg52",
	"open_session", "close_session", "open_file", "close_file", "read", "write", "sock_opts", "res_pool", "ddb_get", "qab",
}

var actions = []string{"cut", "stall", "delay", "error", "refuse", "status", "flip", "lie"}

var lies = []string{"magic", "type", "opid", "size", "offset", "total", "position", "length", "extra", "codec", "data"}

// FaultOrder spoils one reply.
type FaultOrder struct {
	Host     string `json:"host,omitempty"`
	VM       string `json:"vm,omitempty"`   // moid; the control API takes names
	Path     string `json:"path,omitempty"` // what the open disk's name contains
	At       string `json:"at"`
	Do       string `json:"do"`
	Where    string `json:"where,omitempty"`    // of cut and stall: before, header, payload, extra, after
	Fragment int    `json:"fragment,omitempty"` // of a read's answer, from 0
	Offset   *int64 `json:"offset,omitempty"`   // of reads: only those of this byte of the disk, in its fragment
	Code     int64  `json:"code,omitempty"`
	Text     string `json:"text,omitempty"`
	MS       int64  `json:"ms,omitempty"`    // of delay, and of a stall that ends; 0: until cleared
	Count    int    `json:"count,omitempty"` // 0 is 1, -1 until cleared
	Skip     int    `json:"skip,omitempty"`
}

type faults struct {
	any   atomic.Bool // so that none costs nothing
	mu    sync.Mutex
	list  []*FaultOrder
	ended chan struct{} // closed when faults are cleared

	struck atomic.Int64
}

// Order puts a fault in place.
func (s *Server) Order(order FaultOrder) error {
	switch {
	case !slices.Contains(stages, order.At):
		return fmt.Errorf("at %q: want one of %s", order.At, strings.Join(stages, ", "))
	case !slices.Contains(actions, order.Do):
		return fmt.Errorf("do %q: want one of %s", order.Do, strings.Join(actions, ", "))
	case order.Offset != nil && order.At != "read":
		return errors.New("offset: want it together with at read")
	case order.Do == "lie" && !slices.Contains(lies, order.Text):
		return fmt.Errorf("text %q of a lie: want one of %s", order.Text, strings.Join(lies, ", "))
	case !slices.Contains([]string{"", "before", "header", "payload", "extra", "after"}, order.Where):
		return fmt.Errorf("where %q: want before, header, payload, extra or after", order.Where)
	}
	if order.Host != "" {
		if _, err := s.host(order.Host); err != nil {
			return err
		}
	}
	if order.Count == 0 {
		order.Count = 1
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.list = append(s.faults.list, &order)
	s.faults.any.Store(true)
	return nil
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
	f.any.Store(false)
	if f.ended != nil {
		close(f.ended)
		f.ended = nil
	}
}

// fault gives what is ordered for this connection's reply at stage, and counts it.
func (c *conn) fault(stage string) *FaultOrder { return c.faultIn(stage, extent{}) }

// faultIn is the same for a read of an area.
func (c *conn) faultIn(stage string, area extent) *FaultOrder {
	f := &c.server.faults
	if !f.any.Load() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, order := range f.list {
		if order.At != stage || order.Count == 0 || order.Host != "" && order.Host != c.host.name ||
			order.Offset != nil && (*order.Offset < area.Start || *order.Offset >= area.End()) ||
			order.VM != "" && order.VM != c.ticketVM() || !strings.Contains(c.fileName(), order.Path) {
			continue
		}
		if order.Skip > 0 {
			order.Skip--
			continue
		}
		if order.Count > 0 {
			order.Count--
		}
		if f.ended == nil {
			f.ended = make(chan struct{})
		}
		c.cleared = f.ended // Taken here, so that no clearing after this can be missed.
		f.struck.Add(1)
		return order
	}
	return nil
}

// stall holds the connection still, for a time or until faults are cleared, the client goes or the simulator ends.
func (c *conn) stall(ms int64) {
	var after <-chan time.Time
	if ms > 0 {
		timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-after:
	case <-c.cleared:
	case <-c.gone:
	case <-c.server.ctx.Done():
	}
}
