"""Every error a user can cause. The command line prints such an error as one line and exits with code 2."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Something the user can put right: what was wrong, what was found, what to do.

    Example:
        >>> try:
        ...     fiss.run("shape")
        ... except fiss.UserError as error:
        ...     print(error)
    """


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the disk names the file; the system leaves it out when a disk is full."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name nobody knows: names the nearest one, and lists those there are unless they are many."""
    names = [str(k) for k in known]
    near = get_close_matches(name, names, n=1, cutoff=0.5) or [n for n in names if n.rsplit(".", 1)[-1] == name][:1]
    hint = f" Did you mean '{near[0]}'?" if near else ""
    if near and len(names) > 12:
        return UserError(f"Unknown {kind} '{name}'.{hint}")
    shown = names if len(names) <= 60 else [*names[:60], f"... ({len(names)} in all)"]
    return UserError(f"Unknown {kind} '{name}'.{hint} Known: {', '.join(shown)}.")


def check_fields(where: str, spec: object, wanted: str, fine: Callable[[Any], bool], *names: str) -> None:
    """Refuse fields of a spec whose values are not `wanted`; `where` comes before their names."""
    for name in names:
        if not fine(value := getattr(spec, name)):
            raise UserError(f"{where}{name} = {value}: must be {wanted}.")


def check_least(where: str, spec: object, least: int, *names: str) -> None:
    """Refuse fields of a spec that are less than that."""
    check_fields(where, spec, f"{least} or more", lambda value: value >= least, *names)
