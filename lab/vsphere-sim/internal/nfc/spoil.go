package nfc

// spoil sends a frame as ordered. size is that of its payload.
func (c *conn) spoil(f *FaultOrder, frame []byte, size int) error {
	if err := c.flush(); err != nil {
		return err
	}
	switch f.Do {
	case "delay":
		c.stall(f.MS)
		return c.send(frame)
	case "flip":
		if len(frame) > headerBytes+size {
			frame[flipPoint(f, frame, size)] ^= 1
		}
		return c.send(frame)
	case "lie":
		return c.send(distort(f, frame, size))
	}
	at := cutPoint(f.Where, len(frame), size)
	if err := c.send(frame[:at]); err != nil {
		return err
	}
	if f.Do == "stall" {
		c.stall(f.MS)
		if f.MS > 0 {
			return c.send(frame[at:])
		}
		return errFault
	}
	c.ordered.Store(true)
	return errCut
}

// flipPoint is the byte of the offset in raw data, else one in the middle.
func flipPoint(f *FaultOrder, frame []byte, size int) int {
	p := frame[headerBytes:]
	if f.Offset != nil && le.Uint32(p[ioExtra:]) == le.Uint32(p[ioPlain:]) {
		start := int64(le.Uint64(p[ioOffset:])) + int64(le.Uint32(p[ioPosition:]))
		return headerBytes + size + int(*f.Offset-start)
	}
	return headerBytes + size + (len(frame)-headerBytes-size)/2
}

// cutPoint is a byte in the middle of the part of a frame that where names.
func cutPoint(where string, length, size int) int {
	switch where {
	case "header":
		return headerBytes / 2
	case "payload":
		return headerBytes + size/2
	case "extra":
		return headerBytes + size + (length-headerBytes-size)/2
	case "after":
		return length
	}
	return 0
}

// distort makes one field of a frame wrong, as a client must notice.
func distort(f *FaultOrder, frame []byte, size int) []byte {
	p := frame[headerBytes:]
	switch f.Text {
	case "magic":
		frame[0] ^= 0xFF
	case "type":
		le.PutUint32(frame[4:], 99)
	case "opid":
		le.PutUint32(frame[12:], le.Uint32(frame[12:])+1000)
	case "size":
		le.PutUint32(frame[8:], uint32(size+4))
	case "offset":
		le.PutUint64(p[ioOffset:], le.Uint64(p[ioOffset:])+512)
	case "total":
		le.PutUint32(p[ioTotal:], le.Uint32(p[ioTotal:])+512)
	case "position": // Beyond the request for the first fragment, over another one's place for the others.
		if le.Uint32(p[ioPosition:]) == 0 {
			le.PutUint32(p[ioPosition:], le.Uint32(p[ioTotal:]))
		} else {
			le.PutUint32(p[ioPosition:], 0)
		}
	case "length":
		le.PutUint32(p[ioPlain:], le.Uint32(p[ioPlain:])+512)
	case "extra":
		le.PutUint32(p[ioExtra:], 0x7FFFFFFF)
	case "codec":
		le.PutUint32(p[ioCodec:], 77)
	case "data":
		for i := headerBytes + size; i < len(frame); i++ {
			frame[i] = 0xA5
		}
	}
	return frame
}
