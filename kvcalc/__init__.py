"""KV-cache memory for LLM inference: exact where arithmetic can be exact.

>>> import kvcalc
>>> size = kvcalc.size(kvcalc.load("llama-8b"), context_tokens=8192, batch=32)
>>> size.bytes_per_token, size.bytes_per_sequence, size.total_bytes
(Fraction(131072, 1), 1073741824, 34359738368)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.api import fit as fit
    from kvcalc.api import grid as grid
    from kvcalc.api import load as load
    from kvcalc.api import models as models
    from kvcalc.api import profile as profile
    from kvcalc.api import simulate as simulate
    from kvcalc.api import size as size
    from kvcalc.api import sweep as sweep
    from kvcalc.api import throughput as throughput

__version__ = "0.1.0"
__all__ = ["__version__", "fit", "grid", "load", "models", "profile", "simulate", "size", "sweep", "throughput"]


def __getattr__(name: str) -> object:
    """Load the API when it is first asked for, so that `import kvcalc` costs nothing."""
    if name in __all__:
        from kvcalc import api

        return getattr(api, name)
    raise AttributeError(f"module 'kvcalc' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, so that a prompt completes them."""
    return __all__
