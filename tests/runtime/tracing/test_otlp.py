from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.tracing.otlp import read_headers
from malletrain.runtime.tracing.settings import TracingSettings
from malletrain.runtime.tracing.spans import open_tracer
from tests.support.collector import collecting
from tests.support.ports import free_port
from tests.tls.site import SiteAuthority

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
OTHER = TraceContext("1af7651916cd43dd8448eb211c80319c", "a7ad6b7169203331", sampled=True)


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def test_spans_arrive_with_parents_links_times_and_attributes() -> None:
    with collecting() as (collector, port):
        tracer = open_tracer("allocator", TracingSettings(endpoint=f"http://127.0.0.1:{port}"))
        span = tracer.begin("plan", PARENT, [OTHER], 12.5, jobs=3, plan__solver="x" * 1000)
        span.end(13.5)
        span.end(99.0, error="only the first end counts")
        assert span.context is not None
        tracer.of("supervisor").begin("part", span.context).end(error="gone")
        tracer.close()
        plan, part = sorted(collector.spans, key=lambda found: found.name, reverse=True)
    assert (plan.service, part.service) == ("malletrain-allocator", "malletrain-supervisor")
    assert (plan.trace_id, plan.parent_id, plan.links) == (PARENT.trace_id, PARENT.span_id, (OTHER.span_id,))
    assert (plan.begin, plan.end, plan.error) == (12.5, 13.5, "")
    assert plan.attributes == {"malletrain.jobs": 3, "malletrain.plan.solver": "x" * 256}
    assert (part.parent_id, part.error) == (plan.span_id, "gone")


def test_what_is_not_sampled_is_not_sent_and_says_so_to_others() -> None:
    with collecting() as (collector, port):
        tracer = open_tracer("allocator", TracingSettings(endpoint=f"http://127.0.0.1:{port}", sample_ratio=0))
        first = tracer.begin("first")
        first.end()
        assert first.context is not None
        assert not first.context.sampled
        tracer.begin("part", first.context).end()
        tracer.begin("of another's trace", PARENT).end()
        tracer.close()
        assert [span.name for span in collector.spans] == ["of another's trace"]


def test_tls_and_headers(tmp_path: Path) -> None:
    site = SiteAuthority(tmp_path / "site").settings("127.0.0.1")
    assert site.key_file
    assert site.certificate_file
    pair = (site.key_file.read_bytes(), site.certificate_file.read_bytes())
    headers = private(tmp_path / "headers", "Authorization: Bearer s3cret\n\nx-team: a\n")
    with collecting(credentials=grpc.ssl_server_credentials([pair])) as (collector, port):
        settings = TracingSettings(
            endpoint=f"https://127.0.0.1:{port}", headers_file=headers, authority_file=site.authority_file
        )
        tracer = open_tracer("allocator", settings)
        tracer.begin("over TLS").end()
        tracer.close()
        assert [span.name for span in collector.spans] == ["over TLS"]
        (metadata,) = collector.metadata
        assert (metadata["authorization"], metadata["x-team"]) == ("Bearer s3cret", "a")
        unknown = open_tracer("allocator", settings.model_copy(update={"authority_file": None}))
        unknown.begin("for whoever it is").end()
        unknown.close()
        assert len(collector.spans) == 1


def test_headers_that_others_can_read_or_that_are_none_are_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "headers", "authorization: s3cret\n")
    settings = TracingSettings(endpoint="http://127.0.0.1:1", headers_file=path)
    assert read_headers(settings) == (("authorization", "s3cret"),)
    path.chmod(0o644)
    with pytest.raises(InvalidInputError, match=r"tracing\.headers_file: expected a private file"):
        read_headers(settings)
    path.chmod(0o600)
    for wrong in ("s3cret", "a b: s3cret", "a: s3cret\x07", ": s3cret", "é: s3cret"):
        path.write_text(wrong)
        with pytest.raises(InvalidInputError, match=r"tracing\.headers_file") as refused:
            read_headers(settings)
        assert "s3cret" not in str(refused.value)
    path.unlink()
    with pytest.raises(InvalidInputError, match=r"tracing\.headers_file: expected a readable file"):
        read_headers(settings)


def test_without_a_collector_spans_are_dropped_beyond_the_queue_and_the_end_is_not_waited_for() -> None:
    settings = TracingSettings(endpoint=f"http://127.0.0.1:{free_port()}", queue_spans=64)
    tracer: Any = open_tracer("allocator", settings)
    for _ in range(10_000):
        tracer.begin("lost").end()
    assert len(tracer._processor._batch_processor._queue) <= 64
    tracer.close()  # by the limit of the test's time


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "malletrain.runtime.tracing.otlp", None)
    with pytest.raises(InvalidInputError, match=r"tracing\.endpoint: expected the packages of OpenTelemetry \(pip"):
        open_tracer("allocator", TracingSettings(endpoint="http://127.0.0.1:1"))
