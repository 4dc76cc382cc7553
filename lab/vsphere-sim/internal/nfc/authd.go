package nfc

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	lineBytesMax = 1024
	// handshakeTime bounds all before the first AIO frame.
	handshakeTime   = 3 * time.Minute
	recordHandshake = 0x16
)

var (
	errNotTLS = errors.New("no TLS where TLS is due")
	errRefuse = errors.New("refused")
	errCut    = errors.New("cut by order")
)

// records lets TLS read no byte beyond the record that it needs, so that what follows the last record of one session
// is there for the next stage. It also splits what is written while a test wants that.
type records struct {
	net.Conn
	split  int
	header [5]byte
	have   int // bytes of the header read
	left   int // bytes of the record's body to read
	began  bool

	gathers bool // whether records wait for flush, so that the kernel gets many at a time
	held    []byte
}

func (r *records) Read(p []byte) (int, error) {
	if r.left > 0 {
		n, err := r.Conn.Read(p[:min(len(p), r.left)])
		r.left -= n
		return n, err
	}
	n, err := r.Conn.Read(p[:min(len(p), len(r.header)-r.have)])
	copy(r.header[r.have:], p[:n])
	r.have += n
	if n > 0 && !r.began {
		r.began = true
		if r.header[0] != recordHandshake {
			return 0, errNotTLS
		}
	}
	if r.have == len(r.header) {
		r.have, r.left = 0, int(r.header[3])<<8|int(r.header[4])
	}
	return n, err
}

func (r *records) Write(p []byte) (int, error) {
	if !r.gathers {
		return writeSplit(r.Conn, p, r.split)
	}
	r.held = append(r.held, p...)
	return len(p), nil
}

// flush sends the records that were gathered.
func (r *records) flush() error {
	if len(r.held) == 0 {
		return nil
	}
	_, err := r.Conn.Write(r.held)
	r.held = r.held[:0]
	return err
}

// writeSplit writes p in pieces, which reach the client one by one.
func writeSplit(w io.Writer, p []byte, split int) (int, error) {
	if split <= 0 {
		return w.Write(p)
	}
	const apart = 100 * time.Microsecond
	total := 0
	for len(p) > 0 {
		n, err := w.Write(p[:min(split, len(p))])
		total += n
		if err != nil {
			return total, err
		}
		p = p[n:]
		time.Sleep(apart)
	}
	return total, nil
}

func (b *Behaviour) greeting() string {
	if b.Greeting != "" {
		return b.Greeting
	}
	line := "220 VMware Authentication Daemon Version 1.10: SSL Required, ServerDaemonProtocol:SOAP, " +
		"MKSDisplayProtocol:VNC , VMXARGS supported"
	if b.NFCSSL {
		line += ", NFCSSL supported/t"
	}
	if b.SHA256 {
		line += ", SHA256 supported"
	}
	return line
}

// line sends one reply of authd, spoiled as ordered.
func (c *conn) line(w io.Writer, stage, text string, split int) error {
	sleep(c.server.ctx, c.latency())
	if f := c.fault(stage); f != nil {
		switch f.Do {
		case "cut":
			if f.Where != "" && f.Where != "before" {
				_, _ = io.WriteString(w, text[:len(text)/2])
			}
			return errCut
		case "stall", "delay":
			c.stall(f.MS)
		case "error":
			_, _ = io.WriteString(w, f.Text+"\r\n")
			return errRefuse
		}
	}
	_, err := writeSplit(w, []byte(text+"\r\n"), split)
	return err
}

// authd does everything up to and including "200 Connect", and tells if NFC goes on in TLS.
func (c *conn) authd(b *Behaviour) (ssl bool, err error) {
	cert, err := c.host.cert()
	if err != nil {
		return false, err
	}
	if err := c.line(c.tcp, "greeting", b.greeting(), b.SplitBytes); err != nil {
		return false, err
	}
	session, err := c.handshake("tls", cert, b)
	if err != nil {
		return false, err
	}
	return c.dialogue(session, cert, b)
}

// handshake makes a TLS session on the bare socket.
func (c *conn) handshake(stage string, cert *certificate, b *Behaviour) (*tls.Conn, error) {
	if f := c.fault(stage); f != nil {
		switch f.Do {
		case "stall", "delay":
			c.stall(f.MS)
		default:
			return nil, errCut
		}
	}
	if b.RefuseTLS {
		_, _ = c.tcp.Read(make([]byte, lineBytesMax))
		// A fatal alert, handshake_failure.
		_, _ = c.tcp.Write([]byte{21, 3, 3, 0, 2, 2, 40})
		return nil, errRefuse
	}
	inner := &records{Conn: c.tcp, split: b.SplitBytes}
	session := tls.Server(inner, cert.config)
	if err := session.HandshakeContext(c.server.ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", stage, err)
	}
	inner.split = 0
	c.records = inner
	return session, nil
}

// dialogue is the lines inside the first TLS session, which is then left as it is, without close_notify.
func (c *conn) dialogue(session *tls.Conn, cert *certificate, b *Behaviour) (bool, error) {
	lines := bufio.NewReaderSize(session, lineBytesMax)
	for {
		raw, err := lines.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		text, ended := strings.CutSuffix(string(raw), "\r\n")
		if !ended {
			return false, c.refuse(session, "banner", "500 Line without CR LF")
		}
		verb, rest, blank := strings.Cut(text, " ")
		switch verb {
		case "SESSION":
			c.takeTicket(rest)
			if c.ticket.Load() == nil && b.BadTicket == "session" {
				return false, c.refuse(session, "session", "530 Login incorrect")
			}
			if f := c.fault("session"); f != nil {
				return false, c.refuse(session, "session", f.Text)
			}
		case "BANNER":
			if !blank {
				return false, c.refuse(session, "banner", "501 Invalid arguments")
			}
			if err := c.line(session, "banner", "220 "+c.host.name, 0); err != nil {
				return false, err
			}
		case "THUMBPRINT_SHA2":
			if !b.SHA256 || c.ticket.Load() == nil {
				return false, c.refuse(session, "thumbprint", "530 Please login with USER and PASS")
			}
			if rest == "" || strings.ContainsAny(rest, " :") {
				return false, c.refuse(session, "thumbprint", "501 Invalid arguments")
			}
			c.tag = rest
			if err := c.line(session, "thumbprint", "200 "+cert.sha256, 0); err != nil {
				return false, err
			}
		case "PROXY":
			return c.proxy(session, rest, b)
		case "USER", "PASS", "XPAS":
			return false, c.refuse(session, "banner", "530 Login incorrect")
		default:
			return false, c.refuse(session, "banner", "500 Unknown command")
		}
	}
}

// refuse sends an error line, after which the connection ends.
func (c *conn) refuse(session *tls.Conn, stage, text string) error {
	if err := c.line(session, stage, text, 0); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", errRefuse, text)
}

// takeTicket looks the session id up. It is used up here, whatever comes of the connection.
func (c *conn) takeTicket(id string) {
	if c.ticket.Load() == nil {
		c.ticket.Store(c.server.tickets.redeem(id, c.host))
	}
}

func (c *conn) proxy(session *tls.Conn, name string, b *Behaviour) (bool, error) {
	base, ssl := strings.CutSuffix(name, "ssl")
	if base != VPXA && base != Hostd {
		return false, c.refuse(session, "proxy", "500 Unknown service")
	}
	ticket := c.ticket.Load()
	if ticket == nil {
		return false, c.refuse(session, "proxy", "530 Please login with USER and PASS")
	}
	if base != ticket.Service {
		return false, c.refuse(session, "proxy", "530 Login incorrect") // The other service never heard of it.
	}
	if ssl && !b.NFCSSL {
		return false, c.refuse(session, "proxy", "500 Unknown service")
	}
	answer := "200 Connect ha-nfc"
	if ssl {
		answer += "ssl"
	}
	return ssl, c.line(session, "proxy", answer, 0)
}
