package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// BlockBytes is the granularity of changed block tracking.
const BlockBytes = 64 << 10

// Reasons why a query of changed areas is refused.
var (
	ErrNotTracked    = errors.New("changed block tracking is not active")
	ErrUnknownChange = errors.New("change id is not of this disk")
	ErrOffset        = errors.New("start offset is outside the disk")
	ErrSnapshot      = errors.New("snapshot is not of this virtual machine")
)

// tracker knows for each block the last epoch in which it was written. A freeze starts a new
// epoch. Blocks never written since the start are absent, so a large disk costs nothing.
type tracker struct {
	on     bool
	id     [16]byte
	epoch  uint32
	blocks map[int64]uint32
}

// start begins tracking under a new id, which makes all earlier change ids unknown.
func (t *tracker) start() {
	_, _ = rand.Read(t.id[:]) // Never fails, see crypto/rand.
	t.id[0] = 0x52            // As all that real hosts were seen to give.
	t.on, t.epoch, t.blocks = true, 1, map[int64]uint32{}
}

func (t *tracker) stop() { *t = tracker{} }

// wrote notes a write of length bytes at offset.
func (t *tracker) wrote(offset, length int64) {
	if !t.on || length == 0 {
		return
	}
	for block := offset / BlockBytes; block <= (offset+length-1)/BlockBytes; block++ {
		t.blocks[block] = t.epoch
	}
}

// changeID names the present epoch the way vSphere does: "52 de c0 d9 ...-... /N".
func (t *tracker) changeID() string {
	if !t.on {
		return ""
	}
	return t.prefix() + "/" + strconv.FormatUint(uint64(t.epoch), 10)
}

func (t *tracker) prefix() string {
	half := func(b []byte) string { return strings.TrimSpace(fmt.Sprintf("% x", b)) }
	return half(t.id[:8]) + "-" + half(t.id[8:])
}

// parse gives the epoch of a change id that this tracker handed out.
func (t *tracker) parse(changeID string) (uint32, error) {
	prefix, number, found := strings.Cut(changeID, "/")
	epoch, err := strconv.ParseUint(number, 10, 32)
	if !found || err != nil || prefix != t.prefix() || uint32(epoch) > t.epoch || epoch == 0 {
		return 0, ErrUnknownChange
	}
	return uint32(epoch), nil
}

// since lists the areas written in epoch or later, merged and in order.
func since(blocks map[int64]uint32, epoch uint32, capacity int64) []Extent {
	var changed []int64
	for block, last := range blocks {
		if last >= epoch {
			changed = append(changed, block)
		}
	}
	slices.Sort(changed)
	var areas []Extent
	for _, block := range changed {
		areas = appendArea(areas, Extent{block * BlockBytes, BlockBytes}, capacity)
	}
	return areas
}

// roundOut widens extents to whole blocks, as tracking would report them.
func roundOut(extents []Extent, capacity int64) []Extent {
	var areas []Extent
	for _, extent := range extents {
		start := extent.Start / BlockBytes * BlockBytes
		end := (extent.End() + BlockBytes - 1) / BlockBytes * BlockBytes
		areas = appendArea(areas, Extent{start, end - start}, capacity)
	}
	return areas
}

// appendArea cuts area off at the end of the disk and joins it to its neighbour.
func appendArea(areas []Extent, area Extent, capacity int64) []Extent {
	end := min(area.End(), capacity)
	if end <= area.Start {
		return areas
	}
	if last := len(areas) - 1; last >= 0 && areas[last].End() >= area.Start {
		areas[last].Length = max(areas[last].End(), end) - areas[last].Start
		return areas
	}
	return append(areas, Extent{area.Start, end - area.Start})
}

// page cuts areas to those from start on, at most areasMax of them, and tells how many bytes
// from start on the answer speaks for.
func page(areas []Extent, start, capacity int64, areasMax int) ([]Extent, int64) {
	var out []Extent
	for _, area := range areas {
		if area.End() <= start {
			continue
		}
		if len(out) == areasMax {
			return out, out[len(out)-1].End() - start
		}
		from := max(area.Start, start)
		out = append(out, Extent{from, area.End() - from})
	}
	return out, capacity - start
}
