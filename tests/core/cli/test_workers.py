"""The processes of a sweep: their environment, their end."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import Future

import pytest

from checkmate.cli.commands.workers import workers


def test_one_job_needs_none() -> None:
    with workers(1) as executor:
        assert executor is None


@pytest.mark.parametrize("before", [None, "", "1"])
def test_they_keep_the_current_folder_off_their_path(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    with workers(2) as executor:
        assert executor is not None
        assert executor.submit(eval, "__import__('sys').flags.safe_path").result() is True
    assert os.environ.get("PYTHONSAFEPATH") == before


def test_after_a_death_others_do_the_work() -> None:
    with workers(2) as executor:
        assert executor is not None
        lost = executor.submit(os._exit, 7)
        assert type(lost.exception()).__name__ == "BrokenProcessPool"
        assert executor.submit(abs, -1).result() == 1


def test_an_early_end_ends_the_processes_with_work_left() -> None:
    """A submitted task can't be cancelled: a pool that breaks meanwhile would not clean up."""
    futures: list[Future[None]] = []

    def work() -> None:
        with workers(2) as executor:
            assert executor is not None
            futures.extend(executor.submit(time.sleep, 600) for _ in range(6))
            assert not any(future.cancel() for future in futures)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert all(future.exception() is not None for future in futures)
    assert multiprocessing.active_children() == []
