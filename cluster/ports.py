"""Free ports for Ray, held until it has them: a port that was only looked up is anybody's before Ray takes it.

`python cluster/ports.py NAME…` prints NAME=PORT for each, and holds them until it, or who started it, is ended.
"""

import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST, ROOM = 1024, 65535, 1000
ABOVE_SERVICES = 20000  # most programs' own ports are below
TRIES = 10_000


def candidates(ephemeral: tuple[int, int]) -> range:
    """Ports that the kernel gives to nobody who asks for any: below its range if there is room, or else above it."""
    low, high = ephemeral
    for ports in (range(ABOVE_SERVICES, low), range(FIRST, low), range(high + 1, LAST + 1)):
        if len(ports) >= ROOM:
            return ports
    return range(FIRST, LAST + 1)


def ephemeral() -> tuple[int, int]:
    """The range of ports from which the kernel takes one for whoever wants any."""
    try:
        low, high = map(int, RANGE.read_text().split())
    except OSError:  # no Linux
        low, high = 32768, 60999
    return low, high


def held(port: int) -> socket.socket | None:
    """Hold a port for a server that asks for it by its number; None if it is in use.

    Nobody else has it at the moment it is bound. From then on others can have it, too, if they say so (SO_REUSEADDR)
    and nobody listens there: Ray's servers do say so, and who wants any port is given another.
    """
    both = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        if both:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", port))
    except OSError:
        holder.close()
        return None
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


@contextmanager
def free(number: int) -> Iterator[list[int]]:
    """That many free ports, held for as long as this lasts."""
    found = list[int]()
    choice = candidates(ephemeral())
    with ExitStack() as holders:
        for _ in range(TRIES):
            if len(found) == number:
                break
            port = random.choice(choice)
            if holder := held(port):
                holders.enter_context(holder)
                found.append(port)
        else:
            raise SystemExit(f"ports.py: of the ports {choice.start} to {choice.stop - 1}, no {number} are free")
        yield found


if __name__ == "__main__":
    names, parent = sys.argv[1:], os.getppid()
    with free(len(names)) as ports:
        print(*(f"{name}={port}" for name, port in zip(names, ports, strict=True)), flush=True)
        while os.getppid() == parent:
            time.sleep(0.5)
