"""How the blocks of vLLM's windows and chunks come and go as one request grows.

Read in vLLM 0.33.0, v1/core/single_type_kv_cache_manager.py: remove_skipped_blocks gives back what lies whole before
get_num_skipped_tokens of SlidingWindowManager and of ChunkedLocalAttentionManager.
"""

from typing import Any, Self

from kvcalc.sizing.blocks import Group, Window


class SlidingBlocks(Window, frozen=True, kw_only=True):
    """A window, whose bound is that of prefill: tokens in flight beside it, and a block as it may begin inside one."""

    in_flight_tokens: int

    @classmethod
    def of(cls, block_size: int, kept: int, in_flight_tokens: int) -> Self:
        """The last `kept` tokens in blocks of `block_size`."""
        name = f"window {kept}"
        return cls(name=name, block_tokens=block_size, units=1, cap=kept, in_flight_tokens=in_flight_tokens)

    def most_blocks(self, tokens: int) -> int:
        return -(-min((self.cap or 1) - 1 + self.in_flight_tokens, tokens) // self.block_entries) + 1


class ChunkBlocks(Group, frozen=True, kw_only=True):
    """A chunk of `cap` tokens, given back as a whole when the next one begins."""

    in_flight_tokens: int

    @classmethod
    def of(cls, block_size: int, chunk: int, in_flight_tokens: int) -> Self:
        """A chunk of so many tokens in blocks of `block_size`."""
        name = f"chunk {chunk}"
        return cls(name=name, block_tokens=block_size, units=1, cap=chunk, in_flight_tokens=in_flight_tokens)

    def kept(self, tokens: Any) -> Any:
        return (tokens - 1) % (self.cap or 1) + 1

    def blocks(self, tokens: Any, step: int = 1) -> Any:
        return -(-tokens // self.block_entries) - self.dropped_blocks(tokens, step)

    def dropped_blocks(self, tokens: Any, step: int = 1) -> Any:
        chunk = self.cap or 1
        return (tokens - step) // chunk * chunk // self.block_entries

    def slot(self, tokens: int) -> int | None:
        return tokens - 1

    def most_blocks(self, tokens: int) -> int:
        return -(-min((self.cap or 0) + self.in_flight_tokens, tokens) // self.block_entries)
