"""What is worked out once: a figure by a key of its own."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")


class Memo:
    """Figures that were asked for before. A question that ends in an error is asked again."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """What `make` makes, made the first time alone."""
        if key not in self._found:
            self._found[key] = make()
        found: Found = self._found[key]
        return found
