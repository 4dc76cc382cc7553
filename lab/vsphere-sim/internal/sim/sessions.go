package sim

import (
	"context"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"drover.dev/lab/vsphere-sim/internal/inventory"
)

// trustFor is how long a session found valid is not looked up again. Data requests come by the
// thousand, and the end of a session has to be noticed within a second.
const trustFor = 200 * time.Millisecond

// sessionsMax bounds what strangers with made-up cookies can make us remember.
const sessionsMax = 10_000

// sessions knows who is logged in: at the main SDK, at each host's own, and over REST.
type sessions struct {
	sim     *Sim
	manager *simulator.SessionManager
	timeout time.Duration

	mu       sync.Mutex
	valid    map[string]bool // at the main SDK, as of looked
	looked   time.Time
	busy     map[string]int       // calls under way at the main SDK
	used     map[string]time.Time // end of the last call
	atHosts  map[string]*hostSession
	restDead map[string]bool
	rest     map[string]bool
}

// hostSession is a login at one host.
type hostSession struct {
	host *inventory.Host
	used time.Time
}

func newSessions(s *Sim) *sessions {
	return &sessions{
		sim: s, manager: s.registry.SessionManager(), timeout: time.Duration(s.inv.SessionIdleTimeout),
		busy: map[string]int{}, used: map[string]time.Time{}, atHosts: map[string]*hostSession{},
		rest: map[string]bool{}, restDead: map[string]bool{},
	}
}

// list asks govmomi's simulator for its sessions, the only way it offers.
func (t *sessions) list() []types.UserSession {
	view := &simulator.Session{Registry: simulator.NewRegistry(), Map: t.sim.registry}
	return view.Get(t.manager.Self).(*simulator.SessionManager).SessionList
}

// watch ends idle sessions until ctx is done.
func (t *sessions) watch(ctx context.Context) {
	every := min(max(t.timeout/20, 10*time.Millisecond), time.Second)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			t.endIdle(now)
		}
	}
}

func (t *sessions) endIdle(now time.Time) {
	var dead []string
	t.mu.Lock()
	for _, session := range t.list() {
		last := session.LastActiveTime
		if used := t.used[session.Key]; used.After(last) {
			last = used
		}
		if t.busy[session.Key] == 0 && now.Sub(last) > t.timeout {
			dead = append(dead, session.Key)
		}
	}
	for id, session := range t.atHosts {
		if now.Sub(session.used) > t.timeout {
			delete(t.atHosts, id)
		}
	}
	t.mu.Unlock()
	t.end(dead)
}

// end logs out sessions of the main SDK.
func (t *sessions) end(ids []string) {
	for _, id := range ids {
		nobody := &simulator.Context{Session: &simulator.Session{}}
		t.manager.TerminateSession(nobody, &types.TerminateSession{SessionId: []string{id}})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		delete(t.used, id)
		delete(t.valid, id)
	}
}

// expireAll ends every session everywhere at once.
func (t *sessions) expireAll() int {
	var ids []string
	for _, session := range t.list() {
		ids = append(ids, session.Key)
	}
	t.end(ids)
	t.mu.Lock()
	defer t.mu.Unlock()
	count := len(ids) + len(t.atHosts)
	t.atHosts = map[string]*hostSession{}
	for id := range t.rest {
		t.restDead[id] = true
	}
	t.rest = map[string]bool{}
	return count
}

// alive counts sessions at the main SDK and at hosts.
func (t *sessions) alive() (sdk, hosts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.list()), len(t.atHosts)
}

// isValid tells if id is a session of the main SDK. Reading data does not keep a session alive.
func (t *sessions) isValid(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.looked) > trustFor {
		t.refresh(now)
	}
	if !t.valid[id] {
		t.refresh(time.Now()) // It may be newer than the last look.
	}
	return t.valid[id]
}

func (t *sessions) refresh(now time.Time) {
	t.valid, t.looked = map[string]bool{}, now
	for _, session := range t.list() {
		t.valid[session.Key] = true
	}
}

// call notes that a SOAP call of a session runs, which keeps it alive; done ends the note.
func (t *sessions) call(r *http.Request) (done func()) {
	cookie, err := r.Cookie(soap.SessionCookieName)
	if err != nil {
		return func() {}
	}
	id := cookie.Value
	t.mu.Lock()
	t.busy[id]++
	t.mu.Unlock()
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.busy[id]--; t.busy[id] == 0 {
			delete(t.busy, id)
		}
		if len(t.used) < sessionsMax {
			t.used[id] = time.Now()
		}
	}
}

// mayRead tells if a request for data at the main SDK is from someone who is logged in.
func (t *sessions) mayRead(r *http.Request) bool {
	if cookie, err := r.Cookie(soap.SessionCookieName); err == nil && t.isValid(cookie.Value) {
		return true
	}
	user, password, given := r.BasicAuth()
	want := t.sim.credentials()
	wanted, _ := want.Password()
	return given && same(user, want.Username()) && same(password, wanted)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// loginHost starts a session at a host.
func (t *sessions) loginHost(host *inventory.Host) string {
	id := uuid.NewString()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.atHosts[id] = &hostSession{host: host, used: time.Now()}
	return id
}

func (t *sessions) logoutHost(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.atHosts, id)
}

// atHost tells if the request has a session of host; a SOAP call keeps it alive.
func (t *sessions) atHost(r *http.Request, host *inventory.Host, call bool) (string, bool) {
	cookie, err := r.Cookie(soap.SessionCookieName)
	if err != nil {
		return "", false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.atHosts[cookie.Value]
	if session == nil || session.host != host {
		return "", false
	}
	if call {
		session.used = time.Now()
	}
	return cookie.Value, true
}

const restSession = "vmware-api-session-id"

// restAlive tells if the request's REST session was not ended by order; unknown ones are govmomi's to judge.
func (t *sessions) restAlive(r *http.Request) bool {
	id := r.Header.Get(restSession)
	if cookie, err := r.Cookie(restSession); id == "" && err == nil {
		id = cookie.Value
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id != "" {
		t.rest[id] = true
	}
	return !t.restDead[id]
}
