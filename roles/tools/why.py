"""`koord why`: explain a pod, a gang or a node from the decision records of the roles and the live object."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from koord.process import commands
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import Commands, FlagError, GoCommand, duration_option
from roles.tools.place import cluster_options, system_option

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from roles.tools.explain import Explanation
    from roles.tools.facts import Gathered

F = TypeVar("F", bound=Callable[..., Any])


FORMATS = ("text", "json", "yaml")


def _options(function: F) -> F:
    for option in (
        click.option("-o", "--output", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="Output format."),
        click.option("--watch", is_flag=True, help="Ask again and again, and print what has changed."),
        duration_option("--interval", default="5s", positive=True, help="Pause between two questions of --watch."),
        cluster_options,
        click.option(
            "--endpoint",
            "endpoints",
            multiple=True,
            metavar="URL",
            help="A role's HTTP port; repeatable. Default: KOORD_ENDPOINTS (comma-separated), or found in the cluster.",
        ),
        system_option(),
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


_KINDS = {"po": "pod", "no": "node", "pg": "podgroup", "eq": "quota", "elasticquota": "quota"}
"""kubectl's short names of what can be explained."""


class _Kinds(Commands):
    """Takes `pod NAME` and, as kubectl does, `pod/NAME` and short names."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        kind, slash, name = args[0].partition("/")
        kind = _KINDS.get(kind.lower(), kind.lower())
        if not kind.startswith("-") and self.get_command(ctx, kind) is None and not ctx.resilient_parsing:
            raise FlagError(f"No such command {args[0]!r}; accepted: {', '.join(self.list_commands(ctx))}, and a name", ctx)
        return super().resolve_command(ctx, [kind, *([name] if slash else []), *args[1:]])


@click.group("why", cls=_Kinds, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
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


@command.command("quota", cls=GoCommand)
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="Namespace of the ElasticQuota (default: wherever there is one of this name).")
@_options
def quota(name: str, namespace: str, **options: Any) -> None:
    """Explain what an ElasticQuota lets its pods use now, what is used and requested, and which pods wait for it."""
    _explain("ElasticQuota", *_place("quota", name, namespace), **options)


def _place(what: str, name: str, namespace: str) -> tuple[str, str]:
    """Namespace and name as they were given. Raises UsageError where they contradict each other."""
    prefix, slash, rest = name.partition("/")
    if slash:
        if namespace and namespace != prefix:
            raise UsageError(f"the {what} is given as {name!r}, but --namespace says {namespace!r}")
        namespace, name = prefix, rest
    if not name or "/" in name:
        raise UsageError(f"a {what} is given as NAME or NAMESPACE/NAME")
    return namespace, name


@command.command("node", cls=GoCommand)
@click.argument("name")
@_options
def node(name: str, **options: Any) -> None:
    """Why a node offers what it offers, and what was decided on it."""
    if not name or "/" in name:
        raise UsageError("a node is given as NAME")
    _explain("Node", "", name, **options)


def _explain(
    kind: str,
    namespace: str,
    name: str,
    *,
    endpoints: tuple[str, ...],
    koord_namespace: str,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    logs: tuple[str, ...],
    watch: bool,
    interval: float,
) -> None:
    from koord.kube import config
    from roles.tools import explain, gather, render

    try:
        server = gather.find_server(kubeconfig, context, os.environ)
    except config.NotConfigured:
        server = None  # the roles, or their logs, can be asked without it
    found_endpoints = gather.find_endpoints(endpoints, os.environ, server)
    if not found_endpoints and server is None and not logs:
        raise ConfigurationError(
            "no role to query: give --kubeconfig (or KUBECONFIG, ~/.kube/config), --endpoint URL (or KOORD_ENDPOINTS), "
            "or --decision-log DIR, or start `koord sandbox up`"
        )

    def ask() -> tuple[explain.Explanation | None, Gathered]:
        found = commands.run(gather.gather(kind, namespace, name, found_endpoints, server, logs, koord_namespace))
        places = sorted({record.subject.namespace for record in found.records if record.subject.kind == kind} | set(found.places))
        if len(places) > 1:
            raise ConfigurationError(f"there are {kind.lower()}s named {name} in {', '.join(places)}: say which with --namespace")
        where = namespace or (places[0] if places else (found.obj.get("metadata") or {}).get("namespace", ""))
        return explain.explain(kind, found, namespace=where, name=name, now=time.time()), found

    if watch:
        try:
            _watch(ask, output, interval)
        except KeyboardInterrupt:
            sys.exit(130)
    explanation, found = ask()
    if explanation is None:
        raise ConfigurationError(
            _nothing(f"{kind.lower()} {namespace}/{name}" if namespace else f"{kind.lower()} {name}", found, logs, server)
        )
    render.show(explanation, found, output)
    if not found.answered:
        raise ConfigurationError(f"no role answered: {'; '.join(found.problems) or 'no role was found'}")


def _nothing(subject: str, found: Gathered, logs: tuple[str, ...], server: ClientConfig | None) -> str:
    """Why there is nothing to tell: nobody could be asked, or those who answered know nothing."""
    asked = [role for role in found.asked if not any(problem.startswith(f"{role}: ") for problem in found.problems)] + [*logs]
    if server is not None and found.live is not None:
        asked.append(f"API server at {server.server}")
    failed = "; ".join(found.problems)
    if not asked:
        return f"no role could be queried about {subject}: {failed}"
    why = []
    if server is not None and found.live is not None:
        there = f" in this namespace, but in {', '.join(found.elsewhere)}" if found.elsewhere else ""
        why.append(f"there is none of this name{there}")
    silent = tuple(f"{role}: " for role in found.asked)
    why += [f"no answer from {problem}" if problem.startswith(silent) else problem for problem in found.problems]
    told = f": {'; '.join(why)}" if why else ""
    return f"nothing is known about {subject}{told}; queried: {', '.join(asked)}"


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
