package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Linux values; the syscall package lacks them.
const (
	seekData  = 3
	seekHole  = 4
	ioFICLONE = 0x40049409
)

// Extent is a run of bytes of a disk.
type Extent struct {
	Start  int64
	Length int64
}

// End is the first byte after the extent.
func (e Extent) End() int64 { return e.Start + e.Length }

// DataExtents lists the allocated areas of a disk's open file, as changed block tracking would tell them.
func DataExtents(file *os.File, capacity int64) ([]Extent, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	extents, err := dataExtents(file, min(capacity, info.Size()))
	return roundOut(extents, capacity), err
}

// dataExtents lists the runs of file that are no holes, in order.
func dataExtents(file *os.File, size int64) ([]Extent, error) {
	var extents []Extent
	for at := int64(0); at < size; {
		start, err := file.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break // Only a hole is left.
		}
		if err != nil {
			return nil, err
		}
		end, err := file.Seek(start, seekHole)
		if err != nil {
			return nil, err
		}
		end = min(end, size)
		if end > start {
			extents = append(extents, Extent{start, end - start})
		}
		at = end
	}
	return extents, nil
}

// copySparse makes target a copy of source with the same holes, size bytes long. Where the
// file system can share blocks no data is copied at all.
func copySparse(source, target string, size int64) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()

	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, out.Fd(), ioFICLONE, in.Fd()); errno == 0 {
		return out.Truncate(size)
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	info, err := in.Stat()
	if err != nil {
		return err
	}
	extents, err := dataExtents(in, min(size, info.Size()))
	if err != nil {
		return err
	}
	for _, extent := range extents {
		if err := copyExtent(out, in, extent); err != nil {
			return fmt.Errorf("copy of %d bytes at %d of %s: %w", extent.Length, extent.Start, source, err)
		}
	}
	return nil
}

// copyExtent lets the kernel move the bytes (copy_file_range) where it can.
func copyExtent(out, in *os.File, extent Extent) error {
	if _, err := in.Seek(extent.Start, io.SeekStart); err != nil {
		return err
	}
	if _, err := out.Seek(extent.Start, io.SeekStart); err != nil {
		return err
	}
	_, err := io.CopyN(out, in, extent.Length)
	return err
}

// links tells how many names the file at path has.
func links(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return uint64(info.Sys().(*syscall.Stat_t).Nlink), nil
}
