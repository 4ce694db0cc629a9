"""What is kept on disk: a second process compiles nothing, and without a folder for it all works, too."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import numba
import numpy as np
import pytest

from checkmate import DFGraph
from checkmate_solvers.local import machine
from checkmate_solvers.local.arrays import state_of
from checkmate_solvers.local.entry import entry
from checkmate_solvers.local.machine import ANY_BUDGET, machine_code

COMPILED = pytest.mark.skipif(bool(vars(numba.config)["DISABLE_JIT"]), reason="nothing is compiled")
HITS = """
from checkmate_solvers.local.machine import machine_code
stats = machine_code().stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@COMPILED
def test_a_second_process_compiles_nothing() -> None:
    machine_code()
    run = subprocess.run([sys.executable, "-c", HITS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "0"]


@COMPILED
def test_where_nothing_can_be_kept_it_still_compiles(monkeypatch, caplog) -> None:
    njit = numba.njit

    def nowhere(*args, cache: bool = False, **options):
        if cache:
            raise RuntimeError("cannot cache function 'work': no locator available")
        return njit(*args, **options)

    monkeypatch.setattr(numba, "njit", nowhere)
    with caplog.at_level(logging.WARNING):
        assert callable(entry())
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_who_compiles_is_told_and_who_loads_is_not(monkeypatch, caplog) -> None:
    for loaded_s, told in ((0.01, "compiling the local search"), (60.0, "")):
        caplog.clear()
        monkeypatch.setattr(machine, "_LOADED_S", loaded_s)
        monkeypatch.setattr(machine, "entry", lambda: lambda *_: time.sleep(0.3))
        machine_code.__wrapped__()
        assert told in caplog.text
        assert bool(caplog.text) == bool(told)


def test_a_full_disk_costs_nothing_but_the_copy(monkeypatch, caplog) -> None:
    calls = []

    def full(*_) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine, "entry", lambda: full)
    assert machine_code.__wrapped__() is full
    assert len(calls) == 2
    assert "could not be kept: [Errno 28]" in caplog.text


def test_an_empty_sequence_is_a_sequence(work) -> None:
    """Nothing needs to run where nobody wants anything."""
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], outputs=[])
    state = state_of(graph, fixed_order=False, seed=0)
    assert work(state, np.zeros(0, dtype=np.int64), ANY_BUDGET, 1, 5, 1.0, 1) == (True, 0)
