"""Laws of the roofline: never below either roof, and on one of them except for the launch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CostError, DFGraph, Op, Tensor
from checkmate.cost import DEVICES, Roofline, device_in_table, with_costs
from checkmate.testing.strategies import graphs

RATES = st.floats(1e-3, 1e15)


@given(graphs(), RATES, RATES, st.sampled_from([0.0, 1e-6, 2.0]))
def test_every_op_is_on_the_higher_roof(graph: DFGraph, flops: float, rate: float, launch_s: float) -> None:
    graph = with_costs(graph, graph.costs, "flop")
    timed = Roofline(flops_per_s=flops, bytes_per_s=rate, launch_s=launch_s).annotate(graph)
    assert timed.cost_unit == "s"
    for before, after in zip(graph.ops, timed.ops, strict=True):
        moved = sum(graph.tensors[t].size for t in (*before.inputs, *before.outputs))
        assert after.cost == pytest.approx(max(before.cost / flops, moved / rate) + launch_s)


def test_known_by_hand() -> None:
    """A matmul that is bound by arithmetic, and an add that is bound by memory."""
    graph = DFGraph(
        ops=(
            Op(name="matmul", inputs=(0,), outputs=(1,), cost=30.0),
            Op(name="add", inputs=(0, 1), outputs=(2,), cost=1.0),
        ),
        tensors=tuple(Tensor(name=str(t), size=10) for t in range(3)),
        inputs=(0,),
        outputs=(2,),
        cost_unit="flop",
    )
    timed = Roofline(flops_per_s=10.0, bytes_per_s=20.0, launch_s=0.25).annotate(graph)
    assert [op.cost for op in timed.ops] == [3.25, 1.75]


@pytest.mark.parametrize("name", DEVICES)
def test_devices_have_dense_figures_with_a_source(name: str) -> None:
    """Tensor cores are not slower than fp32; both 16-bit formats have the same speed."""
    device = DEVICES[name]
    rates = device.flops_per_s
    assert (
        rates["fp32"] <= rates.get("tf32", rates["fp16"]) <= rates["fp16"] == rates.get("bf16", rates["fp16"])
    )
    assert rates["fp32"] < rates["fp16"]
    assert 1e12 > device.bytes_per_s / 10 > 2e10
    on_label = float(name.partition("-")[2].removesuffix("GB"))
    assert 0.97 * on_label * 1e9 < device.memory_bytes < on_label * 2**30
    assert "datasheet" in device.source or "whitepaper" in device.source
    assert Roofline.of(name.lower(), launch_s=1e-6) == Roofline(
        flops_per_s=rates["fp32"], bytes_per_s=device.bytes_per_s, launch_s=1e-6
    )


@pytest.mark.parametrize(
    ("driver", "gigabytes", "name"),
    [
        ("NVIDIA A10G", 22.1, "A10G-24GB"),
        ("NVIDIA B200", 178.4, "B200-180GB"),
        ("NVIDIA GeForce RTX 3090", 23.7, "RTX3090-24GB"),
        ("NVIDIA GeForce RTX 5090", 31.4, "RTX5090-32GB"),
        ("NVIDIA L4", 22.0, "L4-24GB"),
        ("NVIDIA L40S", 44.4, "L40S-48GB"),
        ("NVIDIA RTX A6000", 47.5, "A6000-48GB"),
        ("Tesla T4", 14.6, "T4-16GB"),
        ("AMD Instinct MI300X", 191.7, "MI300X-192GB"),
    ],
)
def test_a_device_is_found_by_the_name_that_its_driver_gives_it(
    driver: str, gigabytes: float, name: str
) -> None:
    assert device_in_table(driver, gigabytes) == name


@pytest.mark.parametrize(
    "driver", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40"]
)
def test_another_card_of_the_same_number_is_not_in_the_table(driver: str) -> None:
    with pytest.raises(CostError, match="no roofline is known"):
        device_in_table(driver, 23.7)


def test_unknown_devices_and_formats_are_named() -> None:
    with pytest.raises(CostError, match=r"no device 'A100'.*did you mean .*'A100-80GB'"):
        Roofline.of("A100")
    with pytest.raises(CostError, match=r"no device 'toaster' in the table .*; For others"):
        Roofline.of("toaster")
    with pytest.raises(CostError, match=r"no figure for dtype 'bf16' on 'V100-16GB': \['fp32', 'fp16'\]"):
        Roofline.of("V100-16GB", "bf16")
    with pytest.raises(CostError, match=r"needs costs in 'flop'.* are in 's'"):
        Roofline.of("V100-16GB").annotate(with_costs(DFGraph(ops=(), tensors=()), [], "s"))


@pytest.mark.parametrize(
    "settings",
    [
        {"flops_per_s": 0.0, "bytes_per_s": 1.0},
        {"flops_per_s": 1.0, "bytes_per_s": float("inf")},
        {"flops_per_s": 1.0, "bytes_per_s": True},
        {"flops_per_s": 1.0, "bytes_per_s": 1.0, "launch_s": -1.0},
        {"flops_per_s": 1.0, "bytes_per_s": 1.0, "launch_s": float("nan")},
        {"flops_per_s": 1.0, "bytes_per_s": 1.0, "launch_s": "1us"},
        {"flops_per_s": 10**400, "bytes_per_s": 1.0},
    ],
)
def test_senseless_rates_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(CostError, match="must be a finite number"):
        Roofline(**settings)
