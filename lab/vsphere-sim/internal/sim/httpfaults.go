package sim

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// httpOrder is an order for a fault below the API, as it comes over the control API. Offsets of
// cut and stall count bytes of the response's body; flip_bit_at is an offset in the file for data.
type httpOrder struct {
	Path       string `json:"path,omitempty"`  // what the request's path begins with
	Match      string `json:"match,omitempty"` // what path and query contain
	Address    string `json:"address,omitempty"`
	Status     int    `json:"status,omitempty"`
	RetryAfter int    `json:"retry_after,omitempty"`
	CutAfter   *int64 `json:"cut_after,omitempty"`
	StallAfter *int64 `json:"stall_after,omitempty"`
	FlipBitAt  *int64 `json:"flip_bit_at,omitempty"`
	DelayMS    int64  `json:"delay_ms,omitempty"`
	BytesPerS  int64  `json:"bytes_per_s,omitempty"`
	Endless    bool   `json:"endless,omitempty"`
	Garbage    bool   `json:"garbage,omitempty"`
	Count      int    `json:"count,omitempty"` // 0 is 1, -1 until cleared
	Skip       int    `json:"skip,omitempty"`
}

// httpFaults are the orders in place.
type httpFaults struct {
	mu     sync.Mutex
	orders []*httpOrder
	clear  chan struct{} // closed when faults are cleared, which ends stalls
}

func (f *httpFaults) add(order httpOrder) {
	if order.Count == 0 {
		order.Count = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, &order)
}

func (f *httpFaults) clearAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = nil
	if f.clear != nil {
		close(f.clear)
		f.clear = nil
	}
}

// cleared gives a channel that is closed at the next clearAll.
func (f *httpFaults) cleared() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.clear == nil {
		f.clear = make(chan struct{})
	}
	return f.clear
}

// take gives the order for this request and counts it.
func (f *httpFaults) take(r *http.Request, address string) *httpOrder {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, order := range f.orders {
		if order.Count == 0 || !order.matches(r, address) {
			continue
		}
		if order.Skip > 0 {
			order.Skip--
			continue
		}
		if order.Count > 0 {
			order.Count--
		}
		return order
	}
	return nil
}

func (o *httpOrder) matches(r *http.Request, address string) bool {
	if !strings.HasPrefix(r.URL.Path, o.Path) || o.Address != "" && o.Address != address {
		return false
	}
	if o.Match != "" && !strings.Contains(r.URL.Path+"?"+r.URL.RawQuery, o.Match) {
		return false
	}
	if o.FlipBitAt == nil || !strings.HasPrefix(r.URL.Path, "/folder") {
		return true
	}
	return asksFor(r, *o.FlipBitAt)
}

// asksFor tells if the byte at offset of the file is among those wanted, so that a fault is not
// used up by a request that can't show it.
func asksFor(r *http.Request, offset int64) bool {
	spec := r.Header.Get("Range")
	if r.Method != http.MethodGet || spec == "" {
		return r.Method == http.MethodGet
	}
	start, length, err := parseRange(spec, 1<<62)
	return err == nil && offset >= start && offset < start+length
}

// faultWriter spoils a response as ordered.
type faultWriter struct {
	http.ResponseWriter
	sim      *Sim
	request  *http.Request
	rule     httpOrder
	pace     pace
	sent     int64
	position int64 // of the first body byte in the file
}

// before does what comes instead of or before the answer, and tells if nothing is to follow.
func (f *faultWriter) before() bool {
	f.sim.sleep(f.request.Context(), time.Duration(f.rule.DelayMS)*time.Millisecond)
	switch {
	case f.rule.Status != 0:
		if f.rule.RetryAfter > 0 {
			f.Header().Set("Retry-After", strconv.Itoa(f.rule.RetryAfter))
		}
		http.Error(f.ResponseWriter, "ordered fault", f.rule.Status)
		return true
	case f.rule.Endless:
		f.trickle()
		return true
	case f.rule.Garbage:
		f.Header().Set("Content-Type", "text/xml; charset=utf-8")
		_, _ = f.ResponseWriter.Write([]byte("<?xml version=\"1.0\"?>\n<soapenv:Envelope><soapenv:Body><<<>>&bogus;\x00\xff</a>"))
		return true
	}
	return false
}

// trickle sends a body without end: white space, which XML readers swallow in silence, or noise. It comes slowly,
// unless the order has a rate.
func (f *faultWriter) trickle() {
	pause, times := 5*time.Millisecond, 1
	if f.rule.BytesPerS > 0 {
		times = 64
		pause = time.Duration(int64(times) * 4096 * int64(time.Second) / f.rule.BytesPerS)
	}
	f.Header().Set("Content-Type", "text/xml; charset=utf-8")
	chunk := []byte(strings.Repeat(" \n", 2048*times))
	if strings.HasPrefix(f.request.URL.Path, "/folder") {
		f.Header().Set("Content-Type", "application/octet-stream")
		chunk = []byte(strings.Repeat("garbage!", 512*times))
	} else {
		_, _ = f.ResponseWriter.Write([]byte("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"))
	}
	cleared := f.sim.httpFaults.cleared()
	for f.request.Context().Err() == nil && f.sim.stopped.Err() == nil {
		if _, err := f.ResponseWriter.Write(chunk); err != nil {
			return
		}
		f.flush()
		select {
		case <-cleared:
			panic(http.ErrAbortHandler)
		case <-time.After(pause):
		}
	}
}

func (f *faultWriter) flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

// Write sends p as far as the order lets it.
func (f *faultWriter) Write(p []byte) (int, error) {
	if at := f.rule.FlipBitAt; at != nil {
		if in := *at - f.position - f.sent; in >= 0 && in < int64(len(p)) {
			spoiled := append([]byte(nil), p...)
			spoiled[in] ^= 1
			p = spoiled
		}
	}
	total := 0
	for len(p) > 0 {
		n := f.allowed(len(p))
		if n == 0 {
			f.end()
		}
		if f.rule.BytesPerS > 0 {
			f.sim.sleep(f.request.Context(), f.pace.take(n, f.rule.BytesPerS))
		}
		written, err := f.ResponseWriter.Write(p[:n])
		f.sent, total = f.sent+int64(written), total+written
		if err != nil {
			return total, err
		}
		if f.rule.BytesPerS > 0 {
			f.flush()
		}
		p = p[n:]
	}
	return total, nil
}

// allowed is how many of n bytes may go before the next event.
func (f *faultWriter) allowed(n int) int {
	most := int64(n)
	for _, limit := range []*int64{f.rule.CutAfter, f.rule.StallAfter} {
		if limit != nil {
			most = min(most, max(0, *limit-f.sent))
		}
	}
	if f.rule.BytesPerS > 0 {
		most = min(most, max(512, f.rule.BytesPerS/50))
	}
	return int(most)
}

// end cuts the connection, or holds it open without another byte until the client goes or
// faults are cleared.
func (f *faultWriter) end() {
	f.flush()
	if f.rule.StallAfter != nil && f.sent >= *f.rule.StallAfter {
		select {
		case <-f.request.Context().Done():
		case <-f.sim.stopped.Done():
		case <-f.sim.httpFaults.cleared():
		}
	}
	panic(http.ErrAbortHandler)
}

// after lets a cut or stall come that lies beyond a short answer's end.
func (f *faultWriter) after() {
	if f.rule.CutAfter != nil && f.sent >= *f.rule.CutAfter || f.rule.StallAfter != nil && f.sent >= *f.rule.StallAfter {
		f.end()
	}
}

func durationOf(nanoseconds int64) time.Duration { return time.Duration(nanoseconds) }
