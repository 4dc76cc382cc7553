package sim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
)

// bodyBytesMax bounds a request to the control API; a written block comes in hex.
const bodyBytesMax = 64 << 20

// controlMux is the API by which a test plays the operator, the guest and bad luck.
func (s *Sim) controlMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /fault/http", control(func(order httpOrder) (any, error) {
		s.httpFaults.add(order)
		return done, nil
	}))
	mux.HandleFunc("POST /fault/soap", control(func(order soapOrder) (any, error) { return done, s.orderSoapFault(order) }))
	mux.HandleFunc("POST /fault/clear", control(func(struct{}) (any, error) {
		s.httpFaults.clearAll()
		s.taskFaults.clear()
		s.nfcFaults.clear()
		s.nfc.ClearFaults()
		s.service.ClearFaultRules()
		return done, nil
	}))
	mux.HandleFunc("POST /sessions/expire", control(func(struct{}) (any, error) {
		return map[string]int{"expired": s.sessions.expireAll()}, nil
	}))
	mux.HandleFunc("GET /sessions/{id}", s.showSession)
	mux.HandleFunc("POST /cert/rotate", control(func(struct{}) (any, error) {
		err := s.rotateCert()
		return map[string]string{
			"ca_file": s.Ready.CAFile, "thumbprint_sha1": s.Ready.ThumbprintSHA1, "thumbprint_sha256": s.Ready.ThumbprintSHA256,
		}, err
	}))
	mux.HandleFunc("POST /latency", control(func(order struct {
		MS int64 `json:"ms"`
	}) (any, error) {
		s.shape.latency.Store(int64(time.Duration(order.MS) * time.Millisecond))
		return done, nil
	}))
	mux.HandleFunc("POST /rate", control(s.orderRate))
	mux.HandleFunc("POST /cbt/reset", control(s.orderReset))
	mux.HandleFunc("POST /cbt/max_areas", control(func(order struct {
		N int64 `json:"n"`
	}) (any, error) {
		if order.N < 1 {
			return nil, errors.New("n: want 1 or more")
		}
		s.areasMax.Store(order.N)
		return done, nil
	}))
	mux.HandleFunc("POST /writer", control(s.orderWriter))
	mux.HandleFunc("DELETE /writer", s.deleteWriter)
	mux.HandleFunc("POST /write", control(s.orderWrite))
	mux.HandleFunc("POST /stats/reset", control(s.resetStats))
	mux.HandleFunc("GET /disks", s.showDisks)
	mux.HandleFunc("GET /vms", s.showVMs)
	mux.HandleFunc("GET /stats", s.showStats)
	s.othersMux(mux)
	s.nfcMux(mux)
	s.hotAddMux(mux)
	return mux
}

var done = map[string]bool{"ok": true}

// control makes a handler of a function from a JSON body to a JSON answer, and logs the order.
func control[T any](run func(T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order T
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyBytesMax))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&order); err != nil && !errors.Is(err, io.EOF) {
			refuse(w, err)
			return
		}
		answer, err := run(order)
		if err != nil {
			refuse(w, err)
			return
		}
		if text, err := json.Marshal(order); err == nil {
			log.Printf("control: %s %.500s", r.URL.Path, text)
		}
		reply(w, answer)
	}
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

func reply(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// machineOf finds a VM by its name, by FOLDER/NAME where names repeat, or by moid.
func (s *Sim) machineOf(name string) (*machine, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found *machine
	for _, m := range s.order {
		if m.ref.Value == name || strings.Trim(m.given.Folder, "/")+"/"+m.given.Name == name {
			return m, nil
		}
		if m.given.Name == name {
			if found != nil {
				return nil, fmt.Errorf("vm %q: there are two, say FOLDER/NAME or the moid", name)
			}
			found = m
		}
	}
	if found == nil {
		return nil, fmt.Errorf("vm %q: there is none", name)
	}
	return found, nil
}

type rateOrder struct {
	BytesPerS int64  `json:"bytes_per_s"`
	Per       string `json:"per"`
}

func (s *Sim) orderRate(order rateOrder) (any, error) {
	if order.Per != "" && order.Per != "connection" && order.Per != "host" {
		return nil, fmt.Errorf("per %q: want connection or host", order.Per)
	}
	s.shape.perHost.Store(order.Per == "host")
	s.shape.bytesPerS.Store(max(0, order.BytesPerS))
	return done, nil
}

type vmOrder struct {
	VM string `json:"vm"`
}

func (s *Sim) orderReset(order vmOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	m.disks.ResetTracking()
	ctx := s.ownContext()
	s.registry.WithLock(ctx, m.vm, func() { s.showLive(ctx, m) })
	return done, nil
}

// ownContext is for changes that no client's call makes.
func (s *Sim) ownContext() *simulator.Context {
	own := *s.ctx
	return &own
}

func (s *Sim) orderWriter(order writerOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	return done, s.startWriter(m, order)
}

func (s *Sim) deleteWriter(w http.ResponseWriter, r *http.Request) {
	m, err := s.machineOf(r.URL.Query().Get("vm"))
	if err != nil {
		refuse(w, err)
		return
	}
	written, writes := s.stopWriters(m)
	log.Printf("control: writers of %s stopped after %d bytes", m.given.Name, written)
	reply(w, map[string]int64{"bytes": written, "writes": writes})
}

type writeOrder struct {
	VM     string `json:"vm"`
	Disk   int    `json:"disk"`
	Offset int64  `json:"offset"`
	Hex    string `json:"hex,omitempty"`
	Fill   string `json:"fill,omitempty"`
	Length int64  `json:"length,omitempty"`
	Every  int64  `json:"every,omitempty"`
	Count  int64  `json:"count,omitempty"`
}

func (s *Sim) orderWrite(order writeOrder) (any, error) {
	m, err := s.machineOf(order.VM)
	if err != nil {
		return nil, err
	}
	if order.Count < 0 || order.Every < 0 || order.Count > 0 && order.Every == 0 {
		return nil, errors.New("want a count together with every")
	}
	for i := range max(order.Count, 1) {
		if err := order.write(m, order.Offset+i*order.Every); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// write is one of the order's writes.
func (order *writeOrder) write(m *machine, offset int64) error {
	const pieceBytes = 1 << 20
	if order.Hex != "" {
		data, err := hex.DecodeString(order.Hex)
		if err != nil {
			return err
		}
		return m.disks.Write(order.Disk, offset, data)
	}
	if order.Fill != "random" && order.Fill != "zero" || order.Length < 1 {
		return errors.New("want hex, or fill random or zero with a length")
	}
	piece := make([]byte, min(pieceBytes, order.Length))
	for at := int64(0); at < order.Length; at += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), order.Length-at)]
		if order.Fill == "random" {
			_, _ = rand.Read(piece)
		}
		if err := m.disks.Write(order.Disk, offset+at, piece); err != nil {
			return err
		}
	}
	return nil
}

type vmDisks struct {
	VM    string       `json:"vm"`
	Moid  string       `json:"moid"`
	Disks []disk.State `json:"disks"`
}

func (s *Sim) showDisks(w http.ResponseWriter, r *http.Request) {
	out := []vmDisks{}
	for _, m := range s.all() {
		if name := r.URL.Query().Get("vm"); name != "" && name != m.given.Name && name != m.ref.Value {
			continue
		}
		states := m.disks.State()
		if r.URL.Query().Get("hash") == "1" {
			if err := hashAll(states); err != nil {
				refuse(w, err)
				return
			}
		}
		out = append(out, vmDisks{m.given.Name, m.ref.Value, states})
	}
	reply(w, out)
}

func hashAll(states []disk.State) (err error) {
	for i := range states {
		if states[i].SHA256, err = hashFile(states[i].Live); err != nil {
			return err
		}
		for id, frozen := range states[i].Frozen {
			if frozen.SHA256, err = hashFile(frozen.Path); err != nil {
				return err
			}
			states[i].Frozen[id] = frozen
		}
	}
	return nil
}

func hashFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

type vmState struct {
	Name      string   `json:"name"`
	Moid      string   `json:"moid"`
	Folder    string   `json:"folder"`
	Power     string   `json:"power"`
	CBT       bool     `json:"cbt"`
	Snapshots []string `json:"snapshots"`
	Disks     []string `json:"disks"`
}

func (s *Sim) showVMs(w http.ResponseWriter, _ *http.Request) {
	out := []vmState{}
	for _, m := range s.all() {
		state := vmState{
			Name: m.given.Name, Moid: m.ref.Value, Folder: m.given.Folder, CBT: m.disks.Tracking(),
			Snapshots: []string{}, Disks: []string{},
		}
		s.registry.WithLock(s.ownContext(), m.vm, func() {
			state.Power = string(m.vm.Runtime.PowerState)
			if m.vm.Snapshot != nil {
				walkSnapshots(m.vm.Snapshot.RootSnapshotList, func(tree types.VirtualMachineSnapshotTree) {
					state.Snapshots = append(state.Snapshots, tree.Name)
				})
			}
		})
		for _, d := range m.disks.State() {
			state.Disks = append(state.Disks, d.Name)
		}
		out = append(out, state)
	}
	reply(w, out)
}

func (s *Sim) all() []*machine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return append([]*machine(nil), s.order...)
}

func (s *Sim) resetStats(struct{}) (any, error) {
	s.stats.reset()
	s.nfc.ResetStats()
	for _, e := range s.endpoints {
		e.reset()
	}
	return done, nil
}

// showSession tells whether a cookie is that of a session, as a host is told that is asked to trust it.
func (s *Sim) showSession(w http.ResponseWriter, r *http.Request) {
	if !s.sessions.isValid(r.PathValue("id")) {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	reply(w, done)
}

func (s *Sim) showStats(w http.ResponseWriter, _ *http.Request) {
	sdk, hosts := s.sessions.alive()
	calls, properties := s.stats.list()
	endpoints := map[string]endpointStats{}
	for address, e := range s.endpoints {
		endpoints[address] = e.stats()
	}
	reply(w, map[string]any{
		"soap": calls, "properties": properties, "endpoints": endpoints, "sessions": sdk, "host_sessions": hosts,
		"connections_open": s.connections.count(),
	})
}
