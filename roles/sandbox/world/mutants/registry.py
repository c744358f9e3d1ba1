"""The mutants there are."""

from __future__ import annotations

from roles.sandbox.world.mutants import descheduler, koordlet, library, manager, places, scheduler
from roles.sandbox.world.mutants.planting import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for part in (scheduler, library, manager, descheduler, places, koordlet) for mutant in part.MUTANTS
}
