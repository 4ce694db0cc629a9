"""Where the output of native code goes while a MILP runs, and afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from checkmate_solvers.engines import native_output_on_stderr

_PROGRAM = """
import ctypes
from checkmate_solvers.engines import native_output_on_stderr
c = ctypes.CDLL(None)
c.puts(b"before")
with native_output_on_stderr():
    with native_output_on_stderr():
        c.puts(b"during")
    c.puts(b"still")
c.puts(b"after")
c.fflush(None)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs C's buffer to be the one of this process")
def test_output_of_c_inside_goes_to_stderr() -> None:
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["before", "after"]
    assert result.stderr.split() == ["during", "still"]


def test_the_descriptor_comes_back_after_an_error(capfd) -> None:
    with pytest.raises(OSError, match="to a closed pipe"):
        _write_and_fail()
    os.write(1, b"outside\n")
    assert capfd.readouterr() == ("outside\n", "inside\n")


def _write_and_fail() -> None:
    with native_output_on_stderr():
        os.write(1, b"inside\n")
        raise OSError("to a closed pipe")


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor for good only in a child process")
def test_without_a_console_nothing_is_done() -> None:
    program = "import os; os.close(1); os.close(2)\n" + _PROGRAM.replace("c.puts", "(lambda text: None)")
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
