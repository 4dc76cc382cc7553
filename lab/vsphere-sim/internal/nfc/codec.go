package nfc

import (
	"bytes"
	"compress/zlib"
	"errors"
	"io"
)

// Codecs of the data of a fragment. Each fragment is encoded alone.
const (
	codecNone    = 0
	codecZlib    = 1
	codecFastLZ  = 2
	codecSkipZ   = 3
	fastLZLeast  = 16       // smaller inputs stay raw
	fastLZLevel2 = 64 << 10 // level 2 from this size on
)

var errCoded = errors.New("encoded data is broken")

// coder encodes and decodes, with buffers that it uses again.
type coder struct {
	out  []byte
	zlib *zlib.Writer
	hash []int32
}

// encode gives what may also be longer than plain. It is valid until the next call.
func (c *coder) encode(plain []byte, codec uint32) []byte {
	switch codec {
	case codecZlib:
		buffer := bytes.NewBuffer(c.out[:0])
		if c.zlib == nil {
			c.zlib, _ = zlib.NewWriterLevel(buffer, zlib.BestSpeed) // The level is valid.
		} else {
			c.zlib.Reset(buffer)
		}
		_, _ = c.zlib.Write(plain) // A buffer takes everything.
		_ = c.zlib.Close()
		c.out = buffer.Bytes()
	case codecFastLZ:
		c.out = c.fastLZ(c.out[:0], plain)
	case codecSkipZ:
		c.out = skipZ(c.out[:0], plain)
	}
	return c.out
}

// decode fills plain.
func decode(plain, data []byte, codec uint32) error {
	switch codec {
	case codecNone:
		if len(data) != len(plain) {
			return errCoded
		}
		copy(plain, data)
		return nil
	case codecZlib:
		r, err := zlib.NewReader(bytes.NewReader(data))
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(r, plain); err != nil {
			return err
		}
		if n, _ := r.Read(make([]byte, 1)); n != 0 {
			return errCoded
		}
		return nil
	case codecFastLZ:
		return unFastLZ(plain, data)
	case codecSkipZ:
		return unSkipZ(plain, data)
	}
	return errCoded
}

var zeroBlock [4096]byte

// skipZ writes u32 plain length, u32 0, then runs of u32 offset, u32 length, bytes. Whole blocks are compared at once;
// only the edges of runs are looked at byte by byte.
func skipZ(out, plain []byte) []byte {
	out = le.AppendUint32(out, uint32(len(plain)))
	out = le.AppendUint32(out, 0)
	for at := 0; at < len(plain); {
		if block := plain[at:min(at+len(zeroBlock), len(plain))]; bytes.Equal(block, zeroBlock[:len(block)]) {
			at += len(block)
			continue
		}
		start := at
		for at < len(plain) {
			block := plain[at:min(at+len(zeroBlock), len(plain))]
			if bytes.Equal(block, zeroBlock[:len(block)]) {
				break
			}
			at += len(block)
		}
		end := at
		for plain[start] == 0 {
			start++
		}
		for plain[end-1] == 0 {
			end--
		}
		out = le.AppendUint32(out, uint32(start))
		out = le.AppendUint32(out, uint32(end-start))
		out = append(out, plain[start:end]...)
	}
	return out
}

func unSkipZ(plain, data []byte) error {
	if len(data) < 8 || int(le.Uint32(data)) != len(plain) || le.Uint32(data[4:]) != 0 {
		return errCoded
	}
	clear(plain)
	for data = data[8:]; len(data) > 0; {
		if len(data) < 8 {
			return errCoded
		}
		at, n := uint64(le.Uint32(data)), uint64(le.Uint32(data[4:]))
		if data = data[8:]; n > uint64(len(data)) || at+n > uint64(len(plain)) {
			return errCoded
		}
		copy(plain[at:], data[:n])
		data = data[n:]
	}
	return nil
}
