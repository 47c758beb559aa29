"""Hosts on this machine, with names, addresses and processes of their own: namespaces, cables and a switch."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import heapq
import os
import secrets
import select
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


@functools.cache
def refused():
    """Why there can be no hosts here; empty if there can. It tries one, so ask in a fixture, not on import."""
    if os.geteuid():
        return "root rights are needed for network namespaces"
    if shutil.which("ip") is None:
        return "ip (iproute2) is needed for network namespaces"
    try:
        with Hosts("one"):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces: {error}"


def _child(number):
    """Number of the first child of a process; 0 if it has none."""
    return int((Path(f"/proc/{number}/task/{number}/children").read_text().split() or ["0"])[0])


class Hosts:
    """Hosts by name, in the network 10.77.0.0/24; files are those of this machine, except in the folder ``own``.

    A thread is the switch: every frame that one host sends is passed on to all others, which drop what is not for
    them. It can cut a cable and delay everything.
    """

    def __init__(self, *names, own=None):
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self.own = own
        self.delay = 0.0
        self._cut = set()
        self._mark = secrets.token_hex(2)
        self._etc = Path(tempfile.mkdtemp(prefix="bench-hosts-"))
        self._cables = {}
        self._power = {}
        self._over = threading.Event()
        self._switch = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self):
        try:
            for number, name in enumerate(self.addresses):
                self._plug_in(name, f"b{self._mark}n{number}")
        except BaseException:
            self.__exit__()
            raise
        self._switch.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        if self._switch.is_alive():
            self._switch.join()
        for power in self._power.values():
            power.kill()
            power.wait()
        for name, cable in self._cables.items():
            os.close(cable)
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False)
        self._cables.clear()
        shutil.rmtree(self._etc, ignore_errors=True)

    def _space(self, name):
        return f"bench-{self._mark}-{name}"

    def _ip(self, name, *arguments):
        subprocess.run(["ip", "-n", self._space(name), *arguments], check=True)

    def _plug_in(self, name, device):
        cable = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._cables[name] = cable
        fcntl.ioctl(cable, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
        subprocess.run(["ip", "netns", "add", self._space(name)], check=True)
        subprocess.run(["ip", "link", "set", device, "netns", self._space(name), "name", "eth0"], check=True)
        (self._etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # refuses at once
        self._know()
        self._ip(name, "link", "set", "lo", "up")
        self._ip(name, "link", "set", "eth0", "up")
        self._address(name)
        files = " && ".join(f"mount --bind {self._etc / file} /etc/{file}" for file in ("hosts", "resolv.conf"))
        script = f"hostname {name} && {files} && {{ sleep infinity & wait; }}"  # reaps orphans, as an init does
        if self.own is not None:
            for folder in (f"{self.own}-{name}", self.own):
                Path(folder).mkdir(exist_ok=True)
            script = f"mount --bind {self.own}-{name} {self.own} && {script}"
        space = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script)
        # Not `ip netns exec`, which hides the control groups.
        self._power[name] = subprocess.Popen(["nsenter", f"--net=/run/netns/{self._space(name)}", *space])

    def _address(self, name):
        self._ip(name, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        self._ip(name, "route", "add", "default", "dev", "eth0")  # a program asks for it to find its own address

    def _know(self):
        known = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (self._etc / "hosts").write_text(f"127.0.0.1 localhost\n{known}")

    def move(self, name, address):
        """Give a host another address, as a DHCP server does after a reboot."""
        self._ip(name, "addr", "flush", "dev", "eth0")
        self.addresses[name] = address
        self._address(name)
        self._know()

    def on(self, name, folder="/"):
        """Beginning of a command on a host, in a folder."""
        end = time.monotonic() + 20
        while not ((first := _child(self._power[name].pid)) and _child(first)):
            assert time.monotonic() < end, f"host {name} does not start"
            time.sleep(0.05)
        spaces = ("--mount", "--uts", "--net", "--pid")
        return ("nsenter", "-t", str(first), *spaces, "sh", "-c", 'cd "$0" && exec "$@"', str(folder))

    def cut_for(self, name, seconds):
        """Cut the cable of a host for so many seconds."""
        self._cut.add(name)
        time.sleep(seconds)
        self._cut.discard(name)

    def _pass_on(self):
        names = {cable: name for name, cable in self._cables.items()}
        waiting, number = [], 0
        while not self._over.is_set():
            until = min(0.2, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.2
            for cable in select.select(list(names), (), (), until)[0]:
                with contextlib.suppress(BlockingIOError):
                    frame = os.read(cable, 65536)
                    if names[cable] not in self._cut:
                        number += 1
                        heapq.heappush(waiting, (time.monotonic() + self.delay, number, cable, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                *_, source, frame = heapq.heappop(waiting)
                for cable, name in names.items():
                    if cable != source and name not in self._cut:
                        with contextlib.suppress(BlockingIOError, OSError):  # a full queue loses frames, as it should
                            os.write(cable, frame)
