from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.tracing.spans import NoTracer, open_tracer

ENDPOINT = "MALLETRAIN_TRACING__ENDPOINT"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_is_traced_by_default() -> None:
    assert isinstance(open_tracer("allocator", load().tracing), NoTracer)


def test_off_loopback_tls_is_used_unless_plain_text_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "https://collector.example.org:4317")
    assert load().tracing.encrypted
    monkeypatch.setenv(ENDPOINT, "http://collector.example.org:4317")
    with pytest.raises(InvalidInputError, match=r"tracing: expected https in tracing\.endpoint off loopback, or"):
        load()
    monkeypatch.setenv("MALLETRAIN_TRACING__ALLOW_PLAIN_TEXT", "true")
    assert load().tracing.address == "collector.example.org:4317"
    monkeypatch.setenv("MALLETRAIN_TRACING__HEADERS_FILE", "headers")
    with pytest.raises(InvalidInputError, match=r"tracing\.headers_file is not sent in plain text"):
        load()


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1:4317",
        "http://127.0.0.1",
        "ftp://a:1",
        "http://u:p@127.0.0.1:1",
        "http://127.0.0.1:1/v1",
        "http://[::1:1",
        "http://127.0.0.1:99999",
    ],
)
def test_what_is_no_endpoint_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, wrong)
    with pytest.raises(InvalidInputError, match=r"tracing\.endpoint: expected http://HOST:PORT or https://HOST:PORT"):
        load()
