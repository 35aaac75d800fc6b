"""Examples in docstrings are shown as code on the site: mkdocstrings calls this for everything it reads."""

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """One example is written as `Example:`, and the parser knows `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
