"""Why there is no connection, in words."""

from __future__ import annotations

import socket
import ssl

import pytest

from koord.kube.pool import told


def _unverified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(
        1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    )
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1'), [Errno 111] y"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 101] x, [Errno 111] y"), "network is unreachable, connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (_unverified(), "certificate verify failed: self-signed certificate"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"), "[SSL: WRONG_VERSION_NUMBER]"),
        (OSError("the proxy said no"), "the proxy said no"),
        (OSError(), "OSError"),
    ],
)  # fmt: skip
def test_no_number_of_an_error_is_shown(error: Exception, said: str) -> None:
    assert said in told(error)
    assert "Errno" not in told(error)
