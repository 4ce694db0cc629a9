"""Tasks on a real cluster: a scheduler and two workers as processes of their own, as on many machines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import generators
from evaluation import EXPERIMENTS
from evaluation.executors import executor_of
from evaluation.results import read_results

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a scheduler that has two workers."""
    distributed = pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    found = [str(BENCHMARKS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found))}
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    worker = ["worker", "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    worker += ["--local-directory", str(folder)]
    commands = [[*scheduler, "--scheduler-file", str(file)], *[[*worker, "--scheduler-file", str(file)]] * 2]
    with (folder / "log").open("w") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dask", *command], env=environment, stdout=log, stderr=log, cwd=folder
            )
            for command in commands
        ]
        try:
            with distributed.Client(scheduler_file=str(file), timeout=60) as client:
                client.wait_for_workers(2, timeout=60)
                yield client
        finally:
            for process in processes:
                process.kill()  # after SIGTERM, a worker waits half a minute for its scheduler
            for process in processes:
                process.wait(30)


def test_an_experiment_runs_on_two_workers_of_a_cluster(dask: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "evaluate.py"), "integrality", "--quick"]
    done = subprocess.run(
        [*command, "--executor", f"dask:{dask.scheduler.address}", "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "integrality.json")
    assert [row.task for row in results.rows] == list(EXPERIMENTS["integrality"].tasks(True))
    assert not any(row.error for row in results.rows)
    assert (tmp_path / "integrality.png").exists()
    measured = dask.run(eval, "'evaluation.integrality' in __import__('sys').modules")
    assert list(measured.values()) == [True, True]


def test_a_sweep_runs_on_a_cluster_as_it_does_here(dask: Any) -> None:
    graph, budgets, solvers = generators.chain(12), [0.4, 0.6, 0.8], ["heuristics", "chen-sqrt-n"]
    here = checkmate.sweep(graph, budgets, solvers)
    there = checkmate.sweep(graph, budgets, solvers, executor=dask.get_executor())
    assert not there.errors
    assert [(p.peak, p.cost) for p in there.points] == [(p.peak, p.cost) for p in here.points]


def test_a_sweep_runs_on_ray_as_it_does_here() -> None:
    pytest.importorskip("ray")
    graph, budgets = generators.chain(12), [0.4, 0.6, 0.8]
    here = checkmate.sweep(graph, budgets, ["heuristics"])
    with executor_of("ray", 2) as executor:
        there = checkmate.sweep(graph, budgets, ["heuristics"], executor=executor)
    assert not there.errors
    assert [(p.peak, p.cost) for p in there.points] == [(p.peak, p.cost) for p in here.points]


def test_an_unknown_place_is_named_with_those_there_are() -> None:
    with (
        pytest.raises(ValueError, match=r"no executor 'moon': choose of here, processes, dask, ray"),
        executor_of("moon", 1),
    ):
        pass
