"""What is hidden, and what stays readable."""

from __future__ import annotations

import pytest

from koord.config.redact import HIDDEN, is_secret, redacted, redacted_output, redacted_text

pytestmark = pytest.mark.feature("BEY-SEC-01")
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    ["keyData", "certData", "caData", "token", "bearerToken", "password", "AWS_SECRET_ACCESS_KEY", "client-key-data", "privateKey",
     "apiKey", "clientSecret", "id-token", "APIKey"],
)  # fmt: skip
def test_secret_fields(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["key", "data", "topologyKey", "labelKey", "keyFile", "tokenFile", "secretName", "kubeconfig", "cpu", "tokenTTL", "annotationKey",
     "monkey", "passwordFile", "bindAddress", ""],
)  # fmt: skip
def test_other_fields(name: str) -> None:
    assert not is_secret(name)


def test_a_dump_keeps_its_shape() -> None:
    value = {
        "tls": {"keyData": "c2VjcmV0", "caData": "", "insecure": True},
        "args": [{"token": "abc"}, {"name": "x", "topologyKey": "zone"}],
        "tokens": ["a", "b"],
        "secrets": {"one": "1"},
        "url": "https://me:pw@host/x",
        "text": f"see {JWT} and {PEM}.",
        "count": 3,
    }
    assert redacted(value) == {
        "tls": {"keyData": HIDDEN, "caData": "", "insecure": True},
        "args": [{"token": HIDDEN}, {"name": "x", "topologyKey": "zone"}],
        "tokens": HIDDEN,
        "secrets": HIDDEN,
        "url": f"https://{HIDDEN}@host/x",
        "text": f"see {HIDDEN} and {HIDDEN}.",
        "count": 3,
    }


def test_texts() -> None:
    assert redacted_text("Authorization: Bearer abc.def") == f"Authorization: Bearer {HIDDEN}"
    assert redacted_text(f"half {PEM[:40]}") == f"half {HIDDEN}"
    assert redacted_text("pods 3 of 5 at https://host:6443/x") == "pods 3 of 5 at https://host:6443/x"


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("refresh failed for token hunter", "hunter"),
        ('{"password": "pw"}', '"pw"'),
        ("AKIAIOSFODNN7EXAMPLE is not valid", "AKIA"),
        (f"got {JWT}", "eyJ"),
        ("it is swordfish", "swordfish"),
        ("secret=a b", "=a"),
    ],
)
def test_what_a_plugin_says(text: str, gone: str) -> None:
    assert gone not in redacted_output(text, ["swordfish"])


def test_plain_words_of_a_plugin_stay() -> None:
    text = "error: no such profile in /root/.aws/config, run aws sso login"
    assert redacted_output(text) == text
