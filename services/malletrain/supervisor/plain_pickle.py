"""Reads pickled numbers, texts, lists and tables, and nothing that could run code."""

from __future__ import annotations

import base64
import binascii
import io
import pickle
from typing import Any, NoReturn


class NotPlainError(ValueError):
    """The data are not pickled, or contain more than numbers, texts, lists and tables."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class and function: unpickling calls them."""
        raise NotPlainError(f"expected plain data, got {module}.{name}")


def load_plain_base64(encoded: bytes) -> Any:
    """Read data that Horovod's workers have pickled.

    Args:
        encoded: A pickle in base64.

    Raises:
        NotPlainError: it is none, or contains anything but plain data.
    """
    try:
        return _PlainUnpickler(io.BytesIO(base64.b64decode(encoded, validate=True))).load()
    except NotPlainError:
        raise
    except (binascii.Error, pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError) as error:
        raise NotPlainError(f"expected a pickle in base64: {error}") from error
    except (AttributeError, MemoryError, OverflowError) as error:
        raise NotPlainError(f"expected plain data: {error}") from error
