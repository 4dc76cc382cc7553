package nfc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// A frame begins with u32 magic, u32 type, u32 payload size (without the extra), u32 opId.
const (
	magic       = 0xA100DA7A
	headerBytes = 16
)

const (
	kindError        = 1
	kindOpenSession  = 2
	kindCloseSession = 3
	kindOpenFile     = 4
	kindCloseFile    = 5
	kindIO           = 7
	kindSockOpts     = 9
	kindDDBGet       = 11
	kindQAB          = 13
	kindResPool      = 22
)

// payloads lists the sizes that requests may have.
var payloads = map[uint32][]uint32{
	kindOpenSession: {16}, kindCloseSession: {4, 16}, kindOpenFile: {60}, kindCloseFile: {8, 16}, kindIO: {ioBytes},
	kindSockOpts: {12}, kindDDBGet: {16}, kindQAB: {48}, kindResPool: {4},
}

const payloadBytesMax = 60

const (
	flagsRead  = 0x1e
	flagsWrite = 0x1a
)

// Codes of errors. The note has those for permission and memory; others are codeOther.
const (
	codeOther      = 1
	codeMemory     = 5
	codePermission = 11
	codeSpace      = 28
)

const bufferBytesDefault = 64 << 10

// Error is a refusal as it goes to the client.
type Error struct {
	Code int64
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("error %d: %s", e.Code, e.Text) }

func refusal(code int64, format string, args ...any) *Error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// request is a frame from the client; a write's is put together from all its fragments.
type request struct {
	kind    uint32
	op      uint32
	size    uint32 // of the payload
	payload [payloadBytesMax]byte
	extra   []byte
	ready   time.Time // when to answer, which is how latency is made
	bad     *Error    // to answer instead
}

// aio reads frames until the client ends.
func (c *conn) aio(rest []byte) error {
	answered := make(chan error, 1)
	go func() {
		err := c.answer()
		close(c.quit)
		_ = c.tcp.Close() // Wakes the reader; what was sent arrives all the same.
		answered <- err
	}()
	var from io.Reader = c.wire
	if len(rest) > 0 {
		from = io.MultiReader(bytes.NewReader(rest), c.wire)
	}
	err := c.readFrames(bufio.NewReaderSize(from, 64<<10))
	close(c.gone)
	close(c.queue)
	other := <-answered
	c.answered(int(c.inFlight.now.Load())) // Those that were never answered.
	if other != nil {
		return other
	}
	if c.ended {
		return errClosed
	}
	return err
}

func (c *conn) readFrames(r *bufio.Reader) error {
	var header [headerBytes]byte
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		if le.Uint32(header[:]) == classicEnd {
			return errClosed // The rest of the message is of no interest.
		}
		if le.Uint32(header[:]) != magic {
			return fmt.Errorf("frame begins with % x", header[:4])
		}
		req := request{kind: le.Uint32(header[4:]), size: le.Uint32(header[8:]), op: le.Uint32(header[12:])}
		if !slices.Contains(payloads[req.kind], req.size) {
			return fmt.Errorf("frame of type %d with a payload of %d bytes", req.kind, req.size)
		}
		if _, err := io.ReadFull(r, req.payload[:req.size]); err != nil {
			return err
		}
		if d := c.latency(); d > 0 {
			req.ready = time.Now().Add(d)
		}
		c.service.requests.Add(1)
		isWrite := req.kind == kindIO && le.Uint32(req.payload[ioDirection:]) == 0
		if isWrite {
			whole, err := c.writeFragment(r, &req)
			if err != nil {
				return err
			}
			if !whole {
				continue
			}
		} else if err := c.readExtra(r, &req); err != nil {
			return err
		}
		if !isWrite {
			req.bad = c.checkOp(req.op)
		}
		c.inFlight.add(1)
		c.service.inFlightOfOne.raise(c.inFlight.now.Load())
		c.service.inFlight.add(1)
		select {
		case c.queue <- req:
		case <-c.quit:
			return io.EOF
		}
	}
}

// checkOp holds a client to opIds that start at 0 and rise by one.
func (c *conn) checkOp(op uint32) *Error {
	want := c.nextOp
	c.nextOp = op + 1
	if c.host.behaviour.Load().Strict && op != want {
		return refusal(codeOther, "opId %d where %d is due", op, want)
	}
	return nil
}

// readExtra takes a path or a key.
func (c *conn) readExtra(r io.Reader, req *request) error {
	var n uint32
	switch req.kind {
	case kindOpenFile:
		n = le.Uint32(req.payload[:])
	case kindDDBGet:
		n = le.Uint32(req.payload[8:])
	}
	if n > textBytesMax {
		return fmt.Errorf("extra of %d bytes in a frame of type %d", n, req.kind)
	}
	if n == 0 {
		return nil
	}
	req.extra = make([]byte, n)
	_, err := io.ReadFull(r, req.extra)
	return err
}

// next gives the request to answer now; before it waits, all that is ready is sent.
func (c *conn) next() (request, bool, error) {
	if c.pending != nil {
		req := *c.pending
		c.pending = nil
		return req, true, nil
	}
	select {
	case req, ok := <-c.queue:
		return req, ok, nil
	default:
	}
	if err := c.flush(); err != nil {
		return request{}, false, err
	}
	req, ok := <-c.queue
	return req, ok, nil
}

// due waits until a request may be answered.
func (c *conn) due(req *request) error {
	if req.ready.IsZero() {
		return nil
	}
	wait := time.Until(req.ready)
	if wait <= 0 {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.gone:
	case <-c.server.ctx.Done():
	}
	return nil
}

func (c *conn) answer() error {
	for {
		req, ok, err := c.next()
		if err != nil || !ok {
			return err
		}
		if err := c.due(&req); err != nil {
			return err
		}
		if req.kind == kindIO && le.Uint32(req.payload[ioDirection:]) == 1 && req.bad == nil {
			err = c.serveReads(req)
		} else {
			err = c.serveOne(&req)
		}
		if err != nil {
			_ = c.flush()
			return err
		}
	}
}

// answered counts requests as no longer in flight.
func (c *conn) answered(n int) {
	c.inFlight.add(int64(-n))
	c.service.inFlight.add(int64(-n))
}

// serveOne answers anything but a read.
func (c *conn) serveOne(req *request) error {
	stage, payload, extra := c.serve(req)
	c.answered(1)
	return c.reply(stage, req, payload, extra)
}

// serve does what a request asks and gives the reply. A refusal is noted in the request.
func (c *conn) serve(req *request) (stage string, payload, extra []byte) {
	payload = make([]byte, req.size)
	p := req.payload[:req.size]
	switch req.kind {
	case kindOpenSession:
		stage = "open_session"
		c.try(req, func() *Error { return c.openSession(p) })
	case kindCloseSession:
		stage = "close_session"
		c.try(req, c.closeSession)
	case kindOpenFile:
		stage = "open_file"
		c.try(req, func() *Error { return c.openFile(p, string(req.extra), payload) })
	case kindCloseFile:
		stage = "close_file"
		c.try(req, func() *Error { return c.closeFile(le.Uint64(p)) })
	case kindIO:
		stage = "write"
		if req.bad == nil {
			copy(payload[ioOffset:], p[ioOffset:ioOffset+12])       // offset and total length
			le.PutUint32(payload[ioPlain:], le.Uint32(p[ioTotal:])) // and the total again
		}
	case kindSockOpts:
		stage = "sock_opts"
		c.try(req, func() *Error {
			const socketBytes = 1_675_000
			send, receive := le.Uint32(p), le.Uint32(p[4:])
			le.PutUint32(payload, cmpOr(send, socketBytes))
			le.PutUint32(payload[4:], cmpOr(receive, socketBytes))
			le.PutUint32(payload[8:], 1)
			return nil
		})
	case kindResPool:
		stage = "res_pool"
		c.try(req, func() *Error { return nil })
	case kindDDBGet:
		stage = "ddb_get"
		c.try(req, func() (e *Error) { extra, e = c.ddbGet(p, string(req.extra), payload); return e })
	case kindQAB:
		stage = "qab"
		c.try(req, func() (e *Error) { extra, e = c.allocatedBlocks(p, payload); return e })
	}
	return stage, payload, extra
}

func cmpOr(value, fallback uint32) uint32 {
	if value == 0 {
		return fallback
	}
	return value
}

func (c *conn) try(req *request, do func() *Error) {
	if req.bad == nil {
		req.bad = do()
	}
}

// reply sends a reply or a refusal, spoiled as ordered.
func (c *conn) reply(stage string, req *request, payload, extra []byte) error {
	f := c.fault(stage)
	if f != nil {
		switch f.Do {
		case "error":
			req.bad = &Error{f.Code, f.Text}
		case "status":
			clear(payload)
			le.PutUint64(payload[:min(8, len(payload))], uint64(f.Code))
			extra, f = nil, nil
		}
	}
	b := c.host.behaviour.Load()
	if req.bad == nil {
		return c.put(f, req, payload, extra)
	}
	c.service.errors.Add(1)
	c.log("%s: %s", stage, req.bad)
	clear(payload)
	if stage == "open_file" && b.OpenStatus {
		le.PutUint64(payload, uint64(req.bad.Code))
		return c.put(nil, req, payload, nil)
	}
	if err := c.putError(req.op, req.bad); err != nil || !b.ErrorThenReply {
		return err
	}
	return c.put(nil, req, payload, nil)
}

// put adds a frame to what is to be sent.
func (c *conn) put(f *FaultOrder, req *request, payload, extra []byte) error {
	frame := appendHeader(make([]byte, 0, headerBytes+len(payload)+len(extra)), req.kind, len(payload), req.op)
	frame = append(append(frame, payload...), extra...)
	if f != nil {
		return c.spoil(f, frame, len(payload))
	}
	c.out = append(c.out, frame...)
	return nil
}

func appendHeader(out []byte, kind uint32, size int, op uint32) []byte {
	out = le.AppendUint32(out, magic)
	out = le.AppendUint32(out, kind)
	out = le.AppendUint32(out, uint32(size))
	return le.AppendUint32(out, op)
}

// putError adds an ERROR: u64 code, u32 0, u32 text length; the text follows without NUL.
func (c *conn) putError(op uint32, e *Error) error {
	c.out = appendHeader(c.out, kindError, 16, op)
	c.out = le.AppendUint64(c.out, uint64(e.Code))
	c.out = le.AppendUint32(c.out, 0)
	c.out = le.AppendUint32(c.out, uint32(len(e.Text)))
	c.out = append(c.out, e.Text...)
	return nil
}

// openSession takes memory for buffers: u32 0, u32 bytes, u32 count, u32 0.
func (c *conn) openSession(p []byte) *Error {
	b := c.host.behaviour.Load()
	buffer, count := int64(le.Uint32(p[4:])), int64(le.Uint32(p[8:]))
	if c.session.Load() != nil || c.ended {
		return refusal(codeOther, "there is a session already")
	}
	if b.Strict && (le.Uint32(p) != 0 || le.Uint32(p[12:]) != 0) {
		return refusal(codeOther, "OPEN_SESSION: words 0 and 3 are not zero")
	}
	if buffer == 0 {
		buffer = bufferBytesDefault
	}
	count = max(count, 1)
	if buffer > b.BufferBytesMax {
		return refusal(codeOther, "a buffer of %d bytes is too large", buffer)
	}
	session := c.service.open(buffer, count, b)
	if session == nil {
		return refusal(codeMemory, "Failed to allocate the requested %d bytes", buffer*count)
	}
	c.session.Store(session)
	return nil
}

func (c *conn) closeSession() *Error {
	session := c.session.Swap(nil)
	if session == nil {
		return refusal(codeOther, "there is no session")
	}
	if file := c.file.Swap(nil); file != nil {
		file.close()
	}
	session.close()
	c.ended = true
	return nil
}

// openFile opens the disk that the path names and fills in the reply.
func (c *conn) openFile(p []byte, name string, reply []byte) *Error {
	b := c.host.behaviour.Load()
	session, flags := c.session.Load(), le.Uint32(p[20:])
	switch {
	case session == nil:
		return refusal(codeOther, "there is no session")
	case c.file.Load() != nil:
		return refusal(codeOther, "a disk is open already")
	case b.Strict && (!zeros(p[4:16]) || !zeros(p[24:])):
		return refusal(codeOther, "OPEN_FILE: bytes 4 to 15 and from 24 on are not all zero")
	case le.Uint32(p[16:]) != 2 && le.Uint32(p[16:]) != 3:
		return refusal(codeOther, "file type %d is no disk", le.Uint32(p[16:]))
	case flags != flagsRead && flags != flagsWrite:
		return refusal(codeOther, "flags %#x are not known", flags)
	}
	file, problem := c.open(name, flags == flagsWrite, b)
	if problem != nil {
		return problem
	}
	c.file.Store(file)
	fillOpenReply(reply, file, uint32(b.OpenAnswersType), flags)
	return nil
}

// open finds, locks and opens a disk.
func (c *conn) open(name string, write bool, b *Behaviour) (*openFile, *Error) {
	ticket := c.ticket.Load()
	found, ok := c.server.backend.Find(name)
	switch {
	case !ok:
		return nil, refusal(codeOther, "Failed to open '%s': the file does not exist", name)
	case found.VM != ticket.VM || ticket.Key != 0 && found.Key != ticket.Key || write && !ticket.Write:
		return nil, refusal(codePermission, "permission check failed for file '%s'", name)
	case found.Live:
		return nil, refusal(codeOther, "Failed to open '%s': Thin/TBZ/Sparse disks cannot be opened in multiwriter mode", name)
	}
	kind := Reader
	if write {
		kind = Writer
	}
	busy := refusal(b.LockErrorCode, "DiskLib error 16392: Failed to lock the file '%s'", name)
	if write && found.Open == nil {
		return nil, busy // A frozen file of a chain.
	}
	unlock, ok := c.server.locks.Lock(found.Path, kind)
	if !ok {
		return nil, busy
	}
	file, err := c.openLocked(found, name, write)
	if err != nil {
		unlock()
		return nil, refusal(codeOther, "Failed to open '%s': %s", name, err)
	}
	file.unlock = unlock
	return file, nil
}

func (c *conn) openLocked(found File, name string, write bool) (*openFile, error) {
	out := &openFile{File: found, name: name}
	var err error
	if write {
		if out.write, err = found.Open(); err != nil {
			return nil, err
		}
	}
	if out.file, err = os.Open(found.Path); err != nil {
		return nil, err
	}
	if write {
		out.once.Do(out.findBlocks)
	}
	// All 64 bits count.
	out.handle = 0xFFFFFFFF80000000 | uint64(rand.Uint32()&0xFFFF)
	return out, nil
}

// fillOpenReply writes status, handle, type, flags, an unknown word, capacity, sector size and geometry.
func fillOpenReply(reply []byte, file *openFile, kind, flags uint32) {
	const heads, sectors, sectorBytes = 255, 63, 512
	le.PutUint64(reply[8:], file.handle)
	le.PutUint32(reply[16:], kind)
	le.PutUint32(reply[20:], flags)
	le.PutUint64(reply[28:], uint64(file.Capacity))
	le.PutUint32(reply[36:], sectorBytes)
	cylinders := file.Capacity / (heads * sectors * sectorBytes)
	le.PutUint32(reply[40:], uint32(cylinders)) // Whole ones only, so the product is below the capacity.
	le.PutUint32(reply[44:], heads)
	le.PutUint32(reply[48:], sectors)
}

func (c *conn) closeFile(handle uint64) *Error {
	file := c.file.Load()
	if file == nil || file.handle != handle {
		return refusal(codeOther, "handle %#x is not open", handle)
	}
	c.file.Store(nil)
	file.close()
	return nil
}

var errFault = errors.New("ended by an ordered fault")
