"""How llama.cpp spreads layers over devices, and so the caches that they keep (`--tensor-split`, `-ngl`).

Read in build b11549: load_tensors of llama-model.cpp for the split; llama_kv_cache and llama_memory_recurrent put a
cache on the device of its layer.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_float
from math import inf

from kvcalc.errors import KvcalcError
from kvcalc.units import memory


class Devices:
    """The devices that were asked for, by their shares, and which layer each takes; the host is behind them."""

    def __init__(self, shares: Sequence[float], gpu_layers: int | None, layers: int) -> None:
        """`layers` are those of the whole model, draft layers with them; the output layer counts as one more."""
        # Too small or too large for single precision is nothing of anything.
        if any(share < 0 for share in shares) or (shares and not 0 < sum(map(_single, shares)) < inf):
            raise KvcalcError(f"-ts {','.join(f'{share:g}' for share in shares)}: no shares of anything", "use -ts 1,1")
        self.count = len(shares) or (0 if gpu_layers is None else 1)
        self.ends = _ends(shares or [1.0])
        self.taken = layers + 1 if gpu_layers is None else min(gpu_layers, layers + 1)
        self.first = layers + 1 - self.taken

    def of_layer(self, layer: int) -> int:
        """The place of a layer's device, `count` for the host: the last layers are those on devices."""
        if layer < self.first:
            return self.count
        return bisect_right(self.ends, _single((layer - self.first) / self.taken))

    def held(self, of_layers: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """Bytes on every device, and on the host behind them; empty where no device was asked for."""
        if not self.count:
            return ()
        held = [0] * (self.count + 1)
        for layer, size in of_layers:
            held[self.of_layer(layer)] += size
        return tuple(held)

    def rules(self, held: Sequence[Sequence[int]]) -> Iterator[str]:
        """What an answer should say, of the bytes of each cache."""
        if self.count and held:
            *devices, host = (sum(sizes) for sizes in zip(*held, strict=True))
            listed = ", ".join(memory(size) for size in devices)
            on_host = f", and {memory(host)} on the host" if host else ""
            yield f"a cache lies on the device of its layer: {listed}{on_host}"


def _ends(shares: Sequence[float]) -> list[float]:
    """Where the layers of each device end, from 0 to 1, in the single precision of llama.cpp."""
    total, sums = 0.0, []
    for share in shares:
        total = _single(total + _single(share))
        sums.append(total)
    return [_single(one / total) for one in sums]


def _single(number: float) -> float:
    return c_float(number).value


def check_spread(shares: Sequence[float], gpu_layers: int | None, layers: int) -> None:
    """Refuse what cards that count as one memory do not hold: layers on the host, or in other than equal shares."""
    hint = "leave it out; kvcalc size --engine llama.cpp shows what each device holds of the cache"
    if gpu_layers is not None and gpu_layers <= layers:
        raise KvcalcError(f"-ngl {gpu_layers} leaves layers on the host: fit counts all on the cards", hint)
    if len(set(shares)) > 1:
        listed = ",".join(f"{share:g}" for share in shares)
        raise KvcalcError(f"-ts {listed}: fit counts cards that take equal shares", hint)
