"""Random streams with an address: the same seed and address give the same numbers, wherever and whenever asked.

So there is no random state to save or restore: a resumed, parallel or deployed run draws what an uninterrupted one
does.
"""

import hashlib
import random


def address(seed: int, *parts: str | int) -> int:
    """A 63-bit seed for the place `parts`, for generators of any library."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *parts: str | int) -> random.Random:
    """A Python generator for the place `parts`."""
    return random.Random(address(seed, *parts))
