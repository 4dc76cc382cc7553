package nfc

import (
	"bytes"
	"crypto/sha1"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The client of these tests follows the note by itself: no constant and no layout of the server's is used here.

var testKey = sync.OnceValues(newKey)

// testData is noise, then a hole, text that packs well, and a hole.
var testData = sync.OnceValue(func() []byte {
	data := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data[:2<<20])
	copy(data[16<<20:], bytes.Repeat([]byte("some text that packs well; "), 40_000))
	return data
})

const diskName = "[ds1] vm1/vm1.vmdk"

// lab is a server with one host and the disks of two VMs.
type lab struct {
	testing.TB
	server *Server
	data   []byte
	files  map[string]File
	wrote  []string
}

func (l *lab) Find(name string) (File, bool) {
	file, ok := l.files[name]
	return file, ok
}

func start(t testing.TB) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{TB: t, data: testData(), files: map[string]File{}}
	path := filepath.Join(dir, "vm1-flat.vmdk")
	file, err := os.Create(path)
	check(t, err)
	_, err = file.Write(l.data[:2<<20])
	check(t, err)
	_, err = file.WriteAt(l.data[16<<20:18<<20], 16<<20)
	check(t, err)
	check(t, file.Truncate(int64(len(l.data))))
	check(t, file.Close())
	one := File{Path: path, VM: "vm-1", Key: 2000, Capacity: int64(len(l.data)), DDB: map[string]string{"uuid": "60 00", "long": strings.Repeat("x", 3001)}}
	one.Open = func() (func(int64, []byte) error, error) {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		return func(offset int64, data []byte) error {
			l.wrote = append(l.wrote, fmt.Sprintf("%d+%d", offset, len(data)))
			_, err := file.WriteAt(data, offset)
			return err
		}, err
	}
	l.files[diskName] = one
	frozen := one
	frozen.Open = nil
	l.files["[ds1] vm1/ä.vmdk"] = frozen
	live := one
	live.Live, live.Key = true, 2001
	l.files["[ds1] vm1/live.vmdk"] = live
	other := one
	other.VM = "vm-2"
	l.files["[ds1] vm2/vm2.vmdk"] = other

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	l.server = New(l, &Locks{})
	l.server.key = testKey // One for all, since keys take time.
	l.server.AddHost("esx1", []net.Listener{listener})
	t.Cleanup(l.server.Close)
	return l
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) set(order string) { l.Helper(); check(l.TB, l.server.Set([]byte(order))) }

func (l *lab) order(text string) {
	l.Helper()
	var order FaultOrder
	check(l.TB, json.Unmarshal([]byte(text), &order))
	check(l.TB, l.server.Order(order))
}

func (l *lab) ticket(change func(*Grant)) Ticket {
	l.Helper()
	grant := Grant{Host: "esx1", Service: "vpxa-nfc", VM: "vm-1"}
	if change != nil {
		change(&grant)
	}
	ticket, err := l.server.Issue(grant, nil)
	check(l.TB, err)
	return ticket
}

// client is one connection.
type client struct {
	lab      *lab
	tcp      net.Conn
	first    *tls.Conn
	wire     net.Conn
	op       uint32
	handle   uint64
	capacity uint64
	version  uint32
	greeting string
}

// errReply is an answer other than the one that is due.
var errReply = errors.New("reply")

func (l *lab) dial(ticket Ticket) (*client, error) {
	l.Helper()
	tcp, err := net.Dial("tcp", net.JoinHostPort(ticket.Address, strconv.Itoa(ticket.Port)))
	check(l.TB, err)
	l.Cleanup(func() { _ = tcp.Close() })
	check(l.TB, tcp.SetDeadline(time.Now().Add(20*time.Second)))
	c := &client{lab: l, tcp: tcp}
	if c.greeting, err = readLine(tcp); err != nil {
		return c, err
	}
	c.first, err = c.tls(ticket)
	return c, err
}

func readLine(r io.Reader) (string, error) {
	var out []byte
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		out = append(out, one[0])
		if one[0] == '\n' {
			return strings.TrimRight(string(out), "\r\n"), nil
		}
	}
}

func (c *client) tls(ticket Ticket) (*tls.Conn, error) {
	session := tls.Client(c.tcp, &tls.Config{InsecureSkipVerify: true})
	if err := session.Handshake(); err != nil {
		return nil, err
	}
	sum := sha1.Sum(session.ConnectionState().PeerCertificates[0].Raw)
	if got := strings.ReplaceAll(strings.ToUpper(fmt.Sprintf("% x", sum)), " ", ":"); ticket.Thumbprint != "" && got != ticket.Thumbprint {
		return nil, errors.New("another certificate")
	}
	return session, nil
}

// say sends a line and gives the reply if it begins with want, else it is an error.
func (c *client) say(line, want string) error {
	if _, err := io.WriteString(c.first, line+"\r\n"); err != nil {
		return err
	}
	if want == "" {
		return nil
	}
	reply, err := readLine(c.first)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(reply, want) {
		return fmt.Errorf("%w %s", errReply, reply)
	}
	return nil
}

const tag = "0123456789abcdef"

// authd goes as far as 200 Connect, and through the second handshake.
func (c *client) authd(ticket Ticket, service string) error {
	for _, step := range [][2]string{
		{"SESSION " + ticket.SessionID, ""}, {"BANNER ", "220 "}, {"THUMBPRINT_SHA2 " + tag, "200 "}, {"PROXY " + service, "200 Connect"},
	} {
		if strings.HasPrefix(step[0], "THUMBPRINT") && !strings.Contains(c.greeting, "SHA256 supported") {
			continue
		}
		if err := c.say(step[0], step[1]); err != nil {
			return err
		}
	}
	c.wire = c.tcp
	if strings.HasSuffix(service, "ssl") {
		second, err := c.tls(ticket)
		if err != nil {
			return err
		}
		c.wire = second
	}
	return nil
}

func message(kind uint32, body ...any) []byte {
	out := make([]byte, 264)
	binary.LittleEndian.PutUint32(out, kind)
	at := 4
	for _, part := range body {
		switch part := part.(type) {
		case uint32:
			binary.LittleEndian.PutUint32(out[at:], part)
			at += 4
		case string:
			at += copy(out[at:], part)
		}
	}
	return out
}

func (c *client) classicReply() (kind uint32, body []byte, err error) {
	out := make([]byte, 264)
	if _, err := io.ReadFull(c.wire, out); err != nil {
		return 0, nil, err
	}
	return binary.LittleEndian.Uint32(out), out[4:], nil
}

// classic does VDDK's sequence.
func (c *client) classic() error {
	var list [][]byte
	if strings.Contains(c.greeting, "SHA256 supported") {
		list = append(list, message(43, tag))
	}
	for _, m := range append(list, message(33), message(51, uint32(11))) {
		if _, err := c.wire.Write(m); err != nil {
			return err
		}
	}
	for _, want := range []uint32{36, 51} {
		kind, body, err := c.classicReply()
		if err != nil {
			return err
		}
		if kind != want {
			return fmt.Errorf("%w %d", errReply, kind)
		}
		if kind == 51 {
			c.version = binary.LittleEndian.Uint32(body)
		} else if binary.LittleEndian.Uint32(body[12:]) != 1 {
			return errors.New("36 without 1 at 16")
		}
	}
	for _, m := range [][]byte{message(54, uint32(4), uint32(7)), []byte("vddknbdmode"), message(55, uint32(3)), message(52)} {
		if _, err := c.wire.Write(m); err != nil {
			return err
		}
	}
	kind, _, err := c.classicReply()
	if err == nil && kind != 52 {
		err = fmt.Errorf("%w %d", errReply, kind)
	}
	return err
}

func words(values ...uint32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	return out
}

// send sends a frame under the next opId.
func (c *client) send(kind uint32, payload, extra []byte) uint32 {
	c.lab.Helper()
	frame := append(words(0xA100DA7A, kind, uint32(len(payload)), c.op), payload...)
	_, err := c.wire.Write(append(frame, extra...))
	check(c.lab.TB, err)
	c.op++
	return c.op - 1
}

type frame struct {
	kind, op uint32
	payload  []byte
	extra    []byte
}

func (f *frame) u32(at int) uint32 { return binary.LittleEndian.Uint32(f.payload[at:]) }
func (f *frame) u64(at int) uint64 { return binary.LittleEndian.Uint64(f.payload[at:]) }

// errAIO is an ERROR frame.
type errAIO struct {
	code uint64
	text string
}

func (e *errAIO) Error() string { return fmt.Sprintf("%d: %s", e.code, e.text) }

// receive takes one frame; extraAt says where in the payload the size of the extra is, or is -1.
func (c *client) receive(extraAt int) (*frame, error) {
	header := make([]byte, 16)
	if _, err := io.ReadFull(c.wire, header); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(header) != 0xA100DA7A {
		return nil, fmt.Errorf("header % x", header)
	}
	f := &frame{kind: binary.LittleEndian.Uint32(header[4:]), op: binary.LittleEndian.Uint32(header[12:])}
	f.payload = make([]byte, binary.LittleEndian.Uint32(header[8:]))
	if _, err := io.ReadFull(c.wire, f.payload); err != nil {
		return nil, err
	}
	if f.kind == 1 {
		extraAt = 12
	}
	if extraAt < 0 {
		return f, nil
	}
	f.extra = make([]byte, f.u32(extraAt))
	if _, err := io.ReadFull(c.wire, f.extra); err != nil {
		return nil, err
	}
	if f.kind == 1 {
		return f, &errAIO{f.u64(0), string(f.extra)}
	}
	return f, nil
}

// ask sends a request and takes its reply, also the one that follows an error.
func (c *client) ask(kind uint32, payload, extra []byte, extraAt int) (*frame, error) {
	c.lab.Helper()
	op := c.send(kind, payload, extra)
	f, err := c.receive(extraAt)
	if failed := (*errAIO)(nil); errors.As(err, &failed) && c.lab.server.hosts["esx1"].behaviour.Load().ErrorThenReply {
		if empty, err := c.receive(-1); err != nil || empty.op != op || empty.kind != kind || strings.Trim(string(empty.payload), "\x00") != "" {
			c.lab.Errorf("after the error came %+v, %v", empty, err)
		}
	}
	if f != nil && (f.op != op || err == nil && f.kind != kind) {
		c.lab.Errorf("reply to %d of type %d is of type %d with opId %d", op, kind, f.kind, f.op)
	}
	return f, err
}

// session opens a session; 9 and 22 follow.
func (c *client) session(buffer, count uint32) error {
	c.lab.Helper()
	if _, err := c.ask(2, words(0, buffer, count, 0), nil, -1); err != nil {
		return err
	}
	f, err := c.ask(9, words(0, 0, 0), nil, -1)
	if err == nil && !bytes.Equal(f.payload, words(1675000, 1675000, 1)) {
		err = fmt.Errorf("socket options % x", f.payload)
	}
	if err == nil {
		_, err = c.ask(22, words(1), nil, -1)
	}
	return err
}

func (c *client) open(name string, flags uint32) error {
	c.lab.Helper()
	payload := append(words(uint32(len(name)), 0, 0, 0, 2, flags), make([]byte, 36)...)
	f, err := c.ask(4, payload, []byte(name), -1)
	if err != nil {
		return err
	}
	if status := f.u64(0); status != 0 {
		return fmt.Errorf("status %d", status)
	}
	c.handle, c.capacity = f.u64(8), f.u64(28)
	if geometry := uint64(f.u32(40)) * uint64(f.u32(44)) * uint64(f.u32(48)) * 512; geometry > c.capacity || f.u32(36) != 512 {
		c.lab.Errorf("geometry of %d bytes, capacity %d, sectors of %d", geometry, c.capacity, f.u32(36))
	}
	return nil
}

func (c *client) ioPayload(read, codec uint32, offset uint64, rest ...uint32) []byte {
	out := binary.LittleEndian.AppendUint64(nil, c.handle)
	out = append(out, words(read, codec)...)
	out = binary.LittleEndian.AppendUint64(out, offset)
	return append(out, words(rest...)...)
}

func (c *client) askRead(offset uint64, length, codec uint32) uint32 {
	c.lab.Helper()
	return c.send(7, c.ioPayload(1, codec, offset, length, 0, length, length, 0), nil)
}

// reads asks for several areas at once and takes the fragments in whatever order they come. It gives the data by
// request and the fragments.
func (c *client) reads(codec uint32, areas ...[2]int) ([][]byte, []*frame, error) {
	c.lab.Helper()
	ops, missing := map[uint32]int{}, 0
	out := make([][]byte, len(areas))
	for i, area := range areas {
		ops[c.askRead(uint64(area[0]), uint32(area[1]), codec)] = i
		out[i] = make([]byte, area[1])
		missing += area[1]
	}
	var seen []*frame
	for missing > 0 {
		f, err := c.receive(36)
		if err != nil {
			return nil, seen, err
		}
		i, known := ops[f.op]
		if f.kind != 7 || !known || f.u64(0) != 0 || f.u32(8) != 1 || f.u64(16) != uint64(areas[i][0]) || f.u32(24) != uint32(areas[i][1]) || f.u32(40) != 0 {
			return nil, seen, fmt.Errorf("fragment %d %d % x", f.kind, f.op, f.payload)
		}
		plain, err := unpack(f.extra, f.u32(12), int(f.u32(32)))
		if err != nil {
			return nil, seen, err
		}
		if int(f.u32(28))+len(plain) > areas[i][1] {
			return nil, seen, errors.New("overrun")
		}
		copy(out[i][f.u32(28):], plain)
		missing -= len(plain)
		seen = append(seen, f)
	}
	return out, seen, nil
}

// unpack decodes a fragment. FastLZ and zlib are left to the server's own decoder, which its own tests look at.
func unpack(data []byte, codec uint32, n int) ([]byte, error) {
	out := make([]byte, n)
	if codec != 0 && codec <= 3 && len(data) == n && (codec != 3 || int(binary.LittleEndian.Uint32(data)) != n) {
		codec = 0 // The code was left where the data is raw.
	}
	return out, decode(out, data, codec)
}

// connect goes all the way to an open disk.
func (l *lab) connect(service string, buffer, count uint32, flags uint32) *client {
	l.Helper()
	c, err := l.join(l.ticket(func(g *Grant) { g.Service = strings.TrimSuffix(service, "ssl"); g.Write = flags == 0x1a }), service)
	check(l.TB, err)
	check(l.TB, c.session(buffer, count))
	check(l.TB, c.open(diskName, flags))
	return c
}

// join goes as far as AIO.
func (l *lab) join(ticket Ticket, service string) (*client, error) {
	l.Helper()
	c, err := l.dial(ticket)
	if err == nil {
		err = c.authd(ticket, service)
	}
	if err == nil {
		err = c.classic()
	}
	return c, err
}

// close ends everything in order.
func (c *client) close() {
	c.lab.Helper()
	_, err := c.ask(5, binary.LittleEndian.AppendUint64(nil, c.handle), nil, -1)
	check(c.lab.TB, err)
	_, err = c.ask(3, words(0), nil, -1)
	check(c.lab.TB, err)
	_, err = c.wire.Write(message(4))
	check(c.lab.TB, err)
	check(c.lab.TB, c.tcp.Close())
}

func unhex(text string) []byte {
	out, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "").Replace(text))
	if err != nil {
		panic(err)
	}
	return out
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}
