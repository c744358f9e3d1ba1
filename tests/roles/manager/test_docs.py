"""docs/manager.md knows every configuration key, webhook and plugin."""

from pathlib import Path

from koord.api.schema import Struct
from koord.config import slo_schema
from koord.config.gates import MANAGER
from roles.manager.webhooks.registry import WEBHOOKS

TEXT = (Path(__file__).parents[3] / "docs" / "manager.md").read_text()


def test_every_key_and_top_level_field_is_documented():
    for key, strategy in slo_schema.STRATEGIES.items():
        assert key in TEXT
        assert isinstance(strategy, Struct)
        for field in strategy.fields:
            assert field in TEXT, f"{key}.{field}"


def test_every_webhook_and_its_gate_is_documented():
    for webhook in WEBHOOKS:
        assert webhook.path.replace("scheduling-sigs-k8s-io-v1alpha1", "…") in TEXT, webhook.path
        assert webhook.gate in TEXT
    for gate in (
        "Recommender",
        "AbnormalNodes",
        "DeviceResourceSlices",
        "BatchCountPodsWithoutMetric",
        "ColocationProfileSkipMutatingResources",
    ):
        assert gate in TEXT
        assert gate in MANAGER
