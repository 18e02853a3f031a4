"""A model's state under the names that it has without `torch.compile`, so that either form reads the other's.

`torch.compile(module)` is a module of its own, which has the original as `_orig_mod`; the names of weights say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMPILED = "_orig_mod."


def plain_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with the names of the plain model.

    Args:
        state: What `state_dict` returns, of a model that is compiled whole, in parts or not at all.
    """
    if not any(_COMPILED in name for name in state):
        return state
    return {_plain(name): value for name, value in state.items()}


def state_for(state: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with the names of a model, to be given to its `load_state_dict`.

    Args:
        state: The state of the same model, compiled or not.
        own: What the model's `state_dict` returns. A name that is not in it stays, so that the model can refuse it.
    """
    if state.keys() == own.keys():
        return state
    names = {_plain(name): name for name in own}
    return {names.get(_plain(name), name): value for name, value in state.items()}


def _plain(name: str) -> str:
    return name.replace(_COMPILED, "")
