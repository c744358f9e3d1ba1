"""What LowNodeLoad says about nodes and about the pods that it takes from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.decisions.record import Number, Term
from roles.descheduler.framework.effects import Tell
from roles.descheduler.framework.handle import Handle, node_subject
from roles.descheduler.plugins.lownodeload.args import Pool
from roles.descheduler.plugins.lownodeload.classify import Placed
from roles.descheduler.snapshot import NodeView

if TYPE_CHECKING:
    from roles.descheduler.plugins.lownodeload.effect import Measured


def skipped(handle: Handle, pool: Pool, view: NodeView, why: str) -> None:
    """A node whose load is not known."""
    handle.record(node_subject(view), "Skipped", f"left out of pool {pool.name}: {why}", {"pool": pool.name})


def classified(handle: Handle, pool: Pool, placed: Placed) -> None:
    """A node's class with the usage and the thresholds behind it."""
    view = placed.view
    numbers: dict[str, Number] = {"pool": pool.name, "class": placed.node_class.value}
    usage, parts = placed.usage(prod=False), []
    for name in pool.resources:
        used = usage.get(name)
        if used is None:
            continue
        capacity = view.capacity.get(name, 0)
        numbers |= {f"{name}.usage": used, f"{name}.low": placed.bounds.low[name], f"{name}.high": placed.bounds.high[name]}
        parts.append(f"{name} {100.0 * used / capacity if capacity else 0.0:.2f}%")
    handle.record(node_subject(view), "Classified", f"{placed.node_class.value}: {', '.join(parts)}", numbers)


def relieved(handle: Handle, pool: Pool, placed: Placed, outcome: str, terms: tuple[Term, ...] = (), *, cooling: bool = False) -> None:
    """What became of a hot node; `cooling`: what has been told to leave, or is on its way out, suffices."""
    numbers: dict[str, Number] = {"pool": pool.name, "hot": "false" if cooling else "true"}
    handle.record(node_subject(placed.view), "Relieved", outcome, numbers, terms)


def measured(view: NodeView, effect: Measured) -> Tell:
    """What pods that left have done for their node."""
    numbers: dict[str, Number] = {"helped": str(effect.helped).lower()}
    for kind, vector in (("before", effect.before), ("expected", effect.expected), ("after", effect.after)):
        numbers |= {f"{name}.{kind}": value for name, value in vector.items()}
    return Tell(view.node, effect.pods, effect.helped, effect.message(view.name), numbers)
