"""Typed access to a GGUF header: counts, per-layer lists and flags, and which tensors a layer has."""

import re
from typing import Any, NoReturn

from kvcalc.errors import SpecError, shorten
from kvcalc.model.importers.gguf import GgufHeader

MOST_LAYERS = 10_000
MOST_COUNT = 10**9

_TENSOR = re.compile(r"(dec\.|enc\.|)blk\.(\d{1,5})\.(.+)")


class Keys:
    """The keys of one architecture. `where` begins every complaint; `assumed` collects what no key states."""

    def __init__(self, header: GgufHeader, where: str) -> None:
        self.header, self.where = header, where
        self.assumed: list[str] = []
        self.notes: list[str] = []
        self._counts: dict[str, int | None] = {}
        arch = header.metadata.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            self.fail("no general.architecture", "a model's GGUF names its architecture: is this one?")
        self.arch: str = arch
        self.by_layer: dict[int, set[str]] = {}
        for tensor in header.tensors:
            found = _TENSOR.fullmatch(tensor.name)
            if found and found[1] != "enc.":
                self.by_layer.setdefault(int(found[2]), set()).add(found[3].removesuffix(".weight"))

    def fail(self, message: str, hint: str) -> NoReturn:
        """A complaint about this file."""
        raise SpecError(f"{self.where}: {message}", hint)

    def raw(self, key: str) -> Any:
        """The value of `ARCH.key` as it stands, None where there is none."""
        return self.header.metadata.get(f"{self.arch}.{key}")

    def count(self, key: str) -> int | None:
        """A count; of an array, its first item that is not 0; None where the key is missing."""
        # Kept, for every layer asks again and an array may be as long as the model.
        if key not in self._counts:
            self._counts[key] = self._count(key)
        return self._counts[key]

    def _count(self, key: str) -> int | None:
        value = self.raw(key)
        if isinstance(value, list):
            counts = [self._checked(key, item) for item in value]
            return next((item for item in counts if item), counts[0] if counts else None)
        return None if value is None else self._checked(key, value)

    def need(self, key: str) -> int:
        """A count of one or more that the cache cannot be sized without."""
        value = self.count(key)
        if not value:
            said = "is 0" if value == 0 else "is missing"
            self.fail(f"{shorten(self.arch)}.{key} {said}", "the cache cannot be sized without it")
        return value

    def per_layer(self, key: str, layers: int) -> list[int] | None:
        """A count for every layer, from one number or an array; None where the key is missing."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list):
            return [self._checked(key, value)] * layers
        if len(value) < layers:
            self.fail(f"{shorten(self.arch)}.{key} has {len(value)} items for {layers} layers", "one item a layer")
        return [self._checked(key, item) for item in value[:layers]]

    def flags(self, key: str) -> list[bool] | None:
        """An array of yes and no; None where the key is missing, or no such array."""
        value = self.raw(key)
        return [bool(item) for item in value] if isinstance(value, list) and value else None

    def has(self, layer: int, *starts: str) -> bool:
        """Whether a tensor of the layer begins so."""
        return any(name.startswith(starts) for name in self.by_layer.get(layer, ()))

    def _checked(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNT:
            self.fail(f"{shorten(self.arch)}.{key} is {shorten(repr(value))}, no count", "is the file damaged?")
        return value
