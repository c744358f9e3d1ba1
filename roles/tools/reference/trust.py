"""docs/reference/trust.md: who may write which key of a pod, and within which bounds."""

from __future__ import annotations

from koord.api import trust
from roles.tools.reference.markdown import code, page, table

_WRITERS = {
    trust.Writer.SCHEDULER: "scheduler",
    trust.Writer.NOBODY: "nobody",
    trust.Writer.SPEC: "manager; as the spec says",
    trust.Writer.OWNER: "owner",
}


def _bounds(rule: trust.Rule) -> str:
    parts = [f"{code(member)} {', '.join(word for word in words if word)}" for member, words in (rule.words or {}).items()]
    for member, bounds in (rule.bounds or {}).items():
        high = "" if bounds.high > 2**62 else str(bounds.high)
        parts.append(f"{code(member)} {bounds.low}..{high}")
    return "; ".join(parts)


def render() -> str:
    """The page."""
    intro = (
        "Labels and annotations of pods that change a host or an allocation. The *scheduler* is whoever is named by the manager's "
        "`--allocation-writers`; an *owner* is whoever may write the pod. The manager's webhook `/validate-pod` refuses what others write "
        "and what is out of bounds, at creation and at update; the policies of `configs/install/51-trusted-annotations.yaml` refuse the "
        "same where the webhook is off, and let in whoever may bind pods. koordlet holds the last column whatever was let in, and says "
        "so in a record and an event (`AnnotationIgnored`)."
    )
    rows = [
        (code(rule.key), "label" if rule.label else "annotation", _WRITERS[rule.writer], rule.effect, _bounds(rule), rule.cap)
        for rule in trust.TABLE
    ]
    header = ("Key", "Kind", "Written by", "Changes", "Accepted", "On the node")
    return page("Who may write what", intro, [table(header, rows)])
