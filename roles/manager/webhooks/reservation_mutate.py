"""/mutate-reservation: profiles on Reservations (MGR-RSV-M-01)."""

from __future__ import annotations

from typing import Any

from roles.manager.webhooks import profiles
from roles.manager.webhooks.pod_mutate import set_scheduling
from roles.manager.webhooks.review import Request
from roles.manager.webhooks.view import View


async def mutate(reservation: dict[str, Any], request: Request, view: View) -> dict[str, Any]:
    """Like pods, on the Reservation's own labels; scheduler and priority go to the template; resources are not translated."""
    if request.operation != "CREATE" or request.sub_resource:
        return reservation
    given = reservation.setdefault("metadata", {})
    labels = given.get("labels") or {}
    # A Reservation has no namespace: namespaceSelectors do not filter it.
    for profile in profiles.selecting(view.profiles.values(), labels):
        if not profiles.chosen(profile, profiles.draw_of(profile, given, "", view.draw)):
            request.notes.append(f"profile {profile.name} matched, skipped by its probability {profile.spec.probability}")
            continue
        request.notes.append(f"profile {profile.name} applied")
        metadata = reservation.setdefault("metadata", {})
        profiles.apply_metadata(profile.spec, metadata)
        template = (reservation.get("spec") or {}).get("template")
        if template is not None:
            pod_spec = template["spec"] = template.get("spec") or {}  # null says nothing
            await set_scheduling(profile, pod_spec, view)
        profiles.set_classes(profile.spec, metadata)
        reservation = profiles.apply_patch(profile, reservation, "Reservation")
    return reservation
