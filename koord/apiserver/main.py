"""The process behind `koord apiserver`."""

from __future__ import annotations

import ipaddress
import logging
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from koord import seams
from koord.apiserver import kubeconfig, manifests
from koord.apiserver.admission.chain import KNOWN_ELSEWHERE, known_plugins
from koord.apiserver.config import ServerConfig
from koord.apiserver.controllers.registry import CONTROLLERS
from koord.apiserver.disk import DiskError
from koord.apiserver.server import ApiServer
from koord.process import certificates, life
from koord.process.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Flags:
    """The command line: the server's own settings, and what is around them. Without `pair` (certificate, key) one is made."""

    config: ServerConfig
    port: int
    bind_address: str
    kubeconfig: Path | None
    crds: Path | None
    tls: bool
    pair: tuple[Path, Path] | None


def read(flags: dict[str, Any]) -> Flags:
    """The options of the command by their names. Raises ValueError for what makes no sense, alone or together, and OSError for a data
    directory that cannot be used."""
    plugins = [_names(flags, f"{verb}_admission_plugins", known_plugins()) for verb in ("enable", "disable")]
    controllers = [_names(flags, f"{verb}_controllers", frozenset(CONTROLLERS)) for verb in ("enable", "disable")]
    cert, key = flags["tls_cert_file"], flags["tls_private_key_file"]
    if (cert is None) != (key is None):
        raise ValueError("--tls-cert-file and --tls-private-key-file go together")
    if flags["anonymous"] and flags["token"] is not None:
        raise ValueError("--anonymous and --token exclude each other")
    if flags["token"] is not None and not re.fullmatch(r"[!-~]+", flags["token"]):
        raise ValueError("--token: accepted: ASCII letters, digits and signs without blanks, at least one; --anonymous lets everybody in")
    if (flags["anonymous"] or (not flags["tls"] and flags["token"] is None)) and not _loopback(flags["bind_address"]):
        raise ValueError(f"--bind-address {flags['bind_address']}: without TLS and a token the server only listens on the loopback")
    if flags["data_dir"] is not None:  # whoever writes there gives rights
        flags["data_dir"].mkdir(parents=True, exist_ok=True, mode=0o700)
        certificates.check_private(flags["data_dir"])
    config = ServerConfig(
        token=_token(flags),
        authorization_mode=flags["authorization_mode"],
        enabled_plugins=plugins[0],
        disabled_plugins=plugins[1],
        enabled_controllers=controllers[0],
        disabled_controllers=controllers[1],
        data_dir=flags["data_dir"],
        event_ttl=flags["event_ttl"],
        unresolvable_webhooks=flags["unresolvable_webhooks"],
        webhook_services=_services(flags["webhook_service"]),
    )
    pair = (cert, key) if cert is not None else None
    return Flags(config, flags["port"], flags["bind_address"], flags["print_kubeconfig"], flags["crds"], flags["tls"], pair)


def _names(flags: dict[str, Any], flag: str, known: frozenset[str]) -> frozenset[str]:
    names = frozenset(name.strip() for name in flags[flag].split(",") if name.strip())
    if names - known:
        wrong = ", ".join(sorted(names - known))
        raise ValueError(f"--{flag.replace('_', '-')}: unknown {wrong}; accepted: {', '.join(sorted(known))}")
    return names


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _services(texts: tuple[str, ...]) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in texts:
        found = re.fullmatch(r"([^/=]+/[^/=]+)=(.+:\d+)", text)
        if found is None:
            raise ValueError(f"--webhook-service {text!r}: accepted: NAMESPACE/NAME=HOST:PORT")
        out[found.group(1)] = found.group(2)
    return out


def _token(flags: dict[str, Any]) -> str:
    """The administrator's token: as given, as kept in the data directory, or new. kubectl sends none without TLS."""
    if flags["token"] is not None or flags["anonymous"] or not flags["tls"]:
        return flags["token"] or ""
    if flags["data_dir"] is None:
        return seams.token_urlsafe(24)
    file: Path = flags["data_dir"] / "token"
    if not file.exists():
        certificates.write(file, seams.token_urlsafe(24).encode())
    token = file.read_text().strip()
    if not token:
        raise ValueError(f"{file} is empty; accepted: a token; one is made where the file is missing")
    return token


async def _run(flags: Flags, scratch: Path, alive: life.Life) -> None:
    server = ApiServer(flags.config)
    context, ca = None, b""
    if flags.tls:
        where = (flags.config.data_dir or scratch) / "certs"
        if flags.pair is not None:
            pair = certificates.load(*flags.pair)
            context = pair.context()
            alive.spawn(certificates.follow(pair, context), "certificate")
        else:
            pair = certificates.ensure(where, flags.bind_address, certificates.API_SERVER_NAMES)
            context = pair.context()
            alive.spawn(certificates.keep(where, flags.bind_address, context, certificates.API_SERVER_NAMES), "certificate")
        ca = pair.ca
    alive.on_stop(server.stop)
    await server.start(flags.bind_address, flags.port, context)
    if flags.crds is not None:
        await manifests.install(server.core, manifests.read(flags.crds))
    if flags.kubeconfig is not None:
        made = kubeconfig.build(server.url, flags.config.token, ca)
        if str(flags.kubeconfig) == "-":
            sys.stdout.write(orjson.dumps(made, option=orjson.OPT_INDENT_2).decode() + "\n")
            sys.stdout.flush()
        else:
            kubeconfig.write(flags.kubeconfig, made)
    log.info("serving on %s", server.url)
    if missing := flags.config.enabled_plugins & KNOWN_ELSEWHERE:
        log.warning("--enable-admission-plugins: this server has no %s: nothing is checked or changed by them", ", ".join(sorted(missing)))
    if flags.config.data_dir is None:
        log.warning("nothing is kept: the state ends with this process; --data-dir keeps it")
    await alive.stopping.wait()


def serve(flags: Flags) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="koord-apiserver-") as scratch:

        async def main(alive: life.Life) -> None:
            try:
                await _run(flags, Path(scratch), alive)
            except (OSError, DiskError, manifests.ManifestError) as err:
                raise ConfigurationError(f"cannot serve: {err}") from err

        return life.run(main, name="koord apiserver")
