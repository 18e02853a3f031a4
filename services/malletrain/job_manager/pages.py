"""Pages of a listing."""

from __future__ import annotations

from malletrain.runtime.errors import InvalidInputError

_LARGEST_PAGE = 1000


def page_size(asked: int) -> int:
    """Entries of a page; 0 asks for the largest.

    Raises:
        InvalidInputError: the size is out of range.
    """
    if not 0 <= asked <= _LARGEST_PAGE:
        raise InvalidInputError("page_size", f"0 to {_LARGEST_PAGE}", asked)
    return asked or _LARGEST_PAGE


def position(token: str) -> int:
    """The number after which the page of a token begins; 0 for the first page.

    Raises:
        InvalidInputError: the token is none that a page ended with.
    """
    if not token:
        return 0
    if not token.isascii() or not token.isdigit() or len(token) > 18:
        raise InvalidInputError("page_token", "the next_page_token of the page before", token)
    return int(token)
