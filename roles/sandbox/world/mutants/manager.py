"""Defects of the manager."""

from __future__ import annotations

from typing import Any

from roles.sandbox.world.faults import Fault
from roles.sandbox.world.mutants.planting import Mutants, replace, wrap
from roles.sandbox.world.spec import Workload

MUTANTS = Mutants(minutes=0.5, pods=16, koordlets=0, schedulers=1, managers=1, deschedulers=0, hostile=0)


@MUTANTS.add(
    "silence-is-trusted", "a node whose agent is silent keeps its batch resources", rule="NoPromiseFromSilence", kinds=("silence",)
)
def _silence() -> None:
    for part in ("batch", "mid"):
        replace(f"roles.manager.noderesource.{part}:degraded", lambda inputs: "")


@MUTANTS.add(
    "batch-of-the-whole-node",
    "batch resources are the whole node's, whatever its services use",
    rule="PromisesAreBacked",
    sorts=("service",),
)
def _whole_node() -> None:
    from roles.manager.noderesource.inputs import PodSums

    none = (0, 0)
    replace("roles.manager.noderesource.inputs:_high", lambda pods, metric: PodSums(none, none, none, none, none))


@MUTANTS.add(
    "controllers-write-without-a-reason",
    "the manager looks at each node every two seconds, and writes it at each look",
    rule="ItSettles",
    workloads=(Workload("web", 2, 250, 128),),
)
def _chatty() -> None:
    def status(old: Any) -> Any:
        def always(inputs: Any, plan: Any, last_write: Any) -> None:
            from roles.manager.noderesource.plan import format_amount

            old(inputs, plan, last_write)
            same = {name: format_amount(name, amount) for name, amount in plan.resources.items()}
            plan.status_patch = plan.status_patch or {"status": {"allocatable": same}}

        return always

    wrap("roles.manager.noderesource.plan:_status", status)
    replace("roles.manager.controllers.noderesource:NodeResourceController._degrades_in", lambda self, inputs: 2.0)


@MUTANTS.add("allocations-are-anybodys", "admission takes whoever asks for the scheduler", rule="TrustedByAdmission", hostile=20)
def _anybodys() -> None:
    replace("koord.api.trust:is_writer", lambda username, groups, writers: True)


@MUTANTS.add(
    "a-replica-believes-its-own-clock",
    "a manager whose clock is behind replaces certificates that are not valid yet by it",
    rule="AuthorityStays",
    workloads=(Workload("web", 2, 250, 128),),
    plan=(Fault(1.0, "clock", "manager-a", amount=-1e6), Fault(3.0, "kill", "manager-a", 2.0)),
)
def _own_clock() -> None:
    renewed: list[Any] = []  # once: those that it makes by such a clock begin too late by it as well

    def problem(old: Any) -> Any:
        def strict(certs: Any, dns_name: str, now: Any) -> str:
            from cryptography import x509

            begins = x509.load_pem_x509_certificate(certs.cert).not_valid_before_utc
            if now < begins and not renewed:
                renewed.append(now)
                return "it is not valid yet"
            return str(old(certs, dns_name, now))

        return strict

    wrap("roles.manager.webhooks.certstore:problem", problem)


@MUTANTS.add(
    "the-node-of-yesterday",
    "batch resources are what they were when the manager first looked",
    rule="WhatIsLeftIsOffered",
    sorts=("batch",),
)
def _yesterday() -> None:
    first: dict[str, Any] = {}

    def get(old: Any) -> Any:
        def kept(self: Any, key: str) -> Any:
            found = old(self, key)
            if not self.label.startswith("nodemetric") or not getattr(getattr(found, "status", None), "update_time", None):
                return found
            return first.setdefault(key, found)

        return kept

    wrap("koord.kube.store:Informer.get", get)
