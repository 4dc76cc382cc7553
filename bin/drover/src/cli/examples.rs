//! What the core commands show below their options: examples, and the command that comes next.

pub const INVENTORY: &str = "\
Examples:
  drover inventory vcenter.example.org --thumbprint AA:BB:...
  drover inventory vcenter.example.org --ca-file ca.pem --details
  drover inventory vcenter.example.org --ca-file ca.pem --folder prod/web --power on
  drover inventory vcenter.example.org --ca-file ca.pem --csv > fleet.csv
  drover inventory web.ova

Next: drover plan new vcenter.example.org --vm 'web*' -o web.yaml";

pub const ASSESS: &str = "\
Examples:
  drover assess vcenter.example.org --thumbprint AA:BB:...
  drover assess vcenter.example.org --ca-file ca.pem --html fleet.html

Next: drover plan new vcenter.example.org --vm 'web*' -o web.yaml";

pub const FORECAST: &str = "\
Examples:
  drover forecast web.yaml
  drover forecast web.yaml db.yaml --html forecast.html

Next: drover migrate web.yaml";

pub const AGENT_RUN: &str = "\
Examples:
  drover agent run --pool vms=/srv/vms
  drover agent run --libvirt-pool images --allow-start

Next: drover agent pair --new-token >token, and drover agent pair HOST --token-file token at the other site";

pub const AGENT_PAIR: &str = "\
Examples:
  drover agent pair --new-token
  drover agent pair site-b.example.org --token-file token

Next: drover link test site-b, then drover copy web01.raw agent://site-b/vms/web01.raw";

pub const PLAN_NEW: &str = "\
Examples:
  drover plan new vcenter.example.org --thumbprint AA:BB:... --vm 'web*' -o web.yaml
  drover plan new vcenter.example.org --password-file secret --vm web01 --vm db01 -o two.yaml
  drover plan new vcenter.example.org --password-file secret --folder prod --tag app:shop -o shop.yaml
  drover plan new vcenter.example.org --password-file secret --table waves.csv -o fleet.yaml

Next: edit the file, then drover plan check web.yaml";

pub const PLAN_CHECK: &str = "\
Exit codes: 0 the plan will run, 3 it has errors, 4 the user lacks rights, 5 the provider cannot be reached,
7 the target cannot take it.

Examples:
  drover plan check web.yaml
  drover plan check web.yaml --offline
  drover plan check web.yaml --blocked --folder 'prod/*'
  drover plan check web.yaml --vm 'web*' -v

Next: drover migrate web.yaml";

pub const PLAN_APPLY: &str = "\
The plan's target says which cluster and namespace, unless options do.

Examples:
  drover plan apply web.yaml --kube
  drover plan apply web.yaml --kube --provider vcenter --context prod

Next: kubectl drover status --plan web --watch";

pub const PLAN_WAVES: &str = "\
Each wave gets the window of a day of its own, after the wave before it. Warm VMs are copied ahead, so that only their
cutovers take time of the window.

Examples:
  drover plan waves fleet.yaml --window 22:00-06:00
  drover plan waves fleet.yaml --window 22:00-06:00 --chance 95 --tag app -o waves.yaml

Next: cat waves.yaml >> fleet.yaml, then drover plan check fleet.yaml";

pub const MIGRATE: &str = "\
Ctrl-C stops the run cleanly; `drover resume` continues it.

Examples:
  drover migrate web.yaml
  drover migrate web.yaml --json > web.events

Next: drover status web.yaml --watch (from another terminal); for warm plans drover cutover web.yaml;
at the end drover report web.yaml --html web.html";

pub const RESUME: &str = "\
Examples:
  drover resume web.yaml
  drover resume web

Next: drover report web.yaml";

pub const REHEARSE: &str = "\
Examples:
  drover rehearse web.yaml
  drover rehearse web --vm web01 --vm web02

Next: drover report web.yaml";

pub const IMPORT: &str = "\
Examples:
  drover import web.ova --folder /srv/vms --start
  drover import web.ova --plan-only

Next: drover report import-web";

pub const CANCEL: &str = "\
VMs that have arrived stay. Everything else that the plan made at the target is removed,
except copies of VMs that the source does not have any more: they stay, and are named.
With names of VMs only these are given up, also while the plan runs; drover retry takes
them back.

Examples:
  drover cancel web.yaml
  drover cancel web.yaml web07

Next: drover clean web.yaml, which shows that no snapshot is left";

pub const PAUSE: &str = "\
Copies stop after the blocks that are under way; snapshots are removed, and a VM that is
moving over is put back or finished. drover resume goes on from there.

Examples:
  drover pause web.yaml

Next: drover resume web.yaml";

pub const LIMITS: &str = "\
Without options the limits in force are shown, and those of the plan. What is under way
goes on: fewer disks or VMs at once mean that no new ones begin until there is room. The
order holds until the plan ends, over pauses, resumes and restarts; drover migrate with an
edited file ends it.

Examples:
  drover limits web.yaml
  drover limits web.yaml --rate-limit 50MiB --disks 8
  drover limits web.yaml --rate-limit none

Next: drover status web.yaml --watch";

pub const CUTOVER: &str = "\
Examples:
  drover cutover web.yaml
  drover cutover web.yaml web01 'db*'
  drover cutover fleet.yaml --wave pilot

Next: drover report web.yaml, which has the downtime";

pub const PROCEED: &str = "\
Examples:
  drover proceed fleet.yaml pilot

Next: drover status fleet.yaml";

pub const RETRY: &str = "\
Examples:
  drover retry fleet.yaml web01 web02
  drover retry fleet.yaml --all-failed

Of a plan that does not run, `drover resume` tries what failed again.
Next: drover status fleet.yaml --watch";

pub const CLEAN: &str = "\
Examples:
  drover clean web.yaml
  drover clean web.yaml --json
  drover report web --html web.html && drover clean web --forget

Next: drover report web.yaml";

pub const STATUS: &str = "\
Examples:
  drover status
  drover status web.yaml
  drover status fleet.yaml --only failed,waiting --wave pilot
  drover status web.yaml --watch
  drover status --watch --json | jq .percent

Next: drover report web.yaml";

pub const REPORT: &str = "\
Examples:
  drover report web.yaml
  drover report fleet.yaml --vm 'web*'
  drover report fleet.yaml --csv > fleet.csv
  drover report web.yaml --html web.html --sign ~/.ssh/id_ed25519

Next: drover verify --report web.html --signers allowed, where the page was signed";

pub const COPY: &str = "\
An interrupted copy is resumed by the same command.

Examples:
  drover copy web01.raw /dev/vg/web01 --verify full
  drover copy nbd://storage.example.org/web01 web01.qcow2
  drover copy vsphere://vcenter.example.org/web01/0 web01.raw --thumbprint AA:BB:...
  drover copy web01.raw agent://site-b/vms/web01.raw

Next: drover verify SOURCE TARGET";

pub const HASH: &str = "\
Examples:
  drover hash web01.raw
  drover hash web01.raw --output web01.hashes

Next: drover verify --report web01.hashes COPY";

pub const VERIFY: &str = "\
Exit code 9: the disks differ.

Examples:
  drover verify web01.raw web01.qcow2
  drover verify web01.raw /dev/vg/web01 --allow-longer
  drover verify --report web01.hashes web01.raw";

pub const SERVE_DISK: &str = "\
Examples:
  drover serve-disk web01.raw
  drover serve-disk web01.raw --socket /tmp/web01.sock --once
  drover serve-disk /dev/vg/web01 --writable --listen 127.0.0.1:10809";

pub const KUBECTL: &str = "\
kubectl runs it as `kubectl drover` where this program is also called kubectl-drover.

Examples:
  kubectl drover status -n vms
  drover kubectl status -n vms --watch";

pub const KUBECTL_STATUS: &str = "\
Exit code 10 with --watch: VMs failed.

Examples:
  kubectl drover status -n vms
  kubectl drover status --plan web --watch
  kubectl drover status --plan fleet --summary --watch
  kubectl drover status --wave pilot --phase Failed
  kubectl drover status web01 --json | jq .migrations[0].percent

Next: kubectl drover logs web01";

pub const KUBECTL_LOGS: &str = "\
Examples:
  kubectl drover logs web01
  kubectl drover logs web01 --follow --tail 20
  kubectl drover logs web01 --failed

Next: kubectl drover retry web01";

pub const KUBECTL_CUTOVER: &str = "\
Examples:
  kubectl drover cutover web01
  kubectl drover cutover --plan web

Next: kubectl drover status web01 --watch";

pub const KUBECTL_CANCEL: &str = "\
VMs that have arrived stay. Everything else that was begun is undone by a worker.

Examples:
  kubectl drover cancel web01
  kubectl drover cancel --plan web

Next: kubectl drover status --watch";

pub const KUBECTL_PROCEED: &str = "\
Examples:
  kubectl drover proceed fleet
  kubectl drover proceed fleet pilot

Next: kubectl drover status --plan fleet";

pub const KUBECTL_RETRY: &str = "\
Examples:
  kubectl drover retry web01
  kubectl drover retry --plan web
  kubectl drover retry --plan fleet --wave pilot

Next: kubectl drover status --watch";
