"""The command line in this process."""

import sys

import pytest

from fiss.cli import main


def fiss(*arguments, code=0):
    """What `fiss ...` prints and its exit code, without a new process."""
    old, sys.argv = sys.argv, ["fiss", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = old
    assert (stopped.value.code or 0) == code
