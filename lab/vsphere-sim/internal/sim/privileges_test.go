package sim

import (
	"context"
	"testing"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
)

func TestUsersLackThePrivilegesThatWereDenied(t *testing.T) {
	l := start(t, false, "30m")
	ctx := context.Background()
	vm := l.vm("prod/web/web01")
	own, err := session.NewManager(l.client.Client).UserSession(ctx)
	check(t, err)
	const off, on = "VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn"
	tell := func() map[string]bool {
		answer := map[string]bool{}
		told, err := hasPrivileges(ctx, l, own.Key, vm.Reference(), off, on)
		check(t, err)
		for _, it := range told {
			answer[it.PrivId] = it.IsGranted
		}
		return answer
	}
	if now := tell(); !now[off] || !now[on] {
		t.Errorf("granted at first: %v", now)
	}
	l.control("POST", "/privileges", `{"vm":"prod/web/web01","deny":["`+off+`"]}`, nil)
	if now := tell(); now[off] || !now[on] {
		t.Errorf("granted: %v", now)
	}
	if _, err := vm.PowerOff(ctx); !fault.Is(err, &types.NoPermission{}) {
		t.Errorf("power off: %v", err)
	}
	if _, err := hasPrivileges(ctx, l, "another", vm.Reference(), off); err == nil {
		t.Error("the privileges of another session are told")
	}
	l.control("POST", "/privileges", `{"vm":"prod/web/web01","deny":[]}`, nil)
	if now := tell(); !now[off] {
		t.Errorf("granted again: %v", now)
	}
}

func hasPrivileges(ctx context.Context, l *lab, key string, on types.ManagedObjectReference, ids ...string) ([]types.PrivilegeAvailability, error) {
	answer, err := methods.HasPrivilegeOnEntities(ctx, l.client.Client, &types.HasPrivilegeOnEntities{
		This: *l.client.ServiceContent.AuthorizationManager, Entity: []types.ManagedObjectReference{on}, SessionId: key, PrivId: ids,
	})
	if err != nil {
		return nil, err
	}
	return answer.Returnval[0].PrivAvailability, nil
}
