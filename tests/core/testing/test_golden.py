"""The golden corpus against the oracle: every optimum is confirmed."""

from __future__ import annotations

import pytest

from checkmate.testing.golden import Golden, golden_problems
from checkmate.testing.oracle import optimum


@pytest.mark.parametrize("golden", golden_problems(), ids=lambda golden: golden.name)
def test_the_known_optimum_is_the_optimum(golden: Golden) -> None:
    assert optimum(golden.problem) == golden.optimum


def test_names_are_unique() -> None:
    names = [golden.name for golden in golden_problems()]
    assert len(set(names)) == len(names)
