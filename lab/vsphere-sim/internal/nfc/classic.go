package nfc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
)

// Classic messages have this size: u32 type, then the body, filled with zeros.
const classicBytes = 264

const (
	classicEnd    = 4
	classicPing   = 8
	classicError  = 20
	classicParams = 33
	classicStatus = 36
	classicTag    = 43
	classicHello  = 51
	classicAIO    = 52
	classicClient = 54
	classicFlags  = 55
)

// textBytesMax bounds names and other texts from a client.
const textBytesMax = 64 << 10

// aioVersionMin is the first version with AIO.
const aioVersionMin = 3

var le = binary.LittleEndian

// classicReader reads messages. In TLS a host takes one message from each record; what else a record holds waits
// there until the next record comes.
type classicReader struct {
	wire net.Conn
	hold bool
	buf  []byte
}

func (r *classicReader) more() error {
	const recordBytesMax = 16 << 10
	piece := make([]byte, recordBytesMax)
	n, err := r.wire.Read(piece) // Gives one TLS record at most.
	r.buf = append(r.buf, piece[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

func (r *classicReader) message() ([]byte, error) {
	for first := true; first && r.hold || len(r.buf) < classicBytes; first = false {
		if err := r.more(); err != nil {
			return nil, err
		}
	}
	return r.take(classicBytes)
}

// take gives the next n bytes; extras may come in the message's record or in others.
func (r *classicReader) take(n int) ([]byte, error) {
	for len(r.buf) < n {
		if err := r.more(); err != nil {
			return nil, err
		}
	}
	out := r.buf[:n:n]
	r.buf = r.buf[n:]
	return out, nil
}

// classicState is what the client has said so far.
type classicState struct {
	version uint32 // of its 51; 0: not yet
	named   bool
}

// classic takes messages until both sides have sent 52, and gives what was read beyond.
func (c *conn) classic(ssl bool, b *Behaviour) ([]byte, error) {
	r := &classicReader{wire: c.wire, hold: ssl && b.HoldSurplus}
	var state classicState
	for {
		message, err := r.message()
		if err != nil {
			return nil, err
		}
		kind := le.Uint32(message)
		c.log("message %d", kind)
		if kind == classicEnd {
			return nil, errClosed
		}
		ready, err := c.classicMessage(kind, message, r, &state, b)
		if err != nil || ready {
			return r.buf, err
		}
	}
}

// classicMessage answers one message, and tells if AIO begins.
func (c *conn) classicMessage(kind uint32, message []byte, r *classicReader, state *classicState, b *Behaviour) (bool, error) {
	used := 4
	switch kind {
	case classicTag:
		used = 4 + len(c.tag)
		if b.Refuse43 || !b.SHA256 || c.tag == "" {
			return false, c.classicRefuse("message 43 without THUMBPRINT_SHA2")
		}
		if b.CompareTags && string(message[4:used]) != c.tag {
			return false, c.classicRefuse("message 43 has another tag")
		}
		if err := c.classicStage("msg43"); err != nil {
			return false, err
		}
	case classicParams:
		if err := c.classicStage("msg33"); err != nil {
			return false, err
		}
		if b.Status36 == "before" {
			if err := c.sendStatus(); err != nil {
				return false, err
			}
		}
	case classicHello:
		used = 12
		state.version = le.Uint32(message[4:])
		if b.Status36 == "after" {
			if err := c.sendStatus(); err != nil {
				return false, err
			}
		}
		if err := c.classicReply("msg51", classicHello, func(m []byte) { le.PutUint32(m[4:], b.Version) }); err != nil {
			return false, err
		}
	case classicClient:
		used = 12
		n := uint64(le.Uint32(message[4:])) + uint64(le.Uint32(message[8:]))
		if n > textBytesMax {
			return false, c.classicError(1, "names are too long")
		}
		names, err := r.take(int(n))
		if err != nil {
			return false, err
		}
		if b.Strict && (n == 0 || names[n-1] == 0) {
			return false, c.classicError(1, "message 54: names are missing or end in NUL")
		}
		state.named = true
		if err := c.classicStage("msg54"); err != nil {
			return false, err
		}
	case classicFlags:
		used = 8
		if err := c.classicStage("msg55"); err != nil {
			return false, err
		}
	case classicAIO:
		if state.version == 0 || min(state.version, b.Version) < aioVersionMin {
			return false, c.classicError(1, "no AIO in this version, or no message 51")
		}
		if b.Strict && !zeros(message[4:]) {
			return false, c.classicError(1, "message 52: body is not zero")
		}
		return true, c.classicReply("msg52", classicAIO, nil)
	default:
		return false, c.classicError(1, fmt.Sprintf("message %d is not known", kind))
	}
	if b.Strict && !zeros(message[used:]) {
		return false, c.classicError(1, fmt.Sprintf("message %d: bytes from %d on are not zero", kind, used))
	}
	return false, nil
}

func zeros(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

func (c *conn) sendStatus() error {
	return c.classicReply("msg36", classicStatus, func(m []byte) { le.PutUint32(m[16:], 1) })
}

// classicReply sends a message, unless something else is ordered.
func (c *conn) classicReply(stage string, kind uint32, fill func([]byte)) error {
	sleep(c.server.ctx, c.latency())
	if err := c.classicStage(stage); err != nil {
		return err
	}
	message := make([]byte, classicBytes)
	le.PutUint32(message, kind)
	if fill != nil {
		fill(message)
	}
	_, err := c.wire.Write(message)
	return err
}

// classicStage does what is ordered for a message; after most of it the connection ends.
func (c *conn) classicStage(stage string) error {
	f := c.fault(stage)
	if f == nil {
		return nil
	}
	switch f.Do {
	case "error":
		return c.classicError(uint32(f.Code), f.Text)
	case "refuse":
		return c.classicRefuse("ordered")
	case "stall", "delay":
		c.stall(f.MS)
		return nil
	}
	if f.Where != "" && f.Where != "before" {
		_, _ = c.wire.Write(make([]byte, classicBytes/2))
	}
	return errCut
}

// classicRefuse is the end that a host gives without a word.
func (c *conn) classicRefuse(why string) error {
	message := make([]byte, classicBytes)
	le.PutUint32(message, classicEnd)
	_, err := c.wire.Write(message)
	return errors.Join(fmt.Errorf("%w: %s", errRefuse, why), err)
}

func (c *conn) classicError(code uint32, text string) error {
	message := make([]byte, classicBytes, classicBytes+len(text)+1)
	le.PutUint32(message, classicError)
	le.PutUint32(message[4:], 1)
	le.PutUint32(message[8:], code)
	le.PutUint32(message[12:], uint32(len(text)+1))
	message = append(append(message, text...), 0)
	_, err := c.wire.Write(message)
	return errors.Join(fmt.Errorf("%w: %s", errRefuse, text), err)
}
