"""The garbage collector looks rarely while a step is planned, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from checkmate_tf.collecting import rare_collections


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_it_looks_rarely_inside_the_block_only() -> None:
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] > 10_000
        with rare_collections():
            pass
        assert gc.get_threshold()[0] > 10_000
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("often", [0, 10**6])
def test_a_collector_that_is_off_or_looks_rarely_is_left_alone(often: int) -> None:
    gc.set_threshold(often, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (often, 10, 10)
