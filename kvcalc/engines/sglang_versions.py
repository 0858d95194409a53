"""What changed between releases of SGLang in how its pools are sized: the one place that knows.

Read in the wheels of the releases below: srt/model_executor/pool_configurator.py and srt/mem_cache/
kv_cache_configurator.py from 0.5.17 on, srt/model_executor/model_runner_kv_cache_mixin.py before, and
configs/model_config.py (is_hybrid_swa_model) for the window pools. A GB of its log is 2**30 bytes in all of them.
"""

import msgspec

_FIRST_WINDOWS = frozenset({"gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "step3p5"})
_MORE_WINDOWS = _FIRST_WINDOWS | {
    "gemma4",
    "gemma4_text",
    "gemma4_unified",
    "gemma4_unified_text",
    "laguna",
    "mimo_v2",
    "step3p7",
}
_WINDOWS_017 = _MORE_WINDOWS | {"mellum"}
_WINDOWS_020 = _WINDOWS_017 | {"granite_swa", "granitemoe_swa", "muse_glimmer"}
_WINDOWS_023 = _WINDOWS_020 | {"beam", "dots3_note", "dots3_note_text", "unlimited_ocr"}


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one release that another one has otherwise."""

    window_pools: frozenset[str]
    """Types of config.json whose windows have a pool of their own; others keep every token in all layers."""
    pays_spare_slot: bool = True
    """Whether the spare slot comes out of the budget of the states; it is allocated either way."""
    splits_whole_tokens: bool = False
    """Whether window pools split what whole tokens of all layers take, rather than the bytes."""
    clamps_asked_requests: bool = False
    """Whether --max-running-requests is bounded by what would be chosen without it, and not by half of the tokens."""
    extra_buffers: bool = True
    """Whether prefix caching of states keeps two more slots a request by itself, where the model can."""
    caps_windows: bool = False
    """Whether window pools are sized by --max-running-requests where nothing is cached for reuse."""
    takes_compressed: bool = True
    """Whether its pools of compressed entries (DeepSeek-V4) were read."""
    pads_pages: bool = False
    """Whether sizing counts the padding of a page of compressed entries; it is allocated either way."""
    state_page: int | None = None
    """Tokens of a window page that share a compressor's rows; None for those of --page-size."""
    takes_drafts: bool = False
    """Whether its rules for draft layers were read."""


RELEASES = {
    "0.5.23": Release(window_pools=_WINDOWS_023, caps_windows=True, pads_pages=True, takes_drafts=True),
    "0.5.20": Release(window_pools=_WINDOWS_020, state_page=128),
    "0.5.17": Release(window_pools=_WINDOWS_017, state_page=128),
    "0.5.13": Release(
        window_pools=_MORE_WINDOWS,
        pays_spare_slot=False,
        clamps_asked_requests=True,
        extra_buffers=False,
        takes_compressed=False,
    ),
    "0.5.10": Release(
        window_pools=_FIRST_WINDOWS,
        pays_spare_slot=False,
        splits_whole_tokens=True,
        clamps_asked_requests=True,
        extra_buffers=False,
        takes_compressed=False,
    ),
}
"""By release, newest first."""
