"""Methods by name. A new one is a file here and a line in the table, or any class given as `package.module:Class`.

A name stands for a value: a method with all its fields. Some methods have several, the readings of paper and
published code.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fiss.errors import UserError, unknown
from fiss.methods import fbl, mib, plop, rcil
from fiss.methods.analytic import Analytic
from fiss.methods.base import Method
from fiss.methods.finetune import Finetune
from fiss.methods.ilt import ILT
from fiss.methods.lwf import LwF

METHODS: dict[str, Callable[[], Method]] = {
    "finetune": Finetune,
    "lwf": LwF,
    "ilt": ILT,
    "mib": mib.MiB,
    "mib-100": mib.authors_15_1,
    "plop": plop.PLOP,
    "plop-reference": plop.reference,
    "rcil": rcil.RCIL,
    "rcil-reference": rcil.reference,
    "fbl": fbl.FBL,
    "fbl-paper": fbl.paper,
    "fbl-reference": fbl.reference,
    "analytic": Analytic,
}


def find(name: str) -> Method:
    """The method of that name, or an instance of the class at `package.module:Class`."""
    if ":" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "or package.module:Class"])
        return METHODS[name]()
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: a file in this folder is found
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        where = "this folder and PYTHONPATH were searched"
        raise UserError(f"Method '{name}' cannot be imported: {error} ({where}).") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"Method '{name}' is not a subclass of fiss.methods.base.Method.")
    if inspect.isabstract(found) or not hasattr(found, "name"):
        raise UserError(f"Method '{name}' is not complete: it needs a class variable `name` and a method `losses`.")
    try:
        return found()
    except TypeError as error:
        raise UserError(f"Method '{name}': every field needs a default ({error}).") from error


def ablate(method: Method, part: str) -> Method:
    """The method without one of its parts."""
    if part not in method.ablations:
        raise unknown(
            f"part of {method.name}", part, method.ablations or ["none: this method has no parts to take out"]
        )
    return replace(method, **method.ablations[part])  # type: ignore[arg-type]


def name_of(method: Method) -> str:
    """The name under which `find` finds this kind of method again."""
    kind = type(method)
    return kind.name if type(METHODS.get(kind.name, Finetune)()) is kind else f"{kind.__module__}:{kind.__qualname__}"
