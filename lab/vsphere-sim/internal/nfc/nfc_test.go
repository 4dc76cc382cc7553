package nfc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

func (l *lab) stats(service string) ServiceStats {
	return l.server.Stats().Hosts["esx1"].Services[service]
}

func TestWorkedBytesOfTheNote(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	c, err := l.join(ticket, "vpxa-nfc")
	check(t, err)
	exchange := func(request, want string) {
		t.Helper()
		_, err := c.wire.Write(unhex(request))
		check(t, err)
		got := make([]byte, len(unhex(want)))
		_, err = io.ReadFull(c.wire, got)
		check(t, err)
		if !bytes.Equal(got, unhex(want)) {
			t.Errorf("got  % x\nwant % x", got, unhex(want))
		}
	}
	// The appendix has 1 MiB x 4 here; its second fragment is of a session with 64 KiB, so that comes next.
	exchange("7ada00a1 02000000 10000000 00000000 | 00000000 00001000 04000000 00000000",
		"7ada00a1 02000000 10000000 00000000 | 00000000 00000000 00000000 00000000")
	if got := l.stats("vpxa-nfc").Memory; got != 4<<20 {
		t.Errorf("memory in use: %d", got)
	}
	check(t, c.tcp.Close())

	c, err = l.join(l.ticket(nil), "vpxa-nfc")
	check(t, err)
	check(t, c.session(0, 0))
	_, err = c.wire.Write(unhex("7ada00a1 04000000 3c000000 03000000 | 12000000 00000000 00000000 00000000 02000000 1e000000" +
		strings.Repeat("00", 36) + "5b6473315d20766d312f766d312e766d646b"))
	check(t, err)
	f, err := c.receive(-1)
	check(t, err)
	if f.kind != 4 || f.op != 3 || len(f.payload) != 60 || f.u64(0) != 0 || f.u64(8)>>32 != 0xFFFFFFFF || f.u64(28) != uint64(len(l.data)) {
		t.Errorf("opened as % x", f.payload)
	}
	read := unhex("7ada00a1 07000000 2c000000 04000000 | 34120080 ffffffff 01000000 02000000 " +
		"00001000 00000000 00020100 00000000 00020100 00020100 00000000")
	binary.LittleEndian.PutUint64(read[16:], f.u64(8)) // Only the handle is not known beforehand.
	_, err = c.wire.Write(read)
	check(t, err)
	first, err := c.receive(36)
	check(t, err)
	if first.u32(28) != 0 || first.u32(32) != 65536 || !bytes.Equal(first.extra, l.data[1<<20:1<<20+65536]) {
		t.Errorf("first fragment: % x", first.payload)
	}
	second := make([]byte, 60+512)
	_, err = io.ReadFull(c.wire, second)
	check(t, err)
	want := append(unhex("7ada00a1 07000000 2c000000 04000000 | 00000000 00000000 01000000 00000000"+
		"00001000 00000000 00020100 00000100 00020000 00020000 00000000"), l.data[1<<20+65536:][:512]...)
	if !bytes.Equal(second, want) {
		t.Errorf("second fragment: % x", second[:60])
	}
}

func TestReadsWholeDiskByAllServicesAndCodecs(t *testing.T) {
	l := start(t)
	for _, service := range []string{"vpxa-nfc", "vpxa-nfcssl", "nfc", "nfcssl"} {
		for codec := range uint32(4) {
			if codec == 1 && service != "nfcssl" || codec == 2 && service != "vpxa-nfc" {
				continue // Slow ones need not be everywhere.
			}
			c := l.connect(service, 1<<20, 4, 0x1e)
			// More than 32 MiB in one request.
			got, frames, err := c.reads(codec, [2]int{0, 36 << 20}, [2]int{36 << 20, 4 << 20})
			check(t, err)
			if !bytes.Equal(got[0], l.data[:36<<20]) || !bytes.Equal(got[1], l.data[36<<20:]) {
				t.Errorf("%s, codec %d: other data", service, codec)
			}
			if len(frames) != 40 {
				t.Errorf("%s, codec %d: %d fragments", service, codec, len(frames))
			}
			for _, f := range frames {
				if at := f.u64(16) + uint64(f.u32(28)); codec == 3 && at == 30<<20 && (f.u32(12) != 3 || !bytes.Equal(f.extra, words(1<<20, 0))) {
					t.Errorf("SkipZ of zeros: codec %d, % x", f.u32(12), f.extra[:min(len(f.extra), 32)])
				}
				if at := f.u64(16) + uint64(f.u32(28)); at == 1<<20 && (f.u32(12) != 0 || f.u32(36) != f.u32(32)) {
					t.Errorf("noise came with codec %d", f.u32(12))
				}
			}
			c.close()
			waitFor(t, "the end of the session", func() bool {
				s := l.stats(strings.TrimSuffix(service, "ssl"))
				return s.Memory == 0 && s.Sessions == 0 && s.Connections == 0 && s.InFlight == 0
			})
		}
	}
}

func TestFragmentsInAnyOrderAndSize(t *testing.T) {
	l := start(t)
	c := l.connect("vpxa-nfcssl", 64<<10, 1, 0x1e)
	area := [2]int{1 << 20, 66048}
	_, frames, err := c.reads(0, area)
	check(t, err)
	if len(frames) != 2 || frames[0].u32(36) != 65536 || frames[1].u32(36) != 512 || frames[1].u32(28) != 65536 {
		t.Errorf("129 sectors came in %d fragments", len(frames))
	}
	l.set(`{"fragment_order":"reverse","fragment_bytes":[513,4096,77]}`)
	got, frames, err := c.reads(3, area)
	check(t, err)
	if !bytes.Equal(got[0], l.data[area[0]:][:area[1]]) || frames[0].u32(28) == 0 {
		t.Error("reversed fragments")
	}
	l.set(`{"fragment_order":"forward","mix":4,"fragment_bytes":[8192],"latency_ms":30}`)
	got, frames, err = c.reads(0, area, [2]int{0, 65536}, [2]int{1 << 19, 65536})
	check(t, err)
	if !bytes.Equal(got[1], l.data[:65536]) || frames[0].op == frames[1].op {
		t.Errorf("fragments do not mix: %d, %d", frames[0].op, frames[1].op)
	}
	l.set(`{"fragment_order":"shuffle","codec_answer":"raw_kept","mix":1,"latency_ms":0}`)
	got, frames, err = c.reads(3, area)
	check(t, err)
	if !bytes.Equal(got[0], l.data[area[0]:][:area[1]]) || frames[0].u32(12) != 3 || frames[0].u32(36) != frames[0].u32(32) {
		t.Error("raw data under the code of SkipZ")
	}
}

func TestTicketsAreForOneUseOneVMAndOneService(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	c, err := l.join(ticket, "vpxa-nfc")
	check(t, err)
	check(t, c.tcp.Close())
	refused := func(ticket Ticket, service, want string) {
		t.Helper()
		c, err := l.dial(ticket)
		check(t, err)
		if err := c.authd(ticket, service); !errors.Is(err, errReply) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", service, err, want)
		}
	}
	refused(ticket, "vpxa-nfc", "530 Please login with USER and PASS") // used
	refused(Ticket{Address: ticket.Address, Port: ticket.Port, SessionID: "none"}, "vpxa-nfc", "530")
	refused(l.ticket(nil), "nfc", "530 Login incorrect")
	refused(l.ticket(nil), "vpxa-other", "500")
	old := l.ticket(nil)
	l.server.ExpireTickets()
	refused(old, "vpxa-nfc", "530")
	l.set(`{"ticket_life_ms":-1}`)
	refused(l.ticket(nil), "vpxa-nfc", "530")
	l.set(`{"ticket_life_ms":60000,"ticket_reusable":true,"ticket_pin":"certificate"}`)
	again := l.ticket(nil)
	if again.Thumbprint != "" || !strings.Contains(again.Certificate, "BEGIN CERTIFICATE") {
		t.Errorf("pinned by %q and %q", again.Thumbprint, again.Certificate)
	}
	for range 2 {
		_, err = l.join(again, "vpxa-nfc")
		check(t, err)
	}
	l.set(`{"ticket_pin":"wrong"}`)
	if _, err := l.dial(l.ticket(nil)); err == nil || err.Error() != "another certificate" {
		t.Errorf("wrong thumbprint: %v", err)
	}
	l.set(`{"ticket_pin":"thumbprint"}`)

	for _, one := range []struct {
		name  string
		flags uint32
		grant func(*Grant)
		want  string
	}{
		{"[ds1] vm2/vm2.vmdk", 0x1e, nil, "11: permission check failed"},
		{diskName, 0x1a, nil, "11: permission check failed"},
		{diskName, 0x1e, func(g *Grant) { g.Key = 2001 }, "11: permission check failed"},
		{"[ds1] vm1/live.vmdk", 0x1e, nil, "cannot be opened in multiwriter mode"},
		{"[ds1] vm1/none.vmdk", 0x1e, nil, "does not exist"},
		{"[ds1] vm1/ä.vmdk", 0x1a, func(g *Grant) { g.Write = true }, "16392"},
		{"[ds1] vm1/ä.vmdk", 0x1e, nil, ""},
		{diskName, 0x1e, func(g *Grant) { g.Key = 2000 }, ""},
		{diskName, 0x1f, nil, "flags"},
	} {
		c, err := l.join(l.ticket(one.grant), "vpxa-nfc")
		check(t, err)
		check(t, c.session(65536, 1))
		err = c.open(one.name, one.flags)
		if one.want == "" && err != nil || one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%s %#x: %v, want %q", one.name, one.flags, err, one.want)
		}
		_ = c.tcp.Close()
	}
}

func TestHandshakeVariants(t *testing.T) {
	l := start(t)
	for order, want := range map[string]string{
		`{"takeover_cert":"other"}`:                       "another certificate",
		`{"split_bytes":7}`:                               "",
		`{"sha256":false}`:                                "", // The client then leaves lines and message 43 out.
		`{"status_36":"before"}`:                          "",
		`{"version":9}`:                                   "",
		`{"refuse_tls":true}`:                             "handshake failure",
		`{"nfcssl":false}`:                                "500",
		`{"bad_ticket":"session"}`:                        "",
		`{"refuse_43":true}`:                              "reply 4",
		`{"version":2}`:                                   "reply 20",
		`{"greeting":"220 old, SHA256 supported/x"}`:      "",
		`{"greeting":"220 too old: A, B","sha256":false}`: "",
	} {
		l.server.Reset()
		l.set(order)
		_, err := l.join(l.ticket(nil), "vpxa-nfcssl")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", order, err, want)
		}
	}
}

func TestClassicMessagesInAnyLegalOrderLeadToAIO(t *testing.T) {
	l := start(t)
	tagged, params, hello := message(43, tag), message(33), message(51, uint32(11))
	client, names, flags, aio := message(54, uint32(4), uint32(7)), []byte("vddknbdmode"), message(55, uint32(3)), message(52)
	usual := []uint32{36, 51, 52}
	for what, one := range map[string]struct {
		records       [][]byte
		after, before []uint32 // What comes back, where 36 answers 51, and where it answers 33.
	}{
		"VDDK's":                   {[][]byte{tagged, params, hello, client, names, flags, aio}, usual, usual},
		"version 12 with a 1":      {[][]byte{tagged, params, message(51, uint32(12), uint32(1)), client, names, flags, aio}, usual, usual},
		"names in 54's record":     {[][]byte{tagged, params, hello, append(client[:264:264], names...), flags, aio}, usual, usual},
		"names in two records":     {[][]byte{tagged, params, hello, client, names[:4], names[4:], flags, aio}, usual, usual},
		"51 before 33":             {[][]byte{tagged, hello, params, client, names, flags, aio}, usual, []uint32{51, 36, 52}},
		"54 and 55 before 51":      {[][]byte{tagged, params, client, names, flags, hello, aio}, usual, usual},
		"54 first":                 {[][]byte{client, names, tagged, params, hello, flags, aio}, usual, usual},
		"43 after 51":              {[][]byte{params, hello, tagged, client, names, flags, aio}, usual, usual},
		"55 before 54":             {[][]byte{tagged, params, hello, flags, client, names, aio}, usual, usual},
		"no 55":                    {[][]byte{tagged, params, hello, client, names, aio}, usual, usual},
		"no 54":                    {[][]byte{tagged, params, hello, flags, aio}, usual, usual},
		"no 33":                    {[][]byte{tagged, hello, client, names, flags, aio}, usual, []uint32{51, 52}},
		"no 43":                    {[][]byte{params, hello, client, names, flags, aio}, usual, usual},
		"51 and 52 alone":          {[][]byte{hello, aio}, usual, []uint32{51, 52}},
		"not legal: 52 before 51":  {[][]byte{tagged, params, client, names, flags, aio}, []uint32{20}, []uint32{36, 20}},
		"not legal: 52 with words": {[][]byte{tagged, params, hello, message(52, uint32(1))}, []uint32{36, 51, 20}, []uint32{36, 51, 20}},
	} {
		for _, status := range []string{"after", "before"} {
			for _, service := range []string{"vpxa-nfc", "vpxa-nfcssl"} {
				l.set(fmt.Sprintf(`{"status_36":%q}`, status))
				want := one.after
				if status == "before" {
					want = one.before
				}
				ticket := l.ticket(nil)
				c, err := l.dial(ticket)
				check(t, err)
				check(t, c.authd(ticket, service))
				for _, record := range one.records {
					_, err := c.wire.Write(record)
					check(t, err)
				}
				var got []uint32
				for range want {
					kind, _, err := c.classicReply()
					check(t, err)
					got = append(got, kind)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, 36 %s, %s: came %v, want %v", what, status, service, got, want)
				}
				if got[len(got)-1] == 52 {
					check(t, c.session(65536, 1))
					check(t, c.open(diskName, 0x1e))
					c.close()
				}
				_ = c.tcp.Close()
			}
		}
	}
}

func TestWrongUseOfTheHandshakeIsNoticed(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	c, err := l.dial(ticket)
	check(t, err)
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	if err := c.say("BANNER", "220"); err == nil || !strings.Contains(err.Error(), "501") {
		t.Errorf("BANNER without a blank: %v", err)
	}
	ticket = l.ticket(nil)
	c, err = l.dial(ticket)
	check(t, err)
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	if err := c.say("THUMBPRINT_SHA2 a:b", "200"); err == nil || !strings.Contains(err.Error(), "501") {
		t.Errorf("tag with a colon: %v", err)
	}
	// Clear text where the second handshake is due gives the end, and nothing else.
	ticket = l.ticket(nil)
	c, err = l.dial(ticket)
	check(t, err)
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	check(t, c.say("PROXY vpxa-nfcssl", "200 Connect ha-nfcssl"))
	_, err = c.tcp.Write(message(33))
	check(t, err)
	if n, err := c.tcp.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("clear text to nfcssl: %d, %v", n, err)
	}
	// Another tag than that of THUMBPRINT_SHA2.
	c, err = l.dial(ticket)
	check(t, err)
	ticket = l.ticket(nil)
	check(t, c.authd(ticket, "vpxa-nfc"))
	_, err = c.wire.Write(message(43, "another"))
	check(t, err)
	if kind, _, err := c.classicReply(); err != nil || kind != 4 {
		t.Errorf("another tag: %d, %v", kind, err)
	}
}

func TestSecondMessageOfARecordWaitsForTheNextRecord(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	c, err := l.dial(ticket)
	check(t, err)
	check(t, c.authd(ticket, "vpxa-nfcssl"))
	_, err = c.wire.Write(append(message(43, tag), message(51, uint32(11))...))
	check(t, err)
	// Were 51 taken at once, 36 and 51 would come before the error that 99 gives; they come after 99 is sent, too, but
	// 99 itself is then held back.
	_, err = c.wire.Write(message(99))
	check(t, err)
	for _, want := range []uint32{36, 51} {
		if kind, _, err := c.classicReply(); err != nil || kind != want {
			t.Errorf("%d, %v; want %d", kind, err, want)
		}
	}
	_, err = c.wire.Write(message(33))
	check(t, err)
	if kind, _, err := c.classicReply(); err != nil || kind != 20 {
		t.Errorf("%d, %v; want the error for message 99", kind, err)
	}
}

func TestMemoryIsABudgetOfEachServiceUntilSessionsClose(t *testing.T) {
	l := start(t)
	var open []*client
	for range 6 { // 6 x 8 MiB
		open = append(open, l.connect("vpxa-nfc", 2<<20, 4, 0x1e))
	}
	c, err := l.join(l.ticket(nil), "vpxa-nfc")
	check(t, err)
	if err := c.session(64<<10, 1); err == nil || err.Error() != "5: Failed to allocate the requested 65536 bytes" {
		t.Errorf("beyond the budget: %v", err)
	}
	if err := c.session(16<<20, 1); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("16 MiB: %v", err)
	}
	l.connect("nfc", 2<<20, 4, 0x1e).close() // A budget of its own.
	open[0].close()
	waitFor(t, "memory", func() bool { return l.stats("vpxa-nfc").Memory == 40<<20 })
	check(t, c.session(64<<10, 1))
	// One that vanishes holds its memory for a time.
	l.set(`{"vanished_hold_ms":150}`)
	check(t, open[1].tcp.Close())
	waitFor(t, "a held session", func() bool { return l.stats("vpxa-nfc").Held == 1 })
	waitFor(t, "its end", func() bool { s := l.stats("vpxa-nfc"); return s.Held == 0 && s.Memory == 32<<20+64<<10 })
	if got := l.stats("vpxa-nfc"); got.MemoryMost != 48<<20 || got.Refused != 1 || got.SessionsMost != 6 {
		t.Errorf("%+v", got)
	}
	cut, err := l.server.Restart("esx1", "vpxa-nfc")
	check(t, err)
	if cut != 5 {
		t.Errorf("a restart cut %d connections", cut)
	}
	if got := l.stats("vpxa-nfc"); got.Memory != 0 || got.Sessions != 0 {
		t.Errorf("after a restart: %+v", got)
	}
	l.connect("vpxa-nfc", 2<<20, 4, 0x1e).close()
	waitFor(t, "no session", func() bool { return l.stats("vpxa-nfc").Memory == 0 })
}

func TestMisreadFramesAreRefused(t *testing.T) {
	l := start(t)
	for what, send := range map[string]func(c *client){
		"opId":           func(c *client) { c.op += 3; c.askRead(0, 512, 0) },
		"whole sectors":  func(c *client) { c.askRead(0, 511, 0) },
		"the disk has":   func(c *client) { c.askRead(uint64(len(l.data)-512), 1024, 0) },
		"is not open":    func(c *client) { c.handle &= 0xFFFFFFFF; c.askRead(0, 512, 0) },
		"codec 4":        func(c *client) { c.askRead(0, 512, 4) },
		"want 0, length": func(c *client) { c.send(7, c.ioPayload(1, 0, 0, 512, 0, 512, 0, 0), nil) },
	} {
		c := l.connect("vpxa-nfc", 65536, 1, 0x1e)
		send(c)
		if _, err := c.receive(36); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		_ = c.tcp.Close()
	}
}
