package nfc

import (
	"sync"
	"sync/atomic"
	"time"
)

// service is one of a host's two NFC servers, each with a memory of its own.
type service struct {
	name string

	mu         sync.Mutex
	generation int // rises with each restart
	memory     gauge
	sessions   gauge
	held       map[*hold]struct{}
	refused    int64

	connections   atomicGauge
	inFlight      atomicGauge
	inFlightOfOne atomicGauge // only its most is of use
	opened        atomic.Int64
	requests      atomic.Int64
	read          atomic.Int64 // plain bytes
	wire          atomic.Int64 // bytes sent, headers too
	written       atomic.Int64
	errors        atomic.Int64
}

// gauge knows its highest value.
type gauge struct{ now, most int64 }

func (g *gauge) add(n int64) {
	g.now += n
	g.most = max(g.most, g.now)
}

type atomicGauge struct{ now, most atomic.Int64 }

func (g *atomicGauge) add(n int64) { g.raise(g.now.Add(n)) }

func (g *atomicGauge) raise(now int64) {
	for most := g.most.Load(); now > most && !g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
}

// session is an AIO session's part of the memory.
type session struct {
	service    *service
	bytes      int64
	buffer     int // the largest extra
	generation int
}

// open takes memory for a session, or gives nil if there is none left.
func (v *service) open(buffer, count int64, b *Behaviour) *session {
	v.mu.Lock()
	defer v.mu.Unlock()
	bytes := buffer * count
	if v.memory.now+bytes > b.MemoryBytes || v.sessions.now >= int64(b.SessionsMax) {
		v.refused++
		return nil
	}
	v.memory.add(bytes)
	v.sessions.add(1)
	v.opened.Add(1)
	return &session{service: v, bytes: bytes, buffer: int(buffer), generation: v.generation}
}

// close gives the memory back.
func (s *session) close() {
	v := s.service
	v.mu.Lock()
	defer v.mu.Unlock()
	if s.generation == v.generation {
		v.memory.add(-s.bytes)
		v.sessions.add(-1)
	}
}

// hold is what a client that vanished left open.
type hold struct {
	once    sync.Once
	release func()
}

// keep lets release wait, as a host does that has not noticed that the client is gone.
func (v *service) keep(release func(), d time.Duration) {
	h := &hold{release: release}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held == nil {
		v.held = map[*hold]struct{}{}
	}
	v.held[h] = struct{}{}
	time.AfterFunc(d, func() { v.letGo(h) })
}

func (v *service) letGo(h *hold) {
	v.mu.Lock()
	delete(v.held, h)
	v.mu.Unlock()
	h.once.Do(h.release)
}

// restart forgets all sessions.
func (v *service) restart() {
	v.mu.Lock()
	v.generation++
	v.memory.now, v.sessions.now = 0, 0
	held := v.held
	v.held = nil
	v.mu.Unlock()
	for h := range held {
		h.once.Do(h.release)
	}
}

// Locks are those on the files of datastores.
type Locks struct {
	mu    sync.Mutex
	files map[string]*lock
}

type lock struct{ readers, writers, downloads int }

// LockKind says what for a file is locked.
type LockKind int

// Readers share a file, and so do downloads; other uses exclude each other.
const (
	Reader LockKind = iota
	Writer
	Download
)

// Lock gives what ends the lock, or false if another use of path excludes it.
func (l *Locks) Lock(path string, kind LockKind) (unlock func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files == nil {
		l.files = map[string]*lock{}
	}
	one := l.files[path]
	if one == nil {
		one = &lock{}
	}
	count := &one.readers
	others := one.writers + one.downloads
	switch kind {
	case Writer:
		count, others = &one.writers, one.readers+one.writers+one.downloads
	case Download:
		count, others = &one.downloads, one.readers+one.writers
	}
	if others > 0 {
		return nil, false
	}
	*count++
	l.files[path] = one
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if *count--; *one == (lock{}) {
			delete(l.files, path)
		}
	}), true
}
