"""A tutorial as it runs: the cells of NAME.py, in jupytext's percent format, and what they show: NAME.ipynb.

    python docs/execute.py docs/tutorial/five-minutes-with-keras.py     # nox -s notebooks does it

What libraries say on stderr is left out, and nothing is written unless all cells run. The file differs from
one run to the next only where what the cells show does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


def executed(source: Path) -> nbformat.NotebookNode:
    """The notebook of a percent script, after all of its cells have run."""
    notebook = jupytext.read(source)
    notebook.metadata.clear()
    NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [shown for shown in cell.outputs if shown.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for name in map(Path, sys.argv[1:]):
        nbformat.write(executed(name), name.with_suffix(".ipynb"))
