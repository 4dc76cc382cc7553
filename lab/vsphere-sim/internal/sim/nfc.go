package sim

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// listenNFC opens one port on every address of every host that is simulated. A host without an address of its own
// gets another port on the main one.
func (s *Sim) listenNFC(port int) error {
	const attempts = 20 // A port that is free on one address may be taken on another.
	for attempt := 1; ; attempt++ {
		err := s.openNFC(port)
		if err == nil || port != 0 || attempt == attempts {
			return err
		}
		s.closeNFCListeners()
	}
}

func (s *Sim) openNFC(port int) error {
	s.nfcHosts = map[string][]net.Listener{}
	for i := range s.inv.Hosts {
		host := &s.inv.Hosts[i]
		if s.esxi && i > 0 {
			break
		}
		addresses := s.nfcAddresses(i)
		for _, address := range addresses {
			listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
			if err != nil {
				return fmt.Errorf("NFC of %s: %w", host.Name, err)
			}
			s.nfcHosts[host.Name] = append(s.nfcHosts[host.Name], listener)
			port = listener.Addr().(*net.TCPAddr).Port
		}
		if len(addresses) > 0 {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(s.main.address, "0"))
		if err != nil {
			return fmt.Errorf("NFC of %s: %w", host.Name, err)
		}
		s.nfcHosts[host.Name] = []net.Listener{listener}
	}
	s.Ready.NFCPort = port
	if first := s.nfcHosts[s.inv.Hosts[0].Name]; port == 0 {
		s.Ready.NFCPort = first[0].Addr().(*net.TCPAddr).Port
	}
	return nil
}

// nfcAddresses lists the addresses that host number i has for itself.
func (s *Sim) nfcAddresses(i int) []string {
	var addresses []string
	if s.esxi {
		addresses = append(addresses, s.main.address)
		if ip := net.ParseIP(s.main.address); ip == nil || ip.IsUnspecified() {
			return addresses
		}
	}
	for _, nic := range s.inv.Hosts[i].VMKNICs {
		if isLoopback(nic.Address) && !slices.Contains(addresses, nic.Address) {
			addresses = append(addresses, nic.Address)
		}
	}
	return addresses
}

func (s *Sim) closeNFCListeners() {
	for _, listeners := range s.nfcHosts {
		for _, listener := range listeners {
			_ = listener.Close()
		}
	}
}

func (s *Sim) serveNFC() {
	s.nfc = nfc.New(nfcDisks{s}, &s.locks)
	for _, host := range s.inv.Hosts {
		if listeners := s.nfcHosts[host.Name]; listeners != nil {
			s.nfc.AddHost(host.Name, listeners)
		}
	}
}

func (s *Sim) closeNFC() {
	if s.nfc != nil {
		s.nfc.Close()
	}
	s.closeNFCListeners()
}

// nfcDisks are the disks of all VMs as NFC sees them.
type nfcDisks struct{ sim *Sim }

func (n nfcDisks) Find(name string) (nfc.File, bool) {
	for _, m := range n.sim.all() {
		found, ok := m.disks.File(name)
		if !ok {
			continue
		}
		const sector = 512
		file := nfc.File{
			Path: found.Path, VM: m.ref.Value, Key: found.Key, Capacity: (found.Capacity + sector - 1) / sector * sector,
			Live: found.Live && m.disks.Running(),
			DDB:  map[string]string{"adapterType": "lsilogic", "uuid": ddbUUID(found.UUID)},
		}
		if found.Live {
			file.Open = func() (func(int64, []byte) error, error) { return m.disks.Writer(found.Key) }
		}
		return file, true
	}
	return nfc.File{}, false
}

// ddbUUID is a UUID as descriptors have it: "60 00 C2 9a 01 02 03 04-05 06 07 08 09 0a 0b 0c".
func ddbUUID(uuid string) string {
	digits := strings.ReplaceAll(uuid, "-", "")
	var out strings.Builder
	for i := 0; i+2 <= len(digits); i += 2 {
		switch i {
		case 0:
		case len(digits) / 2:
			out.WriteByte('-')
		default:
			out.WriteByte(' ')
		}
		out.WriteString(digits[i : i+2])
	}
	return out.String()
}

// nfcPreferred lists a host's addresses for NFC: those of adapters marked for backups, then for management.
func (s *Sim) nfcPreferred(name string) []string {
	var addresses []string
	for _, service := range []string{"vSphereBackupNFC", "management"} {
		for _, host := range s.inv.Hosts {
			for _, nic := range host.VMKNICs {
				if host.Name == name && slices.Contains(nic.Services, service) {
					addresses = append(addresses, nic.Address)
				}
			}
		}
	}
	return addresses
}

// hostName is the name of a host, or "".
func (s *Sim) hostName(ref types.ManagedObjectReference) string {
	for name, one := range s.hostRefs {
		if one.Value == ref.Value {
			return name
		}
	}
	return ""
}

// nfcMux adds the orders for NFC to the control API.
func (s *Sim) nfcMux(mux *http.ServeMux) {
	mux.HandleFunc("POST /nfc/set", control(func(order json.RawMessage) (any, error) { return done, s.nfc.Set(order) }))
	mux.HandleFunc("POST /nfc/reset", control(func(struct{}) (any, error) {
		s.nfc.Reset()
		return done, nil
	}))
	mux.HandleFunc("POST /nfc/fault", control(func(order nfc.FaultOrder) (any, error) {
		if order.VM != "" {
			m, err := s.machineOf(order.VM)
			if err != nil {
				return nil, err
			}
			order.VM = m.ref.Value
		}
		return done, s.nfc.Order(order)
	}))
	mux.HandleFunc("POST /nfc/restart", control(func(order struct {
		Host    string `json:"host"`
		Service string `json:"service"`
	}) (any, error) {
		cut, err := s.nfc.Restart(order.Host, order.Service)
		return map[string]int{"cut": cut}, err
	}))
	mux.HandleFunc("POST /nfc/cut", control(func(order vmOrder) (any, error) {
		m, err := s.machineOf(order.VM)
		if err != nil {
			return nil, err
		}
		return map[string]int{"cut": s.nfc.CutVM(m.ref.Value)}, nil
	}))
	mux.HandleFunc("POST /nfc/tickets/expire", control(func(struct{}) (any, error) {
		return map[string]int{"expired": s.nfc.ExpireTickets()}, nil
	}))
	mux.HandleFunc("GET /nfc/tickets", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.nfc.IDs()) })
	mux.HandleFunc("GET /nfc/stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.nfc.Stats()) })
}
