// Package sim is a vSphere made of govmomi's simulator, with disks that have real bytes, changed
// block tracking, ESXi hosts that answer on their own addresses, and faults to order.
package sim

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/disk"
	"drover.dev/lab/vsphere-sim/internal/inventory"
	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// Options say what to simulate and where.
type Options struct {
	Inventory *inventory.Inventory
	Listen    string // address and port of the SDK; port 0 picks a free one
	ESXi      bool   // one host alone instead of a vCenter
	NFCPort   int    // of the hosts' NFC; 0 picks a free one
	Dir       string // own empty folder for datastores and certificates
}

// Ready is what a caller needs to know of a simulator that runs.
type Ready struct {
	URL              string `json:"url"`
	Port             int    `json:"port"`
	PID              int    `json:"pid"`
	CAFile           string `json:"ca_file"`
	ThumbprintSHA1   string `json:"thumbprint_sha1"`
	ThumbprintSHA256 string `json:"thumbprint_sha256"`
	Work             string `json:"work"`
	Control          string `json:"control"`
	NFCPort          int    `json:"nfc_port"`
}

// Sim is a running simulator.
type Sim struct {
	Ready Ready

	inv  *inventory.Inventory
	esxi bool
	dir  string

	ctx      *simulator.Context
	service  *simulator.Service
	registry *simulator.Registry
	store    *disk.Store

	datastores map[string]string // folder by name
	hostRefs   map[string]types.ManagedObjectReference

	mu        sync.RWMutex
	machines  map[string]*machine // by moid
	order     []*machine
	snapshots map[string]*machine // by moid of the snapshot

	cert        atomic.Pointer[certificate]
	certNumber  int
	tls         *tls.Config
	endpoints   map[string]*endpoint // by local IP address
	main        *endpoint
	sessions    *sessions
	tickets     tickets
	httpFaults  httpFaults
	taskFaults  taskFaults
	nfcFaults   taskFaults
	nfc         *nfc.Server
	nfcHosts    map[string][]net.Listener
	locks       nfc.Locks
	shape       shape
	stats       stats
	areasMax    atomic.Int64
	writers     writers
	privileges  privileges
	pages       pages
	hotAdds     hotAdds
	performance performance
	server      *http.Server
	controlHTTP *http.Server
	connections connections
	listeners   []net.Listener
	stop        context.CancelFunc
	stopped     context.Context
}

// areasMaxDefault is how many changed areas real hosts were seen to give in one answer.
const areasMaxDefault = 2000

// Start builds the inventory and serves it.
func Start(options Options) (*Sim, error) {
	s := &Sim{
		inv: options.Inventory, esxi: options.ESXi, dir: options.Dir,
		store: disk.NewStore(), datastores: map[string]string{},
		hostRefs: map[string]types.ManagedObjectReference{},
		machines: map[string]*machine{}, snapshots: map[string]*machine{}, endpoints: map[string]*endpoint{},
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.areasMax.Store(areasMaxDefault)
	if err := s.start(options.Listen, options.NFCPort); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Sim) start(listen string, nfcPort int) error {
	if err := s.listen(listen); err != nil {
		return err
	}
	if err := s.listenNFC(nfcPort); err != nil {
		return err
	}
	if err := s.newCert(); err != nil {
		return err
	}
	if err := s.build(); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	return s.tag()
}

// newCert makes the next certificate, writes its CA file and makes it current.
func (s *Sim) newCert() error {
	addresses := []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1")}
	for _, host := range s.inv.Hosts {
		for _, nic := range host.VMKNICs {
			addresses = append(addresses, net.ParseIP(nic.Address))
		}
	}
	if ip := net.ParseIP(s.main.address); ip != nil {
		addresses = append(addresses, ip)
	}
	cert, err := newCertificate(addresses)
	if err != nil {
		return err
	}
	s.certNumber++
	file := filepath.Join(s.dir, fmt.Sprintf("ca-%d.pem", s.certNumber))
	if err := os.WriteFile(file, cert.pem, 0o600); err != nil {
		return err
	}
	s.cert.Store(cert)
	s.Ready.CAFile, s.Ready.ThumbprintSHA1, s.Ready.ThumbprintSHA256 = file, cert.sha1, cert.sha256
	return nil
}

// rotateCert is what an operator does who replaces the certificates: sessions stay, connections don't.
func (s *Sim) rotateCert() error {
	if err := s.newCert(); err != nil {
		return err
	}
	// Else clients would resume TLS sessions without ever seeing the new certificate.
	var key [32]byte
	_, _ = rand.Read(key[:])
	s.tls.SetSessionTicketKeys([][32]byte{key})
	s.showCert()
	s.connections.closeAll()
	return nil
}

// listen opens the SDK's address and, in vCenter mode, the same port on every vmknic in 127.0.0.0/8.
func (s *Sim) listen(address string) error {
	const attempts = 20 // A port that is free on one address may be taken on another.
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	for attempt := 1; ; attempt++ {
		err := s.listenAll(host, port)
		if err == nil || port != "0" || attempt == attempts {
			return err
		}
		s.closeListeners()
	}
}

func (s *Sim) listenAll(address, port string) error {
	s.main = &endpoint{address: address, service: "vcenter"}
	if s.esxi {
		s.main.service, s.main.host = "esxi", &s.inv.Hosts[0]
	}
	bound, err := s.open(s.main, port)
	if err != nil {
		return err
	}
	s.Ready.Port = bound
	for h := range s.inv.Hosts {
		host := &s.inv.Hosts[h]
		for n := range host.VMKNICs {
			nic := &host.VMKNICs[n]
			if s.esxi && h > 0 || !isLoopback(nic.Address) {
				continue
			}
			e := &endpoint{address: nic.Address, service: "host", host: host, nic: nic}
			if s.esxi {
				e.service = s.main.service
			}
			if any := net.ParseIP(address); any != nil && any.IsUnspecified() {
				s.endpoints[e.address] = e // The main listener hears this address, too.
				continue
			}
			if _, err := s.open(e, strconv.Itoa(bound)); err != nil {
				return fmt.Errorf("vmknic %s of %s: %w", nic.Device, host.Name, err)
			}
		}
	}
	return nil
}

func isLoopback(address string) bool {
	ip := net.ParseIP(address)
	return ip != nil && ip.To4() != nil && ip.IsLoopback()
}

func (s *Sim) open(e *endpoint, port string) (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(e.address, port))
	if err != nil {
		return 0, err
	}
	s.listeners = append(s.listeners, listener)
	s.endpoints[e.address] = e
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (s *Sim) closeListeners() {
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
	s.listeners, s.endpoints = nil, map[string]*endpoint{}
}

// serve starts to answer on every listener, and on the control address.
func (s *Sim) serve() error {
	s.sessions = newSessions(s)
	s.tls = s.tlsConfig()
	s.server = &http.Server{
		Handler: http.HandlerFunc(s.front), ConnContext: s.connContext, ConnState: s.connState,
		ErrorLog: log.New(quiet{}, "", 0), // Cut connections are ordered, not news.
	}
	for _, listener := range s.listeners {
		go func() { _ = s.server.Serve(tls.NewListener(listener, s.tls)) }()
	}
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.controlHTTP = &http.Server{Handler: s.controlMux()}
	go func() { _ = s.controlHTTP.Serve(control) }()

	s.Ready.URL, s.Ready.PID, s.Ready.Work = s.sdkURL().String(), os.Getpid(), s.dir
	s.Ready.Control = "http://" + control.Addr().String()
	go s.sessions.watch(s.stopped)
	s.serveNFC()
	return nil
}

// sdkURL is where clients on this machine find the main SDK.
func (s *Sim) sdkURL() *url.URL {
	address := s.main.address
	if ip := net.ParseIP(address); ip == nil || ip.IsUnspecified() {
		address = "127.0.0.1"
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(address, strconv.Itoa(s.Ready.Port)), Path: "/sdk"}
}

// Close ends the simulator at once. The folder is the caller's to remove.
func (s *Sim) Close() error {
	s.stop()
	s.writers.stopAll()
	s.closeListeners()
	s.closeNFC()
	var err error
	if s.server != nil {
		// The listeners are closed already, which the server may or may not have seen.
		if err = s.server.Close(); errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	if s.controlHTTP != nil {
		err = errors.Join(err, s.controlHTTP.Close())
	}
	return err
}

// sleep waits, but not beyond the end of the simulator or of the request.
func (s *Sim) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.stopped.Done():
	}
}

// quiet is where the HTTP server's complaints go.
type quiet struct{}

func (quiet) Write(p []byte) (int, error) { return len(p), nil }
