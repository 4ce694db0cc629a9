"""A batch without padding needs no attention mask, as in eager PyTorch; all others have theirs."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from checkmate_torch import compile_step, enable, trace
from checkmate_torch.capture.attention_masks import _answers_in, is_one_sequence, masks_nothing
from checkmate_torch.planning.session import Session
from checkmate_torch.private import OVERLOOKS_FREEZING, known_inputs

transformers = pytest.importorskip("transformers")
Batch = dict[str, torch.Tensor]
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BLOCKS = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64}
GROUPED = {**BLOCKS, "num_key_value_heads": 2, "head_dim": 8}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
SPEECH = {
    **IDS,
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 8,
    "max_target_positions": 32,
    "num_mel_bins": 8,
}
LOCAL = {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0}
NETWORKS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", BLOCKS),
    "llama-grouped": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 8}),
    "mistral-wide": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 32}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "sliding_window": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "sliding_window": 8}),
    "gemma3-wide": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "sliding_window": 32}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, **GPT2_DROPOUT}),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**BLOCKS, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {**BLOCKS, **NO_DROPOUT}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {**BLOCKS, **LOCAL}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, **IDS, "dropout_rate": 0.0}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", SPEECH),
}


class Masks(TorchFunctionMode):
    """For each attention op that is run: whether it has a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_function__(self, run: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if run is functional.scaled_dot_product_attention:
            self.seen.append(_has_mask(args, kwargs or {}))
        return run(*args, **(kwargs or {}))


def _has_mask(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    return kwargs.get("attn_mask", args[3] if len(args) > 3 else None) is not None


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[bool]]]:
    """For each graph that is planned: for each attention op, whether it has a mask."""
    graphs: list[list[bool]] = []
    plan = Session.__call__

    def noting(self: Session, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., object]:
        ops = gm.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention)
        graphs.append([_has_mask(op.args, op.kwargs) for op in ops])
        return plan(self, gm, inputs)

    monkeypatch.setattr(Session, "__call__", noting)
    yield graphs
    torch.compiler.reset()


def _network(name: str) -> nn.Module:
    model, config, settings = NETWORKS[name]
    torch.manual_seed(0)
    network: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings)).train()
    return network


def _batch(name: str = "llama", mask: torch.Tensor | None = None, length: int = 12) -> Batch:
    torch.manual_seed(1)
    words = torch.randint(3, 60, (2, length))
    batch = {"labels": words} if mask is None else {"labels": words.masked_fill(mask == 0, -100)}
    if name == "whisper":
        batch["input_features"] = torch.randn(2, 8, 16)
    else:
        batch["input_ids"] = words
    if mask is not None and name != "whisper":
        batch["attention_mask"] = mask
    if mask is not None and name in ("t5", "whisper"):
        batch["decoder_attention_mask"] = mask.clone()
    return batch


def _ones(length: int = 12) -> torch.Tensor:
    return torch.ones(2, length, dtype=torch.long)


def _padded(length: int = 12) -> torch.Tensor:
    mask = _ones(length)
    mask[0, -3:] = 0
    return mask


def _step(model: nn.Module, batch: Mapping[str, Any]) -> list[torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def _are_same(xs: list[torch.Tensor | None], ys: list[torch.Tensor | None]) -> bool:
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def _check(
    name: str, batches: list[Batch], graphs: list[list[bool]], *, whole: bool = True, **settings: Any
) -> int:
    """Train by the batches in turn, with eager PyTorch's bits; returns the number of plans.

    Attention has as many masks as in eager PyTorch, if the model is captured ``whole``.
    """
    model = _network(name)
    plain = copy.deepcopy(model)
    training = enable(model, "200%", cost_model="flops", split=False, **settings)
    for batch in batches:
        n = len(graphs)
        with Masks() as masks:
            expected = _step(plain, batch)
        assert _are_same(_step(model, batch), expected)
        assert not whole or all(traced == masks.seen for traced in graphs[n:])
    return len(training.plans)


def _rows() -> st.SearchStrategy[torch.Tensor]:
    """Rows of few different numbers, of each kind that masks and positions have."""
    kinds = st.sampled_from([torch.int64, torch.int32, torch.bool, torch.uint8, torch.float32])
    shape = st.tuples(st.integers(1, 5), st.integers(1, 5))
    rows = shape.flatmap(lambda s: arrays(np.int64, s, elements=st.sampled_from([1, 1, 1, 1, 0, 2])))
    return st.builds(lambda x, kind: torch.from_numpy(x).to(kind), rows, kinds)


@given(_rows())
def test_a_mask_masks_nothing_if_all_is_true(mask: torch.Tensor) -> None:
    assert masks_nothing(mask) == all(all(row) for row in mask.tolist())


@given(_rows(), st.sampled_from([0, 1]))
def test_each_row_of_one_sequence_counts_up_by_one(x: torch.Tensor, step: int) -> None:
    positions = (x.long() * step).cumsum(-1) + x[:, :1].long()
    expected = all(b - a == 1 for row in positions.tolist() for a, b in pairwise(row))
    assert is_one_sequence(positions) == is_one_sequence(positions.double()) == expected


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's, in pieces
@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("mask", [_ones(), None], ids=["ones", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_there_is_a_mask_where_eager_pytorch_has_one(
    name: str, mask: torch.Tensor | None, use_cache: bool, traced: list[list[bool]]
) -> None:
    of_cache: Any = {} if "bert" in name else {"use_cache": use_cache}
    batches = [{**_batch(name, x), **of_cache} for x in (mask, _padded(), mask, _padded())]
    in_pieces = OVERLOOKS_FREEZING and name in ("t5", "whisper") and use_cache  # before PyTorch 2.13
    n_plans = _check(name, batches, traced, whole=not in_pieces)
    assert in_pieces or n_plans <= 2  # one where the windows need masks in any case


def test_packed_sequences_have_a_mask(traced: list[list[bool]]) -> None:
    one = torch.arange(12).repeat(2, 1)
    packed = one % 5
    batches: list[Any] = [{**_batch(), "position_ids": x, "use_cache": False} for x in (one, packed, one + 3)]
    assert _check("llama", batches, traced) == 2
    assert traced == [[False] * 2, [True] * 2]


def test_a_mask_that_changes_in_place_is_read_again(traced: list[list[bool]]) -> None:
    model = _network("llama")
    plain, batch = copy.deepcopy(model), _batch("llama", _ones())
    training = enable(model, "100%", cost_model="flops", split=False)
    for value in (1, 0, 1):
        batch["attention_mask"].numpy()[0, -3:] = value  # which PyTorch's count of versions does not see
        assert _are_same(_step(model, batch), _step(plain, batch))
    assert len(training.plans) == 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_lengths_may_vary(dynamic: bool | None, traced: list[list[bool]]) -> None:
    masks = [make(n) for n in (12, 10, 11) for make in (_ones, _padded)]
    batches = [_batch("llama", mask, mask.shape[1]) for mask in masks]
    _check("llama", batches, traced, dynamic=dynamic)
    assert any(any(graph) for graph in traced)
    assert not all(all(graph) for graph in traced)


def test_a_mask_of_the_users_is_kept(traced: list[list[bool]]) -> None:
    mask = torch.zeros(2, 1, 12, 12).masked_fill(torch.ones(12, 12).triu(1) > 0, -1e9)
    assert _check("llama", [{**_batch(), "attention_mask": mask}], traced) == 1
    assert traced == [[True, True]]


class Edited(nn.Module):
    """A model that edits the padding mask before it uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _network("llama")

    def forward(self, attention_mask: torch.Tensor, **batch: torch.Tensor) -> Any:
        mask = attention_mask.clone()
        mask[:, :2] = 0
        return self.model(attention_mask=mask, **batch)


def test_a_mask_that_the_model_writes_to_is_kept(traced: list[list[bool]]) -> None:
    model = Edited()
    plain, batch = copy.deepcopy(model), _batch("llama", _ones())
    enable(model, "100%", cost_model="flops", split=False)
    assert _are_same(_step(model, batch), _step(plain, batch))
    assert traced == [[True, True]]


def test_a_setting_turns_it_off(traced: list[list[bool]]) -> None:
    model = _network("llama")
    enable(model, "100%", cost_model="flops", split=False, read_masks=False)
    _step(model, _batch("llama", _ones()))
    assert traced == [[True, True]]


def test_a_call_reads_a_mask_once_for_all_plans(
    traced: list[list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _network("gemma3")
    enable(model, "100%", cost_model="flops", split=False)
    batches = [_batch("gemma3", mask) for mask in (_ones(), _padded())]
    for batch in batches:
        _step(model, batch)
    reads: list[int] = []
    monkeypatch.setattr(known_inputs, "_read_now", lambda holds, x: reads.append(1) or holds(x))
    for n, batch in enumerate(batches, 1):
        _step(model, batch)
        assert len(reads) == n
    assert len(traced) == 2


def test_copies_read_their_masks(traced: list[list[bool]]) -> None:
    model = _network("llama")
    enable(model, "100%", cost_model="flops", split=False)
    _step(copy.deepcopy(model), _batch("llama", _ones()))
    with torch.no_grad():
        model(**_batch("llama", _padded()))
    _step(model, _batch("llama", _ones()))
    assert traced == [[False, False]] * 2


def test_a_whole_step_has_a_plan_for_each_kind_of_mask() -> None:
    model = _network("llama")
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(x.parameters(), lr=0.1) for x in (model, plain)]
    step = compile_step(model, lambda m, **batch: m(**batch).loss, optimizers[0], "100%", split=False)
    for mask in (_ones(), _padded(), _ones()):
        batch = _batch("llama", mask)
        expected = _step(plain, batch)[0]
        optimizers[1].step()
        assert torch.equal(step(**batch, use_cache=None), expected)
    assert len(step.plans) == 2
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_a_trace_for_another_device_needs_no_mask() -> None:
    model, loss = _network("llama"), lambda output: output.loss
    batches = [_batch("llama", mask) for mask in (_ones(), _padded(), None)]
    settings: Any = {"loss": loss, "device": "cuda:H100-80GB", "cost_model": "flops"}
    ones, padded, none = (trace(model, {**batch, "use_cache": False}, **settings) for batch in batches)
    assert ones.graph.n_ops <= none.graph.n_ops < padded.graph.n_ops


def test_another_release_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    module = ModuleType("masking_utils")
    with caplog.at_level(logging.WARNING):
        assert _answers_in(module) == _answers_in(module) == {}
    assert len(caplog.records) == 1
    assert _answers_in(sys.modules["transformers.masking_utils"])
