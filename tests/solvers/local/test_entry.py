"""What is kept on disk: a second process compiles nothing, and without a folder for it all works, too."""

from __future__ import annotations

import logging
import subprocess
import sys

import numba
import numpy as np
import pytest

from checkmate import DFGraph
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


def test_an_empty_sequence_is_a_sequence(work) -> None:
    """Nothing needs to run where nobody wants anything."""
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], outputs=[])
    state = state_of(graph, fixed_order=False, seed=0)
    assert work(state, np.zeros(0, dtype=np.int64), ANY_BUDGET, 1, 5, 1.0, 1) == (True, 0)
