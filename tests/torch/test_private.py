"""The door to PyTorch's private names: no other module of the package goes around it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import checkmate_torch

FOLDER = Path(checkmate_torch.__file__).parent
_OPS = "torch.ops.aten"


def private_names(source: str) -> set[str]:
    """The private names that a module imports, or reads from anything but its own objects.

    Operators, as ``torch.ops.aten._softmax``, keep their names.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith(("checkmate", "__")):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in (
            "self",
            "cls",
            "_aten",
            _OPS,
        ):
            names.add(f"….{node.attr}")
    experimental = {name for name in names if name.startswith("torch.fx.experimental")}
    return experimental | {n for n in names if any(p[:1] == "_" and p[-2:] != "__" for p in n.split("."))}


def test_private_names_are_used_behind_the_door_only() -> None:
    modules = [path for path in FOLDER.rglob("*.py") if path.parent.name != "private"]
    used = {path.name: names for path in modules if (names := private_names(path.read_text()))}
    assert used == {}


def test_the_law_can_fail() -> None:
    for source in (
        "import torch._guards",
        "from torch.utils import _pytree",
        "torch.cuda._sleep(1)",
        "x()._cdata",
    ):
        assert len(private_names(source)) == 1
    assert private_names("self._x = torch.ops.aten._softmax.default") == set()


def test_the_meter_needs_neither_dynamo_nor_symbolic_shapes() -> None:
    slow = {"torch._dynamo", "torch._inductor", "sympy"}
    code = f"import sys, checkmate_torch; checkmate_torch.memory_meter; print({slow!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
