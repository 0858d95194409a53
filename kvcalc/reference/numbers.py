"""Plain number formats as torch types."""

from typing import TYPE_CHECKING

from kvcalc.cache.formats import find_format
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    import torch

PLAIN = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def is_plain(format_name: str) -> bool:
    """Whether a format is a type that torch computes in."""
    return format_name in PLAIN


def torch_dtype(format_name: str, flag: str) -> "torch.dtype":
    """The torch type of a plain format; KvcalcError for one that torch cannot compute in."""
    import torch

    name = find_format(format_name, flag).name
    if name not in PLAIN:
        raise KvcalcError(f"{flag} {name}: layers compute in {', '.join(PLAIN)} here", f"use {flag} bf16")
    return getattr(torch, PLAIN[name])
