"""What a feed prepares: the dataset that a function in a module returns. Trainings with equal sources share a feed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from malletrain.client.feeding.messages import VERSION
from malletrain.client.feeding.seeding import MapDataset

_SPEC = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
_KEY_BYTES = 16

Argument = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class FeedSource:
    """A dataset by the function that returns it, in one Python environment, and the seed of a training.

    Attributes:
        spec: MODULE:FUNCTION.
        arguments: Keyword arguments of the function.
        module_file: File of the module; empty if it has none.
        module_changed_ns: When that file was changed last, in nanoseconds since the epoch.
        python: The interpreter.
        working_folder: Working directory of the training; arguments and modules may be relative to it.
        path: Where modules are searched for.
        seed: The training's seed.
        size: Samples in the dataset.
        kind: Type of the dataset.
    """

    spec: str
    arguments: Mapping[str, Argument]
    module_file: str
    module_changed_ns: int
    python: str
    working_folder: str
    path: Sequence[str]
    seed: int
    size: int
    kind: str

    @property
    def key(self) -> str:
        """Text by which trainings find their feed. Size and kind of the dataset are compared there."""
        module = (self.spec, dict(self.arguments), self.module_file, self.module_changed_ns)
        text = json.dumps([VERSION, *module, self.python, self.working_folder, self.seed], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=_KEY_BYTES).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def kind_of(dataset: object) -> str:
    """Type of a dataset, with its module."""
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def find_source(
    spec: str, arguments: Mapping[str, Argument], dataset: MapDataset, seed: int, field: str = "feed"
) -> FeedSource:
    """The source of a training's dataset.

    Args:
        spec: MODULE:FUNCTION. The function returns the dataset, or one that is equal to it.
        arguments: Keyword arguments of the function: text, numbers, True, False and None.
        dataset: The training's own.
        seed: The training's seed.
        field: What `spec` is called in messages.

    Raises:
        ValueError: an argument makes no sense, or there is no such module.
    """
    matched = _SPEC.fullmatch(spec)
    if matched is None:
        raise ValueError(f"{field}: expected MODULE:FUNCTION, got {spec!r}")
    for name, value in arguments.items():
        if not isinstance(value, str | int | float | bool | None):
            raise ValueError(f"arguments[{name!r}]: expected text, a number, a bool or None, got {value!r}")
    module = matched[1]
    if module == "__main__":
        raise ValueError(f"{field}: expected a module that can be imported, got that of the script itself")
    try:
        module_spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{field}: expected a module that can be imported, got {module}: {error}") from error
    if module_spec is None:
        raise ValueError(f"{field}: expected a module that can be imported, got {module}, which was not found")
    file = module_spec.origin if module_spec.has_location and module_spec.origin else ""
    changed = os.stat(file).st_mtime_ns if file else 0  # noqa: PTH116 - text in, number out
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - a link stays one
    return FeedSource(
        spec,
        dict(arguments),
        file,
        changed,
        python=sys.executable,
        working_folder=os.getcwd(),  # noqa: PTH109 - text, as the other fields
        path=path,
        seed=seed,
        size=len(dataset),
        kind=kind_of(dataset),
    )


def load_dataset(source: FeedSource) -> MapDataset:
    """Import the function of a source and call it.

    Raises:
        ValueError: there is no such function, or it returns another dataset than the training's.
        Exception: whatever module and function raise.
    """
    module, _, name = source.spec.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ValueError(f"feed: expected a function {name} in {module}, got {function!r}")
    dataset: MapDataset = function(**source.arguments)
    if len(dataset) != source.size:
        raise ValueError(
            f"length of {source.spec}: expected {source.size} samples, as in the training, got {len(dataset)}"
        )
    if kind_of(dataset) != source.kind:
        raise ValueError(f"type of {source.spec}: expected {source.kind}, as in the training, got {kind_of(dataset)}")
    return dataset
