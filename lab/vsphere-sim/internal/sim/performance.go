package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/vpx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// performance is what performance counters tell: virtualDisk.write.average of VMs that run, and nothing else.
type performance struct {
	mu       sync.Mutex
	written  map[*machine]int64 // bytes a second, where another rate than the inventory's was ordered
	specsMax int                // of one query; 0: any number
}

type performanceOrder struct {
	VM            string `json:"vm,omitempty"`
	WriteBytesPer *int64 `json:"write_bytes_per_s,omitempty"`
	Level         int32  `json:"level,omitempty"`
	SpecsMax      *int   `json:"specs_max,omitempty"`
}

const (
	realtimeInterval, realtimeSamples = 20, 180  // an hour
	historyInterval, historySamples   = 300, 288 // a day
)

// orderPerformance sets the rate at which a VM writes, vCenter's statistics level for the past day, or how many entities
// one query may name (config.vpxd.stats.maxQueryMetrics).
func (s *Sim) orderPerformance(order performanceOrder) (any, error) {
	if (order.VM == "") != (order.WriteBytesPer == nil) {
		return nil, errors.New("want vm and write_bytes_per_s, or neither")
	}
	if order.VM != "" {
		m, err := s.machineOf(order.VM)
		if err != nil {
			return nil, err
		}
		s.performance.mu.Lock()
		if s.performance.written == nil {
			s.performance.written = map[*machine]int64{}
		}
		s.performance.written[m] = *order.WriteBytesPer
		s.performance.mu.Unlock()
	}
	if order.SpecsMax != nil {
		s.performance.mu.Lock()
		s.performance.specsMax = *order.SpecsMax
		s.performance.mu.Unlock()
	}
	if order.Level != 0 {
		return done, s.setLevel(order.Level)
	}
	return done, nil
}

func (s *Sim) setLevel(level int32) error {
	manager, ok := s.registry.Get(*vpx.ServiceContent.PerfManager).(*simulator.PerformanceManager)
	if !ok || s.esxi {
		return errors.New("level: only a vCenter has one")
	}
	s.registry.WithLock(s.ownContext(), manager, func() {
		// The list is shared by all simulators of this process.
		intervals := slices.Clone(manager.HistoricalInterval)
		intervals[0].Level = level
		manager.HistoricalInterval = intervals
	})
	return nil
}

// QueryPerf tells what VMs wrote. As vSphere does, it leaves out what is gone or has no samples.
func (e *extension) QueryPerf(_ *simulator.Context, req *types.QueryPerf) soap.HasFault {
	body := new(methods.QueryPerfBody)
	e.sim.performance.mu.Lock()
	most := e.sim.performance.specsMax
	e.sim.performance.mu.Unlock()
	if most > 0 && len(req.QuerySpec) > most {
		body.Fault_ = invalidArgument("querySpec.size")
		return body
	}
	manager := e.sim.registry.Get(e.ref).(*simulator.PerformanceManager)
	counter, level := writeCounter(manager)
	body.Res = new(types.QueryPerfResponse)
	for _, spec := range req.QuerySpec {
		if spec.Format != string(types.PerfFormatCsv) {
			body.Res, body.Fault_ = nil, invalidArgument("querySpec.format")
			return body
		}
		m := e.sim.owner(spec.Entity)
		if m == nil || !m.disks.Running() || len(spec.MetricId) != 1 || spec.MetricId[0].CounterId != counter {
			continue
		}
		isKept := !e.sim.esxi && manager.HistoricalInterval[0].Level >= level
		if spec.IntervalId == realtimeInterval || isKept {
			body.Res.Returnval = append(body.Res.Returnval, e.sim.written(m, counter, spec))
		}
	}
	return body
}

// writeCounter gives the number of virtualDisk.write.average, and the level from which on it is kept.
func writeCounter(manager *simulator.PerformanceManager) (key, level int32) {
	for _, info := range manager.PerfCounter {
		group, name := info.GroupInfo.GetElementDescription().Key, info.NameInfo.GetElementDescription().Key
		if group == "virtualDisk" && name == "write" && info.RollupType == types.PerfSummaryTypeAverage {
			return info.Key, max(info.Level, info.PerDeviceLevel)
		}
	}
	return -1, 0
}

// written is the same rate in all samples, shared evenly by the disks.
func (s *Sim) written(m *machine, counter int32, spec types.PerfQuerySpec) *types.PerfEntityMetricCSV {
	s.performance.mu.Lock()
	rate, ordered := s.performance.written[m]
	s.performance.mu.Unlock()
	if !ordered {
		rate = int64(m.given.WriteBytesPerS)
	}
	interval, samples := realtimeInterval, realtimeSamples
	if spec.IntervalId != realtimeInterval {
		interval, samples = historyInterval, historySamples
	} else if spec.MaxSample > 0 {
		samples = min(samples, int(spec.MaxSample))
	}
	told := &types.PerfEntityMetricCSV{PerfEntityMetricBase: types.PerfEntityMetricBase{Entity: spec.Entity}}
	told.SampleInfoCSV = sampleTimes(time.Now(), interval, samples)
	disks := max(1, len(m.given.Disks))
	for i := range disks {
		kb := rate / 1024 / int64(disks)
		if i == 0 {
			kb += rate / 1024 % int64(disks)
		}
		values := strings.TrimSuffix(strings.Repeat(strconv.FormatInt(kb, 10)+",", samples), ",")
		id := types.PerfMetricId{CounterId: counter, Instance: fmt.Sprintf("scsi0:%d", i)}
		told.Value = append(told.Value, types.PerfMetricSeriesCSV{PerfMetricSeries: types.PerfMetricSeries{Id: id}, Value: values})
	}
	return told
}

// sampleTimes is `20,2026-11-28T10:00:20Z,20,...`, the oldest first.
func sampleTimes(end time.Time, interval, samples int) string {
	parts := make([]string, 0, 2*samples)
	for i := samples - 1; i >= 0; i-- {
		at := end.Add(-time.Duration(i*interval) * time.Second)
		parts = append(parts, strconv.Itoa(interval), at.UTC().Format(time.RFC3339))
	}
	return strings.Join(parts, ",")
}
