from __future__ import annotations

import asyncio

from malletrain.job_manager.engine import AfterReleases


def test_without_a_release_things_are_done_at_once() -> None:
    done: list[str] = []
    AfterReleases().do(lambda: done.append("a"), releasing=False)
    assert done == ["a"]


def test_beside_a_release_they_are_done_after_it_and_in_order() -> None:
    async def run() -> None:
        done: list[str] = []

        async def release() -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append("released")

        after, releasing = AfterReleases(), asyncio.create_task(release())
        after.do(lambda: done.append("a"), releasing=True)
        after.do(lambda: done.append("b"), releasing=False)
        assert not done
        await after.done()
        await releasing
        assert done == ["released", "a", "b"]
        after.do(lambda: done.append("c"), releasing=False)
        assert done[-1] == "c"

    asyncio.run(run())


def test_one_that_fails_does_not_keep_the_others() -> None:
    async def run() -> None:
        done: list[str] = []
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def fail() -> None:
            raise ValueError("by intention")

        after = AfterReleases()
        after.do(fail, releasing=True)
        after.do(lambda: done.append("b"), releasing=False)
        await after.done()
        assert done == ["b"]
        assert [str(failure) for failure in failures] == ["by intention"]

    asyncio.run(run())
