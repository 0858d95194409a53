"""What each layer of a GGUF model keeps: attention, a latent, an index, a state, or nothing.

Sizes follow src/llama-hparams.cpp of llama.cpp (n_embd_k_gqa, n_embd_r, n_embd_s); which layers
attend follows the keys first and the tensors' names where no key says it.
"""

from typing import Any

from kvcalc.model.importers import gguf_arch as arch
from kvcalc.model.importers.gguf_keys import Keys
from kvcalc.model.importers.gguf_states import state_of

Component = dict[str, Any]

_KEEPS_STATE = ("ssm_", "shortconv", "time_mix")
# Not attn_qkv: a gated delta rule projects its own q, k and v under that name.
_ATTENDS = ("attn_k", "attn_kv")
_WINDOW, _GLOBAL = "window", "global"


class LayerReader:
    """The mixers of `layers` layers; those from `trunk` on are drafts, which attend in full."""

    def __init__(self, keys: Keys, layers: int, trunk: int) -> None:
        self.keys, self.layers, self.trunk = keys, layers, trunk
        self.heads = keys.per_layer("attention.head_count", layers) or [0] * layers
        stated = keys.per_layer("attention.head_count_kv", layers) or self.heads
        # Without query heads nothing attends: RWKV's files may state KV heads all the same.
        silent = keys.raw("attention.head_count") is None
        self.kv_heads = [kv if heads or silent else 0 for kv, heads in zip(stated, self.heads, strict=True)]
        self.state = state_of(keys)
        self.parallel = [keys.arch in arch.PARALLEL] * layers
        self.recurrent = self._recurrent_layers() if self.state else [False] * layers
        self.span, self.window = self._window()
        self.sliding = self._sliding_layers()
        shared = keys.count("attention.shared_kv_layers")
        self.kept = arch.KEPT_LAYERS.get(keys.arch, trunk) if shared is None else max(0, trunk - shared)
        self.rank = keys.count("attention.kv_lora_rank") or 0
        self.ratios = keys.per_layer("attention.compress_ratios", layers)
        self.index_layers = self._index_layers()

    def mixer(self, layer: int) -> list[Component]:
        """The components of a layer, in the order in which it keeps them."""
        found: list[Component] = []
        if self.kv_heads[layer] and (not self.recurrent[layer] or self.parallel[layer]):
            found += self._attention(layer)
        return [*found, self.state] if self.state and self.recurrent[layer] else found

    def _recurrent_layers(self) -> list[bool]:
        """Which layers keep a state, from whichever key or tensor says it."""
        attends = self._attending_layers()
        if attends is not None:
            return [layer < self.trunk and not attends[layer] for layer in range(self.layers)]
        if self.keys.arch in arch.PARALLEL:
            return [layer < self.trunk for layer in range(self.layers)]
        return self._without_heads() if 0 in self.kv_heads else self._by_tensors()

    def _attending_layers(self) -> list[bool] | None:
        """Which layers attend rather than keep a state, where a key says it of each."""
        keys, layers = self.keys, range(self.layers)
        recurrent, listed = keys.flags("attention.recurrent_layers"), keys.raw("attention.layer_indices")
        if recurrent is not None:
            return [layer >= len(recurrent) or not recurrent[layer] for layer in layers]
        if isinstance(listed, list):
            attending = set(listed)
            return [layer in attending for layer in layers]
        interval = keys.count("full_attention_interval") or arch.FULL_INTERVAL.get(keys.arch)
        return [(layer + 1) % interval == 0 for layer in layers] if interval else None

    def _by_tensors(self) -> list[bool]:
        keys, layers = self.keys, range(self.layers)
        found = [keys.has(layer, *_KEEPS_STATE) for layer in layers]
        if any(found):
            self.parallel = [keys.has(layer, *_ATTENDS) for layer in layers]
            return found
        keys.assumed.append("no key and no tensor says which layers keep a state: all do, beside their attention")
        self.parallel = [True] * self.layers
        return [True] * self.layers

    def _without_heads(self) -> list[bool]:
        """A layer without KV heads keeps a state; where layers are one part each, the feed-forward ones do not."""
        inner = self.keys.per_layer("feed_forward_length", self.layers) or [0] * self.layers
        one_part = 0 in inner and any(inner)
        pairs = zip(self.kv_heads, inner, strict=True)
        return [not heads and not (one_part and width) for heads, width in pairs]

    def _window(self) -> tuple[str, int | None]:
        """Which span the sliding layers have, and of how many tokens."""
        keys, slide = self.keys, arch.SLIDING.get(self.keys.arch)
        stated = keys.count("attention.sliding_window")
        if slide is None or stated == 0:
            return _WINDOW, stated or None
        if slide.only_layers not in (None, self.trunk):
            return slide.span, None
        if stated is None:
            return slide.span, slide.default_window
        return slide.span, slide.fixed_window or stated

    def _sliding_layers(self) -> list[bool]:
        keys, layers = self.keys, range(self.layers)
        slide, pattern = arch.SLIDING.get(keys.arch), keys.raw("attention.sliding_window_pattern")
        if self.window is None or keys.raw(_RATIOS):
            return [False] * self.layers
        if keys.arch in arch.NEVER_SLIDES or (slide is None and pattern is None):
            known = keys.notes if keys.arch in arch.NEVER_SLIDES else keys.assumed
            known.append("the window that the file states is not applied: llama.cpp keeps all tokens in every layer")
            return [False] * self.layers
        if isinstance(pattern, list) and pattern:
            if len(pattern) < self.trunk:
                keys.assumed.append(f"a sliding_window_pattern of {len(pattern)} layers repeats")
            return [layer < self.trunk and bool(pattern[layer % len(pattern)]) for layer in layers]
        slide = slide or arch.Slide(0)
        period = keys.count("attention.sliding_window_pattern")
        period = slide.period if period is None else period
        return [layer < self.trunk and slide.slides(layer, period) for layer in layers]

    def _index_layers(self) -> list[bool]:
        """Which layers keep an indexer's keys."""
        keys, layers = self.keys, range(self.layers)
        if not keys.count("attention.indexer.key_length"):
            return [False] * self.layers
        types = keys.flags("attention.indexer.types")
        if types is not None:
            return [layer >= len(types) or types[layer] for layer in layers]
        if any(keys.has(layer, "indexer") for layer in layers):
            return [keys.has(layer, "indexer") for layer in layers]
        return [True] * self.layers

    def _attention(self, layer: int) -> list[Component]:
        if self.ratios is not None:
            return self._compressed(layer, self.ratios[layer])
        if self.kept <= layer < self.trunk:
            return [self._reader(layer)]
        entry = self._latent(layer) if self.rank else self._kv(layer)
        if self.index_layers[layer]:
            return [{**entry, **self._top_k()}, self._index()]
        return [{**entry, **(self._top_k() if any(self.index_layers) and self.rank else {})}]

    def _kv(self, layer: int) -> Component:
        """K and V, in the widths that a sliding layer may have of its own."""
        slides = self.sliding[layer]
        widths = [self._width(name, slides) for name in ("key_length", "value_length")]
        found: Component = {"kind": "kv", **self._named(layer), **self._queries(layer)}
        found |= {"kv_heads": self.kv_heads[layer], "head_dim": widths[0]}
        found |= {"v_head_dim": widths[1]} if widths[0] != widths[1] else {}
        return found | ({self.span: self.window} if slides else {})

    def _width(self, name: str, slides: bool) -> int:
        keys = self.keys
        own = keys.count(f"attention.{name}_swa") if slides else None
        stated = own or keys.count(f"attention.{name}")
        heads = keys.count("attention.head_count") or 0
        width = stated or (keys.need("embedding_length") // heads if heads else 0)
        if not width:
            keys.fail(f"no width of a head: no {name}, and no heads to divide by", "the cache cannot be sized")
        return width

    def _queries(self, layer: int) -> Component:
        return {"q_heads": self.heads[layer]} if self.heads[layer] else {}

    def _named(self, layer: int) -> Component:
        """A label where later layers read this cache."""
        return {"id": self._label(layer)} if self.kept < self.trunk else {}

    def _label(self, layer: int) -> str:
        return _WINDOW if self.sliding[layer] else _GLOBAL

    def _reader(self, layer: int) -> Component:
        """A layer that reads the last kept cache of its own sort: has_kv of src/llama-hparams.cpp."""
        return {"kind": "shared", "source": self._label(layer), **self._queries(layer)}

    def _latent(self, layer: int) -> Component:
        """MLA: the latent and its rotary key; whole heads stay unkept even where llama.cpp expands an old file."""
        keys = self.keys
        rope = self._rope(self.rank)
        if not keys.count("attention.key_length_mla"):
            keys.notes.append("the file has no key_length_mla: llama.cpp keeps whole K and V heads for it")
        key = keys.count("attention.key_length_mla") or keys.count("attention.key_length") or 0
        value = keys.count("attention.value_length_mla") or keys.count("attention.value_length")
        optional = {"nope_head_dim": max(0, key - rope), "v_head_dim": value}
        optional["q_rank"] = keys.count("attention.q_lora_rank")
        given = {name: size for name, size in optional.items() if size}
        return {"kind": "latent", **self._queries(layer), "latent_dim": self.rank, "rope_dim": rope, **given}

    def _rope(self, rank: int) -> int:
        stated, key = self.keys.count("rope.dimension_count"), self.keys.count("attention.key_length") or 0
        if stated is not None:
            return stated
        if self.keys.count("attention.key_length_mla") and key >= rank:
            return key - rank
        return self.keys.need("rope.dimension_count")

    def _top_k(self) -> Component:
        best = self.keys.count("attention.indexer.top_k")
        return {"top_k": best} if best else {}

    def _index(self) -> Component:
        keys = self.keys
        optional = {
            "q_heads": keys.count("attention.indexer.head_count"),
            "q_rank": keys.count("attention.q_lora_rank"),
        }
        given = {name: size for name, size in optional.items() if size}
        return {"kind": "index", "head_dim": keys.need("attention.indexer.key_length"), **given}

    def _compressed(self, layer: int, ratio: int) -> list[Component]:
        """DeepSeek-V4: a window, and one entry for `ratio` tokens; ratio 4 overlaps and has an index.

        deepseek4.cpp: one vector of key_length for K and V, and the ratios 0, 4 and 128.
        """
        width, rope = self.keys.need("attention.key_length"), self.keys.need("rope.dimension_count")
        vector: Component = {"kind": "latent", "latent_dim": width - rope, "rope_dim": rope}
        window = {**vector, **self._queries(layer), "window": self.keys.need("attention.sliding_window")}
        if not ratio or layer >= self.trunk:
            return [window]
        if not self.index_layers[layer] or ratio != _INDEXED_RATIO:
            return [window, {**vector, "ratio": ratio}]
        span = {"ratio": ratio, "overlap": True}
        return [window, {**vector, **span, **self._top_k()}, {**self._index(), **span}]


_RATIOS = "attention.compress_ratios"
_INDEXED_RATIO = 4
