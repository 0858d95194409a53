"""What is worked out once and asked for often, under a key of its own."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")


class Memo:
    """Answers by key. What ended in an error is not kept, and is asked again."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], Found]) -> Found:
        """What `make` makes, made the first time alone."""
        if key not in self._found:
            self._found[key] = make()
        found: Found = self._found[key]
        return found
