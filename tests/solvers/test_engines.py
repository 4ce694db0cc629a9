"""Engines: they agree on a program, and their bounds hold."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import checkmate
from checkmate.errors import MissingDistributionError, PluginError, SolverError
from checkmate.generators import chain
from checkmate.testing import SolverConformance
from checkmate_solvers.engines import Highs, Scip
from checkmate_solvers.literature.checkmate_milp import CheckmateMilp
from checkmate_solvers.milp import Backend, Milp

needs_ortools = pytest.mark.skipif(find_spec("ortools") is None, reason="needs the extra ortools")
BACKENDS = [
    pytest.param(lambda: Highs(), id="highs"),
    pytest.param(lambda: Scip(), id="scip", marks=needs_ortools),
]


@pytest.fixture(params=BACKENDS, scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param()


@st.composite
def programs(draw: st.DrawFn) -> Milp:
    """Up to four whole columns of range 0 … 2, up to three rows: a few dozen points."""
    columns, rows = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    numbers = st.integers(-3, 3)
    matrix = np.array(draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns)), dtype=float)
    lower = np.array(draw(st.lists(st.sampled_from([-math.inf, -1.0, 1.0]), min_size=rows, max_size=rows)))
    return Milp(
        objective=np.array(draw(st.lists(numbers, min_size=columns, max_size=columns))) / 3,
        matrix=csr_array(matrix.reshape(rows, columns)),
        lower=lower,
        upper=lower + draw(st.integers(0, 3)) if np.isfinite(lower).all() else np.full(rows, 2.0),
        least=np.zeros(columns),
        most=np.full(columns, 2.0),
        integral=np.ones(columns, dtype=np.bool_),
    )


def best(program: Milp) -> float:
    """By looking at every point."""
    points = np.stack(np.meshgrid(*[np.arange(3)] * len(program.objective)), axis=-1)
    points = points.reshape(-1, len(program.objective))
    sides = points @ program.matrix.toarray().T
    points = points[((sides >= program.lower) & (sides <= program.upper)).all(axis=1)]
    return float((points @ program.objective).min(initial=math.inf))


@given(program=programs())
def test_a_backend_finds_the_best_point(backend: Backend, program: Milp) -> None:
    outcome, known = backend.solve(program, time_limit=10, gap=0.0), best(program)
    assert outcome.finished
    assert outcome.bound <= known
    if outcome.values is None:
        assert math.isinf(known)
        return
    sides = program.matrix @ outcome.values
    assert (sides >= program.lower - 1e-5).all()
    assert (sides <= program.upper + 1e-5).all()
    assert program.objective @ outcome.values == pytest.approx(known, abs=1e-5)
    assert outcome.bound >= known - 1e-4


@given(program=programs())
def test_the_bound_of_the_relaxation_is_below(backend: Backend, program: Milp) -> None:
    assert backend.solve(program.relaxed(), time_limit=10, gap=0.0).bound <= best(program)


@needs_ortools
class TestCheckmateMilpWithScip(SolverConformance):
    solver_name = "checkmate-milp-scip"
    examples = 6


@needs_ortools
def test_the_chain_of_the_paper_with_scip() -> None:
    solution = checkmate.solve(chain(8), budget=4, solver=CheckmateMilp(backend=Scip()), time_limit=120)
    assert solution.cost == 26


@needs_ortools
def test_the_message_of_an_engine_is_passed_on() -> None:
    program = Milp(
        objective=np.ones(1),
        matrix=csr_array(np.ones((1, 1))),
        lower=np.zeros(1),
        upper=np.ones(1),
        least=np.zeros(1),
        most=np.ones(1),
        integral=np.ones(1, dtype=np.bool_),
    )
    with pytest.raises(SolverError, match="SCIP error"):
        Scip().solve(program, time_limit=1, gap=-1.0)


def test_a_missing_extra_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(MissingDistributionError, match="extra 'ortools' of checkmate-solvers"):
        Scip()
    for name in ("checkmate-milp-scip", "retention-intervals"):
        with pytest.raises(PluginError, match=r"pip install '\./packages/checkmate-solvers\[ortools\]'"):
            checkmate.solve(chain(2), budget=4, solver=name)
