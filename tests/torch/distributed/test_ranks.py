"""Ranks: a page's example trains on two processes; one process asks no other.

``test_two_processes.py`` has the laws of training together, for the night.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from checkmate import DFGraph, Problem
from checkmate_torch import compile
from checkmate_torch.distributed.ranks import Ranks, decided_together, priced_together
from zoo.small_torch import mlp

PAGE = Path(__file__).parents[3] / "docs/how-to/train-on-several-devices.md"
LONGEST_S = 300.0
"""Far more than the example needs, unless something hangs."""

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this PyTorch comes without gloo"
)


def test_the_example_of_the_documentation_trains_on_two_processes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(# train\.py.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = dict(re.findall(r"rank (\d): (<Solution: .*?>)", done.stdout))  # the ranks share one stream
    assert sorted(said) == ["0", "1"]
    assert said["0"] == said["1"]


def test_a_rank_alone_asks_nothing() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    assert Ranks.of("all") is None
    assert priced_together(None, graph, lambda same: same) is graph
    with pytest.raises(ZeroDivisionError):
        decided_together(None, Problem(graph=graph, budget=6), lambda budget: 1 // (budget - 6))  # type: ignore[return-value]


def test_a_bad_process_group_is_refused_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="must be 'all', 'alone'"):
        compile(mlp(blocks=1, width=4, batch=2).module, "100%", process_group="some")
