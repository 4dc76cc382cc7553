package inventory

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Size is a number of bytes. In YAML it is a plain number or one with a unit, as in 20GiB or 1TB.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseSize reads a Size as it is written in YAML.
func ParseSize(text string) (Size, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	for _, unit := range units {
		if rest, found := strings.CutSuffix(number, unit.suffix); found {
			number, factor = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	value, err := strconv.ParseInt(number, 10, 64)
	if err != nil || value < 0 || value > (1<<62)/factor {
		return 0, fmt.Errorf("size %q: want a whole number, or one with KiB, MiB, GiB, TiB, KB, MB, GB or TB", text)
	}
	return Size(value * factor), nil
}

// UnmarshalYAML reads a size; the error names the line.
func (s *Size) UnmarshalYAML(node *yaml.Node) error {
	size, err := ParseSize(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*s = size
	return nil
}

// ParseSpan reads "FROM-TO" with sizes, as in 0-10MiB, and gives both ends.
func ParseSpan(text string) (from, to Size, err error) {
	left, right, found := strings.Cut(text, "-")
	if !found {
		return 0, 0, fmt.Errorf("span %q: want FROM-TO, as in 0-10MiB", text)
	}
	if from, err = ParseSize(left); err != nil {
		return 0, 0, err
	}
	if to, err = ParseSize(right); err != nil {
		return 0, 0, err
	}
	if to <= from {
		return 0, 0, fmt.Errorf("span %q: ends before it begins", text)
	}
	return from, to, nil
}

// Duration is a time.Duration that YAML writes as 30m or 1500ms.
type Duration time.Duration

// UnmarshalYAML reads a duration; the error names the line.
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	value, err := time.ParseDuration(node.Value)
	if err != nil || value <= 0 {
		return fmt.Errorf("line %d: duration %q: want one such as 30m or 1500ms", node.Line, node.Value)
	}
	*d = Duration(value)
	return nil
}
