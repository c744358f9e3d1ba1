"""Whether what answers for the kubelet is the kubelet of this machine: its address, and its certificate (KLO-SI-02, BEY-SEC-01).

The agent's token must not leave the machine. A Node's status names an address, and whoever may write that could name his own; so the
address must be one of this machine, and the certificate either signed by an authority that is trusted or the very one that lies in the
kubelet's directory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from koord.kube.tls import TlsSource

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
# Where a kubelet keeps the certificate that it serves: made by itself, or signed for it.
_SERVED = ("pki/kubelet.crt", "pki/kubelet-server-current.pem")
# A kubelet does not renew the certificate that it makes for itself. For the very same one the date proves nothing more.
_NO_CHECK_TIME = 0x200000


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this machine's own facts lie. `directory`: the kubelet's; `proc`: the machine's; `ca_file`: the user's own authority."""

    directory: str = "/var/lib/kubelet"
    proc: str = "/proc"
    ca_file: str = ""

    @property
    def served_files(self) -> tuple[str, ...]:
        """Files that may hold the certificate that the kubelet serves."""
        return tuple(os.path.join(self.directory, name) for name in _SERVED)

    def addresses(self) -> frozenset[str]:
        """Addresses of this machine's interfaces and of this process's own network."""
        found: set[str] = set()
        for net in (os.path.join(self.proc, "1", "net"), "/proc/self/net"):
            found |= _ipv4(_lines(os.path.join(net, "fib_trie")))
            found |= _ipv6(_lines(os.path.join(net, "if_inet6")))
        return frozenset(found)

    def is_here(self, address: str) -> bool:
        """Whether an IP address is one of this machine's."""
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return ip.is_loopback or str(ip) in self.addresses()

    async def resolved(self, host: str) -> str:
        """The address of this machine that a host name or an address stands for, "" when there is none."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return host if self.is_here(host) else ""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return ""
        return next((str(where[0]) for *_, where in found if self.is_here(str(where[0]))), "")


class Verifier:
    """Gives the TLS contexts to try, most telling first; none of them lets a stranger through. Client certificates come from `config`."""

    def __init__(self, machine: Machine, config: ClientConfig | None) -> None:
        from koord.kube.config import ClientConfig

        self._machine = machine
        self._config = replace(config or ClientConfig(""), server="https://kubelet", insecure=False)
        self._pinned: dict[bytes, TlsSource] = {}
        self._authority: TlsSource | None = None

    def contexts(self) -> list[ssl.SSLContext]:
        """Contexts to try in this order. Raises KubeConfigError for an authority that cannot be read."""
        from koord.kube.config import Pem
        from koord.kube.tls import TlsSource

        found: list[ssl.SSLContext] = []
        given = self._machine.ca_file
        if not given:
            certificates = [leaf for file in self._machine.served_files if (leaf := first_certificate(file))]
            self._pinned = {leaf: self._pinned.get(leaf) or TlsSource(replace(self._config, ca=Pem(data=leaf))) for leaf in certificates}
            found += [_exactly(context) for source in self._pinned.values() if (context := source.context()) is not None]
        authority = Pem(path=given) if given else self._config.ca
        if authority is not None:
            self._authority = self._authority or TlsSource(replace(self._config, ca=authority))
            context = self._authority.context()
            if context is not None:
                found.append(context)
        return found

    @property
    def advice(self) -> str:
        """What to set when nobody could be verified."""
        if self._machine.ca_file:
            return f"it must be signed by --kubelet-ca-file {self._machine.ca_file} for this address"
        return (
            f"it must be the one in {' or '.join(self._machine.served_files)}, or signed by the cluster's authority for this address; "
            "else give the authority by --kubelet-ca-file, or the kubelet's directory by --var-lib-kubelet-dir"
        )


def first_certificate(file: str) -> bytes:
    """The first certificate of a PEM file, b"" without one. What follows it are authorities, and keys: neither is wanted."""
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            text = opened.read(1 << 20)
    except OSError:
        return b""
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    return text[begin : end + len(_END)].encode("ascii", "replace") + b"\n" if 0 <= begin < end else b""


def _exactly(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context for one certificate and no other: it is the anchor itself, so that neither its name nor its date counts."""
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return context


def _lines(file: str) -> list[str]:
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            return opened.read().splitlines()
    except OSError:
        return []


def _ipv4(lines: Iterable[str]) -> set[str]:
    """Local addresses of a fib_trie: `|-- ADDRESS` followed by `/32 host LOCAL`."""
    found, address = set(), ""
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            address = words[1]
        elif words[1:] == ["host", "LOCAL"] and words[0] == "/32":
            found.add(address)
    return found


def _ipv6(lines: Iterable[str]) -> set[str]:
    """Addresses of an if_inet6: 32 hexadecimal digits first in each line."""
    found = set()
    for line in lines:
        digits = line.split(maxsplit=1)[0] if line.strip() else ""
        if len(digits) == 32:
            found.add(str(ipaddress.IPv6Address(int(digits, 16))))
    return found
