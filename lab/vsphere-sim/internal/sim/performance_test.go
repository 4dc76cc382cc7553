package sim

import (
	"context"
	"strings"
	"testing"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// query asks what VMs wrote, in one call.
func (l *lab) query(interval int32, counter int32, vms ...types.ManagedObjectReference) ([]types.BasePerfEntityMetricBase, error) {
	l.Helper()
	req := types.QueryPerf{This: *l.client.ServiceContent.PerfManager}
	for _, vm := range vms {
		req.QuerySpec = append(req.QuerySpec, types.PerfQuerySpec{
			Entity: vm, IntervalId: interval, MaxSample: 180, Format: string(types.PerfFormatCsv),
			MetricId: []types.PerfMetricId{{CounterId: counter, Instance: "*"}},
		})
	}
	res, err := methods.QueryPerf(context.Background(), l.client, &req)
	if err != nil {
		return nil, err
	}
	return res.Returnval, nil
}

func TestCountersTellWhatVMsThatRunWrite(t *testing.T) {
	l := start(t, false, "30m")
	var manager mo.PerformanceManager
	collector := property.DefaultCollector(l.client.Client)
	ref := *l.client.ServiceContent.PerfManager
	check(t, collector.RetrieveOne(context.Background(), ref, []string{"perfCounter", "historicalInterval"}, &manager))
	counter := int32(-1)
	for _, info := range manager.PerfCounter {
		if info.GroupInfo.GetElementDescription().Key == "virtualDisk" && info.NameInfo.GetElementDescription().Key == "write" {
			counter = info.Key
		}
	}
	runs, off := l.vm("prod/web/web01").Reference(), l.vm("file srv ä").Reference()
	l.control("POST", "/performance", `{"vm":"prod/web/web01","write_bytes_per_s":5120}`, nil)
	told, err := l.query(20, counter, runs, off)
	check(t, err)
	if len(told) != 1 {
		t.Fatalf("%d entities", len(told))
	}
	// 5 KB a second of two disks.
	one := told[0].(*types.PerfEntityMetricCSV)
	if len(one.Value) != 2 || !strings.HasPrefix(one.Value[0].Value, "3,3,") || !strings.HasSuffix(one.Value[1].Value, ",2") {
		t.Errorf("%+v", one.Value)
	}
	if samples := strings.Count(one.SampleInfoCSV, "20,"); samples < 180 {
		t.Errorf("%d samples", samples)
	}
	if told, err = l.query(300, counter, runs); err != nil || len(told) != 0 {
		t.Errorf("a day at level %d: %v %v", manager.HistoricalInterval[0].Level, told, err)
	}
	l.control("POST", "/performance", `{"level":2,"specs_max":1}`, nil)
	if told, err = l.query(300, counter, runs); err != nil || len(told) != 1 {
		t.Errorf("a day at level 2: %v %v", told, err)
	}
	if _, err = l.query(20, counter, runs, off); !fault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("two in a query of one: %v", err)
	}
}
