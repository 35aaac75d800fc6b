"""Where a network is computed, and how precisely."""

from contextlib import AbstractContextManager, nullcontext

import torch

from fiss.errors import UserError
from fiss.models.segmenter import Segmenter
from fiss.training.spec import TrainingSpec


def pick_device(name: str) -> torch.device:
    """The device a spec asks for, by number: torch wants one where it makes a device the current one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UserError(f"device = {name}: use auto, cpu, cuda or cuda:N.")
    if kind == "cpu":
        return torch.device("cpu")
    if int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device = {name}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    return torch.device("cuda", int(number or 0))


def use_device(spec: TrainingSpec) -> torch.device:
    """The device of this process from now on, with as many threads as the spec asks for."""
    if spec.threads:
        torch.set_num_threads(spec.threads)
    if (device := pick_device(spec.device)).type == "cuda":
        torch.cuda.set_device(device)
    return device


def autocast(spec: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision as the spec asks for it."""
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if spec.precision == "bfloat16" or (spec.precision == "auto" and has_it):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def place(model: Segmenter, device: torch.device) -> Segmenter:
    """On the device, channels last: faster on GPUs and on CPUs alike."""
    return model.to(device).to(memory_format=torch.channels_last)
