package sim

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/vmware/govmomi/vim25/soap"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// requestBytesMax bounds a SOAP request to a host.
const requestBytesMax = 1 << 20

// hostCall is a SOAP request as far as a host's few methods need it.
type hostCall struct {
	Body struct {
		Call struct {
			XMLName  xml.Name
			UserName string `xml:"userName"`
			Password string `xml:"password"`
		} `xml:",any"`
	} `xml:"Body"`
}

// serveHost is the SDK of an ESXi host that vCenter manages: enough to log in for data.
func (s *Sim) serveHost(w http.ResponseWriter, r *http.Request, host *inventory.Host) {
	if r.URL.Path != "/sdk" && r.URL.Path != "/sdk/" || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, requestBytesMax))
	var call hostCall
	if err == nil {
		err = xml.Unmarshal(body, &call)
	}
	if err != nil {
		hostFault(w, "InvalidRequest", "", "bad request: "+err.Error())
		return
	}
	name := call.Body.Call.XMLName.Local
	s.stats.call("host:" + name)
	id, loggedIn := s.sessions.atHost(r, host, true)
	switch {
	case name == "RetrieveServiceContent":
		s.hostContent(w)
	case name == "Login":
		s.hostLogin(w, host, call.Body.Call.UserName, call.Body.Call.Password)
	case !loggedIn:
		hostFault(w, "NotAuthenticated", "<object type=\"ServiceInstance\">ServiceInstance</object><privilegeId>System.View</privilegeId>",
			"The session is not authenticated.")
	case name == "Logout":
		s.sessions.logoutHost(id)
		hostAnswer(w, "LogoutResponse", "")
	case name == "CurrentTime":
		hostAnswer(w, "CurrentTimeResponse", "<returnval>"+time.Now().UTC().Format(time.RFC3339Nano)+"</returnval>")
	case name == "SessionIsActive":
		hostFault(w, "NotImplemented", "", "The operation is not supported on the object.")
	default:
		hostFault(w, "NotSupported", "", "The operation is not supported on the object.")
	}
}

func (s *Sim) hostContent(w http.ResponseWriter) {
	about := s.hostAbout()
	hostAnswer(w, "RetrieveServiceContentResponse", "<returnval>"+
		`<rootFolder type="Folder">ha-folder-root</rootFolder>`+
		`<propertyCollector type="PropertyCollector">ha-property-collector</propertyCollector>`+
		`<viewManager type="ViewManager">ViewManager</viewManager>`+
		fmt.Sprintf("<about><name>%s</name><fullName>%s</fullName><vendor>%s</vendor><version>%s</version><build>%s</build>"+
			"<osType>%s</osType><productLineId>%s</productLineId><apiType>%s</apiType><apiVersion>%s</apiVersion></about>",
			about.Name, escape(about.FullName), about.Vendor, escape(about.Version), escape(about.Build),
			about.OsType, about.ProductLineId, about.ApiType, escape(about.ApiVersion))+
		`<sessionManager type="SessionManager">ha-sessionmgr</sessionManager>`+
		"</returnval>")
}

func (s *Sim) hostLogin(w http.ResponseWriter, host *inventory.Host, user, password string) {
	if !same(user, host.Credentials.Username) || !same(password, host.Credentials.Password) {
		hostFault(w, "InvalidLogin", "", "Cannot complete login due to an incorrect user name or password.")
		return
	}
	id := s.sessions.loginHost(host)
	http.SetCookie(w, &http.Cookie{Name: soap.SessionCookieName, Value: id, Path: "/", HttpOnly: true, Secure: true})
	now := time.Now().UTC().Format(time.RFC3339Nano)
	hostAnswer(w, "LoginResponse", fmt.Sprintf("<returnval><key>%s</key><userName>%s</userName><fullName>%s</fullName>"+
		"<loginTime>%s</loginTime><lastActiveTime>%s</lastActiveTime><locale>en</locale><messageLocale>en</messageLocale></returnval>",
		id, escape(user), escape(user), now, now))
}

func escape(text string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(text)) // A buffer takes everything.
	return out.String()
}

const envelope = `<?xml version="1.0" encoding="UTF-8"?>
<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<soapenv:Body>%s</soapenv:Body>
</soapenv:Envelope>`

func hostAnswer(w http.ResponseWriter, name, inner string) {
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	fmt.Fprintf(w, envelope, fmt.Sprintf(`<%s xmlns="urn:vim25">%s</%s>`, name, inner, name))
}

func hostFault(w http.ResponseWriter, kind, inner, message string) {
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.WriteHeader(http.StatusInternalServerError)
	fmt.Fprintf(w, envelope, fmt.Sprintf("<soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>%s</faultstring>"+
		`<detail><%sFault xmlns="urn:vim25" xsi:type="%s">%s</%sFault></detail></soapenv:Fault>`,
		escape(message), kind, kind, inner, kind))
}
