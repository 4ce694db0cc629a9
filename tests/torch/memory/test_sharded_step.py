"""The peak of a rank's step under FSDP2: FSDP's code runs on fake tensors, and is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.torch.sharded_nets import NEEDS, WIDTH, Net, shard
from torch.distributed.device_mesh import init_device_mesh

from checkmate.report import Kind
from checkmate_torch import memory_meter
from checkmate_torch.memory.sharded_step import Part, Rehearsal
from checkmate_torch.private import fake_mode, fake_ranks, shard_alike, unsharded_twin

pytestmark = NEEDS
BATCH = 256


def sharded(**settings: object) -> Net:
    net = Net(blocks=3)
    shard(net, **settings)
    return net


@pytest.fixture(params=[2, 4])
def _ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    with fake_ranks(request.param):
        yield


def rehearsal(net: Net, batch: int = BATCH) -> tuple[Rehearsal, torch.Tensor]:
    """Of a twin, and its batch."""
    mode = fake_mode()
    twin = unsharded_twin(net, mode)
    found = Rehearsal(twin, [*twin.blocks], {Kind.RESERVE: 7}, None)
    with mode:
        shard_alike(net, twin, found.comm)
        return found, torch.empty(batch, WIDTH)


@pytest.mark.usefixtures("_ranks")
def test_the_plain_peak_is_what_a_meter_measures() -> None:
    net, x = sharded(), torch.randn(BATCH, WIDTH)
    for _ in range(2):
        net(x).backward()
        net.zero_grad()
    with memory_meter(net, x) as meter:
        net(x).backward()
    found, fake = rehearsal(net)
    found.record((fake,), {})
    peak = found.peak((fake,), {})
    assert peak.peak - 7 == pytest.approx(meter.peak, rel=0.01)
    assert sum(peak.by_kind.values()) == peak.peak
    assert peak.by_kind[Kind.RESERVE] == 7


def replicas() -> dict[str, object]:
    return {"mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(lambda: {"reshard_after_forward": False}, id="stay gathered"),
        pytest.param(lambda: {"reshard_after_forward": 2}, id="stay gathered in part"),
        pytest.param(replicas, id="replicas of shards"),
        pytest.param(lambda: {**replicas(), "reshard_after_forward": False}, id="replicas, gathered"),
    ],
)
def test_it_is_that_with_other_settings(settings: Callable[[], dict[str, object]]) -> None:
    with fake_ranks(4):
        net, x = sharded(**settings()), torch.randn(64, WIDTH)
        net(x).backward()
        net.zero_grad()
        with memory_meter(net, x) as meter:
            net(x).backward()
        found, fake = rehearsal(net, len(x))
        found.record((fake,), {})
        peak = found.peak((fake,), {})
    assert peak.peak - 7 == pytest.approx(meter.peak, rel=0.01)


@pytest.mark.usefixtures("_ranks")
def test_a_part_that_keeps_less_lowers_the_peak_by_no_more_than_that() -> None:
    found, x = rehearsal(sharded())
    calls = found.record((x,), {})
    assert [call.unit for call in calls] == [0, 1, 2]
    assert calls[0].key != calls[1].key  # they are other modules

    def peak(saved: int) -> int:
        part = Part(
            forward=0, saved=saved, backward=0, backward_alone=0, inputs=frozenset({0}), outputs=frozenset()
        )
        return found.peak((x,), {}, dict.fromkeys(range(3), part), calls).peak

    assert peak(2**21) - peak(2**20) == 3 * 2**20


@pytest.mark.usefixtures("_ranks")
def test_held_gradients_are_counted() -> None:
    found, x = rehearsal(sharded())
    found.record((x,), {})
    before = found.peak((x,), {})
    found.hold((x,), {}, reduced=True)
    after = found.peak((x,), {})
    assert Kind.EARLIER_GRADIENTS not in before.by_kind
    assert after.by_kind[Kind.EARLIER_GRADIENTS] == after.by_kind[Kind.PARAMETERS]
    assert found.peak((x,), {}) == after  # a rehearsal leaves nothing behind


@pytest.mark.usefixtures("_ranks")
def test_the_model_is_left_as_it_was() -> None:
    net = sharded()
    before = [*net.parameters()]
    rehearsal(net)
    assert all(a is b for a, b in zip(before, net.parameters(), strict=True))
    assert type(net.blocks[0]).__name__ == "FSDPBlock"
