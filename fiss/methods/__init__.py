"""Methods by name. A new one is a file here and a line in the table, or any class given as `package.module:Class`."""

import importlib

from fiss.errors import UserError, unknown
from fiss.methods.base import Method
from fiss.methods.finetune import Finetune

METHODS: dict[str, type[Method]] = {"finetune": Finetune}


def find(name: str) -> type[Method]:
    """The method of that name, or the class at `package.module:Class`."""
    if ":" not in name:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "or package.module:Class"])
        return METHODS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"Method '{name}' cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"Method '{name}' is not a subclass of fiss.methods.base.Method.")
    return found
