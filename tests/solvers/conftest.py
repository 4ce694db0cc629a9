"""The exhaustive oracle for the tests of this distribution; the same examples in every run, no deadlines."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import settings

from checkmate.testing import oracle as exhaustive

settings.register_profile("checkmate", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("many", settings.get_profile("checkmate"), max_examples=500)  # nox -s conformance
settings.load_profile("checkmate")


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """Its ``optimum(problem)`` is the cost of the cheapest schedule; infinite if there is none."""
    return exhaustive
