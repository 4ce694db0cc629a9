"""The public door for authors of solvers: clocks, sequences, and solutions sent between processes.

A solver is any object with a method ``solve(problem)``; :mod:`checkmate.plugins` registers it. This module
adds what a longer search needs:

- time: :class:`Deadline` and :data:`NEVER`; :func:`judging_s`, the CPU seconds of one simulation;
- schedules: :func:`lazy_sequence` and :func:`sequence_from_moments` make a sequence of ops from the tensors
  kept at one moment, or at some;
- processes: :func:`graph_bytes` writes a graph, :func:`claim_bytes` an answer; :func:`read_claim` reads an
  answer back, and :func:`judged` checks it;
- foreign code: :data:`ANYTHING` lists the exceptions to expect, :func:`one_line` makes a message of one.

The parts of the built-in solvers (evictions, pruning) are in :mod:`checkmate.heuristics`.
"""

from __future__ import annotations

from checkmate.files.claim import Claim, claim_bytes, read_claim
from checkmate.files.serialize import graph_bytes
from checkmate.model.lower import lazy_sequence, sequence_from_moments
from checkmate.plugins.loader import ANYTHING, one_line
from checkmate.problem.deadline import NEVER, Deadline
from checkmate.problem.problem import OnProgress, judging_s
from checkmate.solving.judging import judged

__all__ = [
    "ANYTHING",
    "NEVER",
    "Claim",
    "Deadline",
    "OnProgress",
    "claim_bytes",
    "graph_bytes",
    "judged",
    "judging_s",
    "lazy_sequence",
    "one_line",
    "read_claim",
    "sequence_from_moments",
]
