"""From facts about a cluster to findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from koord.config import slo
from roles.koordlet.report.policy import DEFAULT_POLICY, MIN_INTERVAL
from roles.tools.doctor.crds import drift
from roles.tools.doctor.facts import ClusterFacts, NodeFacts, RightsFacts, WebhookFacts
from roles.tools.doctor.finding import Finding, fail, listed, ok, warn
from roles.tools.doctor.powers import NODES_PROXY, judge_powers, judge_workloads
from roles.tools.doctor.rights import ACCOUNTS
from roles.tools.facts import time_of

Obj = dict[str, Any]
SKEW_WARN, SKEW_FAIL = 2.0, 10.0  # seconds; a lease lives 15, and metrics expire by the clock
EXPIRY_WARN = 14 * 86400.0  # seconds before a certificate ends
_APPLY = "koord install --print | kubectl apply --server-side -f -"


def judge(facts: ClusterFacts) -> Iterator[Finding]:
    """Every finding about a cluster."""
    if "server" in facts.problems:
        yield fail("API server", facts.problems["server"], "check --kubeconfig, --context and the way to the server")
        return
    yield ok("API server", f"{facts.server}, {facts.version or 'version unknown'}" + (f", as {facts.user}" if facts.user else ""))
    yield from _clock(facts)
    yield from _read(facts, "crds", "definitions", _crds)
    yield from _read(facts, "classes", "priority classes", _classes)
    yield from _read(facts, "workloads", "workloads", _workloads, partly=True)
    yield from _read(facts, "webhooks", "webhooks", _webhooks)
    if facts.sandbox:
        yield ok("sandbox", "its roles run without leases, and everybody may do everything there: leaders and rights are not looked at")
    else:
        yield from _read(facts, "leases", "leaders", _leases, partly=True)
        yield from _policy(facts)
        for rights in facts.rights:
            yield _left_out(rights, facts) or _rights(rights)
        yield from _security(facts)
    yield from _read(facts, "slo", "slo-controller-config", _slo_config)
    yield from _read(facts, "nodemetrics", "node metrics", _node_metrics)
    yield from _read(facts, "pending", "pending pods", _requests, partly=True)
    if not facts.sandbox:
        yield from _nodes(facts.nodes)


def _read(
    facts: ClusterFacts, what: str, area: str, judged: Callable[[ClusterFacts], Iterator[Finding]], *, partly: bool = False
) -> Iterator[Finding]:
    """What is made of a part of the facts; a warning where it could not be read. `partly`: something of it may have been."""
    if what in facts.problems:
        yield warn(area, f"cannot be read: {facts.problems[what]}", "run it with an account that may read this")
    if partly or what not in facts.problems:
        yield from judged(facts)


def _clock(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.skew is None:
        yield warn("clock", "the server told no time", "compare the clocks by hand")
        return
    away = max(0.0, abs(facts.skew) - facts.skew_error)
    told = f"{abs(facts.skew):.1f} s {'ahead of' if facts.skew > 0 else 'behind'} the server's (±{facts.skew_error:.1f} s)"
    how = "run chrony or another time service on this machine and on the control plane"
    if away > SKEW_FAIL:
        yield fail("clock", f"{told}: leases and metrics expire by it", how)
    elif away > SKEW_WARN:
        yield warn("clock", told, how)
    else:
        yield ok("clock", f"within {away + facts.skew_error:.1f} s of the server's")


def _crds(facts: ClusterFacts) -> Iterator[Finding]:
    good = 0
    for ours in facts.expected_crds:
        name = ours["metadata"]["name"]
        theirs = facts.crds.get(name)
        if theirs is None:
            yield fail("definitions", f"{name} is not installed", _APPLY)
            continue
        conditions = {c.get("type"): c for c in (theirs.get("status") or {}).get("conditions") or ()}
        established = conditions.get("Established", {}).get("status", "True")
        served = {v["name"]: v for v in theirs["spec"]["versions"] if v.get("served")}
        lacking = [v["name"] for v in ours["spec"]["versions"] if v.get("served") and v["name"] not in served]
        stored = next((v["name"] for v in theirs["spec"]["versions"] if v.get("storage")), "")
        wanted = next(v["name"] for v in ours["spec"]["versions"] if v.get("storage"))
        missing, changed = drift(ours, theirs)
        if established != "True":
            why = conditions.get("NamesAccepted", {}).get("message") or conditions["Established"].get("message") or "not established"
            yield fail("definitions", f"{name} is not served: {why}", f"kubectl describe crd {name}; take away what holds its names")
        elif lacking:
            yield fail("definitions", f"{name} does not serve {', '.join(lacking)} (served: {', '.join(sorted(served))})", _APPLY)
        elif stored != wanted:
            yield warn("definitions", f"{name} stores {stored}, not {wanted}", f"{_APPLY}, then write every object once to move it")
        elif missing:
            yield warn("definitions", f"{name} lacks fields, which the server drops: {listed(missing)}", _APPLY)
        elif changed:
            yield warn("definitions", f"{name} differs in {listed(changed)}", f"{_APPLY}, unless another release of Koordinator owns it")
        else:
            good += 1
    if good:
        yield ok("definitions", f"{good} of {len(facts.expected_crds)} custom resource definitions are served as this release has them")


def _classes(facts: ClusterFacts) -> Iterator[Finding]:
    wrong = []
    for name, value in facts.expected_classes.items():
        if name not in facts.classes:
            wrong.append(name)
            yield fail("priority classes", f"{name} does not exist: profiles that name it refuse pods", _APPLY)
        elif facts.classes[name] // 1000 != value // 1000:
            wrong.append(name)
            yield fail(
                "priority classes", f"{name} has value {facts.classes[name]}, outside its band ({value})", f"recreate it with {value}"
            )
    if not wrong and facts.expected_classes:
        yield ok("priority classes", ", ".join(facts.expected_classes))


def _workloads(facts: ClusterFacts) -> Iterator[Finding]:
    for name, (wanted, ready) in facts.workloads.items():
        if ready < wanted:
            how = f"kubectl -n {facts.namespace} describe pods; kubectl -n {facts.namespace} logs of {name}"
            found = fail if ready == 0 else warn
            yield found("workloads", f"{name}: {ready} of {wanted} ready", how)
        else:
            yield ok("workloads", f"{name}: {ready} of {wanted} ready")


def _leases(facts: ClusterFacts) -> Iterator[Finding]:
    for name, lease in facts.leases.items():
        if lease is None:
            installed = name.replace("koordinator-", "koord-") in facts.workloads
            how = f"kubectl -n {facts.namespace} logs of a replica" if installed else f"install it, or start it: {_APPLY}"
            yield (fail if installed else warn)("leaders", f"{name}: it has never had a leader", how)
            continue
        spec = lease.get("spec") or {}
        holder, age = spec.get("holderIdentity"), _age(spec.get("renewTime"), facts.now)
        if not holder or age is None or age > (spec.get("leaseDurationSeconds") or 15) + SKEW_FAIL:
            told = "its holder gave it up" if not holder else f"{holder} renewed it {_span(age)} ago"
            yield fail("leaders", f"{name}: no leader ({told})", f"check that a replica runs: kubectl -n {facts.namespace} get pods")
        else:
            yield ok("leaders", f"{name}: {holder}")


def _age(text: Any, now: float) -> float | None:
    time = time_of(text)
    return None if time is None else now - time


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _webhooks(facts: ClusterFacts) -> Iterator[Finding]:
    for name, present in facts.webhook_configurations.items():
        if not present:
            yield fail("webhooks", f"{name} does not exist", "start koord-manager: it writes it; see its log if it runs")
    good = 0
    for one in facts.webhooks:
        found = list(_webhook(one, facts.now))
        good += not found
        yield from found
    if good:
        yield ok("webhooks", f"{good} of {len(facts.webhooks)} are registered, certified and answer")


def _webhook(one: WebhookFacts, now: float) -> Iterator[Finding]:
    effect = "every such write is refused" if one.failure_policy == "Fail" else "such writes pass unchecked"
    restart = "delete Secret koordinator-webhook-certs and restart koord-manager: it makes new certificates and registers them"
    if one.ca:
        yield fail("webhooks", f"{one.name}: caBundle {one.ca}; {effect}", restart)
    elif one.ca_expires is not None and one.ca_expires < now:
        yield fail("webhooks", f"{one.name}: the CA ended {_span(now - one.ca_expires)} ago; {effect}", restart)
    elif one.ca_expires is not None and one.ca_expires < now + EXPIRY_WARN:
        days = (one.ca_expires - now) / 86400
        yield warn("webhooks", f"{one.name}: the CA ends in {days:.0f} days", "see that koord-manager runs: it renews certificates in time")
    elif one.ready == 0:
        how = "see that koord-manager is ready, or koord uninstall: it takes webhooks away first"
        yield fail("webhooks", f"{one.name}: {one.target} has no ready endpoint; {effect}", how)
    elif one.tls:
        yield fail("webhooks", f"{one.name}: {one.target} does not answer as it should: {one.tls}; {effect}", restart)
    elif one.unreachable:
        how = "run koord doctor in the cluster, for example with kubectl exec in a pod of koord-manager"
        yield warn("webhooks", f"{one.name}: {one.target} could not be tried from here ({one.unreachable})", how)
    elif one.failure_policy not in ("Fail", "Ignore"):
        yield fail(
            "webhooks", f"{one.name}: failurePolicy {one.failure_policy!r}", "delete the configuration; koord-manager creates it again"
        )


def _policy(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.own_node_policy is False:
        how = f"{_APPLY} (Kubernetes 1.30 and later)"
        yield warn("rights", "ValidatingAdmissionPolicy koordlet-own-node is not there: a koordlet may write other nodes' objects", how)
    elif facts.own_node_policy:
        yield ok("rights", "koordlet may write only its own node's objects")


def _security(facts: ClusterFacts) -> Iterator[Finding]:
    """Asked for, everything; otherwise a word about the right that is worse than all others."""
    if facts.unguarded:
        how = "start the API server with --authorization-mode=Node,RBAC; until then no role's rights mean anything"
        level = warn if facts.installed is None else fail
        yield level("authorization", "the API server lets everybody do everything: an account that does not exist may use nodes/proxy", how)
        return
    if facts.installed is None:
        for role, (allowed, _) in facts.powers.items():
            if NODES_PROXY in allowed:
                how = "take it away (koord install --print has nodes/pods and nodes/configz instead); koord doctor --security tells more"
                yield warn("nodes/proxy", f"a token of {role} suffices to run commands in every container", how)
        return
    for role, (allowed, error) in facts.powers.items():
        yield from judge_powers(role, allowed, error)
    registered = any(hook.name == "vpodeviction.koordinator.sh" and hook.failure_policy == "Fail" for hook in facts.webhooks)
    yield from judge_workloads(facts.installed, facts.fenced, None if "webhooks" in facts.problems else registered)


def _left_out(rights: RightsFacts, facts: ClusterFacts) -> Finding | None:
    """A role whose account is not there, while those of others are: it was not installed, and nobody acts with its rights."""
    account = ACCOUNTS[rights.role]
    others = (facts.accounts or frozenset()).intersection(ACCOUNTS.values())
    if not others or account in others or rights.asked_as.rpartition(":")[2] != account:
        return None
    how = f"if it should be there: {_APPLY}; --role looks at the others only"
    return warn("rights", f"{rights.role}: not installed, there is no ServiceAccount {facts.namespace}/{account}", how)


def _rights(rights: RightsFacts) -> Finding:
    if rights.error:
        how = "run it as an administrator, or in the role's own pod; or name who to ask as with --as"
        return warn("rights", f"{rights.role}: could not be asked: {rights.error}", how)
    if rights.denied:
        told = f"{rights.asked_as or rights.role} may not {listed(rights.denied, 5)}"
        return fail("rights", f"{rights.role}: {told}", f"apply configs/install/2*-rbac-{rights.role}.yaml ({_APPLY})")
    return ok("rights", f"{rights.role}: all {rights.asked} things that it does are allowed")


def _slo_config(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.slo_data is None:
        yield warn("slo-controller-config", "does not exist: defaults are in force, co-location is off", _APPLY)
        return
    result = slo.parse(facts.slo_data, previous=None)
    how = "koord lint shows the line; until then the last good value of that key is in force"
    for error in result.errors:
        yield fail("slo-controller-config", str(error), how)
    for note in result.warnings:
        yield warn("slo-controller-config", str(note), "no role reads it; koord lint shows the line")
    if not result.errors:
        yield ok("slo-controller-config", f"readable; co-location is {'on' if result.config.cluster_enabled else 'off'}")


def _node_metrics(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.node_names:
        return
    never, stale = [], []
    for name in facts.node_names:
        metric = facts.node_metrics.get(name)
        age = _age(((metric or {}).get("status") or {}).get("updateTime"), facts.now)
        policy = ((metric or {}).get("spec") or {}).get("metricCollectPolicy") or {}
        interval = policy.get("reportIntervalSeconds") or DEFAULT_POLICY.interval
        if age is None:
            never.append(name)
        elif age > 3 * max(interval, MIN_INTERVAL) + SKEW_FAIL:
            stale.append(f"{name} ({_span(age)})")
    fresh = len(facts.node_names) - len(never) - len(stale)
    told = [f"never told by {listed(never)}"] if never else []
    told += [f"stale of {listed(stale)}"] if stale else []
    how = "see that koordlet runs there and what its log says; nodes without fresh metrics offer no batch resources"
    if told:
        yield (fail if not fresh else warn)("node metrics", f"fresh of {fresh} of {len(facts.node_names)} nodes; {'; '.join(told)}", how)
    else:
        yield ok("node metrics", f"fresh of all {fresh} nodes")
    yield from _features(facts)


def _features(facts: ClusterFacts) -> Iterator[Finding]:
    """What koordlets say that they were asked for and cannot do: nodes by reason."""
    nodes: dict[str, list[str]] = {}
    for name in facts.node_names:
        for condition in ((facts.node_metrics.get(name) or {}).get("status") or {}).get("conditions") or ():
            if condition.get("type") == "FeaturesWork" and condition.get("status") == "False":
                nodes.setdefault(str(condition.get("message")), []).append(name)
    for why, names in sorted(nodes.items()):
        yield warn("features of koordlet", f"{why} (on {listed(names)})", "give the nodes what they lack, or switch the gate off there")


def _requests(facts: ClusterFacts) -> Iterator[Finding]:
    """Requests that no node can ever fulfil as things are."""
    if not facts.node_names:
        return
    for name, pods in sorted(facts.requested.items()):
        if name not in facts.offered | facts.by_class:
            how = "koord why node tells what a node offers and why; the name may be misspelt, or what reports it does not run there"
            yield warn("pending pods", f"no node offers {name}, which {listed(sorted(pods))} request", how)


def _nodes(nodes: list[NodeFacts]) -> Iterator[Finding]:
    if nodes and all(node.forbidden for node in nodes):
        how = "who may use nodes/proxy sees the kubelets' configuration; no role of koord needs it"
        yield warn("kubelets", f"may not be asked through the API server: {nodes[0].error}", how)
        return
    failing = [f"{node.name}: {node.error}" for node in nodes if node.error]
    if failing:
        how = "check the kubelet's port and certificate, and the way from the control plane to the node"
        yield warn("kubelets", f"{len(failing)} of {len(nodes)} do not answer; {listed(failing, 2)}", how)
    drivers: dict[str, list[str]] = {}
    for node in nodes:
        if not node.error:
            drivers.setdefault(node.driver or "cgroupfs", []).append(node.name)
    if len(drivers) > 1:
        told = "; ".join(f"{driver}: {listed(names)}" for driver, names in sorted(drivers.items()))
        yield warn("kubelets", f"cgroup drivers differ ({told})", "works, koordlet looks on each node; one driver is easier to live with")
    elif drivers:
        driver, names = next(iter(drivers.items()))
        yield ok("kubelets", f"{len(names)} asked: cgroup driver {driver}")
    static = [node.name for node in nodes if node.cpu_manager == "static"]
    if static:
        how = (
            "koord's own CPU binding and the kubelet's share CPUs by its annotation; set cpuManagerPolicy none where koord shall bind alone"
        )
        yield warn("kubelets", f"CPU manager policy static on {listed(static)}", how)
