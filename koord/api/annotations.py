"""JSON and other structured annotations (API-ANN-01).

``parse_x(annotations)`` takes the annotations of an object (or None) and returns None when the annotation is missing; text that cannot
be read raises ``AnnotationError(key, detail)``, whose effect is the caller's to decide. Unknown JSON fields are ignored and ``null`` is
the empty value. Functions without ``parse_`` in their name never raise: the contract says what bad text counts as.
"""

from __future__ import annotations

from koord.api.annotations_agent import *  # noqa: F403
from koord.api.annotations_core import *  # noqa: F403
from koord.api.annotations_node import *  # noqa: F403
from koord.api.annotations_quota import *  # noqa: F403
from koord.api.annotations_scheduling import *  # noqa: F403
