"""Whether pretrained weights can be had from the hub: said in two seconds, where the library tries for minutes."""

import socket
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

from fiss.errors import UserError

SECONDS = 2.0
FILE = "model.safetensors"


def check_fetchable(encoder: str, weights: str) -> None:
    """Refuse weights that are neither on this machine nor to be fetched."""
    from huggingface_hub import constants, try_to_load_from_cache

    repository, revision = _home(encoder, weights)
    if not repository or isinstance(try_to_load_from_cache(repository, FILE, revision=revision), str):
        return
    if not constants.HF_HUB_OFFLINE and answers(constants.ENDPOINT):
        return
    raise UserError(
        f"model.weights = {weights}: the file for {encoder} is not on this machine, and {constants.ENDPOINT} does not "
        f"answer. Fetch {constants.ENDPOINT}/{repository}/resolve/{revision or 'main'}/{FILE} elsewhere, and name it: "
        f"--set model.weights={FILE} (`fiss start`: --weights {FILE}). Without it (--set model.weights=none) the "
        "encoder begins with random weights, and scores on small data are far lower."
    )


def _home(encoder: str, weights: str) -> tuple[str, str | None]:
    """Repository and revision of a file on the hub; an empty name where the library has it from elsewhere."""
    import segmentation_models_pytorch as smp
    import timm

    if encoder.startswith("tu-"):
        known = timm.get_pretrained_cfg(encoder.removeprefix("tu-"))
        return (known.hf_hub_id if known else None) or "", None
    home = smp.encoders.encoders[encoder]["pretrained_settings"][weights]
    return home.get("repo_id", ""), home.get("revision")


def answers(url: str) -> bool:
    """Whether somebody takes a call there, or at the proxy that is set. In a thread of its own, since looking a name up
    has no limit of time."""
    goal = urlsplit(getproxies().get("https", url))
    answered: list[bool] = []

    def call() -> None:
        port = goal.port or (80 if goal.scheme == "http" else 443)
        with suppress(OSError), socket.create_connection((goal.hostname or "", port), SECONDS):
            answered.append(True)

    thread = Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(answered)
