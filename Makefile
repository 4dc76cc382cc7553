# drover: `make demo` shows it, `make test` tests it. Both install what they need and say what they do.
SHELL := /bin/sh
CARGO ?= cargo
GO ?= go
LAB := target/lab
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: check-conversion cluster help demo demo-kube test build build-for-tests packages check-packages lab prepare reference lint check-rust check-go check-scripts bench bench-relay bench-wan bench-warm bench-fleet bench-live bench-operator soak soak-operator image fuzz mutants clean

help:
	@echo "make demo    moves simulated vSphere VMs to QEMU, proves every byte, boots them"
	@echo "make demo-kube moves them to volumes of a real Kubernetes of two nodes by the operator, proves them from outside, boots them (as root)"
	@echo "make test    all tests (CI runs this)"
	@echo "make build   target/release/drover and drover-lab"
	@echo "make packages   deb, rpm, tarball and container image in target/packages, tried in a bare Debian"
	@echo "make image   the container image, target/packages/drover-*-oci.tar, beside the other packages"
	@echo "make bench   drover beside curl, nbdcopy and qemu-img on the same data"
	@echo "make bench-relay   drover relay beside socat and haproxy on loopback"
	@echo "make bench-wan  what programs get out of a long, lossy line (as root)"
	@echo "make bench-warm  passes of a warm migration, many disks of one host through VDDK's stand-in"
	@echo "make bench-fleet  5,000 VMs in the simulator, as one plan and as 40; plans that share hosts; runs that break"
	@echo "make bench-operator  5,000 Migrations of the operator beside a real API server, their workers played (as root)"
	@echo "make bench-live  drover-lab bench memory: running guests that move, by QEMU alone and by drover, also over a long line (as root; ARGS='--size 1g')"
	@echo "make soak    kills, resumes and suspends copies while 20 guests move warm, lines are cut and everything goes wrong (HOURS=2 in all)"
	@echo "make soak-operator   cuts the line to the node of the operator's worker again and again, 28 times in some 35 minutes (ROUNDS=28, as root)"
	@echo "make fuzz    fuzzes every parser (SECONDS=30 each)"
	@echo "make mutants changes the pure crates here and there, and looks whether a test notices"
	@echo "make reference   writes docs/reference/cli-*.md and plan-*.md from the code"
	@echo "make check-conversion   all conversions by the real virt-v2v, also in a pod of Kubernetes (as root, some 10 minutes)"
	@echo "make cluster a real Kubernetes of two nodes in namespaces of its own, until Ctrl-C (as root)"
	@echo "make clean"

# It makes its guests itself, and needs no more of the lab: what the tests need takes a quarter of an hour longer.
demo: prepare build $(LAB)/vsphere-sim
	@target/release/drover-lab demo

demo-kube: prepare build lab
	@target/release/drover-lab demo-kube

test: prepare build-for-tests check-go check-rust check-packages
	@echo "make test: all is well"

# The lab waits for downloads for the most part: side by side both take little longer than the build.
build-for-tests:
	@echo "building the tests, with the lab beside them"
	@$(MAKE) -s lab & lab=$$!; status=0; $(MAKE) -s lint || status=$$?; \
		[ $$status -ne 0 ] || $(CARGO) test -q --workspace --no-run || status=$$?; \
		wait $$lab || status=$$?; exit $$status

# The tests of `make test` compare the pages with the code.
reference:
	@DROVER_WRITE_REFERENCE=1 $(CARGO) test -q --workspace --bin drover --bin drover-lab -- the_reference_is_what_the_code_makes

prepare:
	@scripts/prepare lab

build:
	@echo "building drover and drover-lab (release)"
	@$(CARGO) build -q --release -p drover -p drover-lab-cli

# The static program is another build: its flags must not reach the one that is linked to the system's C library.
packages: prepare build $(LAB)/vsphere-sim
	@scripts/get-bare-debian $(LAB)/bare.tar
	@echo "building drover and drover-lab (release, static)"
	@RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build -q --release -p drover -p drover-lab-cli --target $(HOST)
	@scripts/make-packages --programs target/release --static target/$(HOST)/release --out target/packages
	@scripts/test-packages target/packages

image: packages

lab: $(LAB)/vsphere-sim
	@scripts/get-bare-debian $(LAB)/bare.tar || echo "make: packages will not be tested"
	@$(MAKE) -s -C lab/vddk-standin OUT=$(CURDIR)/$(LAB)/vddk
	@lab/guests/make-guests --out $(LAB)/guests
	@lab/guests/make-guests --out $(LAB)/guests-secure --name safe01 --firmware secure --memory-mib 512 --data-mib 32 || echo "make: a guest with Secure Boot will not be tested"
	@scripts/get-qemu $(LAB)/qemu || echo "make: live migration will not be tested"
	@scripts/get-qemu $(LAB)/qemu-7.2 7.2 || echo "make: live migration from QEMU 7.2 will not be tested"
	@scripts/get-qemu $(LAB)/qemu-11.1 11.1 || echo "make: live migration to QEMU 11.1 will not be tested"
	@scripts/get-rdma-vm $(LAB)/rdma-vm || echo "make: live migration by RDMA will not be tested"
	@scripts/get-page-tests $(LAB)/page || echo "make: the daemon's page will not be tested"
	@scripts/get-pyvmomi $(LAB)/pyvmomi || echo "make: the simulator will not be tested with pyVmomi"
	@scripts/get-sshd $(LAB)/sshd || echo "make: libvirt over ssh will be tested with a stand-in for ssh"
	@scripts/get-libvirt $(LAB)/libvirt || echo "make: libvirt domains that move will not be tested"
	@scripts/get-ceph $(LAB)/ceph $(LAB) || echo "make: pools of Ceph will be tested with a stand-in for Ceph only"
	@scripts/get-v2v $(LAB)/v2v || echo "make: conversions will be tested with a stand-in for virt-v2v only"
	@lab/guests/make-vmware-guest $(LAB)/vmware || echo "make: no Linux guest will be converted by the real virt-v2v"
	@scripts/get-cluster $(LAB)/cluster || echo "make: KubeVirt will not be tested"

$(LAB)/vsphere-sim: $(shell find lab/vsphere-sim -name '*.go' -o -name 'go.*')
	@echo "building the vSphere simulator"
	@mkdir -p $(LAB)
	@cd lab/vsphere-sim && $(GO) build -o ../../$(LAB)/vsphere-sim .

lint: check-scripts
	@echo "formatting and lints"
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy -q --workspace --all-targets -- -D warnings

check-scripts:
	@shellcheck $$(git grep -lE '^#!/bin/(ba)?sh' -- scripts lab .ci)

check-rust:
	@echo "tests of the workspace"
	@CARGO='$(CARGO)' scripts/test-workspace

# Of the program that the tests use, so that nothing is built for it.
check-packages: lab
	@echo "tests of the packages"
	@$(CARGO) test -q --workspace --no-run
	@scripts/make-packages --programs target/debug --out $(LAB)/packages
	@scripts/test-packages $(LAB)/packages

check-go: $(LAB)/vsphere-sim
	@echo "tests of the simulator"
	@cd lab/vsphere-sim && test -z "$$(gofmt -l .)" && $(GO) vet ./... && $(GO) test ./...
	@[ ! -e $(LAB)/pyvmomi/ready ] || $(LAB)/pyvmomi/bin/python lab/pyvmomi/check.py $(LAB)/vsphere-sim

bench: build lab
	@scripts/prepare bench
	@target/release/drover-lab bench copy

bench-relay: build
	@scripts/prepare bench
	@target/release/drover-lab bench relay

bench-wan: build
	@scripts/prepare bench
	@target/release/drover-lab bench wan

bench-warm: build prepare lab
	@target/release/drover-lab bench warm

# Its own guests and ways, unless ARGS say others.
bench-fleet: build lab
	@target/release/drover-lab bench fleet

bench-live: build prepare lab
	@target/release/drover-lab bench memory --qemu $(LAB)/qemu/qemu-system-x86_64 --accel tcg \
		$(if $(findstring --place,$(ARGS)),,--place here,line) $(ARGS)

# Its own number of Migrations, unless MIGRATIONS says another.
bench-operator: prepare lab
	@DROVER_MIGRATIONS=$(or $(MIGRATIONS),5000) DROVER_NEEDS_CLUSTER=1 $(CARGO) test -q --release --workspace --test live_operator_scale -- --nocapture

check-conversion: prepare lab
	@DROVER_NEEDS_V2V=1 $(CARGO) test -q --workspace --test conversion --test live_target_libvirt_convert --test live_operator_convert -- --include-ignored --nocapture

cluster: prepare
	@scripts/get-cluster $(LAB)/cluster
	@rm -rf /tmp/drover-cluster && mkdir /tmp/drover-cluster && touch /tmp/drover-cluster/second
	@echo "export KUBECONFIG=/tmp/drover-cluster/kubeconfig     # once /tmp/drover-cluster/ready is there"
	@tail -f /dev/null | lab/cluster/up /tmp/drover-cluster $(LAB)/cluster 16443

soak: prepare lab
	@scripts/soak

soak-operator: prepare lab
	@DROVER_PARTITION_ROUNDS=$(or $(ROUNDS),28) DROVER_NEEDS_CLUSTER=1 $(CARGO) test -q --workspace --test live_operator_cut -- --nocapture

fuzz:
	@scripts/fuzz

mutants:
	@scripts/mutants

clean:
	@$(CARGO) clean
	@rm -rf $(LAB)
