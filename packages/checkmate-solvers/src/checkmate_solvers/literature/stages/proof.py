r"""A lower bound on the cost of all schedules whose first runs come in base order: a relaxation in stages.

Unlike in the paper's program, ops may run in any order within a stage, and many times; stage t ends with the
first run of op t. For such a schedule within the budget let R[t, k] = 1 if op k runs in stage t, S[t, u] = 1
if tensor u is resident right after the last step of stage t − 1, and Q[t, u] = 1 if one copy of u is resident
throughout stage t. Then

    R[t, j] ≤ R[t, p(u)] + S[t, u]                     j reads u
    S[t + 1, u] ≤ R[t, p(u)] + Q[t, u]                 u was there all the time, or has been made
    Q[t, u] ≤ S[t, u],   Q[t, u] + R[t, p(u)] ≤ 1
    Σ_{u neither read nor made by t} |u| S[t + 1, u] + |inputs of t| + fresh(t) ≤ room
    Σ_{u not read by k} |u| Q[t, u] + (|inputs of k| + fresh(k)) R[t, k] ≤ room

where fresh(k) are the outputs of k and its workspace, minus the inputs that k reuses: the last two are the
memory while op t first runs, which ends the stage, and while k runs at any time in it. The cost is at least
Σ c_k R[t, k]. So the optimum is a lower bound; and if each op reads something that the one before it makes,
there is no other order than the base order.
"""

from __future__ import annotations

import numpy as np

from checkmate_solvers.engines.program import Backend, Draft, Program
from checkmate_solvers.literature.stages.shape import Needed, Shape
from checkmate_solvers.moments.min_cut import MinCut
from checkmate_solvers.search import Incumbent

__all__ = ["proof_program", "prove"]

_SHARE = 0.4
"""Of the remaining time, for the bound."""


def prove(best: Incumbent, needed: Needed, backend: Backend, *, gap: float | None = None) -> None:
    """Raise the bound by a relaxation that every schedule of the problem satisfies.

    Where schedules may reorder, a program in stages is none; minimum cuts at single moments take its place.

    Args:
        best: receives the bound.
        needed: the needed part of its graph.
        backend: solves the program.
        gap: relative to the cost of the whole schedule, at which to stop; None = solve the linear relaxation
            alone.
    """
    problem = best.problem
    if not (problem.fixed_order or needed.in_one_order):
        MinCut(plans=0).improve(best)
        return
    deadline = best.clock.deadline.part(_SHARE)
    shape = Shape(graph=needed.graph, room=problem.budget - needed.graph.base_size)
    program = proof_program(shape)
    outcome = backend.solve(program.relaxed(), time_limit=deadline.left_s, gap=0.0)
    best.prove(outcome.bound * shape.cost_unit, "stages, linear")
    if gap is not None and not best.done:
        relative = best.recompute_gap(gap)
        outcome = backend.solve(program, time_limit=deadline.left_s, gap=relative)
        best.prove(outcome.bound * shape.cost_unit, "stages")


def proof_program(shape: Shape) -> Program:
    """Build the program, in cost units of the shape; it counts recomputation only."""
    draft = Draft()
    compute, retain = shape.computes(draft), shape.retains(draft)
    here, following = retain[:-1], retain[1:]
    through = draft.columns(here >= 0)
    making = np.where(here >= 0, compute[:, shape.maker], -1)
    tensor, op = shape.reads
    draft.rows(
        (compute[:, shape.maker[tensor]], 1.0),
        (here[:, tensor], 1.0),
        (compute[:, op], -1.0),
        lower=0.0,
        where=compute[:, op] >= 0,
    )
    draft.rows(
        (following, -1.0), (compute[:, shape.maker], 1.0), (through, 1.0), lower=0.0, where=following >= 0
    )
    draft.rows((here, 1.0), (through, -1.0), lower=0.0, where=through >= 0)
    draft.rows((through, 1.0), (making, 1.0), upper=1.0, where=through >= 0)

    n_ops = shape.graph.n_ops
    needs = shape.least_fresh + np.bincount(op, shape.sizes[tensor], n_ops)
    ends = draft.rows((compute.diagonal(), needs), upper=shape.limit)
    touched = np.zeros((n_ops, len(shape.kept)), dtype=np.bool_)
    touched[shape.uses.op, shape.uses.tensor] = True
    draft.extend(ends[:, None], np.where(touched, -1, following[:n_ops]), shape.sizes)

    held = draft.columns(np.ones(shape.n_stages, dtype=np.bool_), most=shape.limit)
    total = draft.rows((held, -1.0), lower=0.0, upper=0.0)
    draft.extend(total[:, None], through, shape.sizes)
    during = draft.rows((compute, needs), upper=shape.limit, where=compute >= 0)
    draft.extend(during, held[:, None], 1.0)
    draft.extend(during[:, op], through[:, tensor], -shape.sizes[tensor])
    return draft.program()
