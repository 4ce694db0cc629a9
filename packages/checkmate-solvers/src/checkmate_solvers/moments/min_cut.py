"""The parametric minimum cut: the linear relaxation of one moment, solved by maximum flows.

Price the bytes resident at the moment (see :mod:`checkmate_solvers.moments.moment`) with λ ≥ 0 and drop the
budget:

    L(λ) = min Σ c_o r_o + λ (Σ |T| x_T − room)

For any λ, L(λ) is a lower bound on the recomputation, and its minimum is a cut (a closure problem, Picard
1976): the source side holds the tensors and runs that are wanted after the moment. A wanted tensor wants its
op to run after the moment or is resident (x_T = 1, which costs λ |T|); an op that runs wants its inputs. It
runs again (r_o = 1, which costs c_o) or, where the order allows it, for the first time (a_o = 1), as then its
readers do, too. L is concave and piecewise linear; Newton's method on its two bracketing lines finds
the maximum in a few flows. As every vertex is integral, that maximum is the value of the linear relaxation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from checkmate import Problem, Solution
from checkmate.analysis import working_sets
from checkmate_solvers.moments.moment import Decision, Mask, Moment, crowded_ops, moment_at
from checkmate_solvers.search import Incumbent, answer_easy_cases, apply

__all__ = ["CUT_COST", "MinCut", "min_cut"]

_WHOLE = 2**29
"""Capacities are scaled to add up to at most this, and rounded down: SciPy's flows are int32."""
_INFINITE = 2**30
"""A capacity above any minimum cut; with a flow back along the same edge it still fits an int32."""
_MOST_STEPS = 40
"""Steps of Newton's method, at most; it mostly ends after a few."""
CUT_COST = 4
"""Cost of a minimum cut in simulations; it is skipped if less time is left."""
_MOST_OPS = 20_000
"""Ops that the networks of all moments may have together; with more ops, there are fewer moments."""
_LARGE = 4
"""For every four moments, one more is cut, at an op with one of the largest working sets."""
_Values = npt.NDArray[np.number]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinCut:
    """Bounds and schedules from single moments, in milliseconds; schedules that don't fit are repaired.

    Attributes:
        moments: how many moments of the order are cut, at least; more if the graph is small.
        plans: how many cuts become schedules, the strongest first.
    """

    moments: int = 8
    plans: int = 2

    def solve(self, problem: Problem) -> Solution:
        """Find the highest bound and the cheapest schedule of all moments."""
        best = Incumbent(problem)
        if not answer_easy_cases(best):
            with best.interruptible():
                self.improve(best)
        return best.solution()

    def improve(self, best: Incumbent) -> dict[int, float]:
        """Prove bounds, and apply the decisions of the strongest cuts.

        Returns:
            The bound of each moment, by its op, in base order; bounds below the highest may be given too
            low. Empty if no moment is crowded.
        """
        cuts: dict[int, Decision] = {}
        crowded, graph = crowded_ops(best.problem), best.problem.graph
        several = max(self.moments, _MOST_OPS // max(graph.n_ops, 1)) if self.moments > 1 else 1
        largest = sorted(crowded, key=(-working_sets(graph)).__getitem__)[: several // _LARGE]
        for at in [*crowded_ops(best.problem, several), *largest]:
            _cut_at(best, cuts, at)
        step = len(crowded) // several if several > 1 else 0
        while step and cuts and not best.done:
            middle = crowded.index(max(cuts, key=lambda at: cuts[at].recompute))
            for place in (middle - step, middle + step):
                if 0 <= place < len(crowded):
                    _cut_at(best, cuts, crowded[place])
            step //= 2
        strongest = sorted(cuts, key=lambda at: -cuts[at].recompute)
        for at in strongest[: self.plans]:
            if not best.done:
                apply(best, cuts[at].keep, "min-cut")
        return {at: cuts[at].recompute for at in sorted(cuts)}


def _cut_at(best: Incumbent, cuts: dict[int, Decision], at: int) -> None:
    """Cut at one more moment if there is time, and raise the bound."""
    if at in cuts or best.done or not best.clock.has_time_for(CUT_COST):
        return
    problem = best.problem
    moment = moment_at(problem.graph, problem.budget, at, fixed_order=problem.fixed_order)
    highest = max((cut.recompute for cut in cuts.values()), default=0.0)
    cuts[at] = min_cut(moment, enough=highest)
    best.raise_recompute_bound(cuts[at].recompute, f"min-cut at {problem.graph.op_label(at)}")


class _Line(NamedTuple):
    """One cut as a line: ``cost + λ · excess`` bounds L(λ) from above."""

    cost: float
    excess: int
    keep: Mask


def min_cut(moment: Moment, *, costs: _Values | None = None, enough: float = 0.0) -> Decision:
    """Maximise L(λ) over λ ≥ 0; keep the tensors of the cheapest cut found that fits.

    ``costs`` has the cost of running each op again, shape ``[n_ops]``, by default the graph's. As soon as no
    λ can prove more than ``enough``, the search ends, perhaps with a lower bound.
    """
    network = _Network(moment, moment.graph.costs if costs is None else costs)
    roomy, (proved, tight) = network.keep_all(), network.keep_least()
    if proved > 0:
        return Decision(recompute=math.inf, keep={moment.at: tight.keep})
    if roomy.excess <= max(tight.excess, 0):
        return Decision(recompute=0.0, keep={moment.at: roomy.keep})
    best = 0.0
    for _ in range(_MOST_STEPS):
        if roomy.excess <= tight.excess:  # in whole units of bytes the tightest cut was not the tightest
            break
        price = (tight.cost - roomy.cost) / (roomy.excess - tight.excess)
        met = roomy.cost + price * roomy.excess
        if price <= 0 or met <= enough:
            break
        value, line = network.cut(price)
        best = max(best, value)
        if line.cost + price * line.excess >= met * (1 - 1e-9) or line[:2] in (roomy[:2], tight[:2]):
            break
        if line.excess > 0:
            roomy = line
        else:
            tight = line
    return Decision(recompute=best, keep={moment.at: tight.keep})


class _Network:
    """The flow network of a moment: source 0, sink 1, then two nodes for each op, and one for each tensor.

    The nodes of an op say whether it runs after the moment, and whether it does so for the first time. For
    ops that ran before, the second is the sink. The moment does not decide pinned tensors, nor later ones.
    """

    def __init__(self, moment: Moment, costs: _Values) -> None:
        self.moment, graph = moment, moment.graph
        self.decided = moment.made & ~moment.pinned
        ran = moment.before | moment.unsure
        tensors, self.ops = np.flatnonzero(self.decided), np.flatnonzero(ran)
        self.sizes, self.costs = graph.sizes[tensors], costs[self.ops]
        self.runs_once = np.array([not graph.ops[v].recomputable for v in self.ops], dtype=np.bool_)
        self.n_nodes = 2 + 2 * graph.n_ops + graph.n_tensors
        again, first, tensor = np.split(np.arange(2, self.n_nodes), [graph.n_ops, 2 * graph.n_ops])
        first[~moment.unsure] = 1
        late, wanted = np.flatnonzero(moment.unsure), np.flatnonzero(moment.needed & self.decided)
        reader, read = graph.reads.rows, graph.reads.indices
        maker = graph.producer[read]
        runs = ran[reader] & self.decided[read]
        later = moment.unsure[reader] & np.append(moment.unsure, False)[maker]
        edges = [
            (again[self.ops], first[self.ops]),
            (tensor[tensors], again[graph.producer[tensors]]),
            (np.zeros(len(wanted), dtype=np.int64), tensor[wanted]),
            (again[reader[runs]], tensor[read[runs]]),
            (first[late], again[late]),
            (first[maker[later]], first[reader[later]]),
        ]
        self.edges = tuple(np.concatenate(ends) for ends in zip(*edges, strict=True))

    def keep_all(self) -> _Line:
        """λ = 0: everything needed is resident, nothing runs again."""
        side = np.zeros(self.n_nodes, dtype=np.bool_)
        side[-self.moment.graph.n_tensors :] = self.moment.needed
        return self._line(side)

    def keep_least(self) -> tuple[int, _Line]:
        """λ = ∞: every op that can run again does; only tensors that can't come back are resident.

        Returns:
            A proved lower bound on the excess, and a cut near it; exact up to 2^29 bytes in all, beyond that
            bytes are counted in whole units.
        """
        unit = -(-int(self.sizes.sum()) // _WHOLE) or 1
        flow, line = self._cut(np.zeros(len(self.ops)), self.sizes // unit)
        return flow * unit + self.moment.pinned_size - self.moment.room, line

    def cut(self, price: float) -> tuple[float, _Line]:
        """L(price), rounded down so that it is valid, and the cut that attains it."""
        total = max(float(self.costs[~self.runs_once].sum()), price * float(self.sizes.sum()))
        scale = _WHOLE / total
        flow, line = self._cut(self.costs * scale, self.sizes * (price * scale))
        return (flow - 1) / scale - price * (self.moment.room - self.moment.pinned_size), line

    def _cut(self, run: _Values, stored: _Values) -> tuple[int, _Line]:
        """The maximum flow if running ops again and storing tensors costs this, and a minimum cut."""
        capacities = np.full(len(self.edges[0]), _INFINITE, dtype=np.int32)
        capacities[: len(run)][~self.runs_once] = run[~self.runs_once]
        capacities[len(run) :][: len(stored)] = stored
        network = csr_array((capacities, self.edges), shape=(self.n_nodes, self.n_nodes))
        result = maximum_flow(network, 0, 1)
        side = np.zeros(self.n_nodes, dtype=np.bool_)
        side[breadth_first_order(network > result.flow, 0, return_predecessors=False)] = True
        return int(result.flow_value), self._line(side)

    def _line(self, side: Mask) -> _Line:
        """The source side of a cut, read as x, r and a."""
        graph, moment = self.moment.graph, self.moment
        runs, first, wanted = np.split(side[2:], [graph.n_ops, 2 * graph.n_ops])
        resident = self.decided & wanted & ~runs[graph.producer]
        held = int(graph.sizes[resident].sum()) + moment.pinned_size
        cost = float(self.costs[(runs & ~first)[self.ops]].sum())
        return _Line(cost, held - moment.room, ~self.decided | resident | first[graph.producer])
