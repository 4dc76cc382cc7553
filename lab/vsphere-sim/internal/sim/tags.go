package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
)

// tag makes the inventory's tags over the REST API, the only way in.
func (s *Sim) tag() error {
	wanted := map[string][]mo.Reference{}
	var order []string
	for _, m := range s.order {
		for _, tag := range m.given.Tags {
			if wanted[tag] == nil {
				order = append(order, tag)
			}
			wanted[tag] = append(wanted[tag], m.vm)
		}
	}
	if len(order) == 0 || s.esxi {
		return nil
	}
	ctx := s.stopped
	manager, err := s.tagManager(ctx)
	if err != nil {
		return fmt.Errorf("tags: %w", err)
	}
	categories := map[string]string{}
	for _, tag := range order {
		if err := attachTag(ctx, manager, categories, tag, wanted[tag]); err != nil {
			return fmt.Errorf("tag %q: %w", tag, err)
		}
	}
	return manager.Logout(ctx)
}

func (s *Sim) tagManager(ctx context.Context) (*tags.Manager, error) {
	address, err := url.Parse(s.Ready.URL)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.cert.Load().pem)
	transport := soap.NewClient(address, false)
	transport.DefaultTransport().TLSClientConfig = &tls.Config{RootCAs: roots}
	transport.Client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	client := rest.NewClient(&vim25.Client{Client: transport, RoundTripper: transport})
	if err := client.Login(ctx, s.credentials()); err != nil {
		return nil, err
	}
	return tags.NewManager(client), nil
}

func attachTag(ctx context.Context, manager *tags.Manager, categories map[string]string, tag string, vms []mo.Reference) error {
	category, name, _ := strings.Cut(tag, ":")
	if categories[category] == "" {
		id, err := manager.CreateCategory(ctx, &tags.Category{
			Name: category, Cardinality: "MULTIPLE", AssociableTypes: []string{"VirtualMachine"},
		})
		if err != nil {
			return err
		}
		categories[category] = id
	}
	id, err := manager.CreateTag(ctx, &tags.Tag{Name: name, CategoryID: categories[category]})
	if err != nil {
		return err
	}
	return manager.AttachTagToMultipleObjects(ctx, id, vms)
}
