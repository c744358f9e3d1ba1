"""Defects of the manager."""

from __future__ import annotations

from roles.sandbox.world.mutants.planting import Mutants, replace, wrap

MUTANTS = Mutants()


@MUTANTS.add("silence-is-trusted", "a node whose agent is silent keeps its batch resources")
def _silence() -> None:
    for part in ("batch", "mid"):
        replace(f"roles.manager.noderesource.{part}:degraded", lambda inputs: "")


@MUTANTS.add("batch-of-the-whole-node", "batch resources are the whole node's, whatever its services use")
def _whole_node() -> None:
    wrap(
        "roles.manager.noderesource.plan:format_amount",
        lambda old: lambda name, amount: old(name, amount * 4 if "batch" in name else amount),
    )


@MUTANTS.add("controllers-write-without-a-reason", "the manager writes every node at each look")
def _chatty() -> None:
    replace("roles.manager.noderesource.plan:_needs", lambda present, name, amount, threshold: amount is not None)


@MUTANTS.add("allocations-are-anybodys", "admission takes whoever asks for the scheduler")
def _anybodys() -> None:
    replace("koord.api.trust:is_writer", lambda username, groups, writers: True)
