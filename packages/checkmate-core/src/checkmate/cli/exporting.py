"""Files that exporters write: made in an empty folder, then moved to their place, whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from checkmate.errors import CheckmateError, PluginError
from checkmate.files.disk import replace_file
from checkmate.plugins.loader import ANYTHING, one_line

__all__ = ["exported"]


@contextmanager
def exported(output: Path, by: str) -> Iterator[Path]:
    """Yield a path to write to; if the block succeeds, that file replaces ``output``.

    The path has the same name, in an empty folder, which is the current folder inside the block: an exporter
    may write partial files, and libraries such as matplotlib look for settings in the current folder.

    Args:
        output: the final path.
        by: the name in messages of the code inside the block.

    Raises:
        PluginError: if the block fails by a fault of its code, or writes no file.
        OSError: if the file can't be written.
    """
    with TemporaryDirectory(prefix="checkmate-") as folder:
        file = Path(folder, output.name)
        try:
            with chdir(folder):
                yield file
        except (CheckmateError, OSError):
            raise
        except ANYTHING as error:
            raise PluginError(f"{by} failed: {one_line(error)}") from error
        if not file.is_file():
            raise PluginError(f"{by} wrote no file")
        content = file.read_bytes()
    replace_file(output, content)
