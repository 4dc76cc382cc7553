"""A foreign client of the vSphere simulator: VMware's own Python SDK, whose SOAP is not govmomi's.

    check.py SIMULATOR

It logs in by TLS 1.2, walks the inventory, makes snapshots, asks for changed blocks, and takes a ticket for NFC.
"""

import json
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request

from pyVim.connect import Disconnect, SmartConnect
from pyVim.task import WaitForTask
from pyVmomi import VmomiSupport, vim, vmodl

MIB = 1 << 20
INVENTORY = """
hosts:
  - name: esx1.lab
    vmknics: [{device: vmk0, address: 127.174.1.1, services: [management, vSphereBackupNFC]}]
vms:
  - name: web01
    folder: prod/web
    host: esx1.lab
    power: on
    tools: running
    cbt: true
    disks: [{capacity: 64MiB, datastore: ds1}, {capacity: 8MiB, datastore: ds1}]
"""
FIRST = "vim.version.version1"


def define_nfc_service():
    """What no WSDL has: the service that gives tickets, and the call that finds it."""
    vm = (("vm", "vim.VirtualMachine", FIRST, 0, None),)
    ticket = (0, "vim.HostServiceTicket", "vim.HostServiceTicket")
    disk = vm + (
        ("diskDeviceKey", "int", FIRST, 0, None),
        ("hostForAccess", "vim.HostSystem", FIRST, VmomiSupport.F_OPTIONAL, None),
    )
    VmomiSupport.CreateManagedType(
        "vim.NfcService",
        "NfcService",
        "vmodl.ManagedObject",
        FIRST,
        None,
        [
            ("GetVmFiles", "NfcGetVmFiles", FIRST, vm, ticket, None, None),
            ("RandomAccessOpenReadonly", "NfcRandomAccessOpenReadonly", FIRST, disk, ticket, None, None),
        ],
    )
    return VmomiSupport.GetVmodlType("vim.NfcService")


def order(control, path, body=None):
    """Orders something by the simulator's control API."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(control + path, data)) as answer:
        return json.load(answer)


def connect(ready, password):
    context = ssl.create_default_context(cafile=ready["ca_file"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host = "127.0.0.1"
    return SmartConnect(
        host=host, port=ready["port"], user="administrator@vsphere.local", pwd=password, sslContext=context
    )


def areas(vm, snapshot, disk, change_id):
    """All changed areas of a disk, however many answers they take."""
    found, start = [], 0
    while start < disk.capacityInBytes:
        answer = vm.QueryChangedDiskAreas(snapshot, disk.key, start, change_id)
        found += [(area.start, area.length) for area in answer.changedArea]
        assert answer.length > 0, answer
        start = answer.startOffset + answer.length
    return found


def snapshot_of(vm, name):
    task = vm.CreateSnapshot_Task(name=name, description="", memory=False, quiesce=False)
    WaitForTask(task)
    snapshot = task.info.result
    disks = [it for it in snapshot.config.hardware.device if isinstance(it, vim.vm.device.VirtualDisk)]
    return snapshot, disks


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was to come")


def check(ready):
    control = ready["control"]
    refused(vim.fault.InvalidLogin, lambda: connect(ready, "wrong"))
    service = connect(ready, "s3cret")
    content = service.RetrieveContent()
    assert content.about.apiType == "VirtualCenter" and content.about.version.startswith("8."), content.about

    view = content.viewManager.CreateContainerView(content.rootFolder, [vim.VirtualMachine], True)
    (vm,) = view.view
    view.Destroy()
    assert (vm.name, vm.runtime.powerState, vm.parent.name) == ("web01", "poweredOn", "web"), vm
    assert vm.runtime.host.name == "esx1.lab" and vm.datastore[0].name == "ds1"
    assert vm.config.changeTrackingEnabled and len(vm.config.hardware.device) > 2

    def write(offset, length):
        order(control, "/write", {"vm": "web01", "disk": 0, "offset": offset, "length": length, "fill": "random"})

    write(MIB, MIB)
    first, disks = snapshot_of(vm, "first")
    assert [disk.capacityInBytes for disk in disks] == [64 * MIB, 8 * MIB]
    assert areas(vm, first, disks[0], "*") == [(MIB, MIB)] and areas(vm, first, disks[1], "*") == []
    write(32 * MIB, 65536)
    second, after = snapshot_of(vm, "second")
    assert areas(vm, second, after[0], disks[0].backing.changeId) == [(32 * MIB, 65536)]
    assert after[0].backing.parent.fileName == disks[0].backing.fileName
    unknown = refused(vmodl.MethodFault, lambda: areas(vm, second, after[0], "52 00/1"))
    assert isinstance(unknown, vim.fault.FileFault), unknown
    WaitForTask(first.RemoveSnapshot_Task(removeChildren=False))
    WaitForTask(second.RemoveSnapshot_Task(removeChildren=False))
    # Not by `vm.snapshot`: what is unset can be read by a property collector alone here.
    assert not order(control, "/vms")[0]["snapshots"]
    nothing = vim.vm.ConfigSpec(extraConfig=[vim.option.OptionValue(key="guestinfo.check", value="1")])
    WaitForTask(vm.ReconfigVM_Task(nothing))

    WaitForTask(vm.PowerOffVM_Task())
    assert vm.runtime.powerState == "poweredOff"
    WaitForTask(vm.PowerOnVM_Task())

    nfc = define_nfc_service()("nfcService", service._stub)
    for ticket in (nfc.GetVmFiles(vm), nfc.RandomAccessOpenReadonly(vm, disks[0].key, vm.runtime.host)):
        assert (ticket.host, ticket.service) == ("127.174.1.1", "vpxa-nfc") and ticket.sessionId, ticket
        with socket.create_connection((ticket.host, ticket.port), timeout=10) as port_902:
            assert port_902.recv(4) == b"220 ", "the greeting of authd"

    Disconnect(service)
    refused(vim.fault.NotAuthenticated, lambda: vm.name)
    return content.about.fullName


def main():
    simulator = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="drover-pyvmomi-") as work:
        inventory = f"{work}/inventory.yaml"
        with open(inventory, "w", encoding="utf-8") as file:
            file.write(INVENTORY)
        command = [simulator, "--inventory", inventory, "--work", work, "--exit-with-parent"]
        with open(f"{work}/log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            print("pyVmomi and", check(json.loads(process.stdout.readline())), "understand each other")
        finally:
            process.terminate()
            process.wait()


main()
