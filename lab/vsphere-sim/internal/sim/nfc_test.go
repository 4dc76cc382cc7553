package sim

import (
	"bufio"
	"crypto/tls"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// soap sends a body to the SDK as the client's session and gives the answer.
func (l *lab) soap(body string) string {
	l.Helper()
	text := `<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" ` +
		`xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>` + body + `</soapenv:Body></soapenv:Envelope>`
	request, err := http.NewRequest("POST", l.sim.Ready.URL, strings.NewReader(text))
	check(l.T, err)
	request.AddCookie(l.cookie())
	request.Header.Set("SOAPAction", `"urn:vim25/8.0.2.0"`)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: l.roots(), DisableKeepAlives: true}}
	response, err := client.Do(request)
	check(l.T, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	check(l.T, err)
	return string(answer)
}

type soapTicket struct {
	Host           string `xml:"host"`
	Port           int    `xml:"port"`
	SslThumbprint  string `xml:"sslThumbprint"`
	SslCertificate string `xml:"sslCertificate"`
	Service        string `xml:"service"`
	ServiceVersion string `xml:"serviceVersion"`
	SessionID      string `xml:"sessionId"`
}

// nfcTicket asks for a ticket as pyVmomi does, with versionId on arguments.
func (l *lab) nfcTicket(service, method, arguments string) (soapTicket, string) {
	l.Helper()
	answer := l.soap(fmt.Sprintf(`<%s xmlns="urn:vim25"><_this versionId="8.0.2.0" type="NfcService">%s</_this>%s</%s>`,
		method, service, arguments, method))
	var out struct {
		Body struct {
			Fault struct {
				Detail struct {
					Inner string `xml:",innerxml"`
				} `xml:"detail"`
			} `xml:"Fault"`
			Answer struct {
				Ticket soapTicket `xml:"returnval"`
			} `xml:",any"`
		} `xml:"Body"`
	}
	check(l.T, xml.Unmarshal([]byte(answer), &out))
	return out.Body.Answer.Ticket, answer
}

func vmArgument(ref types.ManagedObjectReference) string {
	return fmt.Sprintf(`<vm versionId="8.0.2.0" type="VirtualMachine">%s</vm>`, ref.Value)
}

func TestNFCTicketsOfVCenterNameTheHostAndItsOtherCertificate(t *testing.T) {
	l := start(t, false, "30m")
	if content := l.soap(`<RetrieveInternalContent xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this></RetrieveInternalContent>`); !strings.Contains(content, `<nfcService type="NfcService">nfcService</nfcService>`) {
		t.Errorf("internal content: %s", content)
	}
	vm := l.vm("prod/web/web01").Reference()
	ticket, text := l.nfcTicket("nfcService", "NfcGetVmFiles", vmArgument(vm))
	if ticket.Host != "127.0.72.1" || ticket.Port != l.sim.Ready.NFCPort || ticket.Service != "vpxa-nfc" || ticket.ServiceVersion != "1.1" || ticket.SessionID == "" {
		t.Errorf("ticket: %s", text)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(ticket.Host, strconv.Itoa(ticket.Port)))
	check(t, err)
	defer conn.Close()
	greeting, err := bufio.NewReader(conn).ReadString('\n')
	check(t, err)
	if !strings.HasPrefix(greeting, "220 VMware Authentication Daemon") || !strings.HasSuffix(greeting, ", NFCSSL supported/t, SHA256 supported\r\n") {
		t.Errorf("greeting: %q", greeting)
	}
	session := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	check(t, session.Handshake())
	if version := session.ConnectionState().Version; version != tls.VersionTLS12 || ticket.SslThumbprint == l.sim.Ready.ThumbprintSHA1 {
		t.Errorf("TLS %x; thumbprint %s", version, ticket.SslThumbprint)
	}

	host := l.sim.hostRefs["esx1.lab"].Value
	_, text = l.nfcTicket("nfcService", "NfcGetServerNfcLibVersion", fmt.Sprintf(`<hostForAccess type="HostSystem">%s</hostForAccess>`, host))
	if !strings.Contains(text, `>11</returnval>`) {
		t.Errorf("version: %s", text)
	}
	for _, one := range []struct{ service, method, arguments, want string }{
		{"nfcService", "NfcGetServerNfcLibVersion", "", "A specified parameter was not correct: hostForAccess"},
		{"ha-nfc-service", "NfcGetVmFiles", vmArgument(vm), "ManagedObjectNotFound"},
		{"nfcService", "NfcGetVmFiles", `<vm type="VirtualMachine">vm-none</vm>`, "ManagedObjectNotFound"},
		{"nfcService", "NfcRandomAccessOpenReadonly", vmArgument(vm), "diskDeviceKey"},
		{"nfcService", "NfcRandomAccessOpenReadonly", vmArgument(vm) + `<diskDeviceKey>2000</diskDeviceKey>`, "sessionId"},
		{"nfcService", "NfcRandomAccessOpenDisk", vmArgument(vm) + `<diskDeviceKey>2000</diskDeviceKey><hostForAccess type="HostSystem">host-9999</hostForAccess>`, "hostForAccess"},
	} {
		if _, text := l.nfcTicket(one.service, one.method, one.arguments); !strings.Contains(text, one.want) {
			t.Errorf("%s of %s: %s", one.method, one.service, text)
		}
	}
	l.control("POST", "/fault/soap", `{"method":"NfcGetVmFiles","fault":"NoPermission","message":"Permission to perform this operation was denied."}`, nil)
	if _, text := l.nfcTicket("nfcService", "NfcGetVmFiles", vmArgument(vm)); !strings.Contains(text, `xsi:type="NoPermission"`) {
		t.Errorf("no permission: %s", text)
	}
	l.control("POST", "/nfc/set", `{"lib_version":-1,"ticket_pin":"none","host":"esx1.lab"}`, nil)
	if ticket, text := l.nfcTicket("nfcService", "NfcGetVmFiles", vmArgument(vm)); ticket.SessionID == "" || ticket.SslThumbprint != "" {
		t.Errorf("without thumbprint: %s", text)
	}
	// After a move a new ticket is for the other host, which has no address of its own here, so it has another port.
	l.control("POST", "/vm/move", `{"vm":"prod/web/web01","host":"esx2.lab"}`, nil)
	if ticket, text := l.nfcTicket("nfcService", "NfcGetVmFiles", vmArgument(vm)); ticket.Host != "127.0.0.1" || ticket.Port == l.sim.Ready.NFCPort {
		t.Errorf("after a move: %s", text)
	}
	l.control("POST", "/sessions/expire", "", nil)
	if _, text := l.nfcTicket("nfcService", "NfcGetVmFiles", vmArgument(vm)); !strings.Contains(text, `xsi:type="NotAuthenticated"`) {
		t.Errorf("without a session: %s", text)
	}
	var stats struct {
		TicketsIssued int `json:"tickets_issued"`
	}
	l.control("GET", "/nfc/stats", "", &stats)
	if stats.TicketsIssued != 4 {
		t.Errorf("%d tickets", stats.TicketsIssued)
	}
}

func TestNFCTicketsOfAHostAloneNameNoHost(t *testing.T) {
	l := start(t, true, "30m")
	content := l.soap(`<RetrieveInternalContent xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this></RetrieveInternalContent>`)
	if !strings.Contains(content, `<nfcService type="NfcService">ha-nfc-service</nfcService>`) {
		t.Errorf("internal content: %s", content)
	}
	ticket, text := l.nfcTicket("ha-nfc-service", "NfcGetVmFiles", vmArgument(l.sim.all()[0].ref))
	if ticket.Host != "" || ticket.Service != "nfc" || ticket.Port != l.sim.Ready.NFCPort {
		t.Errorf("ticket: %s", text)
	}
	for _, address := range []string{"127.0.0.1", "127.0.71.1"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(ticket.Port)))
		check(t, err)
		check(t, conn.Close())
	}
}

func TestNFCFindsEveryFileOfAChain(t *testing.T) {
	l := start(t, false, "30m")
	vm := l.vm("prod/web/web01")
	l.snapshot(vm, "one")
	frozen, ok := nfcDisks{l.sim}.Find("[ds1] web01/web01.vmdk")
	if !ok || frozen.Live || frozen.Open != nil || frozen.VM != vm.Reference().Value || frozen.Key != 2000 || frozen.Capacity != 8<<20 {
		t.Errorf("frozen: %v %+v", ok, frozen)
	}
	live, ok := nfcDisks{l.sim}.Find("[ds1] web01/web01-000001.vmdk")
	if !ok || !live.Live || live.Path == frozen.Path {
		t.Errorf("live: %v %+v", ok, live)
	}
	// Disks are whole sectors for NFC.
	if odd, ok := (nfcDisks{l.sim}).Find("[ds2] web01/web01_1.vmdk"); !ok || odd.Capacity != 1000448 {
		t.Errorf("odd: %v %+v", ok, odd)
	}
	if got := ddbUUID("6000C29a-0102-0304-0506-0708090a0b0c"); got != "60 00 C2 9a 01 02 03 04-05 06 07 08 09 0a 0b 0c" {
		t.Errorf("uuid %q", got)
	}
}

func TestNFCWritesAreTrackedAndFilesInUseAreNotDownloaded(t *testing.T) {
	l := start(t, false, "30m")
	web := l.vm("prod/web/web01")
	l.control("POST", "/vm/power", `{"vm":"prod/web/web01","state":"off"}`, nil)
	first := l.snapshot(web, "one")
	disk, frozen := firstDisk(l.config(first))
	file, ok := nfcDisks{l.sim}.Find("[ds1] web01/web01-000001.vmdk")
	if !ok || file.Live || file.Open == nil {
		t.Fatalf("live file of a VM that is off: %v %+v", ok, file)
	}
	write, err := file.Open()
	check(t, err)
	check(t, write(3<<20, []byte("by NFC")))
	if content, err := os.ReadFile(file.Path); err != nil || string(content[3<<20:][:6]) != "by NFC" {
		t.Errorf("the write went elsewhere: %v", err)
	}
	second := l.snapshot(web, "two")
	areas, _ := l.changed(web, second, disk.Key, frozen.ChangeId, disk.CapacityInBytes)
	if len(areas) != 1 || areas[0].Start != 3<<20 {
		t.Errorf("changed areas: %v", areas)
	}
	// The rest of a last sector is dropped.
	odd, ok := nfcDisks{l.sim}.Find("[ds2] web01/web01_1-000002.vmdk")
	if !ok {
		t.Fatal("no odd disk")
	}
	write, err = odd.Open()
	check(t, err)
	check(t, write(1000448-512, make([]byte, 512)))

	get := fetch{file: "web01/web01.vmdk", cookie: l.cookie(), method: "HEAD"}
	unlock, ok := l.sim.locks.Lock(filepath.Join(filepath.Dir(file.Path), "web01.vmdk"), nfc.Reader)
	if !ok || l.status(get) != http.StatusInternalServerError {
		t.Error("a download beside an open disk")
	}
	unlock()
	if got := l.status(get); got != http.StatusOK {
		t.Errorf("after the disk was closed: %d", got)
	}
}
