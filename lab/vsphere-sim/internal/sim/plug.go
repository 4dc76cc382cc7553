package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// plug brings a disk to a guest and takes it away again.
type plug interface {
	attach(a *attachment) error
	detach(a *attachment) error
}

// folderPlug is a guest that is no more than a folder: a link for each disk, named as udev names those in
// /dev/disk/by-id.
type folderPlug struct{ dir string }

func (p folderPlug) link(a *attachment) string { return filepath.Join(p.dir, "wwn-0x"+a.serial) }

func (p folderPlug) attach(a *attachment) error { return os.Symlink(a.path, p.link(a)) }

func (p folderPlug) detach(a *attachment) error { return os.Remove(p.link(a)) }

// qmpPlug is a QEMU that has a SCSI bus. It gets disks that it cannot write to.
type qmpPlug struct{ socket, bus string }

// qmpTime bounds what QEMU takes for all orders of one disk.
const qmpTime = 30 * time.Second

func (p qmpPlug) attach(a *attachment) error {
	return p.talk(func(q *qmp) error {
		node := map[string]any{
			"driver": "raw", "node-name": a.node(), "read-only": true,
			"file": map[string]any{"driver": "file", "filename": a.path, "read-only": true, "locking": "off"},
		}
		if err := q.order("blockdev-add", node); err != nil {
			return err
		}
		device := map[string]any{
			"driver": "scsi-hd", "id": a.node() + "-device", "bus": p.bus, "drive": a.node(), "serial": a.serial,
			"scsi-id": a.unit, "lun": 0,
		}
		if err := q.order("device_add", device); err != nil {
			_ = q.order("blockdev-del", map[string]any{"node-name": a.node()})
			return err
		}
		return nil
	})
}

func (p qmpPlug) detach(a *attachment) error {
	err := p.talk(func(q *qmp) error {
		id := a.node() + "-device"
		if err := q.order("device_del", map[string]any{"id": id}); err != nil {
			return err
		}
		if err := q.wait("DEVICE_DELETED", id); err != nil {
			return err
		}
		return q.order("blockdev-del", map[string]any{"node-name": a.node()})
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil // A QEMU that is gone has no disk any more.
	}
	return err
}

func (a *attachment) node() string { return fmt.Sprintf("hotadd%d", a.key) }

// qmp is a connection to QEMU's monitor.
type qmp struct {
	encoder *json.Encoder
	decoder *json.Decoder
	events  []qmpAnswer
}

type qmpAnswer struct {
	Return *json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Device string `json:"device"`
	} `json:"data"`
}

func (p qmpPlug) talk(run func(*qmp) error) error {
	conn, err := net.DialTimeout("unix", p.socket, qmpTime)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(qmpTime)); err != nil {
		return err
	}
	q := &qmp{encoder: json.NewEncoder(conn), decoder: json.NewDecoder(conn)}
	var greeting map[string]any
	if err := q.decoder.Decode(&greeting); err != nil {
		return fmt.Errorf("greeting of QEMU: %w", err)
	}
	if err := q.order("qmp_capabilities", nil); err != nil {
		return err
	}
	return run(q)
}

func (q *qmp) order(command string, arguments map[string]any) error {
	order := map[string]any{"execute": command}
	if arguments != nil {
		order["arguments"] = arguments
	}
	if err := q.encoder.Encode(order); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		answer, err := q.next()
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", command, err)
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
		q.events = append(q.events, answer)
	}
}

func (q *qmp) next() (answer qmpAnswer, err error) {
	err = q.decoder.Decode(&answer)
	return answer, err
}

// wait waits for an event about a device; it may have come before.
func (q *qmp) wait(event, device string) error {
	for {
		for _, seen := range q.events {
			if seen.Event == event && seen.Data.Device == device {
				return nil
			}
		}
		q.events = nil
		answer, err := q.next()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", event, err)
		}
		q.events = append(q.events, answer)
	}
}
