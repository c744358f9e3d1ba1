"""The `koord` command: a group whose subcommands are imported only when they are called."""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from koord.version import VERSION

# name -> (module, attribute, one line of help). The help stands here so that `koord --help` imports no role.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "scheduler": ("roles.scheduler.cli", "command", "Schedule pods: load-aware, NUMA, devices, reservations, gangs, quotas."),
    "manager": ("roles.manager.cli", "command", "Run the co-location controllers and the admission webhooks."),
    "descheduler": ("roles.descheduler.cli", "command", "Relieve hot spots by safe migration."),
    "koordlet": ("roles.koordlet.cli", "command", "Run the node agent: observe, isolate, suppress, evict."),
    "device-daemon": ("roles.koordlet.devices.cli", "command", "Describe accelerators of other vendors in a file for koordlet."),
    "runtime-proxy": ("roles.runtime_proxy.cli", "command", "Sit between kubelet and the container runtime and call hooks."),
    "apiserver": ("koord.apiserver.cli", "command", "Serve the embedded API server alone."),
    "sandbox": ("roles.sandbox.cli", "command", "Run everything in one process, with simulated nodes and this machine."),
    "simulate": ("roles.tools.simulate.cli", "command", "Ask what a change would place, evict and use, before it is made."),
    "replay": ("roles.tools.replay.cli", "command", "Make the decisions of a log again, with the same configuration or another."),
    "cost": ("roles.tools.cost.cli", "command", "Divide the cost of nodes by who requests and uses them."),
    "test": ("roles.tools.policytest.cli", "command", "Run policies that are written as cases: given, when, then."),
    "recommend": ("roles.tools.recommend", "command", "Backtest the recommender on past usage."),
    "overcommit": ("roles.tools.overcommit", "command", "Try how far nodes can be overcommitted, on usage that is known already."),
    "install": ("roles.tools.install", "install", "Print the manifests that koord is installed with."),
    "uninstall": ("roles.tools.install", "uninstall", "Take koord out of a cluster in the safe order."),
    "top": ("roles.tools.top.cli", "command", "Show who uses what on which node, now."),
    "ui": ("roles.tools.ui.cli", "command", "Show nodes, pending pods, decisions and quotas on a page in the browser."),
    "doctor": ("roles.tools.doctor.cli", "command", "Check that host and cluster are ready for koord."),
    "lint": ("roles.tools.lint.cli", "command", "Check configurations and objects without a cluster."),
    "probe": ("roles.tools.probe", "command", "Ask a role's health from inside its container."),
    "plugin": ("roles.tools.plugin", "command", "Begin a plugin of your own: its file and a test that runs."),
    "completion": ("roles.tools.completion", "command", "Print the script that completes commands and flags in a shell."),
    "why": ("roles.tools.why", "command", "Explain a pod or a node from the decision records."),
}


_GROUPS = {
    "Try koord": ("sandbox", "ui"),
    "Explain and observe": ("why", "top", "doctor"),
    "Check and foresee": ("lint", "simulate", "replay", "cost", "test", "recommend", "overcommit"),
    "Install": ("install", "uninstall", "completion"),
    "Roles": ("scheduler", "manager", "descheduler", "koordlet", "runtime-proxy", "device-daemon", "apiserver", "probe"),
    "Develop": ("plugin",),
}
"""How the help lists the commands: what a person calls first, what a manifest calls last."""
_VERDICTS = frozenset({"doctor", "lint", "replay", "simulate", "test", "uninstall"})
"""Commands whose status says what they found, or that all was done: cut short, they have not said it."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write says of a disk that takes no more."""


def _reader_left() -> bool:
    """Whether nobody reads stdout any more."""
    try:
        waiting = select.poll()
        waiting.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in waiting.poll(0))
    except (OSError, ValueError):  # stdout is no file, or closed
        return False


def _discard_output() -> None:
    """Nothing more is written, nor tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _quiet_pipe(ctx: click.Context) -> Iterator[None]:
    """A reader that has seen enough (`koord top | head`) ends the command without a word, a disk that is full with one line."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except BrokenPipeError as error:
        if not _reader_left():  # another pipe or socket
            raise
        _discard_output()
        status: Any = 128 + signal.SIGPIPE if ctx.invoked_subcommand in _VERDICTS else 0
        if isinstance(error.__context__, (SystemExit, click.exceptions.Exit)):  # all was done, and only the rest of it was not read
            status = getattr(error.__context__, "code", None) or getattr(error.__context__, "exit_code", 0)
        raise SystemExit(status) from None
    except OSError as error:
        if error.errno not in _FULL or ctx.invoked_subcommand in _GROUPS["Roles"]:  # of a role one wants to know where
            raise
        _discard_output()
        click.echo(f"koord: error: cannot write: {error.strerror}", err=True)
        raise SystemExit(1) from None


_ASCII = {"−": "-", "×": "x", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "·": "-", "–": "-"}


def _transliterate(error: UnicodeError) -> tuple[str, int]:
    """What is printed instead of characters that the terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end


def _any_output() -> None:
    """Output in a locale without UTF-8 loses characters, and not the command; a closed stdout (`>&-`) takes everything."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("koord", _transliterate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not (stream.encoding or "").lower().startswith("utf"):
            stream.reconfigure(errors="koord")


class LazyGroup(click.Group):
    """A click group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        # Before a role imports numpy: a BLAS thread a core would cost more than it does for our small vectors.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module = importlib.import_module(entry[0])
        command = getattr(module, entry[1])
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; all of them tell a mistake on the command line in one form."""
        try:
            with _quiet_pipe(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:  # as of a shell's own commands; click would say "Aborted!" and end with 1
            raise SystemExit(128 + signal.SIGINT) from None
        except click.UsageError as error:
            from koord.process.flags import FlagError

            if isinstance(error, (FlagError, UnknownCommand, click.exceptions.NoArgsIsHelpError)):
                raise
            raise FlagError(error.format_message(), error.ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what stands before the command."""
        _any_output()
        try:
            with _quiet_pipe(ctx):
                return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            from koord.process.flags import FlagError

            raise FlagError(error.format_message(), error.ctx) from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownCommand(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), COMMANDS[name][2]) for name in names])


class UnknownCommand(click.UsageError):
    """A command that does not exist: one line with the nearest one, status 2."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; commands: {', '.join(COMMANDS)}"
        super().__init__(f"unknown command: {name}{hint}", ctx)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"koord: error: {self.message}", file=file, err=file is None)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="koord")
def main() -> None:
    """QoS-based co-location scheduling for Kubernetes: one executable, one subcommand a role."""


def kubectl() -> None:
    """`kubectl koord …`: kubectl finds the program `kubectl-koord` on the PATH and runs it."""
    main(prog_name="kubectl koord")


if __name__ == "__main__":
    main(prog_name="koord")
