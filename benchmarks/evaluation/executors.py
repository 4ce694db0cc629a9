"""Executors of tasks: this process, several processes, Dask or Ray, as ``concurrent.futures.Executor``."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

__all__ = ["executor_of"]


@contextmanager
def executor_of(where: str, jobs: int) -> Iterator[Executor | None]:
    """The executor of a name.

    Args:
        where: ``here``; ``processes``; ``dask`` for a cluster of processes on this machine, or
            ``dask:ADDRESS`` for a scheduler that runs; ``ray`` for Ray on this machine or ``ray:ADDRESS``.
            Workers elsewhere need the same packages, and ``benchmarks/`` on their ``PYTHONPATH``.
        jobs: tasks at once; a running cluster decides that itself.

    Yields:
        an executor, or None for ``here``.

    Raises:
        ValueError: if the name is unknown.
        ImportError: if its package is not installed.
    """
    kind, _, address = where.partition(":")
    if kind not in _PLACES:
        raise ValueError(f"no executor {where!r}: choose of {', '.join(_PLACES)}")
    with _PLACES[kind](address, jobs) as found:
        yield found


@contextmanager
def _here(_address: str, _jobs: int) -> Iterator[None]:
    yield None


@contextmanager
def _processes(_address: str, jobs: int) -> Iterator[Executor]:
    # Spawned: a fork of a process with threads, such as the progress bar's, may hang.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _dask(address: str, jobs: int) -> Iterator[Executor]:
    from distributed import Client

    with Client(address) if address else Client(n_workers=jobs, threads_per_worker=1) as client:
        yield client.get_executor()


@contextmanager
def _ray(address: str, jobs: int) -> Iterator[Executor]:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    ray.init(address=address or None, num_cpus=None if address else jobs, include_dashboard=False)
    try:
        yield _Ray(ray)
    finally:
        ray.shutdown()


class _Ray(Executor):
    """Ray's remote functions as an executor."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule ``fn(*args, **kwargs)``."""
        future: Future[Any] = self._ray.remote(fn).remote(*args, **kwargs).future()
        return future


_PLACES = {"here": _here, "processes": _processes, "dask": _dask, "ray": _ray}
