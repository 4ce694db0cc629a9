"""The memory picture: a PNG with all curves, drawn without pyplot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checkmate import MissingDistributionError
from checkmate.report.plot import plot_memory

CURVES = {"plain": ([0.0, 0.5, 1.0], [2**20, 3 * 2**20, 0]), "budget": ([0.0, 1.0], [2**20, 2**20])}


def test_the_picture_is_a_png_of_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    plot_memory(CURVES, 2 * 2**20, tmp_path / "memory.png", title="one step")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["plain: peak 3.0 MiB", "budget: peak 1.0 MiB", "budget: 2.0 MiB"]
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == (
        "memory held [MiB]",
        "time [s]",
        "one step",
    )
    assert axes.get_ylim()[0] == 0


def test_no_budget_no_line(tmp_path: Path) -> None:
    plot_memory(CURVES, None, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 1000


def test_global_state_is_untouched(tmp_path: Path) -> None:
    code = f"""
import sys
from checkmate.report.plot import plot_memory
assert "matplotlib" not in sys.modules
plot_memory({{"a": ([0.0], [1])}}, 1, {str(tmp_path / "m.png")!r})
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDistributionError, match=r"checkmate-core\[plot\]"):
        plot_memory(CURVES, 1, tmp_path / "memory.png")
