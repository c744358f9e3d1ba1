"""`koord why`: explain a pod, a gang or a node from the decision records of the roles and the live object."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand, duration_option

if TYPE_CHECKING:
    from roles.tools.explain import Explanation
    from roles.tools.facts import Gathered

F = TypeVar("F", bound=Callable[..., Any])


FORMATS = ("text", "json", "yaml")


def _options(function: F) -> F:
    for option in (
        click.option("-o", "--output", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="Output format."),
        click.option("--watch", is_flag=True, help="Ask again and again, and print what has changed."),
        duration_option("--interval", default="5s", help="Pause between two questions of --watch."),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option("--kubeconfig", metavar="FILE", help="Read the live object with this (default: KUBECONFIG, or a running sandbox's)."),
        click.option(
            "--endpoint",
            "endpoints",
            multiple=True,
            metavar="URL",
            help="A role's HTTP port; repeatable. Default: KOORD_ENDPOINTS (comma-separated), or a running sandbox's.",
        ),
        click.option(
            "--decision-log",
            "logs",
            multiple=True,
            type=click.Path(exists=True, file_okay=False),
            metavar="DIR",
            help="Read the records that roles with --decision-log have left here; repeatable. No role need be running.",
        ),
    ):
        function = option(function)
    return function


@click.group("why", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def command() -> None:
    """Explain in plain words, with the numbers: why a pod or a gang is pending, suppressed or evicted, why a node offers what it offers."""


@command.command("pod", cls=GoCommand)
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="Namespace of the pod (default: wherever a role knows a pod of this name).")
@_options
def pod(name: str, namespace: str, **options: Any) -> None:
    """Why a pod is where it is, or is not."""
    _explain("Pod", *_place("pod", name, namespace), **options)


@command.command("podgroup", cls=GoCommand)
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="Namespace of the PodGroup (default: wherever a role knows one of this name).")
@_options
def podgroup(name: str, namespace: str, **options: Any) -> None:
    """Explain why a gang waits or was scheduled: which member is missing, how many would fit, what is short."""
    _explain("PodGroup", *_place("PodGroup", name, namespace), **options)


def _place(what: str, name: str, namespace: str) -> tuple[str, str]:
    """Namespace and name as they were given. Raises ConfigurationError where they contradict each other."""
    prefix, slash, rest = name.partition("/")
    if slash:
        if namespace and namespace != prefix:
            raise ConfigurationError(f"the {what} is given as {name!r}, but --namespace says {namespace!r}")
        namespace, name = prefix, rest
    if not name or "/" in name:
        raise ConfigurationError(f"a {what} is given as NAME or NAMESPACE/NAME")
    return namespace, name


@command.command("node", cls=GoCommand)
@click.argument("name")
@_options
def node(name: str, **options: Any) -> None:
    """Why a node offers what it offers, and what was decided on it."""
    _explain("Node", "", name, **options)


def _explain(
    kind: str,
    namespace: str,
    name: str,
    *,
    endpoints: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    output: str,
    logs: tuple[str, ...],
    watch: bool,
    interval: float,
) -> None:
    from koord.kube import config
    from roles.tools import explain, gather, render

    path, usable = gather.find_kubeconfig(kubeconfig, os.environ)
    server = config.load(path, context=context) if usable else None
    found_endpoints = gather.find_endpoints(endpoints, os.environ, server)
    if not found_endpoints and server is None and not logs:
        raise ConfigurationError(
            "nobody to ask: give --endpoint URL (or KOORD_ENDPOINTS), or --kubeconfig, or --decision-log DIR, or start `koord sandbox up`"
        )
    if interval <= 0:
        raise ConfigurationError("--interval: must be more than 0")

    def ask() -> tuple[explain.Explanation | None, Gathered]:
        found = asyncio.run(gather.gather(kind, namespace, name, found_endpoints, server, logs))
        places = sorted({record.subject.namespace for record in found.records if record.subject.kind == kind} | set(found.places))
        if len(places) > 1:
            raise ConfigurationError(f"there are {kind.lower()}s named {name} in {', '.join(places)}: say which with --namespace")
        live = found.live.obj if found.live and found.live.obj else {}
        where = namespace or (places[0] if places else (live.get("metadata") or {}).get("namespace", ""))
        return explain.explain(kind, found, namespace=where, name=name, now=time.time()), found

    if watch:
        try:
            _watch(ask, output, interval)
        except KeyboardInterrupt:
            sys.exit(130)
    explanation, found = ask()
    if explanation is None:
        asked = [*map(str, found_endpoints), *logs] + ([f"API server at {server.server}"] if server else [])
        which = f"{namespace}/{name}" if namespace else name
        click.echo(f"koord why: nothing is known of {kind.lower()} {which}; asked: {', '.join(asked)}", err=True)
        for problem in found.problems:
            click.echo(f"koord why: could not be asked: {problem}", err=True)
        sys.exit(1)
    render.show(explanation, found, output)
    if not found.answered:
        click.echo(f"koord why: no role answered: {'; '.join(found.problems) or 'nobody was found to ask'}", err=True)
        sys.exit(1)


def _watch(ask: Callable[[], tuple[Explanation | None, Gathered]], output: str, interval: float) -> NoReturn:
    """Print the explanation, and after that each time its first line or its decision has changed; until Ctrl-C."""
    from roles.tools import render

    told: tuple[str, str] | None = None
    while True:
        explanation, found = ask()
        now = (explanation.summary, explanation.reason) if explanation is not None else ("nothing is known yet", "")
        if now != told:
            if explanation is None:
                click.echo(f"{time.strftime('%H:%M:%S')} {now[0]}", err=True)
            elif told is None or output != "text":
                render.show(explanation, found, output)
            else:
                click.echo(f"{time.strftime('%H:%M:%S')} {explanation.summary}")
            sys.stdout.flush()
            told = now
        time.sleep(interval)
