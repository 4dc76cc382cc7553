package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
)

func TestHTTPFaultsOfData(t *testing.T) {
	l := start(t, false, "30m")
	file := fetch{file: srvFile, cookie: l.cookie()}
	order := func(text string) { l.control("POST", "/fault/http", text, nil) }

	order(`{"path":"/folder","match":"flat","status":503,"retry_after":1,"skip":1,"count":2}`)
	got := ""
	for range 4 {
		response, _, err := l.do(file)
		check(t, err)
		got += fmt.Sprint(response.StatusCode, response.Header.Get("Retry-After"), " ")
	}
	if got != "200 5031 5031 200 " {
		t.Errorf("status: %s", got)
	}

	order(`{"path":"/folder","cut_after":100000}`)
	if _, body, err := l.do(file); err == nil || len(body) != 100000 {
		t.Errorf("cut: %d bytes, %v", len(body), err)
	}

	order(`{"path":"/folder","flip_bit_at":500001}`)
	file.span = "0-9"
	if _, body, _ := l.do(file); !bytes.Equal(body, l.data[:10]) {
		t.Error("a range without the offset was spoiled")
	}
	file.span = "500000-500009"
	_, body, err := l.do(file)
	check(t, err)
	if body[1] != l.data[500001]^1 || body[0] != l.data[500000] {
		t.Error("the bit was not flipped")
	}
	if _, body, _ := l.do(file); !bytes.Equal(body, l.data[500000:500010]) {
		t.Error("flipped twice")
	}

	order(`{"path":"/folder","delay_ms":150}`)
	if took := l.timeOf(file); took < 150*time.Millisecond {
		t.Errorf("delay: %s", took)
	}
	file.span = "0-199999"
	order(`{"path":"/folder","bytes_per_s":1000000}`)
	if took := l.timeOf(file); took < 150*time.Millisecond {
		t.Errorf("rate: %s", took)
	}
	l.control("POST", "/rate", `{"bytes_per_s":1000000,"per":"host"}`, nil)
	if took := l.timeOf(file); took < 150*time.Millisecond {
		t.Errorf("rate of all: %s", took)
	}
	l.control("POST", "/rate", `{}`, nil)
	l.control("POST", "/latency", `{"ms":120}`, nil)
	if took := l.timeOf(file); took < 120*time.Millisecond {
		t.Errorf("latency: %s", took)
	}
	l.control("POST", "/latency", `{"ms":0}`, nil)
	if took := l.timeOf(file); took > 100*time.Millisecond {
		t.Errorf("still slow: %s", took)
	}
}

func (l *lab) timeOf(f fetch) time.Duration {
	l.Helper()
	begin := time.Now()
	_, _, err := l.do(f)
	check(l.T, err)
	return time.Since(begin)
}

func TestAStallHoldsTheConnectionUntilCleared(t *testing.T) {
	l := start(t, false, "30m")
	l.control("POST", "/fault/http", `{"path":"/folder","stall_after":50000}`, nil)
	ended := make(chan int)
	go func() {
		_, body, _ := l.do(fetch{file: srvFile, cookie: l.cookie()})
		ended <- len(body)
	}()
	select {
	case <-ended:
		t.Fatal("no stall")
	case <-time.After(300 * time.Millisecond):
	}
	l.control("POST", "/fault/clear", "", nil)
	if got := <-ended; got != 50000 {
		t.Errorf("%d bytes before the stall", got)
	}
}

func TestHTTPFaultsOfTheSDK(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	for _, text := range []string{`"garbage":true`, `"status":502`, `"cut_after":40`} {
		l.control("POST", "/fault/http", `{"path":"/sdk",`+text+`}`, nil)
		if _, err := methods.GetCurrentTime(ctx, l.client); err == nil {
			t.Errorf("%s: no error", text)
		}
		if _, err := methods.GetCurrentTime(ctx, l.client); err != nil {
			t.Errorf("after %s: %v", text, err)
		}
	}
	l.control("POST", "/fault/http", `{"path":"/sdk","endless":true}`, nil)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: l.roots()}}
	response, err := client.Post(l.sim.Ready.URL, "text/xml", strings.NewReader("<x/>"))
	check(t, err)
	defer response.Body.Close()
	if n, err := io.CopyN(io.Discard, response.Body, 500_000); err != nil {
		t.Errorf("the endless body ended after %d bytes: %v", n, err)
	}
}
