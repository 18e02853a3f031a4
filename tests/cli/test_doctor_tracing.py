from __future__ import annotations

from pathlib import Path

from malletrain.cli.operate.doctor import examine_tracing
from malletrain.runtime.tracing.settings import TracingSettings
from tests.support.collector import collecting
from tests.support.ports import free_port


def test_off_is_as_it_should_be() -> None:
    assert examine_tracing(TracingSettings()).ok


def test_whether_a_collector_answers() -> None:
    with collecting() as (_, port):
        assert examine_tracing(TracingSettings(endpoint=f"http://127.0.0.1:{port}")).ok
    away = examine_tracing(TracingSettings(endpoint=f"http://127.0.0.1:{free_port()}"))
    assert not away.ok
    assert "the services run without it" in away.remedy


def test_a_file_that_others_can_read(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("authorization: s3cret\n")
    headers.chmod(0o644)
    found = examine_tracing(TracingSettings(endpoint="http://127.0.0.1:1", headers_file=headers))
    assert not found.ok
    assert "tracing.headers_file" in found.found
    assert "s3cret" not in found.found
