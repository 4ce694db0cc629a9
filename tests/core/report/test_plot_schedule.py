"""Pictures as files: content, format, equal files for equal input, no global state."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from checkmate import DFGraph, MissingDistributionError, Plan, Problem, Schedule, Solution, simulate
from checkmate.report import plot_frontier, plot_plan, plot_timeline
from checkmate.report.plot import MemoryPicture
from checkmate.solving.sweep import Frontier

from .judged import HOSTILE, by_hand, hostile, large

EMPTY = DFGraph.from_nodes(cost=[], size=[], deps=[])
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
Drawn = list[Figure]


def by_hand_frontier() -> Frontier:
    timeline = by_hand()
    problem = Problem(graph=timeline.graph, budget=50)
    return Frontier(
        graph=timeline.graph, answers=(Solution.found(problem, timeline.schedule, solver="$a_{"),)
    )


DRAW: dict[str, Callable[[Path], None]] = {
    "timeline": lambda path: plot_timeline(by_hand(), path, budget=45),
    "plan": lambda path: plot_plan(by_hand(), path),
    "frontier": lambda path: plot_frontier(by_hand_frontier(), path),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    figures: Drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    return figures


def texts(found: Any) -> list[str]:
    return [text.get_text() for text in found]


@pytest.mark.parametrize("kind", MAGIC)
@pytest.mark.parametrize("name", DRAW)
def test_the_suffix_says_the_format_and_equal_input_gives_equal_files(
    tmp_path: Path, name: str, kind: str
) -> None:
    paths = [tmp_path / f"{k}.{kind}" for k in range(2)]
    for path in paths:
        DRAW[name](path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(MAGIC[kind])
    assert first == second
    assert b"dc:date" not in first
    assert b"CreationDate" not in first


def test_the_memory_picture_shows_phases_base_peak_and_budget(tmp_path: Path, drawn: Drawn) -> None:
    plot_timeline(by_hand(), tmp_path / "t.png", budget=45)
    (axes,) = drawn[0].axes
    assert texts(drawn[0].legends[0].get_texts()) == [
        "forward",
        "backward",
        "recomputed",
        "inputs and fixed, never freed",
        "budget: 45 B",
    ]
    assert texts(axes.texts) == ["41 B in c"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == (
        "time [s]",
        "memory held [B]",
        "by hand",
    )
    outline = axes.lines[0]
    assert outline.get_xdata().tolist() == [0, 2, 2, 3, 3, 4, 4, 6, 6, 10]
    assert outline.get_ydata().tolist() == [23, 23, 30, 30, 41, 41, 25, 25, 26, 26]


def test_without_cost_the_axis_counts_runs(tmp_path: Path, drawn: Drawn) -> None:
    graph = DFGraph.from_nodes(cost=[0, 0], size=[1, 1], deps=[[], [0]], cost_unit="s")
    plot_timeline(simulate(graph, Schedule.from_sequence(graph, [0, 1])), tmp_path / "t.png")
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "ops run"
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 1, 2]


def test_r_and_s_are_the_plans_matrices(tmp_path: Path, drawn: Drawn) -> None:
    timeline = by_hand()
    plan = Plan.of(timeline.graph, timeline.schedule)
    plot_plan(timeline, tmp_path / "p.png")
    plot_plan(plan, tmp_path / "q.png")
    assert (tmp_path / "p.png").read_bytes() == (tmp_path / "q.png").read_bytes()
    left, right = drawn[0].axes
    first, again = (image.get_array()[..., 3] > 0 for image in left.images)
    assert np.array_equal(first | again, plan.compute)
    assert np.argwhere(again)[:, 1].tolist() == [0]
    assert np.array_equal(right.images[0].get_array()[..., 3] > 0, plan.retain)


def test_large_matrices_lose_no_recomputation(tmp_path: Path, drawn: Drawn) -> None:
    plot_plan(large(600), tmp_path / "p.png")
    left, right = drawn[0].axes
    again = left.images[1].get_array()[..., 3]
    assert max(again.shape) <= 260
    assert again.sum() >= 50  # of 60 runs, each in a block of its own or shared
    shade = right.images[0].get_array()[..., 3]
    assert 0 <= shade.min() < shade.max() <= 1


def test_the_frontier_has_a_line_and_markers_for_each_solver(tmp_path: Path, drawn: Drawn) -> None:
    plot_frontier(by_hand_frontier(), tmp_path / "f.png")
    (axes,) = drawn[0].axes
    assert texts(axes.get_legend().get_texts()) == ["$a_{", "gap to the proved bound"]
    assert [line.get_marker() for line in axes.lines] == ["o"]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_names_stay_text(tmp_path: Path, name: str) -> None:
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]], names=[name], cost_unit=name, name=name)
    timeline = simulate(graph, Schedule.from_sequence(graph, [0]))
    for kind in MAGIC:
        plot_timeline(timeline, tmp_path / f"t.{kind}", title=name)
        plot_plan(timeline, tmp_path / f"p.{kind}", title=name)
    MemoryPicture(kind="svg").write(hostile(), tmp_path / "any.name", budget=3)
    assert (tmp_path / "any.name").read_bytes().startswith(b"<?xml")


def test_nothing_to_draw_is_drawn(tmp_path: Path) -> None:
    timeline = simulate(EMPTY, Schedule.from_sequence(EMPTY, []))
    plot_timeline(timeline, tmp_path / "t.png")
    plot_plan(timeline, tmp_path / "p.png")
    plot_frontier(Frontier(graph=EMPTY, answers=()), tmp_path / "f.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in "tpf")


def test_global_state_is_untouched(tmp_path: Path) -> None:
    code = f"""
import sys
from checkmate import DFGraph, Schedule, simulate
from checkmate.report import plot_timeline
assert "matplotlib" not in sys.modules
graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
plot_timeline(simulate(graph, Schedule.from_sequence(graph, [0])), {str(tmp_path / "m.svg")!r})
from matplotlib import rcParams
print("matplotlib.pyplot" in sys.modules, rcParams["svg.hashsalt"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False None\n"), done.stderr


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in DRAW.values():
        with pytest.raises(MissingDistributionError, match=r"checkmate-core\[plot\]"):
            draw(tmp_path / "x.png")
