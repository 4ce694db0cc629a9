"""Execute a tutorial: NAME.py has its cells, in jupytext's percent format; NAME.ipynb gets their outputs too.

    python docs/execute.py docs/tutorial/five-minutes-with-keras.py     # nox -s notebooks does it

Output of libraries on stderr is left out, and nothing is written unless all cells run. Two runs write the
same file if the cells show the same outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient


def executed(source: Path) -> nbformat.NotebookNode:
    """Run all cells of a percent script, and return the notebook."""
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
