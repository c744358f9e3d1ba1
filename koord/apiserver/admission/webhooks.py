"""Admission webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koord.apiserver.admission.attributes import Attributes

if TYPE_CHECKING:
    from koord.apiserver.core import Core


class WebhookAdmission:
    """Calls the registered webhooks."""

    def __init__(self, core: Core, *, mutating: bool, validating: bool) -> None:
        self.core = core
        self.active = False

    async def mutate(self, attributes: Attributes) -> None:
        return None

    async def validate(self, attributes: Attributes) -> None:
        return None
