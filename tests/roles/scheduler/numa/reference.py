"""What NodeNUMAResource says of one node, in plain Python: what refuses it before an allocation is tried, and its score."""

from __future__ import annotations

import math

from koord.accounting.resources import amplify_value
from roles.scheduler.cluster.vocabulary import CPU
from roles.scheduler.framework.context import CycleContext
from roles.scheduler.framework.interfaces import ASK
from roles.scheduler.plugins.numa import checks
from roles.scheduler.plugins.numa.columns import BIND_CODES, POLICY_CODES
from roles.scheduler.plugins.numa.picks import FULL
from roles.scheduler.plugins.numa.plugin import NodeNUMAResource
from roles.scheduler.plugins.numa.records import counts_of
from roles.scheduler.plugins.numa.request import Request, request_of
from roles.scheduler.plugins.numa.scoring import Scorer, percent


class Reference:
    """One node at a time, from its facts and records."""

    def __init__(self, plugin: NodeNUMAResource, ctx: CycleContext) -> None:
        self.plugin, self.ctx, self.columns = plugin, ctx, plugin.columns
        self.request: Request = request_of(ctx.pod.shape, plugin.args.default_cpu_bind_policy)

    def code(self, slot: int) -> int:
        """The code of a node; that of an allocation where only trying tells."""
        code = self._static(slot)
        return self.plugin._try(self.ctx, self.request, slot) if code == ASK else code

    def _static(self, slot: int) -> int:
        facts, request = self.columns.at(slot).facts, self.request
        policy = checks.effective_policy(request, facts)
        if policy is None:
            return checks.MISMATCH
        bound = checks.binds(request, facts)
        if bound and request.milli % 1000:
            return checks.FRACTION
        if request.milli and facts.ratio != 1.0:
            if facts.ratio is None:
                return checks.BAD_RATIO
            need = math.ceil(request.milli * facts.ratio) if bound else request.milli
            if need > self.ctx.cluster.free[CPU].item(slot) - self._more(slot):
                return checks.AMPLIFIED
        if bound:
            code = self._bound(slot, strict=POLICY_CODES[policy] >= checks.STRICT)
            if code > 0 or (code == ASK and not policy):
                return code
        if policy and not facts.zones:
            return checks.NO_ZONES
        return ASK if policy else 0

    def _bound(self, slot: int, *, strict: bool) -> int:
        facts, request = self.columns.at(slot).facts, self.request
        if not facts.machine.valid:
            return checks.INVALID
        if request.required and facts.bind_policy and request.required != facts.bind_policy:
            return checks.CONFLICT
        required = BIND_CODES[facts.bind_policy] or BIND_CODES[request.required]
        if required == BIND_CODES[FULL] and request.cpus % max(1, facts.machine.per_core):
            return checks.UNALIGNED
        if strict:
            return 0
        if counts_of(facts.machine, self.columns.usage(slot).free)[required] < request.cpus:
            return checks.SHORT
        return ASK if required and not facts.machine.uniform else 0

    def _more(self, slot: int) -> float:
        """What held CPUs count on an amplified node beyond their requests (milli-CPU)."""
        ratio, held = self.columns.at(slot).facts.ratio, self.columns.usage(slot).bound
        used = self.ctx.cluster.allocatable[CPU].item(slot) - self.ctx.cluster.free[CPU].item(slot)
        return float(amplify_value(held, ratio or 1.0) - held) if held and used >= held else 0.0

    def score(self, slot: int) -> float:
        """The score of a node on which the pod fits."""
        facts = self.columns.at(slot).facts
        numa = self.plugin._score_of(self.ctx, self.request, slot)
        if numa is not None:
            return numa
        ratio, held = facts.ratio or 1.0, self.columns.usage(slot).bound
        own = amplify_value(self.request.milli, ratio) - self.request.milli if checks.binds(self.request, facts) else 0
        return self._node(slot, self.plugin._scorer, amplify_value(held, ratio) - held + own)

    def _node(self, slot: int, scorer: Scorer, more: int) -> float:
        cluster, wanted = self.ctx.cluster, self.request.amounts
        total = weights = 0
        for name, weight in scorer.resources(wanted):
            resource = cluster.vocabulary.resources.find(name)
            capacity = int(cluster.allocatable[resource][slot])
            if capacity > 0:
                used = capacity - int(cluster.free[resource][slot]) + wanted.get(name, 0) + (more if resource == CPU else 0)
                total += weight * percent(used, capacity, most=scorer.most)
                weights += weight
        return float(total // weights) if weights else 0.0
