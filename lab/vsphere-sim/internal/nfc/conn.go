package nfc

import (
	"errors"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var errClosed = errors.New("closed by the client")

// conn is one client connection: a ticket, a session, an open disk.
//
// One goroutine reads requests and puts them into queue; another answers them in order. Requests for reads may be
// mixed as ordered.
type conn struct {
	server  *Server
	host    *host
	tcp     *net.TCPConn
	wire    net.Conn // the socket, or TLS on it
	records *records // of the last TLS session
	pace    pace
	tag     string // of THUMBPRINT_SHA2
	ticket  atomic.Pointer[ticket]

	ordered  atomic.Bool // cut by order, so that nothing is left behind
	service  *service    // from the end of the handshake on
	inFlight atomicGauge

	queue chan request
	gone  chan struct{} // closed when nothing more comes from the client
	quit  chan struct{} // closed when nothing more is answered

	session atomic.Pointer[session]
	file    atomic.Pointer[openFile]
	ended   bool // by CLOSE_SESSION

	// Of the reading goroutine.
	nextOp  uint32
	writing map[uint32]*writing
	plain   []byte // a decoded fragment of a write
	coded   []byte

	// Of the answering goroutine, and of the handshake before it.
	cleared <-chan struct{} // of the last fault
	pending *request
	out     []byte
	in      []byte // a fragment to encode
	todo    []fragment
	coder   coder
}

// openFile is a disk that is open.
type openFile struct {
	File
	name   string
	handle uint64
	file   *os.File
	write  func(offset int64, data []byte) error
	unlock func()

	once   sync.Once // for blocks, which are as of the first question or, with a write handle, as of the open
	blocks []extent
	err    error
}

func newConn(s *Server, h *host, tcp *net.TCPConn) *conn {
	return &conn{
		server: s, host: h, tcp: tcp, wire: tcp, queue: make(chan request, queueMax),
		gone: make(chan struct{}), quit: make(chan struct{}), writing: map[uint32]*writing{},
	}
}

// queueMax is how many requests a connection takes before it stops reading. Real hosts queue; how many is not known.
const queueMax = 1024

func (c *conn) run() {
	err := c.talk()
	if err != nil && !errors.Is(err, errClosed) && !errors.Is(err, io.EOF) && !c.ordered.Load() {
		c.log("ends: %s", err)
	}
	if errors.Is(err, errRefuse) {
		c.linger()
	}
	_ = c.tcp.Close()
	c.host.mu.Lock()
	delete(c.host.conns, c)
	c.host.mu.Unlock()
	c.leave()
}

// linger reads what the client had sent already. Else its unread bytes would make a reset of the end, which can take
// the refusal away before the client reads it.
func (c *conn) linger() {
	const wait = time.Second
	_ = c.tcp.CloseWrite()
	_ = c.tcp.SetReadDeadline(time.Now().Add(wait))
	_, _ = io.Copy(io.Discard, c.tcp)
}

func (c *conn) talk() error {
	b := c.host.behaviour.Load()
	_ = c.tcp.SetNoDelay(true)
	_ = c.tcp.SetDeadline(time.Now().Add(handshakeTime))
	ssl, err := c.authd(b)
	if err != nil {
		return err
	}
	c.service = c.host.services[c.ticketService()]
	c.service.connections.add(1)
	defer c.service.connections.add(-1)
	if ssl {
		give := c.host.cert
		if b.TakeoverCert == "other" {
			give = c.host.other
		}
		cert, err := give()
		if err != nil {
			return err
		}
		session, err := c.handshake("takeover", cert, b)
		if err != nil {
			return err
		}
		c.wire = session
	} else if f := c.fault("takeover"); f != nil {
		return errCut
	}
	rest, err := c.classic(ssl, b)
	if err != nil {
		return err
	}
	c.records.gathers = ssl
	_ = c.tcp.SetDeadline(time.Time{})
	return c.aio(rest)
}

// leave gives back what the client did not close: at once after an order, else when the host notices.
func (c *conn) leave() {
	session, file := c.session.Swap(nil), c.file.Swap(nil)
	if session == nil && file == nil {
		return
	}
	release := func() {
		if file != nil {
			file.close()
		}
		if session != nil {
			session.close()
		}
	}
	b := c.host.behaviour.Load()
	if c.ordered.Load() || b.VanishedHoldMS == 0 || c.server.ctx.Err() != nil {
		release()
		return
	}
	c.service.keep(release, time.Duration(b.VanishedHoldMS)*time.Millisecond)
}

func (f *openFile) close() {
	_ = f.file.Close()
	f.unlock()
}

func (c *conn) cutByOrder() {
	c.ordered.Store(true)
	_ = c.tcp.Close()
}

func (c *conn) ticketService() string {
	if t := c.ticket.Load(); t != nil {
		return t.Service
	}
	return ""
}

func (c *conn) ticketVM() string {
	if t := c.ticket.Load(); t != nil {
		return t.VM
	}
	return ""
}

func (c *conn) fileName() string {
	if f := c.file.Load(); f != nil {
		return f.name
	}
	return ""
}

func (c *conn) latency() time.Duration {
	return time.Duration(c.host.behaviour.Load().LatencyMS * float64(time.Millisecond))
}

func (c *conn) log(format string, args ...any) {
	log.Printf("nfc %s %s: "+format, append([]any{c.host.name, c.tcp.RemoteAddr()}, args...)...)
}

// flush sends what is in out.
func (c *conn) flush() error {
	err := c.send(c.out)
	c.out = c.out[:0]
	return err
}

// send writes p at the rates set.
func (c *conn) send(p []byte) error {
	for len(p) > 0 {
		b := c.host.behaviour.Load()
		n := len(p)
		if b.ConnectionBytesPerS > 0 || b.HostBytesPerS > 0 {
			n = pacedBytes(n, b.ConnectionBytesPerS, b.HostBytesPerS)
			c.paced(n, b)
		}
		n, err := c.wire.Write(p[:n])
		c.service.wire.Add(int64(n))
		if err == nil {
			err = c.records.flush()
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// paced waits until n bytes may pass, in whichever direction.
func (c *conn) paced(n int, b *Behaviour) {
	wait := max(c.pace.take(n, b.ConnectionBytesPerS), c.host.pace.take(n, b.HostBytesPerS))
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.gone:
	case <-c.server.ctx.Done():
	}
}
