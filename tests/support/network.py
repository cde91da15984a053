"""Two hosts that are really apart: network namespaces joined by a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_CABLE = Path(__file__).with_name("delayed_cable.py")
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


def _within(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class TwoHosts:
    """Namespaces of this process, with addresses of their own and a cable between them that delays what is sent."""

    def __init__(self, delay_milliseconds: int) -> None:
        mark = f"{os.getpid() % 100000}"
        self._names = [f"sdp-{mark}-{side}" for side in "ab"]
        self._cables = [f"sd{mark}{side}" for side in "ab"]
        between, far_ends = f"sdp-{mark}-c", [f"sd{mark}{side}" for side in "cd"]
        self._namespaces = [*self._names, between]
        for name in self._namespaces:
            _ip("netns", "add", name)
        for name, cable, far_end, address in zip(self._names, self._cables, far_ends, ADDRESSES, strict=True):
            _ip("link", "add", cable, "type", "veth", "peer", "name", far_end)
            _ip("link", "set", cable, "netns", name)
            _ip("link", "set", far_end, "netns", between)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", between, "link", "set", far_end, "up")
            subprocess.run([*_within(name), sys.executable, str(_CABLE), "plain", cable], check=True)
        self._relay = subprocess.Popen(
            [*_within(between), sys.executable, str(_CABLE), "relay", *far_ends, str(delay_milliseconds)]
        )

    def round_trip(self) -> float:
        """Milliseconds until a connection from one host to the other stands."""
        server = "import socket; s = socket.create_server(('0.0.0.0', 29570)); print('ready', flush=True); s.accept()"
        client = (
            "import socket, time; t = time.monotonic(); "
            f"socket.create_connection(('{ADDRESSES[0]}', 29570)); print(1e3 * (time.monotonic() - t))"
        )
        with subprocess.Popen(
            [*_within(self._names[0]), sys.executable, "-c", server], stdout=subprocess.PIPE, text=True
        ) as waiting:
            assert waiting.stdout is not None
            waiting.stdout.readline()
            shown = subprocess.run(
                [*_within(self._names[1]), sys.executable, "-c", client],
                capture_output=True,
                text=True,
                check=True,
            )
        return float(shown.stdout)

    def cut(self) -> None:
        """Pull the cable: nothing arrives, and no connection is closed."""
        _ip("-n", self._names[1], "link", "set", self._cables[1], "down")

    def join(self) -> None:
        _ip("-n", self._names[1], "link", "set", self._cables[1], "up")

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
            command = [*_within(name), sys.executable, str(script), str(folder)]
            running.append(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        return running

    def close(self) -> None:
        self._relay.kill()
        self._relay.wait()
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
