// Command vsphere-sim is a vSphere for drover's tests, demo and benches; see README.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"drover.dev/lab/vsphere-sim/internal/inventory"
	"drover.dev/lab/vsphere-sim/internal/sim"
)

// collectAt is by how many percent the heap grows before it is collected. What is allocated to answer goes at once, and a look
// through the objects of thousands of VMs costs as much as many answers.
const collectAt = 400

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vsphere-sim:", err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("inventory", "", "YAML `file` that says what to simulate (required)")
	listen := flag.String("listen", "127.0.0.1:0", "`address` of the SDK")
	mode := flag.String("mode", "vcenter", "vcenter, or esxi for the first host alone")
	nfcPort := flag.Int("nfc-port", 0, "`port` of the hosts' NFC, 902 on real ones; 0 picks a free one")
	work := flag.String("work", "", "`folder` for datastores; default a fresh temporary one")
	withParent := flag.Bool("exit-with-parent", false, "end when the process that started this one is gone")
	flag.Parse()
	if *file == "" || flag.NArg() > 0 || *mode != "vcenter" && *mode != "esxi" {
		flag.Usage()
		return fmt.Errorf("want --inventory FILE and --mode vcenter or esxi")
	}
	// Before anything slow, or the parent could be gone without our knowing.
	parent := os.Getppid()
	ends := make(chan os.Signal, 2)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	if *withParent {
		go watchParent(parent, ends)
	}

	inv, err := inventory.Load(*file)
	if err != nil {
		return err
	}
	dir, release, err := ownDir(*work)
	if err != nil {
		return err
	}
	defer release()
	s, err := sim.Start(sim.Options{Inventory: inv, Listen: *listen, ESXi: *mode == "esxi", NFCPort: *nfcPort, Dir: dir})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := json.NewEncoder(os.Stdout).Encode(s.Ready); err != nil {
		return err
	}
	log.Printf("ends: %s", <-ends)
	return nil
}

// watchParent ends the program like a signal does once the parent is another process.
func watchParent(parent int, ends chan<- os.Signal) {
	const poll = 200 * time.Millisecond
	for os.Getppid() == parent {
		time.Sleep(poll)
	}
	ends <- syscall.SIGTERM
}

// dirPrefix marks the folders that are ours to remove.
const dirPrefix = "vsphere-sim-"

// ownDir makes a folder of our own in work and removes those that killed simulators left there.
// A lock that lives as long as its process tells the living from the dead; a pid could be reused.
func ownDir(work string) (dir string, release func(), err error) {
	if work == "" {
		work = os.TempDir() // Others' leftovers in there are not ours to judge.
	} else {
		if err := os.MkdirAll(work, 0o700); err != nil {
			return "", nil, err
		}
		removeStale(work)
	}
	if work, err = filepath.Abs(work); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(work, fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}, nil
}

func removeStale(work string) {
	found, _ := filepath.Glob(filepath.Join(work, dirPrefix+"*", "lock"))
	for _, name := range found {
		lock, err := os.Open(name)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			log.Printf("removes what a killed simulator left: %s", filepath.Dir(name))
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}
