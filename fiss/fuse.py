"""Functions that torch.compile makes one program of, where a run asks for it.

Sizes are left open in the program, so that more classes, other maps or a smaller batch do not compile it again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


@contextmanager
def fusing(on: bool) -> Iterator[None]:
    """Whether fused functions run compiled in here."""
    token = _fusing.set(on)
    try:
        yield
    finally:
        _fusing.reset(token)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled when it first runs under `fusing(True)`; elsewhere as it is."""
    compiled = torch.compile(function, dynamic=True)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (compiled if _fusing.get() else function)(*args, **kwargs)

    return call
