package nfc

import (
	"strconv"
	"strings"
	"time"

	"drover.dev/lab/vsphere-sim/internal/disk"
)

type extent = disk.Extent

// findBlocks notes which areas are allocated.
func (f *openFile) findBlocks() { f.blocks, f.err = disk.DataExtents(f.file, f.Capacity) }

// allocatedBlocks answers u64 handle, u64 0, u64 chunk bytes, u64 start bytes, u64 count, u64 0 with a bitmap.
func (c *conn) allocatedBlocks(p, reply []byte) ([]byte, *Error) {
	b, file := c.host.behaviour.Load(), c.file.Load()
	chunk, start, count := int64(le.Uint64(p[16:])), int64(le.Uint64(p[24:])), int64(le.Uint64(p[32:]))
	const chunkLeast = 128 * sectorBytes
	switch {
	case file == nil || file.handle != le.Uint64(p):
		return nil, refusal(codeOther, "handle %#x is not open", le.Uint64(p))
	case b.QAB != "on":
		return nil, refusal(codeOther, "QUERY_ALLOCATED_BLOCKS is not supported")
	case b.Strict && (le.Uint64(p[8:]) != 0 || le.Uint64(p[40:]) != 0):
		return nil, refusal(codeOther, "QUERY_ALLOCATED_BLOCKS: bytes 8 to 15 and 40 to 47 are not zero")
	case chunk < chunkLeast || chunk%sectorBytes != 0:
		return nil, refusal(codeOther, "a chunk of %d bytes", chunk)
	case start < 0 || start%chunk != 0:
		return nil, refusal(codeOther, "start %d is no multiple of the chunk, %d bytes", start, chunk)
	case count < 1 || count > b.QABCountMax || start > file.Capacity || count > (file.Capacity-start)/chunk:
		return nil, refusal(codeOther, "%d chunks from %d on: whole ones on the disk, and at most %d", count, start, b.QABCountMax)
	}
	file.once.Do(file.findBlocks)
	if file.err != nil {
		return nil, refusal(codeOther, "allocated blocks of '%s': %s", file.name, file.err)
	}
	sleep(c.server.ctx, time.Duration(b.QABMS)*time.Millisecond)
	le.PutUint64(reply[32:], uint64(count))
	return bitmap(file.blocks, chunk, start, count), nil
}

// bitmap has bit i of byte i/8, lowest first, for chunk i. It is as long as a multiple of four bytes.
func bitmap(blocks []extent, chunk, start, count int64) []byte {
	bits := make([]byte, ((count+7)/8+3)/4*4)
	for _, one := range blocks {
		first := max(0, (one.Start-start)/chunk)
		if one.End() <= start {
			continue
		}
		for i := first; i <= (one.End()-1-start)/chunk && i < count; i++ {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

// ddbGet answers u64 handle, u32 key length, u32 0 and the key with a value's length in the last word, and the value.
func (c *conn) ddbGet(p []byte, key string, reply []byte) ([]byte, *Error) {
	file := c.file.Load()
	if file == nil || file.handle != le.Uint64(p) {
		return nil, refusal(codeOther, "handle %#x is not open", le.Uint64(p))
	}
	if b := c.host.behaviour.Load(); b.Strict && (le.Uint32(p[12:]) != 0 || strings.HasPrefix(key, "ddb.") || strings.HasSuffix(key, "\x00")) {
		return nil, refusal(codeOther, "DDB_GET: the last word is not zero, or the key has ddb. or NUL")
	}
	value := file.DDB[key]
	if value == "" {
		value = file.geometry()[key]
	}
	le.PutUint32(reply[12:], uint32(len(value)))
	return []byte(value), nil
}

// geometry is what the open tells, too.
func (f *openFile) geometry() map[string]string {
	const heads, sectors = 255, 63
	cylinders := strconv.FormatInt(f.Capacity/(heads*sectors*sectorBytes), 10)
	return map[string]string{
		"geometry.cylinders": cylinders, "geometry.heads": "255", "geometry.sectors": "63",
		"geometry.biosCylinders": cylinders, "geometry.biosHeads": "255", "geometry.biosSectors": "63",
		"logicalSectorSize": "512", "physicalSectorSize": "512",
	}
}
