"""The Pareto front of tokens/s per GPU against tokens/s per user: found block by block, kept as its pairs alone."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]


class Front:
    """Pairs of figures that no other pair beats in both. Pairs with a NaN are no points."""

    def __init__(self) -> None:
        self._pairs: Any = None

    def add(self, first: "Floats", second: "Floats") -> None:
        """Take more points into account."""
        import numpy as np

        pairs = np.stack([first, second], axis=1)
        pairs = pairs[~np.isnan(pairs).any(axis=1)]
        self._pairs = unbeaten(pairs if self._pairs is None else np.concatenate([self._pairs, pairs]))

    def holds(self, first: "Floats", second: "Floats") -> Any:
        """Whether each of these points is on the front."""
        import numpy as np

        if self._pairs is None:
            return np.zeros(len(first), dtype=bool)
        # A pair is one complex number, which numpy looks up as a whole.
        return np.isin(first + 1j * second, self._pairs[:, 0] + 1j * self._pairs[:, 1])


def unbeaten(pairs: "Floats") -> "Floats":
    """The distinct pairs, each a row, of which no other is as high in both and higher in one."""
    import numpy as np

    falling = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))[::-1]]
    best = np.maximum.accumulate(np.concatenate([[-np.inf], falling[:, 1]]))
    return falling[falling[:, 1] > best[:-1]]
