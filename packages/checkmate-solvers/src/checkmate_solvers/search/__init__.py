"""The state of one solve: the best schedule and bound so far, the time left, and the ways to add to them."""

from checkmate_solvers.search.decisions import answer_easy_cases, apply, keep, repair, sequence_of
from checkmate_solvers.search.incumbent import Incumbent

__all__ = ["Incumbent", "answer_easy_cases", "apply", "keep", "repair", "sequence_of"]
