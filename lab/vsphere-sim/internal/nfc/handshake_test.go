package nfc

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// timedOut tells if nothing came of it until the connection's deadline.
func timedOut(err error) bool {
	var failed net.Error
	return errors.As(err, &failed) && failed.Timeout()
}

func TestACommandBeforeTLSEndsTheConnection(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	tcp, err := net.Dial("tcp", net.JoinHostPort(ticket.Address, strconv.Itoa(ticket.Port)))
	check(t, err)
	defer tcp.Close()
	check(t, tcp.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = readLine(tcp)
	check(t, err)
	_, err = io.WriteString(tcp, "SESSION "+ticket.SessionID+"\r\n")
	check(t, err)
	rest, err := io.ReadAll(tcp)
	if timedOut(err) || strings.Contains(string(rest), "220") {
		t.Errorf("in the clear: %q, %v", rest, err)
	}
	if _, err := l.join(ticket, "vpxa-nfc"); err != nil {
		t.Errorf("the ticket was used up in the clear: %v", err)
	}
}

func TestAnOldHostAnswersTheTagOfNewerClientsWith530(t *testing.T) {
	l := start(t)
	l.set(`{"sha256":false}`)
	ticket := l.ticket(nil)
	c, err := l.dial(ticket)
	check(t, err)
	if strings.Contains(c.greeting, "SHA256 supported") {
		t.Fatalf("greeting %q", c.greeting)
	}
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	check(t, c.say("BANNER ", "220 "))
	if err := c.say("THUMBPRINT_SHA2 "+tag, "200"); !errors.Is(err, errReply) || !strings.Contains(err.Error(), "530 Please login") {
		t.Errorf("THUMBPRINT_SHA2: %v", err)
	}
	if _, err := readLine(c.first); err == nil {
		t.Error("the connection goes on after the error")
	}
	// Its old form is enough: lines 1 and 4 of the note.
	ticket = l.ticket(nil)
	c, err = l.dial(ticket)
	check(t, err)
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	check(t, c.say("PROXY vpxa-nfc", "200 Connect"))
	c.wire = c.tcp
	check(t, c.classic())
	check(t, c.session(0, 0))
}

func TestTLSWhereNFCGoesOnInTheClearFails(t *testing.T) {
	l := start(t)
	ticket := l.ticket(nil)
	c, err := l.dial(ticket)
	check(t, err)
	check(t, c.say("SESSION "+ticket.SessionID, ""))
	check(t, c.say("PROXY vpxa-nfc", "200 Connect ha-nfc"))
	second := tls.Client(c.tcp, &tls.Config{InsecureSkipVerify: true})
	if err := second.Handshake(); err == nil || timedOut(err) {
		t.Fatalf("a handshake with plain nfc: %v", err)
	}
	if _, err := io.Copy(io.Discard, c.tcp); timedOut(err) {
		t.Errorf("the connection stays: %v", err)
	}
}

func TestThe53rdSessionOfAServiceGetsError5(t *testing.T) {
	l := start(t)
	var open []*client
	for range 52 {
		open = append(open, l.connect("vpxa-nfc", 64<<10, 1, 0x1e))
	}
	c, err := l.join(l.ticket(nil), "vpxa-nfc")
	check(t, err)
	if err := c.session(64<<10, 1); err == nil || err.Error() != "5: Failed to allocate the requested 65536 bytes" {
		t.Errorf("the 53rd, with 3.25 MiB in use: %v", err)
	}
	l.connect("nfc", 64<<10, 1, 0x1e).close() // The other service counts by itself.
	open[0].close()
	waitFor(t, "the end of one", func() bool { return l.stats("vpxa-nfc").Sessions == 51 })
	check(t, c.session(64<<10, 1))
	if got := l.stats("vpxa-nfc"); got.SessionsMost != 52 || got.Refused != 1 {
		t.Errorf("%+v", got)
	}
}
