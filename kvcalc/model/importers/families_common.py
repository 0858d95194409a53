"""What the functions for model types have in common."""

from collections.abc import Callable
from typing import Any

from kvcalc.model.importers.fields import Fields

Derived = dict[str, Any]
Rule = Callable[[Fields], Derived]
MOST_LAYERS = 10_000  # a larger count is refused where layers are counted


def layers_of(fields: Fields) -> int:
    """Layers that the config counts, 0 where it does not say."""
    return min(fields.count("num_hidden_layers", "num_blocks", "num_layers") or 0, MOST_LAYERS)


def words_of(fields: Fields, words: Callable[[int], str], name: str = "layer_types") -> Derived:
    """A word a layer, unless the config states them."""
    if fields.raw(name) is not None:
        return {}
    return {name: [words(index) for index in range(layers_of(fields))]}


def harmless(*names: str) -> Rule:
    """For a type whose cache these fields do not bear on: they are the encoder's, or a mask's, or unused."""

    def rule(fields: Fields) -> Derived:
        fields.means_nothing(*names)
        return {}

    return rule
