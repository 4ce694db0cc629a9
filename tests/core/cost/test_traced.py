"""The roofline of a traced graph: each op by its own number format, and a machine that is measured once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkmate import CostError, DFGraph
from checkmate.cost import MeasuredOps, Roofline, in_formats, measured_roofline


def test_each_op_is_priced_in_its_own_format_and_none_means_0() -> None:
    counted = DFGraph.from_nodes(cost=[8, 8, 8], size=[0, 0, 0], deps=[[], [0], [1]], cost_unit="flop")
    rates = {"fp32": 2.0, "fp16": 4.0}
    timed = in_formats(
        counted, ["fp32", "fp16", None], lambda form: Roofline(flops_per_s=rates[form], bytes_per_s=1)
    )
    assert [op.cost for op in timed.ops] == [4, 2, 0]
    assert timed.cost_unit == "s"


def test_a_format_without_hardware_support_is_priced_as_fp32() -> None:
    assert Roofline.nearest("a100-80gb", "fp16") == Roofline.of("A100-80GB", "fp16")
    assert Roofline.nearest("A100-80GB", "fp64") == Roofline.of("A100-80GB")
    with pytest.raises(CostError, match="no device"):
        Roofline.nearest("abacus", "fp32")


def test_a_machine_is_measured_once(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def ready(side: int, numbers: int) -> tuple[Callable[[], object], Callable[[], object]]:
        asked.append((side, numbers))
        return lambda: time.sleep(1e-3), lambda: time.sleep(2e-3)

    table = MeasuredOps({"device": "x"}, tmp_path)
    found = [measured_roofline(table, "copy", ready, on_disk=True) for _ in range(2)]
    assert found[0] == found[1]
    ((side, numbers),) = asked
    assert found[0].flops_per_s <= 2 * side**3 / 1e-3
    assert found[0].bytes_per_s <= 2 * 4 * numbers / 2e-3
    measured_roofline(table, "copy", ready, on_disk=False)
    assert len(asked) == 2
