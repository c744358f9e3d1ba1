"""`koord.api.selectors` under the name that plugins of users may know it by."""

from koord.api.selectors import (
    NOTHING,
    NodeSelector,
    Requirement,
    Selector,
    SelectorError,
    from_label_selector,
    node_selector,
    node_selector_term,
    parse_field_selector,
    parse_label_selector,
)  # fmt: skip

__all__ = [
    "NOTHING", "NodeSelector", "Requirement", "Selector", "SelectorError", "from_label_selector", "node_selector", "node_selector_term",
    "parse_field_selector", "parse_label_selector",
]  # fmt: skip
