"""What admission looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options

Obj = dict[str, Any]

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"


@dataclass(slots=True)
class Attributes:
    """One write on its way through admission. Plugins change `obj` in place; webhooks may replace it."""

    operation: str
    resource: Resource
    subresource: str
    namespace: str
    name: str
    obj: Obj | None
    old: Obj | None
    options: Options
    # the options object of the request, for webhooks
    wire_options: Obj = field(default_factory=dict)

    def require_object(self) -> Obj:
        assert self.obj is not None
        return self.obj
