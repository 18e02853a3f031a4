from __future__ import annotations

import pytest

from malletrain.common.memory_by_job import MemoryByJob


def test_a_value_is_made_anew_when_the_terms_of_its_job_change() -> None:
    memory, made = MemoryByJob[int](), iter(range(10))
    assert memory.value("a", (1, "x"), lambda: next(made)) == 0
    assert memory.value("a", (1, "x"), lambda: next(made)) == 0
    assert memory.value("b", (1, "x"), lambda: next(made)) == 1
    assert memory.value("a", (2, "x"), lambda: next(made)) == 2
    assert memory.value("a", (1, "x"), lambda: next(made)) == 3


def test_what_could_not_be_made_is_not_remembered() -> None:
    memory = MemoryByJob[int]()
    with pytest.raises(ZeroDivisionError):
        memory.value("a", (1,), lambda: 1 // 0)
    assert memory.value("a", (1,), lambda: 7) == 7


def test_it_does_not_grow_for_ever() -> None:
    memory, made = MemoryByJob[int](max_jobs=2), iter(range(10))
    for name in ("a", "b", "c"):
        memory.value(name, (), lambda: next(made))
    assert memory.value("c", (), lambda: next(made)) == 2
    assert memory.value("a", (), lambda: next(made)) == 3


def test_a_job_can_be_forgotten() -> None:
    memory, made = MemoryByJob[int](), iter(range(10))
    memory.value("a", (), lambda: next(made))
    memory.forget("a")
    memory.forget("b")
    assert memory.value("a", (), lambda: next(made)) == 1
