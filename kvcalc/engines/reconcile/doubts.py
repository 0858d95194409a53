"""Where a model does not match a log: the figures that rule it out."""

from collections.abc import Iterator, Sequence

from kvcalc.engines.reconcile.row import Row

_NEAR = 0.1
"""A model whose figures are as near as this may well be the one, under another flag."""

_OF_A_POOL = ("tokens", "blocks")


def doubts(rows: Sequence[Row], name: str) -> Iterator[str]:
    """A sentence for the first figure that speaks against the model called `name`, of those that say it best."""
    unexplained = [row for row in rows if row.verdict == "unexplained" and row.low is not None]
    layers = next((row for row in unexplained if row.figure == "layers"), None)
    if layers is not None:
        yield f"{name} does not match: the log has a cache of {layers.shown} layers, the model one of {layers.computed}"
        return
    for row in unexplained:
        if row.figure in _OF_A_POOL and row.low and row.logged.value:
            ratio = float(row.low / row.logged.value)
            if abs(ratio - 1) < _NEAR:
                return
            yield (
                f"{name} does not match, or something else takes memory: the log has {row.shown} {row.figure} where "
                f"the model has {row.computed}, as if each took {ratio:.3g} times the bytes"
            )
            return
