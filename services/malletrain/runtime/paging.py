"""Reads lists that services answer page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar


class PagedRequest(Protocol):
    """A request for one page."""

    page_token: str


class ResponsePage(Protocol):
    """One page of an answer; without a token it is the last one."""

    @property
    def next_page_token(self) -> str:
        """The token with which the next page begins."""


PageT = TypeVar("PageT", bound=ResponsePage)


def all_pages(call: Callable[..., PageT], request: PagedRequest, **options: Any) -> Iterator[PageT]:
    """Every page, from the one that the request names.

    Args:
        call: The method of a stub.
        request: The request for the first page; its token is changed.
        options: Passed on to each call, e.g. `timeout`, in seconds.

    Raises:
        grpc.RpcError: the service refuses, or does not answer.
    """
    while True:
        page = call(request, **options)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return


async def all_pages_async(
    call: Callable[..., Awaitable[PageT]], request: PagedRequest, **options: Any
) -> AsyncIterator[PageT]:
    """As `all_pages`, for stubs of gRPC on asyncio."""
    while True:
        page = await call(request, **options)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return
