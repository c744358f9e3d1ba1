"""Costs, and what sharing costs services, from Prometheus (BEY-COST-01).

Nodes come from kube-state-metrics, use from cAdvisor, requests from the scheduler's own `kube_pod_resource_request`, and pressure from
koordlet.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from koord.accounting.resources import ResourceVector
from koord.api import names
from koord.process import commands
from koord.process.errors import ConfigurationError
from roles.tools.cost.ledger import Ledger, Node, Owner, Pod
from roles.tools.cost.prices import Prices

_TIMEOUT = aiohttp.ClientTimeout(total=120)
_POINTS = 5000  # of a series in one answer; Prometheus gives 11,000 at most
_CAPACITY = 'max by (node, resource) (kube_node_status_capacity{resource=~"cpu|memory"})'
_NODE_LABELS = "max without (instance, job, uid) (kube_node_labels)"
_REQUESTS = (
    "max by (namespace, pod, node, resource) "
    '(kube_pod_resource_request{node!="",resource=~"cpu|memory|kubernetes.io/(batch|mid)-(cpu|memory)"})'
)
_CPU = 'sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{{container!=""}}[{step}s]))'
_MEMORY = 'sum by (namespace, pod) (container_memory_working_set_bytes{container!=""})'
_POD_LABELS = "max without (instance, job) (kube_pod_labels)"
_THROTTLED = (
    "sum by (namespace) (increase(container_cpu_cfs_throttled_periods_total[{range}s]))"
    " / sum by (namespace) (increase(container_cpu_cfs_periods_total[{range}s]))"
)
_PSI = (
    'avg by (pod_namespace) (avg_over_time(koordlet_pod_psi{{psi_resource_type="cpu",psi_degree="some",psi_precision="avg60"}}[{range}s]))'
)
_QUOTA = ("label_quota_scheduling_koordinator_sh_name",)
_QOS = ("label_koordinator_sh_qos_class", "label_koordinator_sh_qosClass")
_SCALE = {"cpu": 1000.0}


@dataclass(slots=True)
class Penalty:
    """What a namespace's pods bear. `throttled` is the share of CFS periods, `psi` percent of time in which somebody waited for a CPU,
    `p99` what the query that was given says. None: not known."""

    throttled: float | None = None
    psi: float | None = None
    p99: float | None = None


class Prometheus:
    """Asks one server. Raises ConfigurationError for what it does not answer."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address, self._session = address.rstrip("/"), session

    async def range(self, query: str, since: float, until: float, step: int) -> list[tuple[dict[str, str], dict[int, float]]]:
        """Series with values by number of the step. Asked in parts where there are many."""
        found: dict[str, tuple[dict[str, str], dict[int, float]]] = {}
        steps = int((until - since) // step)
        for first in range(0, steps, _POINTS):
            last = min(first + _POINTS, steps) - 1
            times = {"start": f"{since + first * step:.3f}", "end": f"{since + last * step:.3f}", "step": f"{step}"}
            for series in await self._ask("query_range", {"query": query, **times}):
                labels = series["metric"]
                values = found.setdefault(repr(sorted(labels.items())), (labels, {}))[1]
                for time, text in series["values"]:
                    _keep(values, round((float(time) - since) / step), text)
        return [*found.values()]

    async def now(self, query: str, at: float) -> list[tuple[dict[str, str], float]]:
        """An instant query's vector."""
        found = []
        for series in await self._ask("query", {"query": query, "time": f"{at:.3f}"}):
            values: dict[int, float] = {}
            _keep(values, 0, series["value"][1])
            found += [(series["metric"], value) for value in values.values()]
        return found

    async def _ask(self, what: str, parameters: dict[str, str]) -> list[Any]:
        where = f"--prometheus {self._address}"
        try:
            async with self._session.post(f"{self._address}/api/v1/{what}", data=parameters) as answer:
                body = orjson.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConfigurationError(f"{where}: {error or type(error).__name__}") from error
        except ValueError as error:
            raise ConfigurationError(f"{where}: the answer is no JSON: is this Prometheus?") from error
        if not isinstance(body, dict) or body.get("status") != "success":
            said = body.get("error") if isinstance(body, dict) else "the answer is no object"
            raise ConfigurationError(f"{where}: {parameters['query']}: {said}")
        found: list[Any] = body["data"]["result"]
        return found


def _keep(values: dict[int, float], number: int, text: str) -> None:
    value = float(text)
    if math.isfinite(value) and value >= 0:
        values[number] = value


def read(
    address: str, prices: Prices, since: float, until: float, *, step: int = 300, p99: str = ""
) -> tuple[Ledger, dict[str, Penalty], float]:
    """The ledger of a time, penalties by namespace, and seconds for which no node was known. Raises ConfigurationError."""
    try:
        return commands.run(_read(address, prices, since, until, step, p99))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"--prometheus {address}: an answer has not the form that is expected: {error!r}") from error


async def _read(
    address: str, prices: Prices, since: float, until: float, step: int, p99: str
) -> tuple[Ledger, dict[str, Penalty], float]:  # fmt: skip
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        server = Prometheus(address, session)
        queries = (_CAPACITY, _REQUESTS, _CPU.format(step=max(step, 120)), _MEMORY, _NODE_LABELS, _POD_LABELS)
        capacity, requests, cpu, memory, node_labels, pod_labels = [await server.range(query, since, until, step) for query in queries]
        penalties = await _penalties(server, since, until, p99)
    if not capacity:
        raise ConfigurationError(f"--prometheus {address}: no kube_node_status_capacity in this time: kube-state-metrics has to be scraped")
    if not requests and (cpu or memory):
        told = "no kube_pod_resource_request in this time: /metrics/resources of koord's scheduler has to be scraped, with honorLabels"
        raise ConfigurationError(f"--prometheus {address}: {told}")
    book = _Book(prices, capacity, requests, {"cpu": cpu, "memory": memory}, node_labels, pod_labels)
    ledger, empty = Ledger(prices), 0
    for number in range(int((until - since) // step)):
        known = 0
        for name, node, pods in book.at(number):
            ledger.spend(step, name, node, pods)
            known += 1
        empty += not known
    return ledger, penalties, float(empty * step)


async def _penalties(server: Prometheus, since: float, until: float, p99: str) -> dict[str, Penalty]:
    found: dict[str, Penalty] = defaultdict(Penalty)
    length = max(1, int(until - since))
    for query, field in ((_THROTTLED, "throttled"), (_PSI, "psi")):
        for labels, value in await server.now(query.format(range=length), until):
            setattr(found[labels.get("namespace") or labels.get("pod_namespace", "")], field, value)
    for labels, value in await server.now(p99, until) if p99 else ():
        if "namespace" not in labels:
            raise ConfigurationError(f"--p99 {p99!r}: the answer has no label `namespace`")
        found[labels["namespace"]].p99 = value
    return dict(found)


class _Labels:
    """The labels of objects over time: those that are gone by the end had some, too, and a name may have had several objects."""

    def __init__(self, series: Any, *key: str) -> None:
        self._found: dict[tuple[str, ...], list[tuple[dict[str, str], dict[int, float]]]] = defaultdict(list)
        for labels, values in series:
            self._found[tuple(labels.get(name, "") for name in key)].append((labels, values))

    def at(self, key: tuple[str, ...], number: int) -> dict[str, str]:
        """Of a step; in a gap those of any other one."""
        found = self._found.get(key, ())
        return next((labels for labels, values in found if number in values), found[-1][0] if found else {})


class _Book:
    """Series by node and pod."""

    def __init__(self, prices: Prices, capacity: Any, requests: Any, used: Any, node_labels: Any, pod_labels: Any) -> None:
        self._prices = _as_exported(prices)
        self._labels = _Labels(node_labels, "node")
        self._nodes: dict[str, dict[str, dict[int, float]]] = defaultdict(dict)
        for labels, values in capacity:
            self._nodes[labels["node"]][labels["resource"]] = values
        self._requests: dict[str, dict[tuple[str, str], dict[str, dict[int, float]]]] = defaultdict(lambda: defaultdict(dict))
        for labels, values in requests:
            self._requests[labels["node"]][labels["namespace"], labels["pod"]].setdefault(labels["resource"], {}).update(values)
        self._used: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(dict)
        for resource, series in used.items():
            for labels, values in series:
                self._used[labels.get("namespace", ""), labels.get("pod", "")][resource] = values
        self._pods = _Labels(pod_labels, "namespace", "pod")

    def at(self, number: int) -> Iterator[tuple[str, Node, list[Pod]]]:
        """Nodes with their pods at a step."""
        for name, resources in self._nodes.items():
            amounts = _at(resources, number)
            if not amounts:
                continue
            labels = self._labels.at((name,), number)
            rates = self._prices.of_node(labels, amounts.get("cpu", 0) / 1000, amounts.get("memory", 0) / 2**30)
            pods = []
            for key, series in self._requests[name].items():
                asked = _at(series, number)
                if asked:
                    pods.append(Pod(self._owner(key, number, asked), asked, _at(self._used.get(key, {}), number) or None))
            yield name, Node(rates, amounts), pods

    def _owner(self, key: tuple[str, str], number: int, asked: ResourceVector) -> Owner:
        labels = self._pods.at(key, number)
        quota = next((labels[name] for name in _QUOTA if name in labels), "")
        qos = next((labels[name] for name in _QOS if name in labels), "")
        if not qos and (names.RESOURCE_BATCH_CPU in asked or names.RESOURCE_BATCH_MEMORY in asked):
            qos = "BE"
        return Owner(key[0], quota, qos)


def _at(series: dict[str, dict[int, float]], number: int) -> ResourceVector:
    return {name: round(values[number] * _SCALE.get(name, 1.0)) for name, values in series.items() if number in values}


def _as_exported(prices: Prices) -> Prices:
    """Prices whose nodes are told by labels as kube-state-metrics names them."""
    nodes = [node.model_copy(update={"match": {_exported(key): value for key, value in node.match.items()}}) for node in prices.nodes]
    return prices.model_copy(update={"nodes": nodes})


def _exported(label: str) -> str:
    return "label_" + re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"[^a-zA-Z0-9_]", "_", label)).lower()
