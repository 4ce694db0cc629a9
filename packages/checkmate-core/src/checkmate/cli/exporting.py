"""Files that exporters write: made in an empty folder, and moved as a whole to where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from checkmate.disk import replace_file
from checkmate.errors import CheckmateError, PluginError
from checkmate.plugins.loader import ANYTHING, one_line

__all__ = ["exported"]


@contextmanager
def exported(output: Path, by: str) -> Iterator[Path]:
    """Give a path to write to; once the block ends well, what is there replaces ``output``.

    The path has the same name, in an empty folder that is the current one meanwhile: exporters write as they
    like, and libraries such as matplotlib look for their settings in the current folder.

    Args:
        output: where the file belongs.
        by: what messages call the code inside.

    Raises:
        PluginError: if the block fails in a way that no user can cause, or writes no file.
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
