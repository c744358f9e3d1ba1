"""Defects of the descheduler."""

from __future__ import annotations

from roles.sandbox.world.mutants.planting import Mutants, replace

MUTANTS = Mutants()


@MUTANTS.add("evicted-before-a-place", "a migration evicts before its reservation is there")
def _no_place() -> None:
    machine = "roles.descheduler.migration.machine"
    replace(f"{machine}:_exempt", lambda view: True)
