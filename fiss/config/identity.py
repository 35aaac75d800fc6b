"""When two runs are the same: one table of what each key decides.

A run that goes on must be the same to the bit; a sweep finds its runs again if they would give the same result but for
rounding; runs that are put into one row of a table may also differ in their seed, in where things lie and in what is
kept of them.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fiss.config.config import Config, flat, to_dict

DECIDES = {
    "training.device": "place",
    "training.workers": "place",
    "training.cache": "place",
    "training.threads": "rounding",
    "training.compile": "rounding",
    "training.graphs": "rounding",
    "data.root": "path",
    "model.weights": "path",
    "base": "path",
    "evaluation.batch": "rounding",
    "keep": "records",
    "evaluation.every": "records",
    "federation.private_names": "records",
    "seed": "seed",
}
"""What a key decides: where a run is computed (place: also a run that goes on may change it), the last bits of what
comes out (rounding), where files lie (path: one place may be written in two ways), what is kept and how classes are
called in it (records), the draws (seed). Every other key decides the result."""
SAME_RUN = ("place",)
"""What may differ between a run and what goes on with it."""
SAME_RESULT = ("place", "rounding")
"""What may differ where the result is asked for, but for rounding."""
SAME_ROW = ("place", "rounding", "path", "records", "seed")
"""What may differ between runs whose mean is taken."""
WHILE_IT_LIVES = (
    "place",
    "world.clients",
    "world.per_round",
    "federation.patience",
    "federation.quorum",
    "federation.largest",
    "evaluation",
    "data.name",
    "data.root",
    "keep",
)
"""What may be changed while a real federation lives: whom a round asks and waits for, what protects it, how it is
scored, what is kept. All else stays as it began: network, method, seed, the order of the labels."""
NEWER: dict[str, tuple[str, ...]] = {
    "data": ("window",),
    "model": ("channels", "head"),
    "training": ("compile", "graphs", "later_epochs", "horizon", "least_rate"),
    "world": ("lag", "stay", "train_staying", "join", "away", "refresh"),
    "federation": ("private_names", "largest", "quorum", "patience", "transfer"),
    "monitor": (),
}
"""Keys, or a whole section, that the first runs did not have: left at their defaults they change no digest."""


def differences(*configs: Config, ignoring: Iterable[str] = SAME_RESULT) -> list[str]:
    """Keys in which configs differ. `ignoring` has words of the table, keys, or sections."""
    sides = [decided(config, ignoring) for config in configs]
    keys = dict.fromkeys(key for side in sides for key in side)
    return [key for key in keys if len({side.get(key) for side in sides}) > 1]


def row_key(config: Config) -> tuple[tuple[str, str], ...]:
    """What runs of one row of a table have in common."""
    return tuple(sorted(decided(config, SAME_ROW).items()))


def decided(config: Config, ignoring: Iterable[str]) -> dict[str, str]:
    """Its values as text by dotted key, paths absolute, without what is ignored."""
    free = set(ignoring)
    values = flat(to_dict(with_absolute_paths(config)))
    return {k: str(v) for k, v in values.items() if free.isdisjoint((k, k.split(".")[0], DECIDES.get(k)))}


def config_digest(config: Config) -> str:
    """Digest of all in which a run and what goes on with it must agree."""
    values: dict[str, Any] = to_dict(config)
    for key in (key for key, what in DECIDES.items() if what in SAME_RUN):
        section, _, last = key.partition(".")
        del values[section][last]
    plain = to_dict(Config())
    for section, keys in NEWER.items():
        for key in keys or list(values[section]):
            if values[section][key] == plain[section][key]:
                del values[section][key]
        if not values[section]:
            del values[section]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_absolute_paths(config: Config) -> Config:
    """The config with its paths made absolute, so that it means the same from any folder."""

    def absolute(text: str) -> str:
        return str(Path(text).expanduser().absolute()) if text else text

    weights = config.model.weights
    return replace(
        config,
        base=absolute(config.base),
        data=replace(config.data, root=absolute(config.data.root)),
        model=replace(config.model, weights=absolute(weights) if weights.endswith(".safetensors") else weights),
    )
