"""What a policy of another tool costs beside the best schedule, as both framework packages say it."""

from __future__ import annotations

from checkmate.problem.solution import Solution
from checkmate.units import format_bytes

__all__ = ["proved_overhead", "verdict"]


def proved_overhead(solution: Solution) -> float:
    """The proved bound of a solution, as a share of the cost without recomputation; 0 = nothing is proved."""
    ideal = solution.problem.graph.ideal_cost
    return max(0.0, solution.bound / ideal - 1) if ideal > 0 else 0.0


def verdict(
    policy: str, peak: int, budget: int, overhead: float, best_overhead: float | None, bound: float
) -> str:
    """The prediction of a policy in one line, and what is lost against a schedule of our own.

    Args:
        policy: in words.
        peak: of the policy, in bytes.
        budget: in bytes.
        overhead: of the policy, as a share of the cost without recomputation.
        best_overhead: that of a schedule of our own within the budget; None = none is known.
        bound: no schedule within the budget has a lower overhead; 0 = nothing is proved.

    >>> verdict("every 2", 2**30, 2**31, 0.25, 0.05, 0.04)
    'every 2: 1.00 GiB of 2.00 GiB at +25.0%; our own schedule: +5.0%, proved: at least +4.0%'
    """
    text = f"{policy}: {format_bytes(peak)} of {format_bytes(budget)} at {overhead:+.1%}"
    if best_overhead is None:
        return text
    proved = f", proved: at least {bound:+.1%}" if bound > 0 else ""
    return f"{text}; our own schedule: {best_overhead:+.1%}{proved}"
