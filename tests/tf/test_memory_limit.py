"""A step trains under a limit of TensorFlow's allocator that equals its budget, in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.executed_batches import _tried
from steps.process import measured

LIMIT_MIB = 122
"""60 % of the memory that the plain step needs."""


def training(method: str, counts: str = "live", limit_mib: int | None = LIMIT_MIB) -> dict[str, Any]:
    """Three steps of a network, or the failure."""
    task = {"network": "unet", "method": method, "counts": counts, "time_limit": 1.0}
    own = {} if limit_mib is None else {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit_mib)}
    return measured("tf_limit", task, own=own)


def test_a_step_trains_where_its_budget_is_all_memory_that_there_is() -> None:
    ours = training("checkmate", "allocator")
    assert "failed" not in ours, ours["failed"]
    assert ours["losses"] == pytest.approx(training("plain", limit_mib=None)["losses"], rel=1e-5)
    assert ours["expected"] <= LIMIT_MIB * 2**20
    assert "ResourceExhaustedError" in training("plain")["failed"]


def test_a_batch_that_stock_tensorflow_has_no_memory_for_trains_at_less_than_one_more_forward_pass() -> None:
    task = {"network": "mobilenet", "side": 64, "batch": 40, "time_limit": 1.0, "limit": 128}
    stock, ours = (_tried("tf_batch", task | {"method": method}) for method in ("stock", "ours"))
    assert stock == {"failed": "out of memory"}
    assert ours["cost"] <= ours["most_cost"]
    assert ours["loss"] > 0
