// Command cluster is a Kubernetes in one program, for the tests of the KubeVirt target: the program that it is called as,
// by its first argument, is etcd, kube-apiserver, kube-controller-manager, kube-scheduler or kubelet. `forward` takes connections
// from one network to another by a socket that both see.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	os.Args = os.Args[1:]
	switch os.Args[0] {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "forward":
		if len(os.Args) == 3 {
			fmt.Fprintln(os.Stderr, forward(os.Args[1], os.Args[2]))
			os.Exit(1)
		}
		usage()
	}
	program, known := programs[os.Args[0]]
	if !known {
		usage()
	}
	os.Exit(cli.Run(program()))
}

// forward takes connections at one address (tcp:HOST:PORT or unix:PATH) on to another, until it fails.
func forward(from, to string) error {
	fromNetwork, fromAddress, _ := strings.Cut(from, ":")
	toNetwork, toAddress, _ := strings.Cut(to, ":")
	listener, err := net.Listen(fromNetwork, fromAddress)
	if err != nil {
		return err
	}
	for {
		here, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer here.Close()
			there, err := net.Dial(toNetwork, toAddress)
			if err != nil {
				return
			}
			defer there.Close()
			go func() {
				io.Copy(there, here)
				there.(interface{ CloseWrite() error }).CloseWrite()
			}()
			io.Copy(here, there)
		}()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: cluster etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet ARGUMENT... | cluster forward FROM TO")
	os.Exit(2)
}
