"""`koord install` and `koord uninstall`: manifests out, and a cluster left as it was found."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import click
from click.core import ParameterSource

from koord.api.kinds import CONFIGMAPS, DAEMONSETS
from koord.kube import config as kubeconfig
from koord.kube.client import PATIENCE, Client
from koord.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unreachable
from koord.process import commands
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand, bool_option, duration_option
from roles.koordlet.rights import COMPONENTS
from roles.manager.recommender.checkpoint import LABEL as CHECKPOINT
from roles.tools import manifests, restoring
from roles.tools.place import system_option

# Webhooks first: a webhook whose server is gone would hold up pods. Then what acts, then rights, then names. CRDs only when asked for: with
# them goes every object of theirs.
_ORDER = (
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "DaemonSet",
    "Deployment",
    "PodDisruptionBudget",
    "Service",
    "ConfigMap",
)
# Without it the manager cannot make its webhook configurations again, and goes on answering what they still ask.
_RIGHTS = ("ClusterRoleBinding", "", "koord-manager")
_SETTLED, _TRIES, _PAUSE = 3, 20, 0.5
_IMAGE = re.compile(r"([\w.-]+(:\d+)?/|\[[0-9a-fA-F:]+\](:\d+)?/)?[a-z0-9._/-]+(:[\w.-]+)?(@sha256:[0-9a-f]+)?", re.ASCII)
_VARIANTS = (*manifests.OVERLAYS, *manifests.OPTIONAL)
_WEBHOOKS = (
    ("MutatingWebhookConfiguration", "", "koordinator-mutating-webhook-configuration"),
    ("ValidatingWebhookConfiguration", "", "koordinator-validating-webhook-configuration"),
)


@click.command("install", cls=GoCommand)
@click.option("--print", "printed", is_flag=True, help="Print the manifests for kubectl apply -f -; nothing else is done.")
@click.option("--image", default=manifests.IMAGE, show_default=True, help="The image of every role.")
@system_option("--namespace", "Where koord lives.")
@bool_option("--crds", default=True, help="CustomResourceDefinitions too.")
@click.option("--without", default="", help=f"Parts to leave out, separated by commas: {', '.join(manifests.PARTS)}.")
@click.option(
    "--only",
    default=None,
    help="Print these parts alone, separated by commas: their own objects, without definitions (unless --crds is given), namespace, "
    "priority classes and whatever else parts share.",
)
@click.option("--overlay", "overlays", default="", help=f"Variants, separated by commas: {', '.join(_VARIANTS)}.")
@click.pass_context
def install(
    context: click.Context, printed: bool, image: str, namespace: str, crds: bool, without: str, only: str | None, overlays: str
) -> None:
    """Print what koord is installed with."""
    if not printed:
        hint = "--print is required; koord install does not write to a cluster: koord install --print | kubectl apply --server-side -f -"
        raise UsageError(hint)
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"--image: {image!r} is no image; write [REGISTRY/]NAME[:TAG][@sha256:DIGEST]")
    chosen = _names("--overlay", overlays, _VARIANTS)
    if {"single", "ha"} <= set(chosen):
        raise UsageError("--overlay: single and ha exclude each other")
    more = [name for name in chosen if name in COMPONENTS]
    if more and "koordlet-observe" in chosen:
        raise UsageError(f"--overlay: koordlet-observe and {more[0]} exclude each other")
    left_out = frozenset(_names("--without", without, manifests.PARTS))
    alone = frozenset(_names("--only", only or "", manifests.PARTS))
    if only is not None:
        if left_out:
            raise UsageError("--only and --without exclude each other")
        if not alone:
            raise UsageError(f"--only names no part; accepted: {', '.join(manifests.PARTS)}")
        crds = crds and context.get_parameter_source("crds") is not ParameterSource.DEFAULT
    if "@sha256:" not in image:
        click.echo(f"image of every role: {image}; a tag can be moved, a digest (--image=…@sha256:…) cannot", err=True)
    found = manifests.rendered(image=image, namespace=namespace, crds=crds, without=left_out, only=alone, overlays=chosen)
    click.echo(manifests.text(found), nl=False)


def _names(flag: str, text: str, accepted: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a list, each once, in the order of `accepted`. Raises UsageError."""
    given = set(filter(None, (part.strip() for part in text.split(","))))
    unknown = given - set(accepted)
    if unknown:
        raise UsageError(f"{flag}: {', '.join(sorted(unknown))} is not known; accepted: {', '.join(accepted)}")
    return tuple(name for name in accepted if name in given)


@click.command("uninstall", cls=GoCommand)
@click.option("--kubeconfig", "file", metavar="FILE", help="Which cluster (default: KUBECONFIG, in-cluster, ~/.kube/config).")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
@system_option("--namespace", "Where koord lives.")
@click.option("--crds", is_flag=True, help="Delete the CustomResourceDefinitions, and with them every object of theirs.")
@click.option("--webhooks-only", is_flag=True, help="Delete the webhook configurations alone, before something else removes the rest.")
@bool_option(
    "--restore", default=True, help="Before roles go, put back what koordlet changed on every node and what the manager offered there."
)
@duration_option("--restore-timeout", default=600.0, help="How long nodes may take for that; then nothing more is deleted.")
@click.option("--yes", is_flag=True, help="Delete. Without this flag, only list what would be deleted.")
def uninstall(
    file: str | None,
    context: str | None,
    namespace: str,
    crds: bool,
    webhooks_only: bool,
    restore: bool,
    restore_timeout: float,
    yes: bool,
) -> None:
    """Take koord out of a cluster in the safe order: webhooks first.

    Before its DaemonSet is deleted, koordlet puts back every cgroup file that it changed, on all nodes at once; then batch and mid
    resources are taken off the nodes. Pods go on running.
    """
    wanted = first() if webhooks_only else plan(namespace, crds=crds)
    patience = restore_timeout if restore and not webhooks_only else None
    crds = crds and not webhooks_only
    if not yes:
        try:
            commands.run(_listed(file, context, wanted, namespace, restore=patience is not None, crds=crds))
        except ApiError as error:
            raise ConfigurationError(f"cannot query the API server: {error}") from None
        return
    try:
        raise SystemExit(commands.run(_uninstall(file, context, wanted, namespace, patience, crds=crds)))
    except Unreachable as error:
        raise ConfigurationError(f"stopped, what is not listed as deleted is still there: {error}") from None


def first() -> list[tuple[str, str, str]]:
    """What goes before all else: the manager's rights, then its webhooks."""
    return [_RIGHTS, *_WEBHOOKS]


def plan(namespace: str, *, crds: bool) -> list[tuple[str, str, str]]:
    """(kind, namespace, name) of what is deleted, in that order."""
    added = manifests.rendered(namespace=namespace, crds=crds, overlays=("monitoring", *manifests.OPTIONAL))
    own = [(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]) for d in added]
    # others may live in the namespace, and pods name classes
    kept = [entry for entry in own if entry[0] not in ("Namespace", "PriorityClass") and entry != _RIGHTS]
    definitions = [entry for entry in kept if entry[0] == "CustomResourceDefinition"]
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    ordered = sorted((entry for entry in kept if entry not in definitions), key=lambda entry: rank.get(entry[0], len(_ORDER)))
    leases = [("Lease", namespace, name) for name in manifests.LEASES]
    return [*first(), *ordered, *leases, *definitions, ("Secret", namespace, "koordinator-webhook-certs")]


async def _learnt(client: Client, namespace: str) -> list[tuple[str, str, str]]:
    """Checkpoints of the recommender: what it learnt for Recommendations, of use to nobody without these."""
    try:
        found = (await client.list(CONFIGMAPS, namespace, label_selector=f"{CHECKPOINT}=true")).items
    except ApiError:  # who may only delete what the manifests name
        return []
    return [("ConfigMap", namespace, one["metadata"]["name"]) for one in found]


async def _listed(
    file: str | None, context: str | None, wanted: list[tuple[str, str, str]], namespace: str, *, restore: bool, crds: bool
) -> None:
    """Say what of it is there, and on how many nodes something would be put back. Raises ApiError where nobody answers."""
    found, hidden = 0, list[str]()
    async with Client(kubeconfig.load(file, context=context), role="koord-uninstall", patience=PATIENCE) as client:
        if restore and (nodes := await _koordlets(client, namespace)):
            click.echo(f"would put back what koordlet changed on {nodes} {'node' if nodes == 1 else 'nodes'}, before its DaemonSet goes")
        for entry in [*wanted, *(await _learnt(client, namespace) if crds else ())]:
            kind, place, name = entry
            try:
                await client.get(manifests.KINDS[kind], name, place or None)
            except NotFound:
                continue
            except Forbidden as error:
                hidden.append(str(error))
                continue
            found += 1
            click.echo(f"would delete {_told(*entry)}")
    if hidden:
        raise ConfigurationError(f"{len(hidden)} of {len(wanted)} objects cannot be looked at and may be there: {hidden[0]}")
    click.echo("nothing was deleted; add --yes" if found else f"nothing of koord was found (namespace {namespace})")


async def _koordlets(client: Client, namespace: str) -> int:
    """How many nodes have a koordlet that may have written there."""
    try:
        daemonset = await client.get(DAEMONSETS, restoring.NAME, namespace)
    except (NotFound, Forbidden):
        return 0
    with contextlib.suppress(Forbidden):  # it may have
        if not restoring.under_way(daemonset) and await restoring.plan(client, daemonset) is None:
            return 0
    return int((daemonset.get("status") or {}).get("desiredNumberScheduled") or 0)


async def _uninstall(
    file: str | None, context: str | None, wanted: list[tuple[str, str, str]], namespace: str, patience: float | None, *, crds: bool
) -> int:
    async with Client(kubeconfig.load(file, context=context), role="koord-uninstall") as client:
        if not await _take_webhooks(client):
            click.echo("stopped: without its server a webhook could hold up what it is asked about", err=True)
            return 1
        failed = 0
        if patience is not None:
            await _delete(client, "DaemonSet", namespace, "koordlet-guard")  # nobody is to be guarded any more
            if not await restoring.restore_nodes(client, namespace, patience, click.echo):
                click.echo("stopped: try again, or go on with --restore=false and koord koordlet --restore on those nodes", err=True)
                return 1
            failed += not await restoring.withdraw_resources(client, click.echo)
            failed += not await restoring.withdraw_devices(client, click.echo)
        for entry in wanted[len(first()) :]:
            failed += await _delete(client, *entry) == "failed"
        for entry in await _learnt(client, namespace) if crds else ():
            failed += await _delete(client, *entry) == "failed"
    return 1 if failed else 0


async def _take_webhooks(client: Client) -> bool:
    """The manager's right to make webhook configurations, then these. If they cannot be deleted, the manager has to go on answering."""
    kind, place, name = _RIGHTS
    held: dict[str, Any] | None = None
    with contextlib.suppress(ApiError):  # who may only delete cannot give back
        held = await client.get(manifests.KINDS[kind], name)
    if await _delete(client, kind, place, name) != "failed" and await _stay_away(client):
        return True
    if held is not None:
        metadata = {key: value for key, value in held["metadata"].items() if key in ("name", "labels", "annotations")}
        try:
            await client.create(manifests.KINDS[kind], {**held, "metadata": metadata})
            click.echo(f"made again {_told(kind, place, name)}: the manager goes on")
        except AlreadyExists:
            pass
        except ApiError as error:
            click.echo(f"cannot make {_told(kind, place, name)} again: {error}", err=True)
    return False


async def _stay_away(client: Client) -> bool:
    """Delete the webhook configurations until they are not made again: an API server needs a moment to know the manager may not."""
    quiet = 0
    for _ in range(_TRIES):
        results = [await _delete(client, *webhook) for webhook in _WEBHOOKS]
        if "failed" in results:
            return False
        quiet = quiet + 1 if set(results) == {"absent"} else 0
        if quiet == _SETTLED:
            return True
        await asyncio.sleep(_PAUSE)
    click.echo("the webhook configurations are made again and again: is a manager with other rights running?", err=True)
    return False


async def _delete(client: Client, kind: str, place: str, name: str) -> str:
    """`deleted`, `absent` or `failed`."""
    try:
        await client.delete(manifests.KINDS[kind], name, place or None)
    except NotFound:
        return "absent"
    except ApiError as error:
        click.echo(f"cannot delete {_told(kind, place, name)}: {error}", err=True)
        return "failed"
    click.echo(f"deleted {_told(kind, place, name)}")
    return "deleted"


def _told(kind: str, place: str, name: str) -> str:
    return f"{kind} {place + '/' if place else ''}{name}"
