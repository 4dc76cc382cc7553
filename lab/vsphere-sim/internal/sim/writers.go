package sim

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// writerOrder asks for a pretended guest that keeps writing.
type writerOrder struct {
	VM        string `json:"vm,omitempty"`
	Disk      int    `json:"disk,omitempty"`
	BytesPerS int64  `json:"bytes_per_s,omitempty"`
	Block     int64  `json:"block,omitempty"`
	Span      string `json:"span,omitempty"`
}

// blockBytesMax bounds the buffer of a writer.
const blockBytesMax = 16 << 20

// writers are those that run, by VM.
type writers struct {
	mu      sync.Mutex
	running map[*machine][]*writer
}

// writer writes random blocks of random bytes while the VM is switched on.
type writer struct {
	cancel  context.CancelFunc
	done    chan struct{}
	written atomic.Int64
	writes  atomic.Int64
}

func (s *Sim) startWriter(m *machine, order writerOrder) error {
	capacity := m.disks.Capacity(order.Disk)
	if capacity < 0 {
		return fmt.Errorf("no disk %d", order.Disk)
	}
	from, to := inventory.Size(0), inventory.Size(capacity)
	if order.Span != "" {
		var err error
		if from, to, err = inventory.ParseSpan(order.Span); err != nil {
			return err
		}
	}
	if order.Block == 0 {
		order.Block = 4096
	}
	blocks := (min(int64(to), capacity) - int64(from)) / max(order.Block, 1)
	if order.Block < 1 || order.Block > blockBytesMax || blocks < 1 || order.BytesPerS < 1 {
		return fmt.Errorf("want bytes_per_s of 1 or more, and a block of 1 to %d bytes that fits in the span", blockBytesMax)
	}
	ctx, cancel := context.WithCancel(s.stopped)
	w := &writer{cancel: cancel, done: make(chan struct{})}
	s.writers.mu.Lock()
	if s.writers.running == nil {
		s.writers.running = map[*machine][]*writer{}
	}
	s.writers.running[m] = append(s.writers.running[m], w)
	s.writers.mu.Unlock()
	go w.run(ctx, s, m, order, int64(from), blocks)
	return nil
}

func (w *writer) run(ctx context.Context, s *Sim, m *machine, order writerOrder, from, blocks int64) {
	defer close(w.done)
	data := make([]byte, order.Block)
	var rate pace
	for ctx.Err() == nil {
		if !m.disks.Running() {
			s.sleep(ctx, 20*time.Millisecond) // A guest that is off writes nothing.
			continue
		}
		_, _ = rand.Read(data)
		if err := m.disks.Write(order.Disk, from+mathrand.Int64N(blocks)*order.Block, data); err != nil {
			log.Printf("writer of %s: %s", m.given.Name, err)
			return
		}
		w.written.Add(order.Block)
		w.writes.Add(1)
		s.sleep(ctx, rate.take(len(data), order.BytesPerS))
	}
}

// stopWriters ends the VM's writers and gives what they wrote.
func (s *Sim) stopWriters(m *machine) (written, writes int64) {
	s.writers.mu.Lock()
	stopping := s.writers.running[m]
	delete(s.writers.running, m)
	s.writers.mu.Unlock()
	for _, w := range stopping {
		w.cancel()
		<-w.done
		written, writes = written+w.written.Load(), writes+w.writes.Load()
	}
	return written, writes
}

func (w *writers) stopAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, running := range w.running {
		for _, one := range running {
			one.cancel()
			<-one.done
		}
	}
	w.running = nil
}
