"""`koord doctor`: what koord needs, of this machine and of the cluster, line by line with what to do (BEY-DOC-01)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from koord.process import commands
from koord.process.errors import UsageError
from koord.process.flags import GoCommand
from roles.tools.place import cluster_options, system_option

if TYPE_CHECKING:
    from koord.kube.config import ClientConfig
    from roles.tools.doctor.finding import Finding

_ROLES = ("manager", "scheduler", "descheduler", "koordlet")


@click.command("doctor", cls=GoCommand)
@click.option("--node", is_flag=True, help="Look at this machine only.")
@click.option("--cluster", is_flag=True, help="Look at the cluster only.")
@click.option("--node-name", default="", help="Name of this machine's Node; its kubelet is queried for pods (default: NODE_NAME).")
@click.option("--host-root", default="/", show_default=True, help="Where the machine's root is mounted.")
@cluster_options
@system_option("--namespace", "Where koord lives.")
@click.option("--role", "roles", multiple=True, type=click.Choice(_ROLES), help="Whose rights to look at; repeatable (default: all).")
@click.option("--as", "acting_as", default="", metavar="USER", help="Ask for rights as this user (default: each role's account).")
@click.option("--security", is_flag=True, help="Also: what a stolen token of each role could do, and how the roles run.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def command(
    node: bool,
    cluster: bool,
    node_name: str,
    host_root: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    roles: tuple[str, ...],
    acting_as: str,
    security: bool,
    output: str,
) -> None:
    """Say of everything that koord needs whether it is ok, worth a look (warn), or wrong (fail), and what to do.

    Nothing is changed. Ends with status 1 when something failed, 0 otherwise.
    """
    import orjson

    from koord.kube.config import KubeConfigError
    from roles.tools.doctor import finding
    from roles.tools.gather import find_endpoints, find_server

    if node and cluster:
        raise UsageError("--node and --cluster exclude each other; without either both are looked at")
    if not os.path.isdir(host_root):
        raise UsageError(f"--host-root: {host_root} is no directory")
    config, missing = None, ""
    if not node:
        try:
            config = find_server(kubeconfig, context, os.environ)
        except KubeConfigError as error:
            missing = str(error)
    node_name = node_name or os.environ.get("NODE_NAME", "")
    sandbox = config is not None and bool(find_endpoints((), {"XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", "")}, config))
    asked = {"namespace": namespace, "roles": roles or _ROLES, "acting_as": acting_as, "security": security}
    findings = commands.run(_run(config, "" if cluster else host_root, node_name, asked, sandbox=sandbox))
    if missing:
        how = "say which cluster: --kubeconfig, --context" + ("" if cluster else "; or look at this machine only: --node")
        findings.append(finding.fail("API server", missing, how))
    if output == "json":
        click.echo(orjson.dumps(finding.wire(findings), option=orjson.OPT_INDENT_2))
    else:
        for line in finding.lines(findings):
            click.echo(line)
    raise SystemExit(1 if finding.failed(findings) else 0)


async def _run(config: ClientConfig | None, host_root: str, node_name: str, asked: dict[str, Any], *, sandbox: bool) -> list[Finding]:
    """Look, then judge. `asked`: what is looked at in a cluster, as `cluster.gather` takes it."""
    from contextlib import AsyncExitStack
    from dataclasses import replace

    from koord.kube.client import PATIENCE, Client
    from roles.tools.doctor import cluster, host, judge_cluster, judge_host, kubelet

    findings: list[Finding] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config, role="doctor", patience=PATIENCE)) if config is not None else None
        if host_root:
            machine = host.machine_at(host_root)
            facts = await host.gather(machine)
            if client is not None and config is not None and node_name:
                facts = replace(facts, kubelet_pods=await kubelet.pods(client, config, node_name, machine))
            findings += judge_host.judge(facts)
        if client is not None:
            seen = await cluster.gather(client, **asked)
            seen.sandbox = sandbox
            findings += judge_cluster.judge(seen)
    return findings
