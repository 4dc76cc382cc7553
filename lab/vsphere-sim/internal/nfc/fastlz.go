package nfc

// FastLZ blocks are a chain of instructions; the top three bits of the first byte tell the level, 0 for 1 and 1 for 2.
//
//	000nnnnn                  n+1 literal bytes follow
//	lllddddd [more] dddddddd  a match of l+2 bytes, d+1 back; l = 7 says that more bytes tell the length:
//	                          level 1 one of them, level 2 as many as are 255 and one more
//
// In level 2 a distance of 8191 in all its bits is followed by two more bytes, high one first, to be added.

const (
	lzHashBits    = 13
	lzNear        = 8191
	lzFar         = lzNear + 65535
	lzLength1     = 264 // longest match of level 1
	lzLiteralsMax = 32
	lzTail        = 12 // bytes at the end that begin no match
)

// fastLZ encodes plain; what is too short gives plain itself.
func (c *coder) fastLZ(out, plain []byte) []byte {
	if len(plain) < fastLZLeast {
		return append(out, plain...)
	}
	level2 := len(plain) >= fastLZLevel2
	if c.hash == nil {
		c.hash = make([]int32, 1<<lzHashBits)
	}
	clear(c.hash)
	most := lzNear + 1
	if level2 {
		most = lzFar + 1
	}
	literals := 0 // where the literals begin that are not written yet
	for at := 1; at < len(plain)-lzTail; {
		slot := le.Uint32(plain[at:]) * 2654435769 >> (32 - lzHashBits)
		before := int(c.hash[slot])
		c.hash[slot] = int32(at)
		distance := at - before
		if before == 0 || distance > most || le.Uint32(plain[before:]) != le.Uint32(plain[at:]) {
			at++
			continue
		}
		n := matchBytes(plain, before, at, level2)
		out = lzLiterals(out, plain[literals:at])
		out = lzMatch(out, n, distance-1, level2)
		at += n
		literals = at
	}
	out = lzLiterals(out, plain[literals:])
	if level2 {
		out[0] |= 1 << 5 // The first instruction is always one of literals.
	}
	return out
}

func matchBytes(plain []byte, before, at int, level2 bool) int {
	end := len(plain) - 1
	if !level2 {
		end = min(end, at+lzLength1)
	}
	n := 4
	for at+n+8 <= end && le.Uint64(plain[before+n:]) == le.Uint64(plain[at+n:]) {
		n += 8
	}
	for at+n < end && plain[before+n] == plain[at+n] {
		n++
	}
	return n
}

func lzLiterals(out, run []byte) []byte {
	for len(run) > 0 {
		n := min(len(run), lzLiteralsMax)
		out = append(out, byte(n-1))
		out = append(out, run[:n]...)
		run = run[n:]
	}
	return out
}

func lzMatch(out []byte, n, distance int, level2 bool) []byte {
	far := level2 && distance >= lzNear
	high, low := byte(distance>>8), byte(distance)
	if far {
		high, low = lzNear>>8, lzNear&0xFF
	}
	length := n - 2
	if length < 7 {
		out = append(out, byte(length)<<5|high)
	} else {
		out = append(out, 7<<5|high)
		length -= 7
		for ; level2 && length >= 255; length -= 255 {
			out = append(out, 255)
		}
		out = append(out, byte(length))
	}
	out = append(out, low)
	if far {
		distance -= lzNear
		out = append(out, byte(distance>>8), byte(distance))
	}
	return out
}

// unFastLZ decodes into plain, which must come out full.
func unFastLZ(plain, data []byte) error {
	if len(data) == 0 || data[0]>>5 > 1 {
		return errCoded
	}
	level2 := data[0]>>5 == 1
	at, in := 0, 0
	next := func() int {
		if in >= len(data) {
			in = len(data) + 1 // Noticed below.
			return 0
		}
		in++
		return int(data[in-1])
	}
	for first := true; in < len(data); first = false {
		control := next()
		if first {
			control &= 31
		}
		if control < 32 {
			n := control + 1
			if n > len(data)-in || n > len(plain)-at {
				return errCoded
			}
			copy(plain[at:], data[in:in+n])
			at, in = at+n, in+n
			continue
		}
		length, distance := control>>5, control&31<<8
		if length == 7 {
			more := next()
			length += more
			for level2 && more == 255 {
				more = next()
				length += more
			}
		}
		low := next()
		if distance += low; level2 && distance == lzNear {
			distance = lzNear + next()<<8
			distance += next()
		}
		length, distance = length+2, distance+1
		if in > len(data) || distance > at || length > len(plain)-at {
			return errCoded
		}
		for ; length > 0; length-- { // Byte by byte, since a match may overlap itself.
			plain[at] = plain[at-distance]
			at++
		}
	}
	if at != len(plain) {
		return errCoded
	}
	return nil
}
