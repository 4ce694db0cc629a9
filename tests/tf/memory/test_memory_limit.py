"""A step trains under a limit of TensorFlow's allocator that equals its budget, in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.executed_batches import _tried
from steps import tf_limit
from steps.process import measured

LIMIT_MIB = 11
"""Three quarters of the memory that the plain step needs."""
TASK: dict[str, Any] = {"network": "transformer", "sizes": {"blocks": 1, "batch": 16}, "time_limit": 1.0}


def limited(method: str, counts: str) -> dict[str, Any]:
    """Three steps of a network under the limit, or the failure."""
    own = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(LIMIT_MIB)}
    return measured("tf_limit", TASK | {"method": method, "counts": counts}, own=own)


def test_a_step_trains_where_its_budget_is_all_memory_that_there_is() -> None:
    ours = limited("checkmate", "allocator")
    assert "failed" not in ours, ours["failed"]
    unlimited = tf_limit.measure(TASK | {"method": "plain", "counts": "live"})
    assert ours["losses"] == pytest.approx(unlimited["losses"], rel=1e-5)
    assert ours["expected"] <= LIMIT_MIB * 2**20
    assert "ResourceExhaustedError" in limited("plain", "live")["failed"]


def test_a_batch_that_stock_tensorflow_has_no_memory_for_trains_at_less_than_one_more_forward_pass() -> None:
    task = {"network": "mobilenet", "side": 64, "batch": 40, "time_limit": 1.0, "limit": 128}
    stock, ours = (_tried("tf_batch", task | {"method": method}) for method in ("stock", "ours"))
    assert stock == {"failed": "out of memory"}
    assert ours["cost"] <= ours["most_cost"]
    assert ours["loss"] > 0
