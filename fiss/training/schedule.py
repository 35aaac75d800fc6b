"""The published learning rate: one polynomial per client that goes on where its last round left it.

In a round the rate falls from where the client stopped, l0 * (1 - i / I) ^ 0.9, where I is the number of steps the
client would make until the task's last round. A client chosen in every round follows one curve; one that sat out
starts higher than the others and still ends at zero.

Where no task is told, nobody knows when it ends: the same curve over a number of rounds since the client's own
transition, and from then on a least rate.
"""

POWER = 0.9


def rate_at(start: float, step: int, horizon: int) -> float:
    """The rate before step `step` of a round that began at `start`, `horizon` steps before the end."""
    return start * (1 - step / horizon) ** POWER if horizon else start


def rate_in_round(start: float, rounds: float, horizon: int, least: float) -> float:
    """The rate `rounds` rounds after a client began at `start`; it falls over `horizon` rounds to `least` of that."""
    share: float = max(1 - rounds / horizon, 0.0) ** POWER
    return start * max(share, least)
