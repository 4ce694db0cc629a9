"""Sections of a chain, and the bytes of each: the numbers that the dynamic programme works with.

A section is one layer, or a few in a row. Its input state is x, its output state y. Between two sections the
chain can be checkpointed; inside one, either nothing is kept, or everything that its backward ops read. The
last section is the turn: it has backward ops only. Bytes are counted as the simulator does: tensor by tensor,
each freed as early as is legal.

Each backward op runs once, in order, so there is no choice about its outputs: when the backward pass comes to
a section, it holds a fixed number of bytes of gradients. Graph outputs that the forward pass makes count as
held from the start, although they are only held once they are made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkmate.analysis import liveness
from checkmate_solvers.chains.structure import Chain

__all__ = ["Section", "common_unit", "sections"]


class Section(NamedTuple):
    """A few layers in a row, with input state x and output state y. Sizes and peaks are bytes."""

    forward: tuple[int, ...]  # the forward ops; empty for the turn
    backward: tuple[int, ...]  # the backward ops, in the order in which they run
    cost: float  # of ``forward``
    reads_input: bool  # whether a backward op reads x
    keeps_output: bool  # whether a backward op reads y
    saves: bool  # whether the backward ops read any output of ``forward``, y included
    state_size: int  # bytes of y; 0 for the turn
    saved_size: int  # bytes of the outputs of ``forward`` that the backward ops read, without y
    walk_peak: int  # of ``forward`` if only y is kept, without x
    leave_peak: int  # of ``forward`` if only y is kept, with x, which is freed as soon as it has been read
    save_peak: int  # of ``forward`` if y and the saved outputs are kept, without x
    backward_peak: int  # of ``backward``, gradients included, without x; the gradients if there is no op
    finish_peak: int  # like ``backward_peak``, with x until its last read
    gradients_size: int  # bytes that the backward pass holds when it comes to this section


def common_unit(rows: Sequence[Section]) -> int:
    """The greatest common divisor of all byte counts of all sections."""
    return math.gcd(*itertools.chain.from_iterable(row[6:] for row in rows)) or 1  # from ``state_size`` on


def sections(chain: Chain, cuts: Sequence[int]) -> tuple[list[Section], int]:
    """Cut a chain behind the layers ``cuts``: increasing numbers from 1 on, of which the last is p.

    Returns:
        The sections, first to last, and the bytes that no choice can free.
    """
    counts = _ByteCounts(chain)
    rows: list[Section] = []
    end = len(chain.order)
    for start, stop in itertools.pairwise([0, *cuts, chain.length + 1]):
        rows.append(_section(chain, counts, start, stop, end))
        end -= len(rows[-1].backward)
    return rows, counts.permanent_size


def _section(chain: Chain, counts: _ByteCounts, start: int, stop: int, end: int) -> Section:
    """The section of the layers ``start`` + 1 … ``stop``, whose backward ops end before run ``end``."""
    ops = chain.graph.ops
    forward = chain.forward[start:stop]
    backward = tuple(v for block in reversed(chain.blocks[start:stop]) for v in block)
    forward_runs = slice(start, start + len(forward))
    backward_runs = slice(end - len(backward), end)
    x = set(chain.states[start])
    y = set(chain.states[stop] if forward else ())
    between = {t for state in chain.states[start + 1 : stop] for t in state}
    read = {t for v in backward for t in ops[v].inputs}
    saved = read & {t for v in forward for t in ops[v].outputs}
    gradients = int(counts.gradients[backward_runs.start])
    with_x, without_x = counts.with_input[forward_runs], counts.running[forward_runs]
    return Section(
        forward=forward,
        backward=backward,
        cost=math.fsum(ops[v].cost for v in forward),
        reads_input=not x.isdisjoint(read),
        keeps_output=not y.isdisjoint(read),
        saves=bool(saved),
        state_size=counts.size(y),
        saved_size=counts.size(saved - y),
        walk_peak=int(max([*without_x[:1], *with_x[1:]], default=0)),  # only the first op reads x
        leave_peak=int(with_x.max(initial=0)),
        save_peak=counts.peak(forward_runs, saved | between),
        backward_peak=max(gradients, counts.peak(backward_runs, saved)),
        finish_peak=max(gradients, counts.peak(backward_runs, saved | (x & read))),
        gradients_size=gradients,
    )


class _ByteCounts:
    """Bytes along the base order of a chain, one place for each run.

    Attributes:
        permanent_size: bytes that no choice can free; no other attribute counts them.
        running: bytes that the op itself needs: outputs and workspace.
        with_input: ``running`` and the state that the op reads, for each forward op.
        gradients: bytes of backward ops' outputs that are held before each run, and after the last.
    """

    def __init__(self, chain: Chain) -> None:
        graph, first_backward = chain.graph, chain.length
        self._live = liveness(graph, chain.order)
        self._n_runs = len(chain.order)
        permanent = {t for v in chain.forward for t in graph.ops[v].outputs}.intersection(graph.outputs)
        self.permanent_size = graph.base_size + sum(graph.tensors[t].size for t in permanent)
        self._sizes = graph.sizes.copy()
        self._sizes[[*permanent, *graph.inputs]] = 0
        made = np.array([graph.sizes[list(op.outputs)].sum() for op in graph.ops], dtype=np.int64)
        self.running = (made + graph.workspaces)[list(chain.order)]
        states = np.array([self.size(state) for state in chain.states[:-1]], dtype=np.int64)
        self.with_input = self.running[: chain.length] + states
        is_gradient = (self._live.first >= first_backward) & (self._live.first < self._n_runs)
        self.gradients = self._held(np.flatnonzero(is_gradient).tolist())

    def size(self, tensors: Iterable[int]) -> int:
        """Bytes of these tensors."""
        return int(self._sizes[list(tensors)].sum())

    def peak(self, runs: slice, tensors: Iterable[int]) -> int:
        """Most bytes during these runs if these tensors and the gradients are held."""
        total = self.running + self.gradients[:-1] + self._held(tensors)[:-1]
        return int(total[runs].max(initial=0))

    def _held(self, tensors: Iterable[int]) -> npt.NDArray[np.int64]:
        """Bytes of these tensors that are held before each run of the base order, and after the last."""
        these, change = list(tensors), np.zeros(self._n_runs + 2, dtype=np.int64)
        np.add.at(change, self._live.first[these] + 1, self._sizes[these])
        np.subtract.at(change, self._live.last[these] + 1, self._sizes[these])
        return np.cumsum(change[:-1])
