"""Networks as training graphs: ops, bytes and FLOPs of an architecture at a batch size, without running it.

    graph: (name, level, front end, batch) ↦ DFGraph

At the *layer* level an op is a layer, as in the Checkmate paper (:mod:`zoo.layers` has the rules); at the
*op* level it is an op that the front end traces in forward, loss or backward. Costs are FLOPs at both.

The other modules have what benchmarks and tests train or solve:

- ``small_torch``, ``small_keras``: small networks, one for each kind of dependency graph;
- ``torch_world``, ``keras_world``, ``keras_steps``: small models of other libraries, and steps of their own;
- ``torch_sizes``: networks at their published sizes, for a GPU; ``traces``: their graphs, op by op;
- ``habits``: training loops as people write them;
- ``tiny``: random graphs, small enough for the exhaustive oracle.

>>> import zoo
>>> zoo.graph("vgg16", batch=1).cost_unit
'flop'
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Literal

from checkmate import DFGraph

__all__ = ["NETWORKS", "Frontend", "Level", "Network", "graph", "missing", "parameter_count"]

Level = Literal["layer", "op"]
Frontend = Literal["torch", "keras"]

_BOTH: tuple[Frontend, ...] = ("torch", "keras")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network.

    Attributes:
        name: its key in :data:`NETWORKS`.
        title: its usual name.
        batch: examples in a step: the Checkmate paper's, if it has one.
        frontends: those that have the network.
        summary: one line on its shape and input.
        source: the publication of the architecture.
    """

    name: str
    title: str
    batch: int
    summary: str
    source: str
    frontends: tuple[Frontend, ...] = _BOTH


_LIST = (
    Network(
        name="vgg16",
        title="VGG16",
        batch=256,
        summary="a chain of 3×3 convolutions; images of 224×224",
        source="Simonyan and Zisserman, ICLR 2015, arXiv:1409.1556, table 1, D",
    ),
    Network(
        name="vgg19",
        title="VGG19",
        batch=256,
        summary="a longer chain of 3×3 convolutions; images of 224×224",
        source="Simonyan and Zisserman, ICLR 2015, arXiv:1409.1556, table 1, E",
    ),
    Network(
        name="mobilenet",
        title="MobileNet",
        batch=512,
        summary="a chain of depthwise and pointwise convolutions with batch norm; images of 224×224",
        source="Howard et al., 2017, arXiv:1704.04861, table 1",
    ),
    Network(
        name="resnet50",
        title="ResNet50",
        batch=256,
        summary="bottlenecks around shortcuts, with batch norm; images of 224×224",
        source="He et al., CVPR 2016, arXiv:1512.03385, table 1",
    ),
    Network(
        name="unet",
        title="U-Net",
        batch=32,
        summary="VGG16 down to 1/16, back up to 1/2 over skip connections; images of 416×608, 19 classes",
        source="Ronneberger et al., MICCAI 2015, arXiv:1505.04597; the encoder is VGG16's, as in the paper",
    ),
    Network(
        name="fcn8",
        title="FCN8",
        batch=32,
        summary="VGG16 as convolutions, three scales added and scaled up; images of 416×608, 19 classes",
        source="Long et al., CVPR 2015, arXiv:1411.4038; the encoder is VGG16's, as in the paper",
    ),
    Network(
        name="segnet",
        title="SegNet",
        batch=32,
        summary="VGG16 down to 1/16, back up to 1/2, without skips; images of 416×608, 19 classes",
        source="Badrinarayanan et al., 2015, arXiv:1511.00561; scaled up by repetition, as in the paper",
    ),
    Network(
        name="densenet121",
        title="DenseNet121",
        batch=64,
        summary="every layer reads all those before it in its block; images of 224×224",
        source="Huang et al., CVPR 2017, arXiv:1608.06993, table 1",
    ),
    Network(
        name="gpt2",
        title="GPT-2",
        batch=8,
        summary="12 pre-norm decoder blocks of width 768; 1024 tokens, no dropout",
        source="Radford et al., 2019, Language Models are Unsupervised Multitask Learners; transformers",
        frontends=("torch",),
    ),
    Network(
        name="bert",
        title="BERT",
        batch=32,
        summary="12 post-norm encoder blocks of width 768, masked-token head; 512 tokens, no dropout",
        source="Devlin et al., NAACL 2019, arXiv:1810.04805; transformers",
        frontends=("torch",),
    ),
    Network(
        name="llama",
        title="Llama 3.2 1B",
        batch=4,
        summary="16 decoder blocks of width 2048, grouped queries, gated MLPs; 2048 tokens, float32",
        source="Grattafiori et al., 2024, arXiv:2407.21783; shape of Llama 3.2 1B; transformers",
        frontends=("torch",),
    ),
    Network(
        name="vit",
        title="ViT-B/16",
        batch=64,
        summary="12 pre-norm encoder blocks of width 768; images of 224×224 in patches of 16×16",
        source="Dosovitskiy et al., ICLR 2021, arXiv:2010.11929, table 1; transformers",
        frontends=("torch",),
    ),
)

NETWORKS: Mapping[str, Network] = {one.name: one for one in _LIST}
"""By name."""

_TRANSFORMERS = ("gpt2", "bert", "llama", "vit")
_SIDES: Mapping[Frontend, str] = {"torch": "zoo.torch_side", "keras": "zoo.keras_side"}
_NEEDS: Mapping[Frontend, tuple[str, ...]] = {
    "torch": ("torch", "checkmate_torch"),
    "keras": ("tensorflow", "keras", "checkmate_tf"),
}


@lru_cache(maxsize=64)  # a graph never changes, and a search needs it repeatedly
def graph(
    name: str,
    *,
    level: Level = "layer",
    frontend: Frontend = "torch",
    batch: int | None = None,
    small: bool = False,
) -> DFGraph:
    """The training step of a network, float32, in FLOPs; which is not run.

    Args:
        name: of :data:`NETWORKS`.
        level: ``"layer"``: one op for each layer, one for its backward; parameters and their gradients are
            the ``fixed_size``. ``"op"``: the front end's own trace.
        frontend: ``"torch"``, or ``"keras"`` for the networks that have it.
        batch: examples in the step; None: those of :class:`Network`.
        small: small images, narrow layers and few blocks with the same connections, for quick runs.

    Raises:
        ValueError: if there is no such network, level, front end or batch.
        ImportError: if a module that it needs is not installed; see :func:`missing`.
    """
    network = _network(name, frontend)
    if level not in ("layer", "op"):
        raise ValueError(f"no level {level!r}: choose 'layer' or 'op'")
    batch = network.batch if batch is None else batch
    if batch < 1:
        raise ValueError(f"batch is {batch}, must be ≥ 1")
    side = importlib.import_module(_SIDES[frontend])
    made: DFGraph = {"layer": side.layers, "op": side.ops}[level](name, batch=batch, small=small)
    return made


def parameter_count(name: str, *, frontend: Frontend = "torch", small: bool = False) -> int:
    """The number of trained parameters.

    Raises:
        ValueError, ImportError: as :func:`graph`.
    """
    _network(name, frontend)
    count: int = importlib.import_module(_SIDES[frontend]).parameter_count(name, small=small)
    return count


def missing(name: str, frontend: Frontend = "torch") -> list[str]:
    """The modules that a network needs in a front end and that are not installed."""
    needed = _NEEDS[frontend] + (("transformers",) if name in _TRANSFORMERS else ())
    return [module for module in needed if find_spec(module) is None]


def _network(name: str, frontend: Frontend) -> Network:
    if name not in NETWORKS:
        raise ValueError(f"no network {name!r}: choose of {', '.join(NETWORKS)}")
    if frontend not in NETWORKS[name].frontends:
        raise ValueError(f"no {frontend!r} for {name!r}: choose of {', '.join(NETWORKS[name].frontends)}")
    if lacking := missing(name, frontend):
        raise ImportError(f"{name} in {frontend} needs {', '.join(lacking)}: not installed here")
    return NETWORKS[name]
