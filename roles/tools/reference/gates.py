"""docs/reference/feature-gates.md: every gate of every role."""

from __future__ import annotations

from koord.config import gates
from koord.config.gate_texts import text_of
from roles.tools.reference.markdown import code, page, table

ROLES = {
    "scheduler": gates.SCHEDULER,
    "manager": gates.MANAGER,
    "koordlet": gates.KOORDLET,
    "descheduler": gates.DESCHEDULER,
    "runtime-proxy": gates.RUNTIME_PROXY,
}


def render() -> str:
    """The page."""
    intro = (
        "Gates are set with `--feature-gates=Name=true,Other=false`; later ones win. `AllAlpha` and `AllBeta` switch all gates of a "
        "stage. A name that a role does not know ends it with the nearest known name."
    )
    sections = []
    for role, known in ROLES.items():
        sections.append(f"## {role}")
        if not known:
            sections.append("None.")
            continue
        switches = gates.FeatureGates(known)
        rows = [
            (code(name), "on" if known[name] else "off", switches.stage(name).value.lower(), text_of(role, name))
            for name in sorted(known, key=str.lower)
        ]
        sections.append(table(("Gate", "Default", "Stage", "What it does"), rows))
    return page("Feature gates", intro, sections)
