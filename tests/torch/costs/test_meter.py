"""The memory meter: byte counts known exactly, by arithmetic or by a law."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, profiler

from checkmate import ProfilerBusyError
from checkmate_torch.costs.meter import memory_meter, resident_bytes

KIB = 1024


def floats(kib: int) -> torch.Tensor:
    return torch.empty(kib * 256)


@given(st.lists(st.one_of(st.integers(1, 50), st.integers(-8, -1)), max_size=30))
def test_timeline_is_the_running_sum_of_allocations_and_releases(actions: list[int]) -> None:
    """Against a model: n > 0 makes n KiB, n < 0 releases the n-th last tensor, resident ones too."""
    alive = [floats(3), floats(5)]
    sizes = [3 * KIB, 5 * KIB]
    expected = [8 * KIB]
    with memory_meter(alive) as meter:
        for action in actions:
            if action > 0:
                alive.append(floats(action))
                sizes.append(action * KIB)
            elif sizes:
                index = action % len(sizes)
                del alive[index], sizes[index]
            else:
                continue
            expected.append(sum(sizes))
    assert meter.bytes.tolist() == expected
    assert (meter.base, meter.peak) == (8 * KIB, max(expected))
    assert len(meter.times_s) == len(expected)
    assert (meter.times_s[1:] >= meter.times_s[:-1]).all()


def test_every_kind_of_resident_counts_each_storage_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))  # 256; 64 + buffers 64 + 8
    parameters, buffers = 4 * (64 + 16), 4 * 16 + 8
    x = torch.zeros(4, 8)
    assert resident_bytes(model) == parameters + buffers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert resident_bytes(optimizer) == 0
    model(x).sum().backward()
    optimizer.step()
    assert resident_bytes(model) == 2 * parameters + buffers
    assert resident_bytes(optimizer) == parameters
    assert resident_bytes(model, optimizer, model.parameters(), [x, (x[1:], {"x": x.t()})]) == (
        3 * parameters + buffers + 4 * 32
    )


def test_tied_parameters_and_views_are_one_storage() -> None:
    first = nn.Linear(16, 16, bias=False)
    second = nn.Linear(16, 16, bias=False)
    second.weight = first.weight
    assert resident_bytes(first, second, first.weight[3:]) == KIB


def test_a_training_step_of_one_layer() -> None:
    """x[64, 32] @ W[32, 16] → y, mean → loss; backward: dy, dW; all but the step's temporaries by hand."""
    x, w = torch.zeros(64, 32), torch.zeros(32, 16, requires_grad=True)
    with memory_meter(x, w) as meter:
        y = x @ w
        y.backward(torch.ones(64, 16))
    assert meter.base == 4 * (64 * 32 + 32 * 16)
    out, grad = 4 * 64 * 16, 4 * 32 * 16
    assert meter.peak == meter.base + 2 * out + grad
    assert meter.bytes[-1] == meter.base + out + grad


def test_gradients_released_in_the_block_lower_the_count() -> None:
    model = nn.Linear(16, 16, bias=False)
    model(torch.zeros(1, 16)).sum().backward()
    with memory_meter(model) as meter:
        model.zero_grad()
    assert meter.bytes.tolist() == [2 * KIB, KIB]
    assert meter.peak == meter.base


def test_temporaries_inside_an_op_count() -> None:
    """Softmax cross entropy over float64 logits: the log-probabilities live only inside."""
    logits, target = torch.zeros(128, 64, dtype=torch.float64), torch.zeros(128, dtype=torch.long)
    with memory_meter(logits, target) as meter:
        nn.functional.cross_entropy(logits, target)
    assert meter.peak >= meter.base + logits.nbytes
    assert meter.bytes[-1] < meter.base + logits.nbytes


def test_nothing_but_tensors_counts() -> None:
    with memory_meter() as meter:
        bytes(10**6)
        list(range(10**5))
    assert (meter.base, meter.peak, meter.bytes.tolist()) == (0, 0, [0])


def test_the_meter_keeps_nothing_alive() -> None:
    x = floats(4)
    with memory_meter(x) as meter:
        del x
    assert meter.bytes.tolist() == [4 * KIB, 0]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")  # 2.11's
def test_nesting_and_other_profilers_are_refused_and_nothing_is_left_running() -> None:
    with memory_meter(), pytest.raises(ProfilerBusyError, match="inside another"), memory_meter():
        pass
    with (
        profiler.profile(activities=[profiler.ProfilerActivity.CPU]),
        pytest.raises(ProfilerBusyError),
        memory_meter(),
    ):
        pass
    with memory_meter() as meter:
        floats(1)
    assert meter.peak == KIB


def test_an_error_in_the_block_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), memory_meter():
        1 / 0  # noqa: B018
    with memory_meter() as meter:
        floats(1)
    assert meter.peak == KIB


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="can't measure memory on meta"), memory_meter(device="meta"):
        pass
    mixed = [torch.zeros(1), torch.zeros(1, device="meta")]
    with pytest.raises(ValueError, match="device="), memory_meter(mixed):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_peak() -> None:
    x = torch.zeros(2**20, device="cuda")
    with memory_meter(x) as meter:
        y = x.neg()
        del y
    assert meter.peak - meter.base == 4 * 2**20
    assert meter.bytes[-1] == meter.base


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_step_counts_of_an_optimizer_are_no_second_device() -> None:
    model = nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    with memory_meter(model, optimizer) as meter:
        pass
    assert meter.peak == meter.base > 0
