"""Plans for a GPU that is not here: what is traced, what is counted, and what it costs."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from checkmate import CostError, UnsupportedModelError, keep_all_peak
from checkmate.cost import DEVICES, device_in_table
from checkmate.plugins import Solver
from checkmate_torch import compile, max_batch_size, plan, plan_step, trace
from checkmate_torch.api.trace import TracedModel
from checkmate_torch.capture.dynamo_capture import NotOneGraphError
from checkmate_torch.capture.target_kernels import AttentionCall, AttentionKernel
from checkmate_torch.costs.workspaces import library_bytes
from checkmate_torch.ops import device as target
from checkmate_torch.private import fake_mode

H100 = "cuda:H100-80GB"


class Block(nn.Module):
    """Attention and a network with dropout."""

    def __init__(self, width: int = 64, *, masked: bool = False) -> None:
        super().__init__()
        self.project, self.masked = nn.Linear(width, 3 * width), masked
        self.network = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same."""
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device) if self.masked else None
        y = scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask, dropout_p=0.1)
        return x + self.network(y.transpose(1, 2).reshape(x.shape))


class Cast(nn.Linear):
    """A linear layer under autocast for CUDA."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs] → [batch, outputs]."""
        with torch.autocast("cuda", torch.bfloat16):
            return super().forward(x)


def _loss(y: Tensor | tuple[Tensor, ...]) -> Tensor:
    return (y if isinstance(y, Tensor) else y[0]).float().square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (lambda: nn.Sequential(Block(), Block()).bfloat16(), (4, 40, 64)),
    "mask": (lambda: Block(masked=True).bfloat16(), (4, 40, 64)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(), nn.Conv2d(8, 4, 3)
        ),
        (2, 3, 16, 16),
    ),
    "recurrent": (lambda: nn.LSTM(8, 16, 2), (5, 3, 8)),
}


def _traced(name: str, device: str | None) -> TracedModel:
    make, shape = CASES[name]
    model = make()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    return trace(model, x, loss=_loss, device=device)


def _devices(traced: TracedModel) -> set[str]:
    values = [node.meta.get("val") for node in traced.traced.primals]
    return {value.device.type for value in values if isinstance(value, Tensor)}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_blocks_of_the_allocator(name: str) -> None:
    """Every tensor takes whole blocks; cuBLAS's workspaces are held; the simulator agrees on the peak."""
    traced = _traced(name, H100)
    assert _devices(traced) == {"cuda" if torch.cuda.is_available() else "cpu"}
    assert all(tensor.size % 512 == 0 for tensor in traced.graph.tensors)
    assert sum(traced.account.fixed.values()) == traced.graph.fixed_size >= 2 * 32 * 2**20
    assert traced.plain_peak == pytest.approx(keep_all_peak(traced.graph), rel=0.01)


def test_autocast_for_cuda_casts() -> None:
    """PyTorch turns it off where it finds no GPU; a trace for one does not."""
    traced = trace(Cast(64, 64, bias=False), torch.randn(64, 64), loss=_loss, device=H100)
    (product,) = (
        t for op in traced.graph.ops if op.name.startswith("mm") for t in op.outputs if not op.backward
    )
    assert traced.graph.tensors[product].size == 2 * 64 * 64


class _Mixed(nn.Module):
    """Functions that CUDA's autocast runs in float32, and cross entropy."""

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] → []."""
        with torch.autocast("cuda", torch.bfloat16):
            y = x @ x.t()
            z = nn.functional.layer_norm(y, y.shape[-1:]).exp() + y.softmax(-1) ** 2
            return nn.functional.cross_entropy(z.bfloat16(), torch.arange(len(x), device=x.device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_autocast_for_cuda_widens_what_cuda_does() -> None:
    """Norm, softmax, exp and pow have 4 bytes a number, the product and the logarithms 2."""
    traced = trace(_Mixed(), torch.randn(64, 64, requires_grad=True), device=H100)
    made = {op.name: traced.graph.tensors[op.outputs[0]].size for op in traced.graph.ops if not op.backward}
    wide, half = 4 * 64 * 64, 2 * 64 * 64
    names = ("mm", "native_layer_norm", "exp", "_softmax", "pow_1", "_log_softmax")
    assert [made[name] for name in names] == [half, wide, wide, wide, wide, half]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_dropout_of_plain_pytorch_keeps_booleans_on_cuda() -> None:
    """On a CPU it keeps the factors, numbers like its input."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 64)), torch.randn(256, 64)
    here, there = (trace(model, x, loss=_loss, device=device).plain_peak for device in ("cpu", H100))
    libraries = 2 * 32 * 2**20
    assert here is not None
    assert there is not None
    assert 2 * 256 * 64 <= here - (there - libraries) <= 3 * 256 * 64


def test_a_plan_for_another_device() -> None:
    """Costs are its roofline's; ``"auto"`` is its memory; the model stays where it is, and as it is."""
    model, x = Block(), torch.randn(4, 40, 64)
    fast, slow = (plan(model, x, "auto", loss=_loss, device=device) for device in (H100, "v100-16gb"))
    assert fast.problem.graph.cost_unit == "s"
    assert sum(op.cost for op in fast.problem.graph.ops) < sum(op.cost for op in slow.problem.graph.ops)
    assert 0.85 * DEVICES["H100-80GB"].memory_bytes < fast.problem.budget < DEVICES["H100-80GB"].memory_bytes
    assert all(p.device.type == "cpu" and p.grad is None for p in model.parameters())


def test_the_largest_batch_of_another_device() -> None:
    layer = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    asked = {"loss": _loss, "device": H100, "split": False}
    found = max_batch_size(lambda n: torch.zeros(n, 256), layer, "80MiB", **asked)
    assert found.solution.problem.graph.fixed_size == 2 * 32 * 2**20
    assert 1000 < found.size < 8000


def test_a_whole_step_for_another_device() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    adam = torch.optim.AdamW(model.parameters())

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return _loss(model(x))

    solution = plan_step(model, loss_fn, adam, (torch.randn(8, 256),), "100%", device="A100-80GB")
    assert solution.peak is not None
    assert solution.peak <= solution.problem.budget
    assert all(tensor.size % 512 == 0 for tensor in solution.problem.graph.tensors)


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cuda:H100", {}, r"no device 'H100' in the table .*did you mean 'H100-80GB'\?.*a budget in bytes"),
        ("tpu", {}, "no device 'tpu' in the table"),
        (H100, {"cost_model": "profiled"}, r"can't be measured for device='H100-80GB'.*roofline-H100-80GB"),
        (H100, {"workspaces": True}, "can't be measured for device='H100-80GB'"),
    ],
)
def test_devices_that_are_none(device: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(CostError, match=message):
        trace(nn.Linear(2, 2), torch.ones(1, 2), device=device, **settings)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_of_this_machine_must_be_here() -> None:
    with pytest.raises(CostError, match=r"finds no GPU here: name the one to plan for.*H200-141GB"):
        trace(nn.Linear(2, 2), torch.ones(1, 2), device="cuda")


@pytest.mark.skipif(
    torch.cuda.is_available() or not torch.backends.cuda.is_built(),  # type: ignore[no-untyped-call]
    reason="needs a CUDA build, and no GPU",
)
def test_fake_tensors_of_no_gpu_need_a_name() -> None:
    with fake_mode():
        model, x = nn.Linear(2, 2, device="cuda:0"), torch.ones(1, 2, device="cuda:0")
    with pytest.raises(UnsupportedModelError, match="finds no GPU here: say which one is meant"):
        trace(model, x)
    assert trace(model, x, device=H100).graph.n_ops


def test_dropout_that_cudnn_draws_is_refused() -> None:
    with pytest.raises(NotOneGraphError, match=r"dropout between its layers.*with nn\.Dropout between them"):
        trace(nn.LSTM(8, 16, 2, dropout=0.5), torch.randn(5, 3, 8), loss=_loss, device=H100)


@pytest.mark.parametrize(
    ("dtype", "width", "masked", "capability", "kernel"),
    [
        (torch.bfloat16, 64, False, (9, 0), AttentionKernel.CUDNN),
        (torch.bfloat16, 64, True, (9, 0), AttentionKernel.CUDNN),
        (torch.bfloat16, 192, False, (9, 0), AttentionKernel.FLASH),
        (torch.float16, 60, False, (8, 0), AttentionKernel.FLASH),
        (torch.float16, 64, True, (8, 0), AttentionKernel.EFFICIENT),
        (torch.float16, 60, True, (8, 0), AttentionKernel.MATH),
        (torch.float32, 64, False, (9, 0), AttentionKernel.EFFICIENT),
        (torch.float64, 64, False, (9, 0), AttentionKernel.MATH),
        (torch.float16, 64, False, (7, 0), AttentionKernel.EFFICIENT),
        (torch.bfloat16, 64, False, (7, 0), AttentionKernel.MATH),
    ],
)
def test_the_kernel_of_attention(
    dtype: torch.dtype, width: int, masked: bool, capability: tuple[int, int], kernel: AttentionKernel
) -> None:
    """By the rules of PyTorch 2.13."""
    q, mask = torch.empty(2, 4, 16, width, dtype=dtype), torch.empty(16, 16) if masked else None
    assert AttentionCall(q, q, q, mask, False, False, capability).kernel is kernel


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "width"), [(torch.bfloat16, 64), (torch.float16, 60), (torch.float32, 64)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_is_that_of_the_gpu(dtype: torch.dtype, width: int, masked: bool) -> None:
    q = torch.randn(2, 4, 16, width, dtype=dtype, device="cuda", requires_grad=True)
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").tril() if masked else None
    picked = {
        0: AttentionKernel.MATH,
        1: AttentionKernel.FLASH,
        2: AttentionKernel.EFFICIENT,
        3: AttentionKernel.CUDNN,
    }
    choice = torch._fused_sdp_choice(q, q, q, mask)
    capability = torch.cuda.get_device_capability()
    assert picked[choice] is AttentionCall(q, q, q, mask, False, False, capability).kernel


@pytest.mark.parametrize(
    ("environment", "mib"),
    [
        ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, 64),
        ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, 66),
        ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "4096"}, 72),
        ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLAS_WORKSPACE_CONFIG": ":256:2"}, 3),
    ],
)
def test_the_environment_sets_the_workspaces_of_libraries(
    environment: dict[str, str], mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    chosen = target.Target.parse(H100)
    assert chosen is not None
    with target.for_target(chosen):
        assert library_bytes(chosen.device) == mib * 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_workspaces_are_those_that_cublas_keeps() -> None:
    """Two threads multiply, with a bias too; when all tensors are freed, only workspaces are left."""
    code = """
        import torch
        from torch.utils.checkpoint import checkpoint
        from checkmate_torch.costs.workspaces import library_bytes
        a, b = torch.randn(256, 256, device="cuda", requires_grad=True), torch.randn(256, device="cuda")
        checkpoint(lambda x: torch.addmm(b, x, x) @ x, a, use_reentrant=False).sum().backward()
        del a, b
        print(torch.cuda.memory_allocated() - library_bytes(torch.device("cuda")))
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "0\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "op"), [("attention", "attention_backward"), ("convolution", "convolution")]
)
def test_workspaces_that_are_not_measured_are_enough(name: str, op: str) -> None:
    make, shape = CASES[name]
    model = make().cuda()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype, device="cuda")
    told, measured = (trace(model, x, loss=_loss, cost_model="flops", workspaces=w) for w in (False, True))
    for a, b in zip(told.graph.ops, measured.graph.ops, strict=True):
        assert a.workspace >= b.workspace or op not in a.name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_and_its_name_are_traced_alike(name: str) -> None:
    """The ops and bytes of a device of the table are those of the GPU itself."""
    properties = torch.cuda.get_device_properties(0)
    entry = device_in_table(properties.name, properties.total_memory / 1e9)
    there, here = _traced(name, entry), _traced(name, "cuda")
    assert [op.name for op in there.graph.ops] == [op.name for op in here.graph.ops]
    assert there.graph.tensors == here.graph.tensors


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_the_cpu_represents_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ops and bytes are the GPU's, statistics of layer norms excepted, which CUDA widens."""
    properties = torch.cuda.get_device_properties(0)
    entry = device_in_table(properties.name, properties.total_memory / 1e9)
    cuda, on_cpu = _traced(name, entry), target.Target(name=entry, device=torch.device("cpu"))
    monkeypatch.setattr(target.Target, "parse", lambda device: None if device is None else on_cpu)
    cpu = _traced(name, entry)
    assert (_devices(cuda), _devices(cpu)) == ({"cuda"}, {"cpu"})
    assert [op.name for op in cuda.graph.ops] == [op.name for op in cpu.graph.ops]
    for a, b in zip(cuda.graph.tensors, cpu.graph.tensors, strict=True):
        assert (a.name, a.size) == (b.name, b.size) or "layer_norm" in a.name
    assert cuda.plain_peak == pytest.approx(cpu.plain_peak, abs=2**11)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_dropout_is_replayed_on_a_gpu_that_is_not_the_current_one(forgetful: Solver) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 64)).to("cuda:1")
    x = torch.randn(8, 64, device="cuda:1")
    gradients = []
    for each in (model, compile(copy.deepcopy(model), "100%", solver=forgetful)):
        torch.cuda.manual_seed_all(1)
        each(x).square().mean().backward()
        gradients.append([p.grad for p in each.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)
