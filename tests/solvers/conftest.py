"""The exhaustive oracle for the tests of this distribution."""

from __future__ import annotations

from types import ModuleType

import pytest

from checkmate.testing import oracle as exhaustive


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """Its ``optimum(problem)`` is the cost of the cheapest schedule; infinite if there is none."""
    return exhaustive
