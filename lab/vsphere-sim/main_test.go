package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"drover.dev/lab/vsphere-sim/internal/sim"
)

// TestMain lets the test binary be the program itself, so that no second build is needed.
func TestMain(m *testing.M) {
	if os.Getenv("VSPHERE_SIM_RUN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// startUnder runs shell code in which $SIM is the command line of the simulator, and gives what
// the simulator says when it is ready.
func startUnder(t *testing.T, work, code string) (*exec.Cmd, sim.Ready) {
	t.Helper()
	inventory := filepath.Join(t.TempDir(), "i.yaml")
	if err := os.WriteFile(inventory, []byte("vms: [{name: a, disks: [{capacity: 1MiB}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", "-c", code)
	command.Env = append(os.Environ(), "VSPHERE_SIM_RUN=1",
		"SIM="+os.Args[0]+" --inventory "+inventory+" --work "+work+" --exit-with-parent")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no ready line: %v", err)
	}
	var ready sim.Ready
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatal(err)
	}
	return command, ready
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > 5*time.Second {
			t.Fatalf("%s: not within 5 s", what)
		}
	}
}

func gone(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return os.IsNotExist(err) }
}

func TestEndsWithItsParentAndLeavesNothing(t *testing.T) {
	work := t.TempDir()
	parent, ready := startUnder(t, work, "$SIM & wait")
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // It was killed, and says so.
	waitFor(t, "end of the simulator", func() bool { return syscall.Kill(ready.PID, 0) != nil })
	waitFor(t, "removal of its folder", gone(ready.Work))
}

func TestRemovesWhatAKilledOneLeft(t *testing.T) {
	work := t.TempDir()
	first, killed := startUnder(t, work, "exec $SIM")
	_, living := startUnder(t, work, "exec $SIM")
	if err := syscall.Kill(killed.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	third, ready := startUnder(t, work, "exec $SIM")
	if !gone(killed.Work)() {
		t.Error("the killed one's folder is still there")
	}
	if gone(living.Work)() {
		t.Error("a living one's folder was removed")
	}
	for _, pid := range []int{living.PID, ready.PID} {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := third.Wait(); err != nil {
		t.Errorf("end by signal: %v", err)
	}
	waitFor(t, "removal of its folder", gone(ready.Work))
}
