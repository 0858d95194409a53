"""Every cache kind by the name that a spec gives it.

A new kind is one class that answers the questions of `Component`, and one line in this table; the
reader, sizing, the schema and the property tests pick it up from here.
"""

from typing import get_args

from kvcalc.cache.attention import Cross, Gmu, Index, Kv, Latent, Shared
from kvcalc.cache.component import Component
from kvcalc.cache.recurrent import GatedDelta, Linear, Mamba1, Mamba2, Recurrent, RgLru, Rwkv, ShortConv

AnyComponent = (
    Kv
    | Latent
    | Index
    | Cross
    | Shared
    | Mamba1
    | Mamba2
    | GatedDelta
    | Linear
    | ShortConv
    | RgLru
    | Rwkv
    | Recurrent
    | Gmu
)

KINDS: dict[str, type[Component]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyComponent)}
