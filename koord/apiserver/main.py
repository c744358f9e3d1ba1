"""The process behind `koord apiserver`."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import orjson

from koord import seams
from koord.apiserver import kubeconfig, manifests
from koord.apiserver.admission.chain import known_plugins
from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers.registry import CONTROLLERS
from koord.apiserver.disk import DiskError
from koord.apiserver.server import ApiServer
from koord.process import certificates

log = logging.getLogger(__name__)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STOP_SECONDS = 5.0


def seconds(text: str) -> float:
    """A Go duration in seconds. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is not a duration; accepted: such as 1h, 5m0s, 90s")
    return sum(float(n) * _UNITS[u] for n, u in parts)


@dataclass(slots=True)
class Flags:
    """The command line."""

    port: int
    bind_address: str
    data_dir: Path | None
    kubeconfig: Path | None
    crds: Path | None
    tls: bool
    cert_file: Path | None
    key_file: Path | None
    token: str | None
    anonymous: bool
    authorization_mode: str
    enabled_plugins: frozenset[str]
    disabled_plugins: frozenset[str]
    enabled_controllers: frozenset[str]
    disabled_controllers: frozenset[str]
    event_ttl: str
    unresolvable_webhooks: str
    webhook_services: tuple[str, ...]

    def check(self) -> None:
        """Refuse what makes no sense together. Raises ValueError."""
        for flag, names in (("--enable-admission-plugins", self.enabled_plugins), ("--disable-admission-plugins", self.disabled_plugins)):
            unknown = names - known_plugins()
            if unknown:
                raise ValueError(f"{flag}: unknown {', '.join(sorted(unknown))}; accepted: {', '.join(sorted(known_plugins()))}")
        known = {c.name for c in CONTROLLERS}
        for flag, names in (("--enable-controllers", self.enabled_controllers), ("--disable-controllers", self.disabled_controllers)):
            if names - known:
                raise ValueError(f"{flag}: unknown {', '.join(sorted(names - known))}; accepted: {', '.join(sorted(known))}")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("--tls-cert-file and --tls-private-key-file go together")
        if self.anonymous and self.token:
            raise ValueError("--anonymous and --token exclude each other")
        open_door = self.anonymous or (not self.tls and self.token is None)
        if open_door and not self.loopback:
            raise ValueError(f"--bind-address {self.bind_address}: without TLS and a token the server only listens on the loopback")
        seconds(self.event_ttl)
        self.services()

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.bind_address).is_loopback
        except ValueError:
            return self.bind_address == "localhost"

    def services(self) -> dict[str, str]:
        """--webhook-service as a map. Raises ValueError."""
        out: dict[str, str] = {}
        for text in self.webhook_services:
            found = re.fullmatch(r"([^/=]+/[^/=]+)=(.+:\d+)", text)
            if found is None:
                raise ValueError(f"--webhook-service {text!r}: accepted: NAMESPACE/NAME=HOST:PORT")
            out[found.group(1)] = found.group(2)
        return out


def _token(flags: Flags) -> str:
    """The administrator's token: as given, as kept in the data directory, or new. kubectl sends none without TLS."""
    if flags.token is not None:
        return flags.token
    if flags.anonymous or not flags.tls:
        return ""
    if flags.data_dir is None:
        return seams.token_urlsafe(24)
    file = flags.data_dir / "token"
    if not file.exists():
        flags.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
        file.write_text(seams.token_urlsafe(24))
    return file.read_text().strip()


async def _run(flags: Flags, scratch: Path) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config = ServerConfig(
        token=_token(flags),
        authorization_mode=flags.authorization_mode,
        disabled_plugins=flags.disabled_plugins,
        enabled_plugins=flags.enabled_plugins,
        enabled_controllers=flags.enabled_controllers,
        disabled_controllers=flags.disabled_controllers,
        data_dir=flags.data_dir,
        event_ttl=seconds(flags.event_ttl),
        unresolvable_webhooks=flags.unresolvable_webhooks,
        webhook_services=flags.services(),
    )
    server = ApiServer(config)
    context, ca = None, b""
    if flags.tls:
        if flags.cert_file is not None and flags.key_file is not None:
            pair = certificates.load(flags.cert_file, flags.key_file)
        else:
            where = (flags.data_dir or scratch) / "certs"
            pair = certificates.ensure(where, flags.bind_address, certificates.API_SERVER_NAMES)
        context, ca = pair.context(), pair.ca
        if flags.cert_file is None:
            renewal = certificates.keep(where, flags.bind_address, context, certificates.API_SERVER_NAMES)
            server.background(renewal, "certificate")
    await server.start(flags.bind_address, flags.port, context)
    if flags.crds is not None:
        await manifests.install(server.core, manifests.read(flags.crds))
    if flags.kubeconfig is not None:
        made = kubeconfig.build(server.url, config.token, ca)
        if str(flags.kubeconfig) == "-":
            sys.stdout.write(orjson.dumps(made, option=orjson.OPT_INDENT_2).decode() + "\n")
            sys.stdout.flush()
        else:
            kubeconfig.write(flags.kubeconfig, made)
    log.info("serving on %s", server.url)
    if flags.data_dir is None:
        log.warning("nothing is kept: the state ends with this process; --data-dir keeps it")
    await stop.wait()
    log.info("stopping")
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await server.stop()
    except TimeoutError:
        log.error("could not stop in %s s", _STOP_SECONDS)
        return 1
    return 0


def serve(flags: Flags) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    import uvloop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    gc.set_threshold(50_000, 50, 1000)
    try:
        with tempfile.TemporaryDirectory(prefix="koord-apiserver-") as scratch:
            return int(uvloop.run(_run(flags, Path(scratch))))
    except (OSError, DiskError, manifests.ManifestError) as err:
        log.error("cannot serve: %s", err)
        return 1
