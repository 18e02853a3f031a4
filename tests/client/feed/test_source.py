from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.client.feeding.source import FeedSource, find_source, load_dataset

SPEC = "pictures:training_set"
CODE = "def training_set(size=3, root=''):\n    return list(range(size))\n"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "pictures.py"
    file.write_text(CODE)
    return file


def test_trainings_with_equal_sources_find_each_other(module: Path) -> None:
    source = find_source(SPEC, {"root": "/data"}, [1, 2, 3], 7)
    assert source.key == find_source(SPEC, {"root": "/data"}, [4, 5, 6], 7).key
    for other in (
        find_source(SPEC, {"root": "/other"}, [1, 2, 3], 7),
        find_source(SPEC, {}, [1, 2, 3], 7),
        find_source(SPEC, {"root": "/data"}, [1, 2, 3], 8),
        replace(source, python="/usr/bin/python3"),
        replace(source, module_file="/elsewhere/pictures.py"),
    ):
        assert other.key != source.key
    module.write_text(CODE + "# changed\n")
    assert find_source(SPEC, {"root": "/data"}, [1, 2, 3], 7).key != source.key


def test_trainings_of_two_folders_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A relative argument names other data in each.
    keys = set()
    for name in ("a", "b", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        keys.add(find_source(SPEC, {"root": "data"}, [1, 2, 3], 7).key)
    assert len(keys) == 2


def test_a_source_survives_the_way_to_its_feed() -> None:
    source = find_source(SPEC, {}, [1, 2, 3], 7)
    assert FeedSource(**source.as_json()) == source
    assert load_dataset(source) == [0, 1, 2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pictures", "feed: expected MODULE:FUNCTION, got 'pictures'"),
        ("pictures:a.b", "feed: expected MODULE:FUNCTION"),
        ("__main__:training_set", "feed: expected a module that can be imported, got that of the script itself"),
        ("no_such_module:f", "feed: expected a module that can be imported, got no_such_module"),
        ("no_such_package.module:f", "feed: expected a module that can be imported, got no_such_package.module"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_source(spec, {}, [1], 0)


def test_arguments_are_plain() -> None:
    with pytest.raises(ValueError, match=r"arguments\['root'\]: expected text, a number, a bool or None"):
        find_source(SPEC, {"root": Path("/")}, [1], 0)  # type: ignore[dict-item]


def test_a_feed_of_another_dataset_is_refused() -> None:
    source = find_source(SPEC, {"size": 4}, [1, 2, 3], 7)
    with pytest.raises(ValueError, match=r"length of pictures:training_set: expected 3 samples, .* got 4"):
        load_dataset(source)
    with pytest.raises(ValueError, match=r"type of pictures:training_set: expected other.Kind, .* got builtins.list"):
        load_dataset(replace(source, size=4, kind="other.Kind"))
