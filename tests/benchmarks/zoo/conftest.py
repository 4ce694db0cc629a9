"""Graphs on which both front ends agree, though they never share a process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from checkmate import DFGraph


def fingerprint(graph: DFGraph) -> str:
    """A hash of the ops in any order (FLOPs, bytes read and made) and of the fixed bytes."""
    ops = [
        (op.backward, op.cost, *(sorted(graph.tensors[t].size for t in ts) for ts in (op.inputs, op.outputs)))
        for op in graph.ops
    ]
    return hashlib.sha256(json.dumps([sorted(ops), graph.fixed_size]).encode()).hexdigest()[:16]


@pytest.fixture(scope="session")
def agrees() -> Callable[[str, DFGraph], bool]:
    """Whether a graph of layers, at batch 1, is the one that every front end must make of that network."""
    agreed = json.loads((Path(__file__).parent / "agreed.json").read_text())
    return lambda name, graph: fingerprint(graph) == agreed[name]
