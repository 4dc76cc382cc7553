package disk

import "fmt"

// Lie is how changed block tracking misreports a disk. What was ever written (change id *) is told truly.
type Lie struct {
	Writes int    // so many next writes are not noted
	Span   Extent // changes in here are never told
	Widen  int64  // each area is widened to multiples of this; 0 for not
	Pad    int64  // each area begins and ends so much too far out, and the last lies beyond the capacity
}

// padBytesMax keeps sums far from overflow.
const padBytesMax = 1 << 40

// SetLie makes tracking of disk number index lie from now on; the zero Lie ends that.
func (vm *VM) SetLie(index int, lie Lie) error {
	if lie.Writes < 0 || lie.Widen < 0 || lie.Widen > padBytesMax || lie.Pad < 0 || lie.Pad > padBytesMax {
		return fmt.Errorf("lie %+v is out of range", lie)
	}
	d := vm.disk(index)
	if d == nil {
		return fmt.Errorf("there is no disk %d", index)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	d.lie = lie
	return nil
}

// forget tells if the write that was just made is one not to note.
func (l *Lie) forget() bool {
	if l.Writes == 0 {
		return false
	}
	l.Writes--
	return true
}

// tell gives the areas as they are told, and the end of the disk as the answer has it.
func (l *Lie) tell(areas []Extent, capacity int64) (told []Extent, end int64) {
	end = capacity + l.Pad
	for _, area := range areas {
		for _, part := range without(area, l.Span) {
			start, stop := part.Start, part.End()
			if l.Widen > 0 {
				start = start / l.Widen * l.Widen
				stop = min((stop+l.Widen-1)/l.Widen*l.Widen, capacity)
			}
			start = max(0, start-l.Pad)
			told = appendArea(told, Extent{start, stop + l.Pad - start}, end)
		}
	}
	if l.Pad > 0 {
		told = appendArea(told, Extent{capacity, l.Pad}, end)
	}
	return told, end
}

// without gives what of area lies outside of span.
func without(area, span Extent) []Extent {
	if span.Length == 0 {
		return []Extent{area}
	}
	var parts []Extent
	if before := min(area.End(), span.Start); before > area.Start {
		parts = append(parts, Extent{area.Start, before - area.Start})
	}
	if after := max(area.Start, span.End()); after < area.End() {
		parts = append(parts, Extent{after, area.End() - after})
	}
	return parts
}
