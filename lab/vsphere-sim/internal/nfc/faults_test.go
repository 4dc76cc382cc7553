package nfc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestOrderedFaultsReachTheClientOnceAndTheNextTryWorks(t *testing.T) {
	const ended = "end of the connection"
	l := start(t)
	for i, one := range []struct{ order, want string }{
		{`{"at":"greeting","do":"cut","where":"payload"}`, ended},
		{`{"at":"tls","do":"cut"}`, ended},
		{`{"at":"session","do":"error","text":"530 Login incorrect"}`, ""},
		{`{"at":"banner","do":"error","text":"500 busy"}`, "500 busy"},
		{`{"at":"thumbprint","do":"error","text":"530 Please login with USER and PASS"}`, "530 Please login"},
		{`{"at":"proxy","do":"error","text":"502 no such service"}`, "502 no such"},
		{`{"at":"takeover","do":"cut"}`, ended},
		{`{"at":"msg43","do":"refuse"}`, "reply 4"},
		{`{"at":"msg36","do":"error","code":7,"text":"not now"}`, "reply 20"},
		{`{"at":"msg51","do":"cut"}`, ended},
		{`{"at":"msg52","do":"cut","where":"payload"}`, ended},
		{`{"at":"open_session","do":"error","code":5,"text":"Failed to allocate the requested 24117272 bytes"}`, "5: Failed to allocate"},
		{`{"at":"open_file","do":"error","code":11,"text":"permission check failed for file 'x'"}`, "11: permission"},
		{`{"at":"open_file","do":"status","code":2}`, "status 2"},
		{`{"at":"read","do":"cut","where":"before"}`, ended},
		{`{"at":"read","do":"cut","where":"header","fragment":1}`, ended},
		{`{"at":"read","do":"cut","where":"payload","fragment":2}`, ended},
		{`{"at":"read","do":"cut","where":"extra","fragment":3}`, ended},
		{`{"at":"read","do":"cut","where":"after","fragment":3,"path":"vm1"}`, ended},
		{`{"at":"read","do":"error","code":2,"text":"input/output error","fragment":2}`, "2: input/output error"},
		{`{"at":"read","do":"status","code":3,"fragment":1}`, "fragment 7"},
		{`{"at":"read","do":"flip","fragment":1}`, "other data"},
		{`{"at":"read","do":"lie","text":"magic"}`, "header"},
		{`{"at":"read","do":"lie","text":"type"}`, "fragment 99"},
		{`{"at":"read","do":"lie","text":"opid"}`, "fragment"},
		{`{"at":"read","do":"lie","text":"offset"}`, "fragment"},
		{`{"at":"read","do":"lie","text":"total"}`, "fragment"},
		{`{"at":"read","do":"lie","text":"position","fragment":0}`, "overrun"},
		{`{"at":"read","do":"lie","text":"length"}`, "broken"},
		{`{"at":"read","do":"lie","text":"codec"}`, "broken"},
	} {
		service := []string{"vpxa-nfc", "vpxa-nfcssl"}[i%2] // Handshakes take time, so one of them is enough.
		struck := l.server.Stats().FaultsStruck
		l.order(one.order)
		err := l.copyOnce(service)
		if now := l.server.Stats().FaultsStruck; now != struck+1 {
			t.Errorf("%s, %s: %d faults struck", service, one.order, now-struck)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			err = errors.New(ended)
		}
		if one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%s, %s: %v, want %q", service, one.order, err, one.want)
		}
		if one.want == "" && err == nil {
			t.Errorf("%s, %s: no error", service, one.order)
		}
		if err := l.copyOnce(service); err != nil {
			t.Errorf("%s, %s: the second try: %v", service, one.order, err)
		}
		waitFor(t, "memory", func() bool { s := l.stats("vpxa-nfc"); return s.Memory == 0 && s.InFlight == 0 })
	}
}

// copyOnce reads a part of the disk and compares it.
func (l *lab) copyOnce(service string) error {
	l.Helper()
	c, err := l.join(l.ticket(nil), service)
	if c != nil {
		defer c.tcp.Close()
	}
	if err == nil {
		err = c.session(64<<10, 4)
	}
	if err == nil {
		err = c.open(diskName, 0x1e)
	}
	if err != nil {
		return err
	}
	got, _, err := c.reads(0, [2]int{0, 1 << 20}, [2]int{1 << 20, 1 << 20})
	if err != nil {
		return err
	}
	if !bytes.Equal(got[0], l.data[:1<<20]) || !bytes.Equal(got[1], l.data[1<<20:2<<20]) {
		return errors.New("other data")
	}
	c.close()
	return nil
}

func TestStallHoldsUntilFaultsAreCleared(t *testing.T) {
	l := start(t)
	l.order(`{"at":"read","do":"stall","where":"extra","fragment":1}`)
	c := l.connect("vpxa-nfc", 64<<10, 1, 0x1e)
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.reads(0, [2]int{0, 1 << 20})
		ended <- err
	}()
	waitFor(t, "the stall", func() bool {
		l.server.faults.mu.Lock()
		defer l.server.faults.mu.Unlock()
		return l.server.faults.list[0].Count == 0
	})
	select {
	case err := <-ended:
		t.Errorf("it did not stall: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	l.server.ClearFaults()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("after the stall: %v", err)
	}
	// One with a time goes on by itself.
	l.order(`{"at":"read","do":"stall","where":"header","ms":20}`)
	check(t, l.copyOnce("vpxa-nfc"))
}

func TestAFlippedBitIsAtTheOffsetOrdered(t *testing.T) {
	l := start(t)
	l.order(`{"at":"read","do":"flip","offset":1234567}`)
	c := l.connect("vpxa-nfc", 64<<10, 1, 0x1e)
	got, _, err := c.reads(0, [2]int{0, 1 << 20}, [2]int{1 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20})
	check(t, err)
	if !bytes.Equal(got[0], l.data[:1<<20]) || !bytes.Equal(got[2], l.data[1<<20:2<<20]) {
		t.Error("other requests have other data")
	}
	got[1][1234567-1<<20] ^= 1
	if !bytes.Equal(got[1], got[2]) {
		t.Error("the bit is somewhere else")
	}
}

func TestErrorAloneWhereTheSwitchSaysSo(t *testing.T) {
	l := start(t)
	l.set(`{"error_then_reply":false}`)
	c, err := l.join(l.ticket(nil), "vpxa-nfc")
	check(t, err)
	if err := c.session(16<<20, 1); err == nil {
		t.Error("16 MiB buffers were taken")
	}
	check(t, c.session(2<<20, 1)) // Anything between would be misread here.
	l.set(`{"open_status":true,"error_then_reply":true}`)
	if err := c.open("[ds1] vm2/vm2.vmdk", 0x1e); err == nil || err.Error() != "status 11" {
		t.Errorf("refused as a status: %v", err)
	}
}

func TestLatencyIsSharedByRequestsInFlightAndRatesHold(t *testing.T) {
	l := start(t)
	c := l.connect("vpxa-nfc", 64<<10, 1, 0x1e)
	l.set(`{"latency_ms":50}`)
	begin := time.Now()
	areas := make([][2]int, 16)
	for i := range areas {
		areas[i] = [2]int{i << 16, 64 << 10}
	}
	_, _, err := c.reads(0, areas...)
	check(t, err)
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("answered after %s", took)
	}
	if got := l.stats("vpxa-nfc").InFlightMostOfOne; got != 16 {
		t.Errorf("%d requests in flight", got)
	}
	l.set(`{"latency_ms":0,"connection_bytes_per_s":10000000}`)
	begin = time.Now()
	_, _, err = c.reads(0, [2]int{0, 1 << 20})
	check(t, err)
	if took := time.Since(begin); took < 70*time.Millisecond {
		t.Errorf("1 MiB at 10 MB/s took %s", took)
	}
}

func TestPaceMakesUpForLateTimersOnly(t *testing.T) {
	var p pace
	begin := time.Now()
	total := time.Duration(0)
	for range 100 {
		total = p.take(1000, 1_000_000) // Never waits, as if each wait were over already.
	}
	// 100 ms of data, less what the credit and the time gone by allow.
	if least := 100*time.Millisecond - paceCredit - time.Since(begin); total < least || total > 100*time.Millisecond {
		t.Errorf("the last of 100 pieces is to wait %s, at least %s", total, least)
	}
	if got := pacedBytes(1<<20, 0, 1_000_000); got != 5000 {
		t.Errorf("pieces of %d bytes", got)
	}
}

// write sends one write in fragments and does not wait.
func (c *client) writeParts(codec uint32, offset uint64, total uint32, parts ...[]byte) (op uint32) {
	c.lab.Helper()
	at, op := uint32(0), c.op
	for _, part := range parts {
		n := uint32(len(part))
		coded, used := part, uint32(0)
		if codec != 0 {
			if coded, used = new(coder).encode(part, codec), codec; len(coded) >= len(part) {
				coded, used = part, 0
			}
		}
		c.op = op
		c.send(7, c.ioPayload(0, used, offset, total, at, n, uint32(len(coded)), 0), coded)
		at += n
	}
	c.op = op + 1
	return op
}

func TestWritesOfManyFragmentsGetOneReply(t *testing.T) {
	l := start(t)
	c := l.connect("vpxa-nfcssl", 64<<10, 4, 0x1a)
	for codec := range uint32(4) {
		text := bytes.Repeat([]byte{byte(codec + 1), 2, 3, 0}, 16384)
		offset := uint64(codec) << 20
		op := c.writeParts(codec, offset, 2*65536+512, text, make([]byte, 65536), l.data[:512])
		f, err := c.receive(-1)
		check(t, err)
		if f.op != op || f.u64(0) != 0 || f.u32(8) != 0 || f.u64(16) != offset || f.u32(24) != 131584 || f.u32(28) != 0 || f.u32(32) != 131584 || f.u32(36) != 0 {
			t.Errorf("codec %d: reply % x", codec, f.payload)
		}
		got, _, err := c.reads(0, [2]int{int(offset), 131584})
		check(t, err)
		if want := append(append(text, make([]byte, 65536)...), l.data[:512]...); !bytes.Equal(got[0], want) {
			t.Errorf("codec %d: other data", codec)
		}
	}
	// Two writes whose fragments take turns.
	a, b := c.op, c.op+1
	for i, part := range [][2]uint32{{a, 0}, {b, 0}, {b, 512}, {a, 512}} {
		c.op = part[0]
		c.send(7, c.ioPayload(0, 0, uint64(part[0]-a)<<20, 1024, part[1], 512, 512, 0), bytes.Repeat([]byte{byte(i + 1)}, 512))
	}
	for _, want := range []uint32{b, a} {
		f, err := c.receive(-1)
		check(t, err)
		if f.op != want {
			t.Errorf("reply to %d, want %d", f.op, want)
		}
	}
	c.op = b + 1
	got, _, err := c.reads(0, [2]int{0, 1024}, [2]int{1 << 20, 1024})
	check(t, err)
	if got[0][0] != 1 || got[0][512] != 4 || got[1][0] != 2 || got[1][512] != 3 {
		t.Errorf("interleaved writes: % x, % x", got[0][510:514], got[1][510:514])
	}
	l.set(`{"write_space":0}`)
	c.writeParts(0, 0, 1024, l.data[:512], l.data[:512])
	if _, err := c.receive(-1); err == nil || !strings.Contains(err.Error(), "28: There is no more space") {
		t.Errorf("without space: %v", err)
	}
	if f, err := c.receive(-1); err != nil || f.kind != 7 || !bytes.Equal(f.payload, make([]byte, 44)) {
		t.Errorf("after the error: %+v, %v", f, err)
	}
	c.close()

	read := l.connect("vpxa-nfc", 64<<10, 4, 0x1e)
	read.writeParts(0, 0, 512, l.data[:512])
	if _, err := read.receive(-1); err == nil || !strings.Contains(err.Error(), "11: permission") {
		t.Errorf("write on a handle for reading: %v", err)
	}
}

func TestAWriterExcludesOthersUntilItClosesOrIsForgotten(t *testing.T) {
	l := start(t)
	l.set(`{"vanished_hold_ms":100}`)
	writer := l.connect("vpxa-nfc", 64<<10, 1, 0x1a)
	busy := func() error {
		c, err := l.join(l.ticket(nil), "vpxa-nfc")
		check(t, err)
		defer c.tcp.Close()
		check(t, c.session(0, 0))
		return c.open(diskName, 0x1e)
	}
	if err := busy(); err == nil || !strings.Contains(err.Error(), "16392: DiskLib error 16392: Failed to lock the file") {
		t.Errorf("beside a writer: %v", err)
	}
	if _, ok := l.server.locks.Lock(l.files[diskName].Path, Download); ok {
		t.Error("a download beside a writer")
	}
	check(t, writer.tcp.Close())
	waitFor(t, "the end of the lock", func() bool { return busy() == nil })
}

func (c *client) qab(chunk, start, count uint64) ([]byte, error) {
	c.lab.Helper()
	var payload []byte
	for _, v := range []uint64{c.handle, 0, chunk, start, count, 0} {
		payload = binary.LittleEndian.AppendUint64(payload, v)
	}
	f, err := c.ask(13, payload, nil, -1)
	if err != nil {
		return nil, err
	}
	if f.u64(32) != count {
		return nil, errors.New("another count")
	}
	bits := make([]byte, ((count+7)/8+3)/4*4)
	_, err = io.ReadFull(c.wire, bits)
	return bits, err
}

func TestAllocatedBlocksArePaddedAndStaleUntilReopened(t *testing.T) {
	l := start(t)
	c := l.connect("vpxa-nfc", 64<<10, 1, 0x1a)
	bits, err := c.qab(1<<20, 0, 40)
	check(t, err)
	if want := []byte{3, 0, 3, 0, 0, 0, 0, 0}; !bytes.Equal(bits, want) { // 0 to 2 MiB, 16 to 18 MiB
		t.Errorf("40 chunks: % x, want % x", bits, want)
	}
	bits, err = c.qab(1<<20, 17<<20, 9)
	check(t, err)
	if !bytes.Equal(bits, []byte{1, 0, 0, 0}) {
		t.Errorf("9 chunks from 17 on: % x", bits)
	}
	for _, bad := range [][3]uint64{{1 << 20, 1 << 19, 1}, {1 << 15, 0, 1}, {1 << 20, 0, 41}, {1 << 20, 0, 0}} {
		if _, err := c.qab(bad[0], bad[1], bad[2]); !errors.As(err, new(*errAIO)) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	c.writeParts(0, 30<<20, 512, l.data[:512])
	_, err = c.receive(-1)
	check(t, err)
	bits, err = c.qab(1<<20, 30<<20, 1)
	check(t, err)
	if bits[0] != 0 {
		t.Error("the answer is fresh after a write")
	}
	_, err = c.ask(5, append(binary.LittleEndian.AppendUint64(nil, c.handle), make([]byte, 8)...), nil, -1)
	check(t, err)
	check(t, c.open(diskName, 0x1a))
	bits, err = c.qab(1<<20, 30<<20, 1)
	check(t, err)
	if bits[0] != 1 {
		t.Error("the answer is stale after reopening")
	}
	l.set(`{"qab":"off"}`)
	if _, err := c.qab(1<<20, 0, 1); !errors.As(err, new(*errAIO)) {
		t.Errorf("on an old host: %v", err)
	}
	_, err = c.ask(3, make([]byte, 16), nil, -1)
	check(t, err)
	waitFor(t, "the session's end", func() bool { return l.stats("vpxa-nfc").Sessions == 0 })
}

func TestDiskDataBase(t *testing.T) {
	l := start(t)
	c := l.connect("vpxa-nfc", 64<<10, 1, 0x1e)
	for key, want := range map[string]string{
		"uuid": "60 00", "nothing": "", "long": strings.Repeat("x", 3001), "geometry.heads": "255", "logicalSectorSize": "512",
	} {
		f, err := c.ask(11, append(binary.LittleEndian.AppendUint64(nil, c.handle), words(uint32(len(key)), 0)...), []byte(key), 12)
		check(t, err)
		if string(f.extra) != want {
			t.Errorf("%s: %.40q", key, f.extra)
		}
	}
	if _, err := c.ask(11, append(binary.LittleEndian.AppendUint64(nil, c.handle), words(8, 0)...), []byte("ddb.uuid"), 12); err == nil {
		t.Error("a key with ddb. in front")
	}
}
