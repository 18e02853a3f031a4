from __future__ import annotations

from benchmarks.soaking.logs import defects, ends

UP = """monitor      127.0.0.1:45003
allocator ended with -9; starting it again in 0.2 s
profiler ended with 1; starting it again in 0.4 s
"""
PLAIN = """INFO all is well
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError("no")
ValueError: no
INFO all is well again
"""
ENTRY = '{"event": "failed", "exception": "Traceback (most recent call last):\\n  File\\nOSError: full"}\n'
CUT = '{"event": "failed", "exception": "Traceback (most recent call last):\\n  File'


def test_ends_of_services_are_found() -> None:
    assert ends(UP) == ["allocator:-9", "profiler:1"]


def test_tracebacks_are_found() -> None:
    assert list(defects("x.log", PLAIN.splitlines(keepends=True))) == ["x.log: ValueError: no"]
    assert list(defects("x.log", [ENTRY])) == ["x.log: failed: OSError: full"]
    assert len(list(defects("x.log", [CUT]))) == 1
    assert list(defects("x.log", ["all is well\n"])) == []
