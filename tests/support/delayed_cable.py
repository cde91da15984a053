"""A cable with a delay, for kernels without netem: passes Ethernet frames on between two interfaces.

python delayed_cable.py relay INTERFACE INTERFACE MILLISECONDS
python delayed_cable.py plain INTERFACE    (no checksums or segments left to the hardware)
"""

from __future__ import annotations

import array
import fcntl
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

ALL_PROTOCOLS, OUTGOING, ETHTOOL = 3, 4, 0x8946
OFFLOADS = {"checksums": 0x17, "segments": 0x1F, "generic segments": 0x24}


def plain(interface: str) -> None:
    """Let the kernel finish its packets: nobody else will compute their checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS.values():
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control.fileno(), ETHTOOL, request)


def relay(first: str, second: str, milliseconds: float) -> None:
    """Pass frames on, each ``milliseconds`` after it came."""
    sockets = []
    for interface in (first, second):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        made.bind((interface, 0))
        sockets.append(made)
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        patience = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for ready in select.select(sockets, [], [], patience)[0]:
            with suppress(OSError):  # the cable was pulled
                frame, address = ready.recvfrom(65536)
                if address[2] != OUTGOING:
                    other = sockets[1 - sockets.index(ready)]
                    waiting.append((time.monotonic() + milliseconds / 1e3, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, other, frame = waiting.popleft()
            with suppress(OSError):
                other.send(frame)


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(sys.argv[2])
    else:
        relay(sys.argv[2], sys.argv[3], float(sys.argv[4]))
