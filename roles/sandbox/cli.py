"""`koord sandbox`: flags only. `workload` holds what the demo's pods run; it imports nothing of the roles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from koord.process.flags import Commands
from koord.process.numbers import Finite


@click.group("sandbox", cls=Commands)
def command() -> None:
    """Run everything in one process: API server, all roles, simulated nodes, and this machine as a real node.

    As root on Linux, pods that carry the annotation sandbox.koordinator.sh/process: "true" run as processes of this machine in cgroups
    of their own (koord-sandbox-<id>); all of it is removed at the end. Without root or writable cgroups the simulated part runs alone.
    """


_AS_PROCESSES = click.option("--roles-as-processes", is_flag=True, help="Start each role as a process of its own.")
_VERBOSITY = click.option("--verbosity", "-v", type=click.IntRange(0, 10), default=0, help="Log verbosity of the roles.")


def _out(default: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The directory of what a command writes."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--out", type=kind, default=Path(default), show_default=True, help="Where to write.")


def _scenario_options(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        _VERBOSITY,
        _AS_PROCESSES,
        click.option("--local-node/--no-local-node", default=True, help="Use this machine as a node (needs root)."),
        click.option("--nodes", type=click.IntRange(0, 5000), help="Number of simulated nodes (default: as the scenario says)."),
        click.option("--scenario", type=click.Path(exists=True, dir_okay=False), help="Scenario file (default: the built-in demo)."),
    ):
        function = option(function)
    return function


@command.command("up")
@_scenario_options
@click.option(
    "--plugin-path",
    "plugin_paths",
    type=click.Path(exists=True),
    multiple=True,
    help="File or folder with scheduler plugins of your own; the scheduler starts again when they change.",
)
@click.option(
    "--scheduler-config",
    type=click.Path(exists=True, dir_okay=False),
    help="KubeSchedulerConfiguration in place of the scenario's; the scheduler starts again when it changes.",
)
@click.option("--detach", "-d", is_flag=True, help="Return as soon as it can be used; `koord sandbox down` ends it.")
def up(detach: bool, **options: Any) -> None:
    """Start everything and run until Ctrl-C."""
    from roles.sandbox import detached, main
    from roles.sandbox.session import Settings

    if detach:
        sys.exit(detached.up([word for word in _words() if word not in ("--detach", "-d")]))
    sys.exit(main.up(Settings(**options)))


def _words() -> list[str]:
    """The words after `sandbox up` on this process' command line."""
    context = click.get_current_context()
    given: list[str] = []
    for option in context.command.params:
        if not isinstance(option, click.Option) or context.get_parameter_source(option.name or "") is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[option.name or ""]
        if option.is_flag:
            given.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            given += [word for one in (value if option.multiple else (value,)) for word in (option.opts[0], str(one))]
    return given


@command.command("down")
@click.argument("run", required=False)
@click.option("--all", "every", is_flag=True, help="End every sandbox of this user.")
def down(run: str | None, every: bool) -> None:
    """End the sandbox that runs; RUN names one of several. Returns when its processes, files and cgroups are gone."""
    from roles.sandbox import detached

    sys.exit(detached.down(run, every))


@command.command("demo")
@_scenario_options
@_out("demo-out")
@click.option("--duration", type=Finite(15, 36_000), help="Seconds of load in all phases together (default: as the scenario says).")
@click.option("--force", is_flag=True, help="Measure on this machine even if others use its CPUs, and fail if that cannot be done.")
def demo(out: Path, duration: float | None, **options: Any) -> None:
    """A service and batch jobs on one node: alone, unmanaged, and under koord; ends with a verdict and writes report.html.

    Measures this machine; where that cannot be done (no root, no cgroups, CPUs in use) it says why and calculates the same phases.
    """
    from roles.sandbox import main
    from roles.sandbox.session import Settings

    sys.exit(main.demo(Settings(**options, measuring=True), out, duration))


@command.command("training")
@_out("training-out")
@_VERBOSITY
def training(out: Path, verbosity: int) -> None:
    """Training jobs on simulated racks: placement along the network, quota lending, room for a job; writes report.md and report.json.

    Takes less than a minute and no root. The exit code is 0 when everything happened as it should.
    """
    from roles.sandbox.training import show

    sys.exit(show.run(out, verbosity))


@command.command("hotspot")
@click.option("--nodes", type=click.IntRange(3, 60), default=6, show_default=True, help="Simulated nodes; one in three starts hot.")
@_AS_PROCESSES
@_VERBOSITY
@_out("hotspot-out")
@click.option("--timeout", type=Finite(15, 3600), default=90, show_default=True, help="Seconds after which hot nodes are a failure.")
def hotspot(nodes: int, roles_as_processes: bool, verbosity: int, out: Path, timeout: float) -> None:
    """Loaded nodes are relieved by the descheduler, reservation first; simulated nodes only. Writes report.md and utilisation.svg."""
    from roles.sandbox import main
    from roles.sandbox.session import Settings

    sys.exit(main.hotspot(Settings(None, nodes, False, roles_as_processes, verbosity), out, timeout))


@command.command("world")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The history to live; the first one with --seeds.")
@click.option("--seeds", type=click.IntRange(1), help="Live so many histories and say which broke a rule, instead of telling one.")
@click.option("--forever", is_flag=True, help="Go on from --seed until a rule is broken or Ctrl-C.")
@click.option("--shrink", is_flag=True, help="Find the fewest faults and workloads that still break the rule, and tell that history.")
@click.option("--nodes", type=click.IntRange(1, 5000), help="Nodes (default: 2 to 4, by the seed).")
@click.option("--pods", type=click.IntRange(1, 100_000), help="Pods that users ask for, about (default: 10 to 26).")
@click.option("--minutes", type=Finite(0.2, 10_000), default=1.0, show_default=True, help="Virtual minutes with faults.")
@click.option("--faults", type=click.IntRange(0, 10_000), help="How many things go wrong (default: 5 to 12).")
@click.option("--koordlets", type=click.IntRange(0), help="How many nodes have a modelled host and koordlet (default: 0 or 1).")
@click.option(
    "--profiles",
    type=click.Choice(("load", "both", "community")),
    help="What deschedulers run: LowNodeLoad, the community's plugins, or both (default: drawn; LowNodeLoad in two of three).",
)
@click.option("--kinds", default="", help="Only these kinds of faults, separated by commas.")
@click.option(
    "--beside",
    default="",
    metavar="TREE",
    help="Another release of koord, as a directory with koord/ and roles/, a zip file or a wheel: one replica of each role is of it.",
)
@click.option("--mutant", default="", help="Put this planted defect in (see --list-mutants); with --hunt: only these, separated by commas.")
@click.option("--list-mutants", is_flag=True, help="List the planted defects.")
@click.option(
    "--hunt", is_flag=True, help="Live --seeds histories of each planted defect until one betrays it; print the share that is caught."
)
@click.option("--table", default="", help="With --hunt: keep its table in this file (docs/testing.md).")
@click.option("--jobs", type=click.IntRange(1, 256), default=2, show_default=True, help="Histories side by side.")
@click.option("--verbosity", "-v", type=click.IntRange(0, 10), default=0, help="Print the roles' logs of the one history.")
def world(**options: Any) -> None:
    """All roles in one process on virtual time, hurt by faults and checked: a seed is a history, the same bytes each time.

    Tells the history of --seed as a story. The exit code is 0 when every rule held, 1 when one was broken.
    """
    from roles.sandbox.world import main

    sys.exit(main.run(main.Settings(**options)))


@command.command("clean")
def clean() -> None:
    """Remove what a killed sandbox left: its processes, cgroups and files. Living sandboxes and foreign groups are not touched."""
    from roles.sandbox import main

    sys.exit(main.clean())


@command.group("workload", hidden=True)
def workload() -> None:
    """The programs that the demo's pods run."""


@workload.command("serve")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Port to listen on.")
@click.option("--iterations", type=click.IntRange(0), required=True, help="Work of each request.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes on the one port.")
def serve(address: str, port: int, iterations: int, workers: int) -> None:
    """Serve HTTP with a fixed amount of work for each request."""
    from roles.sandbox.workload.serve import run

    run(address, port, iterations, workers)


@workload.command("load")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of the service.")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Port of the service.")
@click.option(
    "--step", "steps", multiple=True, required=True, metavar="RATE:SECONDS", help="Requests a second, and for how long; repeatable."
)
def load(address: str, port: int, steps: tuple[str, ...]) -> None:
    """Send requests at fixed times and print latencies."""
    from roles.sandbox.workload.load import Generator, Step

    try:
        parsed = [Step.parse(text) for text in steps]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--step") from None
    Generator((address, port), parsed, sys.stdout).run()


@workload.command("burn-cpu")
@click.option("--seconds", type=Finite(0), help="Stop after so long (default: never).")
def burn_cpu(seconds: float | None) -> None:
    """Burn CPU."""
    from roles.sandbox.workload import burn

    burn.burn_cpu(sys.stdout, seconds=seconds)


@workload.command("burn-memory")
@click.option("--mib", type=click.IntRange(1, 1 << 20), required=True, help="Memory to hold, in MiB.")
@click.option("--seconds", type=Finite(0), help="Stop after so long (default: never).")
def burn_memory(mib: int, seconds: float | None) -> None:
    """Hold and walk memory."""
    from roles.sandbox.workload import burn

    burn.burn_memory(sys.stdout, mib, seconds=seconds)
