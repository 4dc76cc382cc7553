package nfc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Behaviour is how a host acts. The control API changes single keys.
type Behaviour struct {
	// Tickets.
	TicketLifeMS   int64  `json:"ticket_life_ms"`
	TicketReusable bool   `json:"ticket_reusable"`
	TicketPin      string `json:"ticket_pin"` // thumbprint, wrong, none, certificate
	TicketNoPort   bool   `json:"ticket_no_port"`
	LibVersion     int    `json:"lib_version"` // of NfcGetServerNfcLibVersion; below 0: InvalidRequest

	// authd.
	Greeting   string `json:"greeting"` // instead of the usual line
	SHA256     bool   `json:"sha256"`
	NFCSSL     bool   `json:"nfcssl"`
	SplitBytes int    `json:"split_bytes"` // size of the TCP pieces of greeting and handshakes
	RefuseTLS  bool   `json:"refuse_tls"`
	BadTicket  string `json:"bad_ticket"` // later or session: where 530 comes

	TakeoverCert string `json:"takeover_cert"` // of the second handshake: same, other

	// Classic messages.
	Version     uint32 `json:"version"`
	Status36    string `json:"status_36"` // before or after 51
	Refuse43    bool   `json:"refuse_43"`
	HoldSurplus bool   `json:"hold_surplus"`
	CompareTags bool   `json:"compare_tags"`

	// Sessions.
	Strict          bool  `json:"strict"`
	BufferBytesMax  int64 `json:"buffer_bytes_max"`
	MemoryBytes     int64 `json:"memory_bytes"`
	SessionsMax     int   `json:"sessions_max"`
	VanishedHoldMS  int64 `json:"vanished_hold_ms"`
	ErrorThenReply  bool  `json:"error_then_reply"`
	LockErrorCode   int64 `json:"lock_error_code"`
	OpenAnswersType int   `json:"open_answers_type"`
	OpenStatus      bool  `json:"open_status"` // failures of OPEN_FILE as a status

	// Reads.
	FragmentBytes []int  `json:"fragment_bytes"`
	FragmentOrder string `json:"fragment_order"` // forward, reverse, shuffle
	Mix           int    `json:"mix"`            // requests answered at the same time
	CodecAnswer   string `json:"codec_answer"`   // as_asked, raw, raw_kept
	WriteSpace    int64  `json:"write_space"`    // bytes until writes fail; below 0: no end

	// Allocated blocks and the disk data base.
	QAB         string `json:"qab"` // on, off
	QABMS       int64  `json:"qab_ms"`
	QABCountMax int64  `json:"qab_count_max"`

	// Speed.
	LatencyMS           float64 `json:"latency_ms"`
	ConnectionBytesPerS int64   `json:"connection_bytes_per_s"`
	HostBytesPerS       int64   `json:"host_bytes_per_s"`
}

// defaults are those of ESXi 8.
func defaults() Behaviour {
	return Behaviour{
		TicketLifeMS: 5 * 60 * 1000, TicketPin: "thumbprint", LibVersion: 11,
		SHA256: true, NFCSSL: true, BadTicket: "later", TakeoverCert: "same",
		Version: 11, Status36: "after", HoldSurplus: true, CompareTags: true,
		Strict: true, BufferBytesMax: 2 << 20, MemoryBytes: 48 << 20, SessionsMax: 52, ErrorThenReply: true, LockErrorCode: 16392,
		OpenAnswersType: 2, FragmentOrder: "forward", Mix: 1, CodecAnswer: "as_asked", WriteSpace: -1,
		QAB: "on", QABCountMax: 1 << 20,
	}
}

func (b *Behaviour) check() error {
	for _, one := range []struct {
		key, value string
		want       []string
	}{
		{"ticket_pin", b.TicketPin, []string{"thumbprint", "wrong", "none", "certificate"}},
		{"bad_ticket", b.BadTicket, []string{"later", "session"}},
		{"takeover_cert", b.TakeoverCert, []string{"same", "other"}},
		{"status_36", b.Status36, []string{"after", "before"}},
		{"fragment_order", b.FragmentOrder, []string{"forward", "reverse", "shuffle"}},
		{"codec_answer", b.CodecAnswer, []string{"as_asked", "raw", "raw_kept"}},
		{"qab", b.QAB, []string{"on", "off"}},
	} {
		if !slices.Contains(one.want, one.value) {
			return fmt.Errorf("%s %q: want one of %v", one.key, one.value, one.want)
		}
	}
	if slices.ContainsFunc(b.FragmentBytes, func(n int) bool { return n < 1 }) {
		return errors.New("fragment_bytes: want sizes of 1 or more")
	}
	if b.Mix < 1 || b.SplitBytes < 0 || b.LatencyMS < 0 || b.ConnectionBytesPerS < 0 || b.HostBytesPerS < 0 || b.QABCountMax < 1 {
		return errors.New("mix, qab_count_max: want 1 or more; the others: want no negative numbers")
	}
	return nil
}

// Set changes the behaviour of a host or, without "host", of all hosts. Keys that are not given stay.
func (s *Server) Set(order []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(order, &keys); err != nil {
		return err
	}
	var name string
	if given, ok := keys["host"]; ok {
		if err := json.Unmarshal(given, &name); err != nil {
			return err
		}
		delete(keys, "host")
	}
	rest, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	hosts, err := s.each(name)
	if err != nil {
		return err
	}
	var next []*Behaviour
	for _, h := range hosts {
		b := *h.behaviour.Load()
		b.FragmentBytes = nil // Else the new sizes would be written over those in use.
		if _, given := keys["fragment_bytes"]; !given {
			b.FragmentBytes = h.behaviour.Load().FragmentBytes
		}
		decoder := json.NewDecoder(bytes.NewReader(rest))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&b); err != nil {
			return err
		}
		if err := b.check(); err != nil {
			return err
		}
		next = append(next, &b)
	}
	for i, h := range hosts {
		h.behaviour.Store(next[i])
	}
	return nil
}

// Reset takes all hosts back to the usual behaviour, and forgets ordered faults.
func (s *Server) Reset() {
	hosts, _ := s.each("")
	for _, h := range hosts {
		b := defaults()
		h.behaviour.Store(&b)
	}
	s.faults.clear()
}

// ClearFaults forgets ordered faults and ends stalls.
func (s *Server) ClearFaults() { s.faults.clear() }
