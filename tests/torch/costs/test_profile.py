"""Per-op profiles: exact workspaces, and no side effects."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn, profiler
from torch.nn.functional import scaled_dot_product_attention

from checkmate import ProfilerBusyError
from checkmate_torch import trace
from checkmate_torch.costs.allocations import AllocationRecorder, allocation_events
from checkmate_torch.costs.profile import profile_op
from checkmate_torch.ops.device import machine_of

CPU = torch.device("cpu")
KIB = 1024


def test_the_workspace_is_the_peak_beyond_the_outputs() -> None:
    x = torch.zeros(256)  # 1 KiB

    def call() -> torch.Tensor:
        return x.neg().neg().neg()  # two temporaries, of which one dies before the output is made

    assert profile_op(call, CPU).workspace == KIB


def test_all_outputs_count_as_outputs() -> None:
    x = torch.zeros(256)
    assert profile_op(lambda: (x.neg(), x.abs(), [x.exp()]), CPU).workspace == 0


def test_views_and_inputs_as_outputs_need_no_workspace() -> None:
    x = torch.zeros(256)
    assert profile_op(lambda: (x, x.view(16, 16)), CPU).workspace == 0


def test_temporaries_inside_a_native_op_are_seen() -> None:
    x, w = torch.zeros(2, 8, 16, 16), torch.zeros(8, 8, 3, 3)
    grad = torch.zeros(2, 8, 16, 16)
    backward = torch.ops.aten.convolution_backward.default
    args = ([0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    first, second = (profile_op(lambda: backward(grad, x, w, *args), CPU) for _ in range(2))
    assert first.workspace == second.workspace


def test_seconds_are_positive_and_the_random_stream_is_untouched() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert profile_op(lambda: torch.rand(100), CPU).seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_the_op_runs_at_least_four_times_and_a_bounded_number_of_times() -> None:
    runs: list[int] = []
    profile_op(lambda: runs.append(1), CPU)
    assert 4 <= len(runs) <= 30


def test_an_error_in_the_op_passes_through_and_ends_the_recording() -> None:
    with pytest.raises(ZeroDivisionError):
        profile_op(lambda: 1 / 0, CPU)
    assert profile_op(lambda: torch.zeros(1), CPU).workspace == 0


def test_this_machine_is_named() -> None:
    machine = machine_of(CPU)
    assert machine["torch"] == torch.__version__
    assert machine["threads"] == "1"
    assert machine["device"]


def test_recorder_sees_every_event_in_order() -> None:
    with AllocationRecorder() as recorder:
        x = torch.empty(256)
        y = torch.empty(512)
        del x
        z = torch.empty(128)
        del y
    assert recorder.events.deltas.tolist() == [KIB, 2 * KIB, -KIB, KIB // 2, -2 * KIB]
    assert (recorder.events.peak, recorder.events.final) == (3 * KIB, KIB // 2)
    assert (recorder.events.times_s[1:] >= recorder.events.times_s[:-1]).all()
    assert z.numel() == 128


def test_releases_of_older_storages_are_left_out() -> None:
    with AllocationRecorder():
        old = torch.empty(100)  # the profiler has its size on record from here on
    with AllocationRecorder() as recorder:
        del old
        torch.empty(256)
    assert recorder.events.deltas.tolist() == [KIB, -KIB]


def test_recorder_agrees_with_the_public_profiler() -> None:
    x = torch.randn(64, 64, requires_grad=True)

    def step() -> None:
        torch.nn.functional.gelu(x @ x).sum().backward()
        x.grad = None

    step()
    with AllocationRecorder() as recorder:
        step()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    tree = prof.profiler.kineto_results.experimental_event_tree()
    assert recorder.events.deltas.tolist() == allocation_events(tree).deltas.tolist()


def test_nesting_is_refused() -> None:
    with AllocationRecorder(), pytest.raises(ProfilerBusyError, match="inside another"):
        AllocationRecorder().__enter__()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]), pytest.raises(ProfilerBusyError):
        AllocationRecorder().__enter__()


def test_an_empty_recording_is_zero() -> None:
    with AllocationRecorder() as recorder:
        pass
    assert (recorder.events.peak, recorder.events.final, len(recorder.events.deltas)) == (0, 0, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_workspace_is_exact() -> None:
    device = torch.device("cuda")
    x = torch.zeros(256 * KIB, device=device)
    profile = profile_op(lambda: x.neg().neg().neg(), device)
    assert profile.workspace == 1024 * KIB
    assert profile.seconds > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_with_dropout_is_profiled_on_cuda(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Some kernels read the seed of dropout on the CPU; fake tensors show it on the GPU."""

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(x, x, x, dropout_p=0.1)

    x = torch.randn(2, 4, 128, 64, dtype=dtype, device="cuda", requires_grad=True)
    caplog.set_level(logging.INFO, "checkmate_torch.costs.price")
    traced = trace(Attention(), x, loss=lambda y: y.float().square().mean(), cost_model="profiled")
    assert sum("attention" in op.name for op in traced.graph.ops) == 2
    assert "can't be profiled" not in caplog.text
