"""Sections of a chain, and the bytes of each: the numbers that the dynamic programme works with.

A section is a few layers in a row, or just one. Between two sections the chain can be checkpointed; inside
one, either nothing is kept, or everything that its backward ops read. The last section is the turn: it has
backward ops only. Bytes are counted as the simulator does: tensor by tensor, freed as early as is legal.

Each backward op runs once, in order, so there is no choice about its outputs: the backward pass holds a fixed
number of bytes, r, when it comes to a section. Graph outputs that the forward pass makes count as held from
the start, which is the case from their first run on.
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
    """A few layers in a row, with input state x and output state y."""

    forward: tuple[int, ...]  # their forward ops; empty for the turn
    backward: tuple[int, ...]  # their backward ops, in the order in which they run
    cost: float  # of ``forward``
    reads_input: bool  # whether a backward op reads x
    keeps_output: bool  # whether a backward op reads y
    saves: bool  # whether the backward ops read any output of ``forward``, y included
    state: int  # bytes of y; 0 for the turn
    saved: int  # bytes of the outputs of ``forward`` that the backward ops read, y left out
    walk: int  # peak of ``forward`` if only y is kept of it, x being held and not counted
    leave: int  # the same, x being counted, and freed as soon as it has been read
    save: int  # peak of ``forward`` if y and the saved outputs are kept, x being held and not counted
    back: int  # peak of ``backward``, r counted, x not; r alone if there is no backward op
    finish: int  # the same, x being counted until it has been read for the last time
    gradients: int  # r, bytes that the backward pass holds when it comes to this section


def common_unit(rows: Sequence[Section]) -> int:
    """The greatest common divisor of all byte counts of all sections."""
    return math.gcd(*itertools.chain.from_iterable(row[6:] for row in rows)) or 1  # from ``state`` on


def sections(chain: Chain, cuts: Sequence[int]) -> tuple[list[Section], int]:
    """Cut a chain behind the layers ``cuts``: increasing numbers from 1 on, of which the last is p.

    Returns:
        The sections, first to last, and the bytes that no choice can free.
    """
    graph, p = chain.graph, chain.length
    live = liveness(graph, chain.order)
    n_runs = len(live.order)
    permanent = list({t for v in chain.forward for t in graph.ops[v].outputs}.intersection(graph.outputs))
    held = graph.sizes.copy()
    held[[*permanent, *graph.inputs]] = 0
    made = np.array([graph.sizes[list(op.outputs)].sum() for op in graph.ops], dtype=np.int64)
    fresh = (made + graph.workspaces)[list(chain.order)].tolist()
    states = [int(held[list(state)].sum()) for state in chain.states]
    walks = [sum(pair) for pair in zip(fresh[:p], states[:p], strict=True)]  # while a forward op runs

    def resident(tensors: Iterable[int]) -> npt.NDArray[np.int64]:
        """Bytes of these tensors that are held before each run of the base order, and at the end."""
        these, change = list(tensors), np.zeros(n_runs + 2, dtype=np.int64)
        np.add.at(change, live.first[these] + 1, held[these])
        np.subtract.at(change, live.last[these] + 1, held[these])
        return np.cumsum(change[:-1])

    def peak(runs: slice, tensors: Iterable[int]) -> int:
        """Most bytes during these runs if these tensors and the gradients are held."""
        return int((resident(tensors) + least)[runs].max(initial=0))

    gradients = resident(np.flatnonzero((live.first >= p) & (live.first < n_runs)))
    least = np.add(gradients, [*fresh, 0])
    rows: list[Section] = []
    end = n_runs
    for start, stop in zip([0, *cuts], [*cuts, p + 1], strict=True):
        forward = chain.forward[start:stop]
        backward = tuple(v for block in reversed(chain.blocks[start:stop]) for v in block)
        x, y = set(chain.states[start]), set(chain.states[stop] if forward else ())
        inner = set[int]().union(*chain.states[start + 1 : stop])
        read = set[int]().union(*(graph.ops[v].inputs for v in backward))
        saved = read.intersection(t for v in forward for t in graph.ops[v].outputs)
        run, back = slice(start, start + len(forward)), slice(end - len(backward), end)
        end = back.start
        rows.append(
            Section(
                forward=forward,
                backward=backward,
                cost=math.fsum(graph.ops[v].cost for v in forward),
                reads_input=not x.isdisjoint(read),
                keeps_output=not y.isdisjoint(read),
                saves=bool(saved),
                state=int(held[list(y)].sum()),
                saved=int(held[list(saved - y)].sum()),
                walk=max([*fresh[run][:1], *walks[run][1:]], default=0),
                leave=max(walks[run], default=0),
                save=peak(run, saved | inner),
                back=max(gradients[end], peak(back, saved)),
                finish=max(gradients[end], peak(back, saved | (x & read))),
                gradients=int(gradients[end]),
            )
        )
    return rows, graph.base_size + sum(graph.tensors[t].size for t in permanent)
