"""Defects of the manager."""

from __future__ import annotations

from typing import Any

from roles.sandbox.world.mutants.planting import Mutants, replace, wrap
from roles.sandbox.world.workloads import Workload

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
    sorts=("batch", "service"),
)
def _whole_node() -> None:
    wrap(
        "roles.manager.noderesource.plan:format_amount",
        lambda old: lambda name, amount: old(name, amount * 4 if "batch" in name else amount),
    )


@MUTANTS.add(
    "controllers-write-without-a-reason",
    "the manager looks at each node every two seconds, and writes it at each look",
    rule="ItSettles",
    workloads=(Workload("web", 2, 250, 128),),
)
def _chatty() -> None:
    replace("roles.manager.noderesource.plan:_needs", lambda present, name, amount, threshold: amount is not None)
    replace("roles.manager.controllers.noderesource:NodeResourceController._degrades_in", lambda self, inputs: 2.0)


@MUTANTS.add("allocations-are-anybodys", "admission takes whoever asks for the scheduler", rule="TrustedByAdmission")
def _anybodys() -> None:
    replace("koord.api.trust:is_writer", lambda username, groups, writers: True)


@MUTANTS.add(
    "a-replica-believes-its-own-clock",
    "a manager whose clock is behind replaces certificates that are not valid yet by it",
    rule="AuthorityStays",
    kinds=("clock",),
)
def _own_clock() -> None:
    def problem(old: Any) -> Any:
        def strict(certs: Any, dns_name: str, now: Any) -> str:
            from cryptography import x509

            begins = x509.load_pem_x509_certificate(certs.cert).not_valid_before_utc
            return old(certs, dns_name, now) or ("it is not valid yet" if now < begins else "")

        return strict

    wrap("roles.manager.webhooks.certstore:problem", problem)


@MUTANTS.add("the-node-of-yesterday", "batch resources are what they were when the manager first looked")
def _yesterday() -> None:
    first: dict[str, Any] = {}

    def get(old: Any) -> Any:
        return lambda self, key: first.setdefault(key, old(self, key)) if self.label.startswith("nodemetric") else old(self, key)

    wrap("koord.kube.store:Informer.get", get)
