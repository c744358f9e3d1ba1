"""`koord runtime-proxy`: the command line (RP-CLI-01). Flags only; the wiring is in :mod:`roles.runtime_proxy.app`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord.process.flags import (
    FlagError,
    HostPort,
    HostPortAddress,
    always_allow_option,
    bool_option,
    flags_of,
    go_command,
    logging_options,
    taken,
)
from roles.runtime_proxy.options import CONTAINERD, DOCKER, Options

_CLOSING = 3.0  # seconds for ending what is left after that

if TYPE_CHECKING:
    from koord.process.life import Life


@go_command("runtime-proxy")
@flags_of(Options)
@click.option(
    "--remote-image-service-endpoint",
    default="",
    hidden=True,
    expose_value=False,
    help="Accepted from older units; images take the runtime's socket.",
)
@click.option(
    "--addr", type=HostPortAddress, default="0", show_default=True, help="Where to serve /healthz, /readyz and /metrics; 0 switches it off."
)
@always_allow_option
@bool_option("--validate-config", help="Check the flags and the hook registrations, and exit.")
@logging_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    addr: HostPort,
    authorization_always_allow_paths: tuple[str, ...],
    validate_config: bool,
    logging: Any,
    **flags: Any,
) -> None:
    """Forward every CRI or Docker call to the container runtime and let registered hook servers change the life-cycle calls."""
    from koord.process import life

    settings = Options(**taken(Options, flags))
    if settings.mode not in (CONTAINERD, DOCKER):
        raise FlagError(f"--backend-runtime-mode: {settings.mode!r} is not known; accepted: Containerd, Docker", ctx)
    if settings.hook_timeout <= 0:
        raise FlagError("--runtime-hook-timeout: must be more than 0", ctx)
    if settings.drain < 0:
        raise FlagError("--drain-timeout: must not be negative", ctx)
    if validate_config:
        _check_registrations(settings.hook_directory)
        return

    def main(running: Life) -> Any:
        return _run(running, settings, addr, authorization_always_allow_paths)

    sys.exit(life.run(main, name="koord runtime-proxy"))


def _check_registrations(directory: Path) -> None:
    """Read every registration as the proxy would. Raises ConfigurationError naming all that it would leave out."""
    from koord.process.errors import ConfigurationError
    from roles.runtime_proxy.registration import RegistrationError, content_of, faults, never_asked, parse_registration, registrations

    wrong, servers, files = [], [], list[Path]()
    try:
        files = registrations(directory)
        links = (path for path in sorted(directory.glob("*json")) if path.is_symlink() and not path.exists())
        wrong += [f"{link}: is a link that leads nowhere" for link in links]
    except FileNotFoundError:
        pass  # the proxy makes it
    except OSError as error:
        wrong.append(f"--runtime-hooks-config-path: {directory}: {error.strerror}")
    for file in files:
        try:
            server = parse_registration(str(file), content_of(file))
        except RegistrationError as error:
            wrong.append(str(error))
            continue
        except OSError as error:
            wrong.append(f"{file}: {error.strerror}")
            continue
        wrong += [f"{file}: {fault}" for fault in faults(server)]
        servers.append(server)
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    for line in never_asked(servers):
        click.echo(f"note: {line}")
    click.echo(f"the flags and {len(files)} hook registration(s): valid")


async def _run(life: Life, settings: Options, addr: HostPort, open_paths: tuple[str, ...]) -> None:
    """Build what a process of its own needs, then live."""
    from koord.process.errors import ConfigurationError
    from koord.process.life import Phase
    from roles.runtime_proxy.app import App
    from roles.runtime_proxy.sockets import SocketError

    async def serve() -> None:
        try:
            await app.run(life)
        except SocketError as error:
            raise ConfigurationError(str(error)) from None

    ops = None
    if not addr.disabled:
        from koord.process.http import OpsServer
        from koord.process.serving import Gate, Serving

        # It has no API server to ask: on an address that others reach, what is not open is refused.
        ops = OpsServer.at(addr, role="runtime-proxy", gate=Gate(Serving(allowed_paths=open_paths)))
        ops.health.register("engine", gate=True)
    app = App(settings, ops=ops)
    if ops is not None:
        await ops.start()
        life.on_stop(ops.stop, "health server")
    # Calls under way outlast the signal, and the grace that a process has otherwise.
    serving, stopping = asyncio.ensure_future(serve()), asyncio.ensure_future(life.stopping.wait())
    life.on_stop(lambda: asyncio.wait({serving}), "calls under way", phase=Phase.LAME_DUCK, seconds=settings.drain + _CLOSING)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if serving.done():
        await serving
