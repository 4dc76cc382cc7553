package nfc

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
)

// The payload of IO: u64 handle or status, u32 direction, u32 codec, u64 disk offset, u32 total length,
// u32 offset inside the request, u32 plain bytes, u32 bytes of the extra, u32 0.
const (
	ioBytes     = 44
	ioDirection = 8
	ioCodec     = 12
	ioOffset    = 16
	ioTotal     = 24
	ioPosition  = 28
	ioPlain     = 32
	ioExtra     = 36
	ioLast      = 40
)

const sectorBytes = 512

// outBytes is how much is gathered before it is sent. Less than a core's cache holds is faster than more.
const outBytes = 256 << 10

// fragment is a part of a read's answer.
type fragment struct {
	read *read
	at   int
	n    int
}

// read is a request that is being answered.
type read struct {
	op     uint32
	codec  uint32
	offset int64
	total  int
	fault  *FaultOrder
	sent   int  // fragments so far
	left   int  // fragments that are still to come
	failed bool // by order, after which nothing more of it comes
}

// serveReads answers a read, together with some that follow it where answers are to be mixed.
func (c *conn) serveReads(first request) error {
	b := c.host.behaviour.Load()
	requests := []request{first}
	for len(requests) < b.Mix {
		req, ok, err := c.peekRead()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		requests = append(requests, req)
	}
	c.todo = c.todo[:0]
	for i := range requests {
		r, problem := c.checkRead(&requests[i], b)
		if problem == nil {
			r.fault = c.faultIn("read", extent{Start: r.offset, Length: int64(r.total)})
			c.cutUp(r, b)
			continue
		}
		c.service.errors.Add(1)
		c.log("read: %s", problem)
		c.answered(1)
		if err := c.putError(requests[i].op, problem); err != nil {
			return err
		}
	}
	c.arrange(b)
	for _, part := range c.todo {
		// Before its last bytes go: who has them may send the next request at once.
		if part.read.left--; part.read.left == 0 {
			c.answered(1)
		}
		if err := c.emit(part, b); err != nil {
			return err
		}
	}
	return nil
}

// peekRead takes the next request off the queue if it is a read that is there already.
func (c *conn) peekRead() (request, bool, error) {
	select {
	case req, ok := <-c.queue:
		if !ok {
			return req, false, nil
		}
		if req.kind != kindIO || le.Uint32(req.payload[ioDirection:]) != 1 || req.bad != nil {
			c.pending = &req
			return req, false, nil
		}
		return req, true, c.due(&req)
	default:
		return request{}, false, nil
	}
}

func (c *conn) checkRead(req *request, b *Behaviour) (*read, *Error) {
	p := req.payload[:ioBytes]
	file := c.file.Load()
	r := &read{op: req.op, codec: le.Uint32(p[ioCodec:]), offset: int64(le.Uint64(p[ioOffset:])), total: int(le.Uint32(p[ioTotal:]))}
	switch {
	case file == nil || file.handle != le.Uint64(p):
		return nil, refusal(codeOther, "handle %#x is not open", le.Uint64(p))
	case r.codec > codecSkipZ:
		return nil, refusal(codeOther, "codec %d is not known", r.codec)
	case r.offset%sectorBytes != 0 || r.total%sectorBytes != 0 || r.total == 0:
		return nil, refusal(codeOther, "read of %d bytes at %d: not whole sectors", r.total, r.offset)
	case r.offset < 0 || r.offset > file.Capacity || int64(r.total) > file.Capacity-r.offset:
		return nil, refusal(codeOther, "read of %d bytes at %d: the disk has %d", r.total, r.offset, file.Capacity)
	case b.Strict && (le.Uint32(p[ioPosition:]) != 0 || int(le.Uint32(p[ioPlain:])) != r.total ||
		int(le.Uint32(p[ioExtra:])) != r.total || le.Uint32(p[ioLast:]) != 0):
		return nil, refusal(codeOther, "read: want 0, length, length, 0 from byte 28 on")
	}
	return r, nil
}

// cutUp adds the fragments of r to todo.
func (c *conn) cutUp(r *read, b *Behaviour) {
	buffer := c.session.Load().buffer
	for at, i := 0, 0; at < r.total; i++ {
		n := buffer
		if len(b.FragmentBytes) > 0 {
			n = min(n, b.FragmentBytes[i%len(b.FragmentBytes)])
		}
		n = min(n, r.total-at)
		c.todo = append(c.todo, fragment{r, at, n})
		r.left++
		at += n
	}
}

// arrange puts the fragments in the order to send.
func (c *conn) arrange(b *Behaviour) {
	switch b.FragmentOrder {
	case "reverse":
		slices.Reverse(c.todo)
	case "shuffle":
		rand.Shuffle(len(c.todo), func(i, j int) { c.todo[i], c.todo[j] = c.todo[j], c.todo[i] })
	}
	if b.Mix == 1 || b.FragmentOrder == "shuffle" {
		return
	}
	place := map[*read]int{} // the number of a fragment among those of its request
	round := make(map[fragment]int, len(c.todo))
	for _, part := range c.todo {
		round[part] = place[part.read]
		place[part.read]++
	}
	slices.SortStableFunc(c.todo, func(a, b fragment) int { return round[a] - round[b] })
}

// emit adds one fragment to what is to be sent.
func (c *conn) emit(part fragment, b *Behaviour) error {
	r := part.read
	if r.failed {
		return nil
	}
	spoiled := r.fault != nil && r.fault.hits(part)
	r.sent++
	if spoiled && (r.fault.Do == "error" || r.fault.Do == "status") {
		return c.failRead(part)
	}
	c.service.read.Add(int64(part.n))
	if r.codec == 0 || b.CodecAnswer != "as_asked" {
		codec := uint32(0)
		if b.CodecAnswer == "raw_kept" {
			codec = r.codec
		}
		if spoiled {
			frame := appendFragment(nil, part, codec, part.n)
			frame = append(frame, make([]byte, part.n)...)
			if err := c.fill(frame[headerBytes+ioBytes:], r.offset+int64(part.at)); err != nil {
				return err
			}
			return c.spoil(r.fault, frame, ioBytes)
		}
		return c.emitRaw(part, codec)
	}
	if cap(c.in) < part.n {
		c.in = make([]byte, part.n)
	}
	plain := c.in[:part.n]
	if err := c.fill(plain, r.offset+int64(part.at)); err != nil {
		return err
	}
	data, codec := c.coder.encode(plain, r.codec), r.codec
	if len(data) >= len(plain) {
		data, codec = plain, 0
	}
	if spoiled {
		return c.spoil(r.fault, append(appendFragment(nil, part, codec, len(data)), data...), ioBytes)
	}
	c.out = append(appendFragment(c.out, part, codec, len(data)), data...)
	if len(c.out) >= outBytes {
		return c.flush()
	}
	return nil
}

// hits tells if the fault is for this fragment of its read.
func (f *FaultOrder) hits(part fragment) bool {
	if f.Offset == nil {
		return f.Fragment == part.read.sent
	}
	start := part.read.offset + int64(part.at)
	return *f.Offset >= start && *f.Offset < start+int64(part.n)
}

func (c *conn) failRead(part fragment) error {
	r := part.read
	r.failed = true
	c.service.errors.Add(1)
	if r.fault.Do == "error" {
		return c.putError(r.op, &Error{r.fault.Code, r.fault.Text})
	}
	frame := appendFragment(c.out, fragment{r, part.at, 0}, 0, 0)
	le.PutUint64(frame[len(frame)-ioBytes:], uint64(r.fault.Code))
	c.out = frame
	return nil
}

func appendFragment(out []byte, part fragment, codec uint32, extra int) []byte {
	r := part.read
	out = appendHeader(out, kindIO, ioBytes, r.op)
	out = le.AppendUint64(out, 0)
	out = le.AppendUint32(out, 1)
	out = le.AppendUint32(out, codec)
	out = le.AppendUint64(out, uint64(r.offset))
	out = le.AppendUint32(out, uint32(r.total))
	out = le.AppendUint32(out, uint32(part.at))
	out = le.AppendUint32(out, uint32(part.n))
	out = le.AppendUint32(out, uint32(extra))
	return le.AppendUint32(out, 0)
}

// emitRaw reads the file right into what is sent.
func (c *conn) emitRaw(part fragment, codec uint32) error {
	if cap(c.out) < outBytes { // Other replies need less.
		c.out = append(make([]byte, 0, outBytes), c.out...)
	}
	const least = 32 << 10 // Smaller pieces than this wait for the next buffer.
	if cap(c.out)-len(c.out) < headerBytes+ioBytes+min(part.n, least) {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.out = appendFragment(c.out, part, codec, part.n)
	offset := part.read.offset + int64(part.at)
	for left := part.n; left > 0; {
		room := min(left, cap(c.out)-len(c.out))
		if room == 0 {
			if err := c.flush(); err != nil {
				return err
			}
			continue
		}
		end := len(c.out) + room
		if err := c.fill(c.out[len(c.out):end], offset); err != nil {
			return err
		}
		c.out = c.out[:end]
		offset += int64(room)
		left -= room
	}
	return nil
}

// fill reads from the disk. What the file lacks at its end, up to whole sectors, is zeros.
func (c *conn) fill(p []byte, offset int64) error {
	file := c.file.Load()
	if file == nil {
		return errClosed
	}
	n, err := file.file.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err // Headers may be out already, so only the end of the connection tells the truth.
	}
	clear(p[n:])
	return nil
}
