"""Two hosts on one machine: network namespaces that a pair of virtual interfaces connects."""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

_NEW_NETWORK, _NEW_HOST_NAME = 0x40000000, 0x04000000  # of clone(2)
INTERFACE = "eth0"


@contextlib.contextmanager
def two_hosts() -> Iterator[list[tuple[str, str]]]:
    """Yield the namespaces and addresses of two hosts.

    Where namespaces cannot be made (not root, not Linux), both are this host, without namespaces.
    """
    if os.geteuid() or shutil.which("ip") is None:
        yield [("", "127.0.0.1")] * 2
        return
    names = [f"kt{os.getpid() % 10**6}{letter}" for letter in "ab"]
    addresses = ["10.77.0.1", "10.77.0.2"]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False)
    if made.returncode:
        yield [("", "127.0.0.1")] * 2
        return

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        ip("netns", "add", names[1])
        ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for name, address in zip(names, addresses, strict=True):
            ip("link", "set", name, "netns", name, "name", INTERFACE)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, addresses, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def enter(namespace: str, address: str) -> None:
    """Move this process, which must have one thread, to a host of `two_hosts`.

    The name of the host is its address, since libraries look up the name.
    """
    if not namespace:
        return
    system = ctypes.CDLL(None, use_errno=True)
    opened = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    for failed in (system.setns(opened, _NEW_NETWORK), system.unshare(_NEW_HOST_NAME)):
        if failed:
            raise OSError(ctypes.get_errno(), "The process cannot enter the namespace.")
    os.close(opened)
    socket.sethostname(address)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
