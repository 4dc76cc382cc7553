package sim

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// soapReference is an object in a request; attributes such as versionId are skipped.
type soapReference struct {
	Type string `xml:"type,attr"`
	ID   string `xml:",chardata"`
}

// nfcCall is a call of NfcService, which is in no public description.
type nfcCall struct {
	XMLName xml.Name
	This    soapReference `xml:"_this"`
	VM      soapReference `xml:"vm"`
	Key     *int32        `xml:"diskDeviceKey"`
	Host    soapReference `xml:"hostForAccess"`
}

// nfcMethods are the calls answered here.
var nfcMethods = []string{
	"RetrieveInternalContent", "NfcGetVmFiles", "NfcRandomAccessOpenReadonly", "NfcRandomAccessOpenDisk", "NfcGetServerNfcLibVersion",
}

// nfcProblem is a fault to answer with.
type nfcProblem struct{ kind, inner, message string }

func problemOf(property string) *nfcProblem {
	return &nfcProblem{"InvalidArgument", "<invalidProperty>" + property + "</invalidProperty>",
		"A specified parameter was not correct: " + property}
}

func missing(ref soapReference) *nfcProblem {
	return &nfcProblem{"ManagedObjectNotFound", fmt.Sprintf(`<obj type="%s">%s</obj>`, escape(ref.Type), escape(ref.ID)),
		fmt.Sprintf("The object '%s:%s' has already been deleted or has not been completely created", ref.Type, ref.ID)}
}

// nfcSOAP answers the calls about NFC, and tells if the request was one of them.
func (s *Sim) nfcSOAP(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil || !bytes.Contains(body, []byte("Nfc")) && !bytes.Contains(body, []byte("RetrieveInternalContent")) {
		return false
	}
	var request struct {
		Body struct {
			Call nfcCall `xml:",any"`
		} `xml:"Body"`
	}
	if xml.Unmarshal(body, &request) != nil || !slices.Contains(nfcMethods, request.Body.Call.XMLName.Local) {
		return false
	}
	call := &request.Body.Call
	name := call.XMLName.Local
	s.stats.call(name)
	answer, problem := s.nfcAnswer(r, name, call)
	if problem != nil {
		hostFault(w, problem.kind, problem.inner, problem.message)
		return true
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	fmt.Fprintf(w, envelope, fmt.Sprintf(`<%sResponse xmlns="urn:vim25">%s</%sResponse>`, name, answer, name))
	return true
}

func (s *Sim) nfcServiceID() string {
	if s.esxi {
		return "ha-nfc-service"
	}
	return "nfcService"
}

func (s *Sim) nfcAnswer(r *http.Request, name string, call *nfcCall) (string, *nfcProblem) {
	if cookie, err := r.Cookie(soap.SessionCookieName); err != nil || !s.sessions.isValid(cookie.Value) {
		return "", &nfcProblem{"NotAuthenticated", fmt.Sprintf(`<object type="%s">%s</object><privilegeId>System.View</privilegeId>`,
			escape(call.This.Type), escape(call.This.ID)), "The session is not authenticated."}
	}
	if name == "RetrieveInternalContent" {
		return s.internalContent(), nil
	}
	if call.This.ID != s.nfcServiceID() {
		return "", missing(call.This)
	}
	m := s.byMoid(call.VM.ID)
	if rule := s.nfcFaults.take(&simulator.Method{Name: name}, m); rule != nil {
		return "", ruleProblem(rule, call)
	}
	if name == "NfcGetServerNfcLibVersion" {
		return s.nfcLibVersion(call)
	}
	if m == nil {
		return "", missing(call.VM)
	}
	if s.privileges.lacks(m, required[name]) {
		return "", noPermission(call, required[name])
	}
	return s.nfcTicket(name, call, m)
}

// internalContent names other services as well, since a client has to look for the right one.
func (s *Sim) internalContent() string {
	out := "<returnval>"
	for _, one := range [][3]string{
		{"agentManager", "AgentManager", "agentManager"}, {"diagnosticManager", "InternalDiagnosticManager", "intDiagMgr"},
		{"llProvisioningManager", "HostLowLevelProvisioningManager", "llpm"}, {"nfcService", "NfcService", s.nfcServiceID()},
		{"proxyService", "ProxyService", "proxy-service"}, {"serviceDirectory", "ServiceDirectory", "serviceDirectory"},
	} {
		out += fmt.Sprintf(`<%s type="%s">%s</%s>`, one[0], one[1], one[2], one[0])
	}
	return out + "</returnval>"
}

func (s *Sim) nfcLibVersion(call *nfcCall) (string, *nfcProblem) {
	name := s.hostName(types.ManagedObjectReference{Value: call.Host.ID})
	if name == "" {
		return "", problemOf("hostForAccess")
	}
	version, known, err := s.nfc.LibVersion(name)
	if err != nil {
		return "", problemOf("hostForAccess")
	}
	if !known {
		return "", &nfcProblem{"InvalidRequest", "", "Unable to resolve WSDL method name NfcGetServerNfcLibVersion"}
	}
	return fmt.Sprintf(`<returnval xsi:type="xsd:int">%d</returnval>`, version), nil
}

// nfcTicket gives a ticket, for the host that has the VM now.
func (s *Sim) nfcTicket(name string, call *nfcCall, m *machine) (string, *nfcProblem) {
	var host string
	s.registry.WithLock(s.ownContext(), m.vm, func() { host = s.hostName(*m.vm.Runtime.Host) })
	grant := nfc.Grant{Host: host, Service: nfc.VPXA, VM: m.ref.Value, Write: name == "NfcRandomAccessOpenDisk"}
	if s.esxi {
		grant.Service = nfc.Hostd
	}
	if name != "NfcGetVmFiles" {
		if call.Key == nil || m.disks.Find(*call.Key) == nil {
			return "", problemOf("diskDeviceKey")
		}
		grant.Key = *call.Key
		if given := call.Host.ID; given != "" && given != s.hostRefs[host].Value {
			return "", problemOf("hostForAccess")
		}
	}
	ticket, err := s.nfc.Issue(grant, s.nfcPreferred(host))
	if err != nil {
		return "", &nfcProblem{"HostConnectFault", "", err.Error()}
	}
	return s.ticketXML(ticket), nil
}

func (s *Sim) ticketXML(ticket nfc.Ticket) string {
	var out bytes.Buffer
	out.WriteString(`<returnval xsi:type="HostServiceTicket">`)
	put := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "<%s>%s</%s>", name, escape(value), name)
		}
	}
	if !s.esxi {
		put("host", ticket.Address)
	}
	if ticket.Port != 0 {
		put("port", fmt.Sprint(ticket.Port))
	}
	put("sslThumbprint", ticket.Thumbprint)
	put("sslCertificate", ticket.Certificate)
	put("service", ticket.Service)
	put("serviceVersion", "1.1")
	put("sessionId", ticket.SessionID)
	out.WriteString("</returnval>")
	return out.String()
}

// orderNFCFault lets calls of NfcService fail.
func (s *Sim) orderNFCFault(order soapOrder, fault types.BaseMethodFault, count int) (err error) {
	if !slices.Contains(nfcMethods, order.Method) {
		return fmt.Errorf("method %q: want one of %v", order.Method, nfcMethods[1:])
	}
	rule := faultRule{method: order.Method, fault: fault, message: order.Message, left: count, skip: order.Skip}
	if order.VM != "" {
		if rule.only, err = s.machineOf(order.VM); err != nil {
			return err
		}
	}
	s.nfcFaults.add(rule)
	return nil
}

func noPermission(call *nfcCall, privilege string) *nfcProblem {
	return &nfcProblem{"NoPermission", fmt.Sprintf(`<object type="%s">%s</object><privilegeId>%s</privilegeId>`,
		escape(call.VM.Type), escape(call.VM.ID), privilege), "Permission to perform this operation was denied."}
}

func ruleProblem(rule *faultRule, call *nfcCall) *nfcProblem {
	out := &nfcProblem{reflect.TypeOf(rule.fault).Elem().Name(), "", rule.message}
	switch out.kind {
	case "NoPermission", "NotAuthenticated":
		out.inner = noPermission(call, required["NfcGetVmFiles"]).inner
	case "ManagedObjectNotFound":
		out.inner = fmt.Sprintf(`<obj type="%s">%s</obj>`, escape(call.VM.Type), escape(call.VM.ID))
	}
	return out
}
