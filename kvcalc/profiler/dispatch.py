"""Which of torch's operations an action really calls, and which of them takes the time, on a CPU."""

import time
from collections.abc import Callable
from typing import Any


def slowest_op(action: Callable[[], object]) -> str:
    """The operation that takes most of the time of `action`, as torch dispatches it: `aten.bmm.default`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    spent: dict[str, float] = {}

    class Timed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            start = time.perf_counter()
            out = func(*args, **(kwargs or {}))
            spent[str(func)] = spent.get(str(func), 0.0) + time.perf_counter() - start
            return out

    with Timed():
        action()
    return max(spent, key=lambda name: spent[name]) if spent else "unknown"
