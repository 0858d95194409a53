"""What a release of vLLM does not have, or what was not read in it: refused by name."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvcalc.cache.component import Attended, Component
from kvcalc.cache.sharding import WHOLE
from kvcalc.engines.vllm_rules import Rules
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize


class Asked(NamedTuple):
    """A request as a release meets it."""

    size: CacheSize
    kept: Sequence[Component]
    rules: Rules
    prefix_caching: bool | None
    draft_tokens: int


def check_release(asked: Asked, version: str) -> None:
    """KvcalcError, by name, where the release does not have what the request needs, or it was not read there."""
    for is_met, what, hint in _LIMITS:
        if is_met(asked):
            raise KvcalcError(f"--engine vllm@{version} does not know {what}", hint)


def _has_latents(asked: Asked) -> bool:
    return any("v" not in {part.name for part in one.parts(WHOLE)} for one in asked.kept if _holds_tokens(one))


def _holds_tokens(component: Component) -> bool:
    return component.keeps_entries and not component.selects


def _has_split_widths(asked: Asked) -> bool:
    pairs = ({part.name: part.width for part in one.parts(WHOLE)} for one in asked.kept if _holds_tokens(one))
    return any("v" in widths and len(set(widths.values())) > 1 for widths in pairs)


def _has_newest_kinds(asked: Asked) -> bool:
    bounded = any(isinstance(one, Attended) and (one.window or one.ratio) for one in asked.kept)
    selects = any(one.selects for one in asked.kept)
    latent = _has_latents(asked)
    return (latent and bounded) or (selects and not latent)


def _drafts_beside(asked: Asked) -> str:
    """What `Rules.drafts` must be at least, `none` where nothing is drafted."""
    if not (asked.draft_tokens or asked.size.workload.draft_layers):
        return "none"
    names = {state.name for one in asked.kept for state in one.states(WHOLE) if not state.is_convolution}
    return "states" if names - {"delta"} else "delta" if names else "attention"


def _has_unknown_drafts(asked: Asked) -> bool:
    return _DRAFTS.index(_drafts_beside(asked)) > _DRAFTS.index(asked.rules.drafts)


_DRAFTS = ("none", "attention", "delta", "states")
"""In the order in which releases came to know them."""


def _has_windows_alone(asked: Asked) -> bool:
    """V0 reuses the blocks of a window that all layers have; beside others it charges the whole context."""
    windows = [isinstance(one, Attended) and one.window is not None for one in asked.kept]
    return asked.rules.one_table and bool(windows) and all(windows)


def _keeps_mamba_blocks(asked: Asked) -> bool:
    cached = asked.rules.caches_states_by_default if asked.prefix_caching is None else asked.prefix_caching
    mamba = any(state.name == "ssm" for one in asked.kept for state in one.states(WHOLE))
    return cached and mamba and asked.rules.cached_mamba == "all"


def _has_states(asked: Asked) -> bool:
    return any(one.states(WHOLE) for one in asked.kept)


def _has_index(asked: Asked) -> bool:
    return any(one.selects for one in asked.kept)


_LIMITS: tuple[tuple[Callable[[Asked], bool], str, str], ...] = (
    (
        lambda asked: not asked.rules.knows_newest_kinds and _has_newest_kinds(asked),
        "compressed entries, windows of latents, or index keys beside K and V",
        "leave the version out",
    ),
    (
        _has_unknown_drafts,
        "drafts beside these layers in one pool",
        "use vllm@0.8 or later, 0.10.2 for the delta rule, 0.17 for other states",
    ),
    (
        lambda asked: not asked.rules.knows_states and _has_states(asked),
        "recurrent states among its blocks",
        "use vllm@0.10.1 or later",
    ),
    (
        lambda asked: not asked.rules.knows_latent and _has_latents(asked),
        "MLA's latents: it keeps K and V of every head",
        "use vllm@0.7.1 or later",
    ),
    (lambda asked: not asked.rules.knows_index and _has_index(asked), "index keys", "use vllm@0.11 or later"),
    (
        lambda asked: not asked.rules.knows_split_widths and _has_split_widths(asked),
        "a V narrower than its K",
        "use vllm@0.20 or later",
    ),
    (
        lambda asked: not asked.rules.knows_encoder and any(one.is_encoder_fed for one in asked.kept),
        "the encoder's tokens among its blocks",
        "use vllm@0.10.2 or later",
    ),
    (
        lambda asked: not asked.rules.knows_dcp and asked.size.sharding.dcp > 1,
        "decode-context ranks",
        "use vllm@0.10.2 or later, or leave --dcp out",
    ),
    (
        _has_windows_alone,
        "layers that all have a window: V0 lets them reuse their blocks",
        "use vllm@0.8 or later",
    ),
    (
        _keeps_mamba_blocks,
        "a cache of Mamba's states for every block",
        "add --no-enable-prefix-caching, or use vllm@0.32 or later",
    ),
)
"""When something is not known, what it is, and what would work."""
