"""Feature gates: upstream's names and defaults, unknown names refused."""

import pytest

from koord.api.times import format_duration, parse_duration
from koord.config import gates
from koord.config.errors import ConfigError


@pytest.mark.feature("MGR-FG-01")
def test_manager_defaults():
    manager = gates.FeatureGates(gates.MANAGER)
    on = {name for name, value in manager.all().items() if value}
    assert on == {"WebhookFramework", "PodMutatingWebhook", "PodValidatingWebhook", "ElasticMutatingWebhook", "ElasticValidatingWebhook"}
    assert len(gates.MANAGER) == 5 + 26 + 4


@pytest.mark.feature("KLO-CFG-02")
def test_koordlet_defaults_and_stages():
    koordlet = gates.FeatureGates(gates.KOORDLET)
    assert sum(koordlet.all().values()) == 7
    koordlet.set_from_flag("AllBeta=false,CPUBurst=true,AllAlpha=true")
    assert koordlet.enabled("CPUBurst")
    assert not koordlet.enabled("BECPUSuppress")
    assert koordlet.enabled("Libpfm4")


@pytest.mark.feature("MGR-FG-01")
def test_flag_grammar():
    manager = gates.FeatureGates(gates.MANAGER)
    manager.set_from_flag(" MultiQuotaTree=true , PodMutatingWebhook=F,")
    manager.set_from_flag("MultiQuotaTree=1")
    assert manager.enabled("MultiQuotaTree")
    assert not manager.enabled("PodMutatingWebhook")


@pytest.mark.feature("MGR-FG-01")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PodMutatingWebook=true", "did you mean 'PodMutatingWebhook'"),
        ("Zzz=true", "known gates: AbnormalNodes"),
        ("MultiQuotaTree", "write MultiQuotaTree=true"),
        ("MultiQuotaTree=yes", "must be true or false"),
    ],
)
def test_bad_flag_changes_nothing(text, words):
    manager = gates.FeatureGates(gates.MANAGER)
    with pytest.raises(ConfigError, match=words):
        manager.set_from_flag(f"NodeMutatingWebhook=true,{text}")
    assert not manager.enabled("NodeMutatingWebhook")


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("0", 0), ("1.5s", 1.5), ("-2m", -120), ("300ms", 0.3), ("1m0.5s", 60.5)])
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


def test_duration_text_is_as_go_prints():
    assert [format_duration(s) for s in (0, 5400, 0.3, 1.5, 90, -2, 0.0000015)] == [
        "0s",
        "1h30m0s",
        "300ms",
        "1.5s",
        "1m30s",
        "-2s",
        "1.5µs",
    ]
    for bad in ("", "5", "5x", "s", "1h x"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_duration(bad)
