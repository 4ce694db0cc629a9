"""``checkmate trace --torch`` imports the user's module from the current folder, and no other from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRAP = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
PROGRAM = "import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 1), torch.zeros(2, 4)\n"
TRACE = ("trace", "--torch", "train:make", "--cost-model", "flops", "-o", "graph.json")
LISTED = f"""
import atexit, sys
atexit.register(lambda: print(*{{name.partition(".")[0] for name in sys.modules}}))
sys.argv[1:] = {TRACE!r}
from checkmate.cli import main
main()
"""


def run(folder: Path, *command: str) -> str:
    """The output of a command in a folder."""
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tracing_runs_the_users_module_and_no_namesake_of_another(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    *_, names = run(tmp_path, "-P", "-c", LISTED).splitlines()
    traps = {name for name in names.split() if not name.startswith("__")} - {"train"}
    assert {"json", "torch", "numpy", "sympy"} <= traps
    for name in traps:
        (tmp_path / f"{name}.py").write_text(TRAP)
    run(tmp_path, str(Path(sys.executable).with_name("checkmate")), *TRACE)
    assert not list(tmp_path.glob("*.ran"))
