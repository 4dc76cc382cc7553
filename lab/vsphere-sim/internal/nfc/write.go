package nfc

import (
	"fmt"
	"io"
)

// writing is a write whose fragments are still coming.
type writing struct {
	offset int64
	total  int
	done   int
	bad    *Error
}

// writeFragment takes one fragment and writes it at once. It tells if it was the last one of its write, and notes in
// req what the write came to.
func (c *conn) writeFragment(r io.Reader, req *request) (whole bool, err error) {
	p := req.payload[:ioBytes]
	session := c.session.Load()
	size := int(le.Uint32(p[ioExtra:]))
	if session == nil || size > session.buffer {
		return false, fmt.Errorf("write fragment with %d bytes of data", size)
	}
	if cap(c.coded) < size {
		c.coded = make([]byte, size)
	}
	data := c.coded[:size]
	if _, err := io.ReadFull(r, data); err != nil {
		return false, err
	}
	if b := c.host.behaviour.Load(); b.ConnectionBytesPerS > 0 || b.HostBytesPerS > 0 {
		c.paced(headerBytes+ioBytes+size, b)
	}
	w := c.writing[req.op]
	if w == nil {
		w = &writing{offset: int64(le.Uint64(p[ioOffset:])), total: int(le.Uint32(p[ioTotal:])), bad: c.checkOp(req.op)}
		c.writing[req.op] = w
	}
	n := int(le.Uint32(p[ioPlain:]))
	if n < 1 || n > session.buffer || n > w.total-w.done {
		return false, fmt.Errorf("write fragment of %d bytes, %d of %d are there", n, w.done, w.total)
	}
	if w.bad == nil {
		w.bad = c.writeData(w, p, n, data)
	}
	if w.done += n; w.done < w.total {
		return false, nil
	}
	delete(c.writing, req.op)
	req.bad = w.bad
	return true, nil
}

// writeData checks a fragment and writes its data.
func (c *conn) writeData(w *writing, p []byte, n int, data []byte) *Error {
	file, b := c.file.Load(), c.host.behaviour.Load()
	position, codec := int(le.Uint32(p[ioPosition:])), le.Uint32(p[ioCodec:])
	switch {
	case file == nil || file.handle != le.Uint64(p):
		return refusal(codeOther, "handle %#x is not open", le.Uint64(p))
	case file.write == nil:
		return refusal(codePermission, "permission check failed for file '%s'", file.name)
	case int64(le.Uint64(p[ioOffset:])) != w.offset || int(le.Uint32(p[ioTotal:])) != w.total || position != w.done:
		return refusal(codeOther, "a fragment does not go on where the last one of its write ended")
	case w.offset%sectorBytes != 0 || w.total%sectorBytes != 0:
		return refusal(codeOther, "write of %d bytes at %d: not whole sectors", w.total, w.offset)
	case w.offset < 0 || w.offset > file.Capacity || int64(w.total) > file.Capacity-w.offset:
		return refusal(codeOther, "write of %d bytes at %d: the disk has %d", w.total, w.offset, file.Capacity)
	case b.Strict && le.Uint32(p[ioLast:]) != 0:
		return refusal(codeOther, "write: the last word is not zero")
	case b.WriteSpace >= 0 && c.service.written.Load()+int64(n) > b.WriteSpace:
		return refusal(codeSpace, "There is no more space for the file '%s'", file.name)
	}
	if codec != codecNone {
		if cap(c.plain) < n {
			c.plain = make([]byte, n)
		}
		if err := decode(c.plain[:n], data, codec); err != nil {
			return refusal(codeOther, "write with codec %d: %s", codec, err)
		}
		data = c.plain[:n]
	}
	if len(data) != n {
		return refusal(codeOther, "write of %d raw bytes with %d of data", n, len(data))
	}
	if err := file.write(w.offset+int64(position), data); err != nil {
		return refusal(codeOther, "write to '%s': %s", file.name, err)
	}
	c.service.written.Add(int64(n))
	return nil
}
