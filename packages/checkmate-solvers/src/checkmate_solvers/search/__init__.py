"""The state of one solve: the best schedule and bound so far, the time left, and the ways to add to them."""

from checkmate_solvers.search.decisions import (
    answer_easy_cases,
    await_machine_code,
    follow,
    has_machine_code,
    literal,
    mend,
    offer,
)
from checkmate_solvers.search.incumbent import Incumbent

__all__ = [
    "Incumbent",
    "answer_easy_cases",
    "await_machine_code",
    "follow",
    "has_machine_code",
    "literal",
    "mend",
    "offer",
]
