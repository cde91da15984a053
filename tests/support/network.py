"""Two hosts that are really apart: network namespaces joined by a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ADDRESSES = ("10.93.71.1", "10.93.71.2")


def missing_rights() -> str | None:
    """Why namespaces cannot be made here; None where they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    made = subprocess.run(["ip", "netns", "add", "sdp-probe"], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces need rights: {made.stderr.strip()}"
    _ip("netns", "del", "sdp-probe")
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class TwoHosts:
    """Namespaces of this process, with addresses of their own and a cable between them."""

    def __init__(self) -> None:
        mark = f"{os.getpid() % 100000}"
        self._names = [f"sdp-{mark}-{side}" for side in "ab"]
        self._cables = [f"sd{mark}{side}" for side in "ab"]
        for name in self._names:
            _ip("netns", "add", name)
        _ip("link", "add", self._cables[0], "type", "veth", "peer", "name", self._cables[1])
        for name, cable, address in zip(self._names, self._cables, ADDRESSES, strict=True):
            _ip("link", "set", cable, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def delay(self, milliseconds: int) -> str | None:
        """Delay what both hosts send, half of it each; why that is not possible, if it is not."""
        for name, cable in zip(self._names, self._cables, strict=True):
            queue = ["tc", "-n", name, "qdisc", "replace", "dev", cable, "root", "netem"]
            made = subprocess.run(
                [*queue, "delay", f"{milliseconds // 2}ms"], capture_output=True, text=True, check=False
            )
            if made.returncode:
                return f"this kernel has no netem: {made.stderr.strip()}"
        return None

    def cut(self) -> None:
        """Pull the cable: nothing arrives, and no connection is closed."""
        _ip("-n", self._names[1], "link", "set", self._cables[1], "down")

    def join(self) -> None:
        _ip("-n", self._names[1], "link", "set", self._cables[1], "up")

    def bytes_sent(self) -> int:
        """What has gone over the cable from the first host, headers of all layers included."""
        path = f"/sys/class/net/{self._cables[0]}/statistics/tx_bytes"
        shown = subprocess.run(
            ["ip", "netns", "exec", self._names[0], "cat", path], capture_output=True, text=True, check=True
        )
        return int(shown.stdout)

    def start(self, script: Path, folder: Path, port: int, **options: str) -> list[subprocess.Popen[str]]:
        """The script on both hosts, rank 0 on the first; they meet at a port of the first."""
        running = []
        for rank, (name, cable) in enumerate(zip(self._names, self._cables, strict=True)):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": cable,
                **options,
            }
            command = ["ip", "netns", "exec", name, sys.executable, str(script), str(folder)]
            running.append(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        return running

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
