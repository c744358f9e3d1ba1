"""`koord probe`: whether a role is well, asked from inside its container. The image's health check, where no kubelet asks."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from koord.config.urls import is_http_url
from koord.process.errors import UsageError
from koord.process.flags import GoCommand, duration_option

_LISTEN = "0A"  # the state's number in /proc/net/tcp


@click.command("probe", cls=GoCommand)
@click.argument("url", required=False)
@click.option("--pid", type=int, default=1, show_default=True, help="Process whose ports are asked when no URL is given.")
@duration_option("--timeout", default=3.0, help="Time limit of one request.")
def command(url: str | None, pid: int, timeout: float) -> None:
    """Ask a role's /healthz: status 0 when it is well, 1 with the reason when it is not.

    Without URL every TCP port that the process listens on is asked: one has to answer 200, and none with an error of its own.
    """
    if url and not is_http_url(url):
        raise UsageError(f"{url!r} must be http://host[:port][/path] or https://host[:port][/path]")
    targets = [url] if url else [f"{scheme}://{place}/healthz" for place in places(Path("/proc"), pid) for scheme in ("http", "https")]
    if not targets:
        sys.exit(_unwell(f"process {pid} listens on no TCP port"))
    answers = {target: status for target in targets if (status := ask(target, timeout)) is not None}
    errors = [f"{target} answers {status}" for target, status in answers.items() if status >= 500]
    if errors:
        sys.exit(_unwell("; ".join(errors)))
    if 200 not in answers.values():
        sys.exit(_unwell("nothing answers 200 at " + ", ".join(targets)))
    print("ok")


def _unwell(reason: str) -> int:
    print(f"koord probe: {reason}", file=sys.stderr)
    return 1


def places(proc: Path, pid: int) -> list[str]:
    """Where a process listens by TCP, as host:port: its sockets, looked up in the tables of its network namespace."""
    inodes = set(_socket_inodes(proc / str(pid) / "fd"))
    found: dict[tuple[int, str], None] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / str(pid) / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == _LISTEN and fields[9] in inodes:
                address, _, port = fields[1].rpartition(":")
                found[int(port, 16), _host(address)] = None
    return [f"{host}:{port}" for port, host in sorted(found)]


def _host(address: str) -> str:
    """The address of /proc/net/tcp, words of 32 bits in the machine's order; of a listener on all addresses, the loopback."""
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    if found.is_unspecified:
        found = ipaddress.ip_address("127.0.0.1" if found.version == 4 else "::1")
    return str(found) if found.version == 4 else f"[{found}]"


def _socket_inodes(directory: Path) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            link = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(directory / name))
        except OSError:  # closed meanwhile
            continue
        if link:
            yield link.group(1)


def ask(url: str, timeout: float) -> int | None:
    """The status that a URL answers with; None when nobody speaks that protocol there. Certificates are not looked at: it is this host."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path or "/healthz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
