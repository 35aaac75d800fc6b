"""Weights as FLARE's own data objects (DXO), so that privacy filters act on them, and the proof that each one did.

A filter acts on the kinds of DXO that it knows, and lets everything else pass without a word. So a site that has
filters sends its weights as a difference, and what a filter did not act on is not sent.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.utils.task_utils import get_filters
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.private.privacy_manager import Scope

from fiss.errors import UserError
from fiss.federation.wire import Message
from fiss.flare.job import TASK

KINDS = {DataKind.WEIGHTS.value: False, DataKind.WEIGHT_DIFF.value: True}
"""What FLARE calls weights, and whether they are a difference."""


def to_shareable(message: Message) -> Shareable:
    """The message as FLARE carries it: floating-point arrays as a DXO, text and whole numbers beside it."""
    floats = {name: array for name, array in message.arrays.items() if array.dtype.kind == "f"}
    data = Shareable()
    if floats:
        kind = DataKind.WEIGHT_DIFF if message.difference else DataKind.WEIGHTS
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: json.loads(message.text)["steps"]} if message.difference else None
        data = DXO(kind.value, floats, meta).to_shareable()
    data["text"] = message.text
    data["arrays"] = {name: array for name, array in message.arrays.items() if name not in floats}
    return data


def to_message(data: Shareable) -> Message:
    """The message that FLARE carried."""
    text, arrays = data.get("text", ""), data.get("arrays", {})
    if not _has_weights(data):
        return Message(text, arrays)
    weights = from_shareable(data)
    if weights.data_kind not in KINDS:
        raise UserError(f"Weights are expected as {' or '.join(KINDS)}, not as {str(weights.data_kind)[:40]}.")
    return Message(text, {**weights.data, **arrays}, KINDS[weights.data_kind])


def result_filters(fl_ctx: FLContext) -> Sequence[Filter]:
    """The filters of the site and of the job that FLARE is to give each answer to."""
    of_job = fl_ctx.get_prop(FLContextKey.RUNNER).task_result_filters
    filters: list[Filter] = get_filters(Scope.TASK_RESULT_FILTERS_NAME, fl_ctx, of_job, TASK, FilterKey.OUT)
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    there = (Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)) / "local" / "privacy.json").is_file()
    if there and not (scope and scope.task_result_filters[FilterKey.OUT]):  # FLARE says nothing of unknown keys
        raise UserError("local/privacy.json: no filters in it that FLARE knows of; remove it, or see docs/privacy.md.")
    if scope:
        chains = [*scope.task_data_filters.values(), *scope.task_result_filters.values()]
        if idle := [type(f).__name__ for chain in chains for f in chain if f not in filters]:
            raise UserError(f"local/privacy.json: {idle}: only filters on task results that go out do anything here.")
    return filters


def refuse_unknown_names(filters: Sequence[Filter], answer: Message) -> None:
    """Stop where a filter is to leave out weights that are not among those of an answer: its names are wrong."""
    names = [name for name, array in answer.arrays.items() if array.dtype.kind == "f"]
    for chosen in (f.exclude_vars for f in filters if isinstance(f, ExcludeVars) and names):
        unknown = [name for name in chosen if name not in names] if isinstance(chosen, list) else []
        if unknown or (isinstance(chosen, re.Pattern) and not any(map(chosen.search, names))):
            raise UserError(
                f"ExcludeVars: no weights are called {unknown or chosen.pattern}; some are called {min(names)}."
            )


def refuse_unfiltered(filters: Sequence[Filter], answer: Shareable) -> None:
    """Stop what is about to leave if a filter did not act on its weights, or left what the server cannot add up."""
    if not filters or answer.get_return_code() != ReturnCode.OK or not (_has_weights(answer) or answer.get("arrays")):
        return  # FLARE's own refusal, or no weights
    weights = from_shareable(answer) if _has_weights(answer) else DXO(DataKind.WEIGHTS.value, {})
    asked, acted = [type(f).__name__ for f in filters], weights.get_filter_history() or []
    if weights.data_kind != DataKind.WEIGHT_DIFF or acted != asked:
        raise UserError(f"filters {asked} are asked for, and {acted} acted on {weights.data_kind}")
    plain = all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in weights.data.values())
    if weights.get_meta_prop(MetaKey.PROCESSED_ALGORITHM) or not plain:
        raise UserError(f"the server of a federation cannot read what filters {asked} make of weights")


def _has_weights(data: Shareable) -> bool:
    return bool(data.get_header(ReservedHeaderKey.CONTENT_TYPE) == "DXO")
