"""Kinds that keep or read entries: attention of every sort."""

from typing import Any

import msgspec

from kvcalc.cache.component import Attended, Bias, Component, Count, CountOrZero, Label, QkNorm, contradiction
from kvcalc.cache.layout import Part
from kvcalc.cache.matrix import Matrix
from kvcalc.cache.sharding import Sharding
from kvcalc.cache.span import Span, at_most


def _check_grouping(q_heads: int | None, kv_heads: int) -> None:
    if q_heads is not None and q_heads % kv_heads:
        message = f"q_heads {q_heads} is no multiple of kv_heads {kv_heads}"
        raise ValueError(contradiction(message, "each KV head serves a whole group of query heads"))


def _bias_parameters(bias: Bias, qkv: int, output: int) -> int:
    return {"none": 0, "qkv": qkv, "all": qkv + output}[bias]


def _norm_parameters(qk_norm: QkNorm, heads: int, width: int) -> int:
    return {"none": 0, "head": width, "full": heads * width}[qk_norm]


class Kv(Attended, frozen=True, kw_only=True, tag="kv"):
    """K and V for every KV head: MHA, GQA and MQA differ in how many heads there are."""

    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    q_heads: Count | None = None
    top_k: Count | None = None
    bias: Bias = "none"
    qk_norm: QkNorm = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_grouping(self.q_heads, self.kv_heads)

    @property
    def widths(self) -> tuple[int, int]:
        """Width of K and of V."""
        return self.head_dim, self.v_head_dim or self.head_dim

    def parts(self, sharding: Sharding) -> tuple[Part, ...]:
        heads = sharding.heads(self.kv_heads)
        return Part("k", heads, self.widths[0]), Part("v", heads, self.widths[1])

    @property
    def geometry(self) -> str:
        k, v = self.widths
        return f"{self.kv_heads} KV head{'s' if self.kv_heads > 1 else ''} x {k if k == v else f'{k}/{v}'}"

    @property
    def is_default_source(self) -> bool:
        return True

    @property
    def queries(self) -> int | None:
        return self.q_heads

    def shared_heads(self) -> tuple[tuple[str, int], ...]:
        return (("KV heads", self.kv_heads),)

    @property
    def query_group(self) -> int:
        return self.kv_heads

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """K and V projections, and Q and O where it owns queries; biases and norms as the spec says."""
        width = sharding.heads(self.kv_heads) * sum(self.widths)
        norm = _norm_parameters(self.qk_norm, self.kv_heads, self.widths[0])
        kept = hidden * width + _bias_parameters(self.bias, width, 0) + norm
        return kept + self.query_parameters(hidden, self.q_heads or 0, self.bias, self.qk_norm, sharding)

    def adapted_widths(self, hidden: int, source: Component | None, sharding: Sharding) -> int:
        """Of its K and V projections, and of Q and O where it owns queries: vllm lora/layers, in whole and out cut."""
        kept = 2 * hidden + sharding.heads(self.kv_heads) * sum(self.widths)
        return kept + (2 * hidden + sharding.heads(self.q_heads) * sum(self.widths) if self.q_heads else 0)

    def query_parameters(self, hidden: int, q_heads: int, bias: Bias, qk_norm: QkNorm, sharding: Sharding) -> int:
        if not q_heads:
            return 0
        asked, answered = (sharding.heads(q_heads) * width for width in self.widths)
        norm = _norm_parameters(qk_norm, q_heads, self.widths[0])
        return hidden * (asked + answered) + _bias_parameters(bias, asked, hidden) + norm

    def matrices(self, hidden: int, source: Component | None, sharding: Sharding) -> tuple[Matrix, ...]:
        """Q, K and V in one matrix, as engines fuse them, and O."""
        if self.parameters is not None:
            return super().matrices(hidden, source, sharding)
        kept = sharding.heads(self.kv_heads) * sum(self.widths)
        asked = sharding.heads(self.q_heads) * self.widths[0] if self.q_heads else 0
        extra = sharding.share(self.extra_parameters) // hidden
        fused = Matrix(asked + kept + extra, hidden)
        return (fused, *self.query_matrices(hidden, self.q_heads or 0, sharding)[1:])

    def query_matrices(self, hidden: int, q_heads: int, sharding: Sharding) -> tuple[Matrix, ...]:
        if not q_heads:
            return ()
        asked, answered = (sharding.heads(q_heads) * width for width in self.widths)
        return Matrix(asked, hidden), Matrix(hidden, answered)

    def pair_flops(self, q_heads: int, is_prompt: bool) -> int:
        return 2 * q_heads * sum(self.widths)


class Cross(Kv, frozen=True, kw_only=True, tag="cross"):
    """K and V of the encoder's tokens: fixed for a sequence, whatever it decodes."""

    encoder_tokens: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window or self.chunk or self.ratio:
            message = "a cross cache takes no window, chunk or ratio"
            raise ValueError(contradiction(message, "it keeps the encoder's tokens: remove them"))

    @property
    def span(self) -> Span:
        return Span(cap=self.encoder_tokens or 0)

    def entries(self, tokens: Any) -> Any:
        return tokens * 0 + (self.encoder_tokens or 0)

    def pairs(self, tokens: Any, limit: int | None = None) -> Any:
        return tokens * at_most(self.encoder_tokens or 0, limit)

    @property
    def is_default_source(self) -> bool:
        return False

    def with_encoder(self, tokens: int) -> "Cross":
        return msgspec.structs.replace(self, encoder_tokens=tokens)

    @property
    def is_encoder_fed(self) -> bool:
        return True

    @property
    def needs_encoder_tokens(self) -> bool:
        return self.encoder_tokens is None


class Latent(Attended, frozen=True, kw_only=True, tag="latent"):
    """One compressed vector a token in place of K and V, whole on every rank: MLA and its kin.

    DeepSeek-V2, arXiv 2405.04434, section 2.1: a latent and a rotary key shared by all heads.
    """

    latent_dim: Count
    rope_dim: CountOrZero = 0
    q_heads: Count | None = None
    nope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    q_rank: Count | None = None
    top_k: Count | None = None

    def parts(self, sharding: Sharding) -> tuple[Part, ...]:
        latent = Part("latent", 1, self.latent_dim)
        return (latent, Part("rope", 1, self.rope_dim)) if self.rope_dim else (latent,)

    @property
    def in_heads(self) -> Kv | None:
        if not (self.q_heads and self.nope_head_dim and self.v_head_dim):
            return None
        width = self.nope_head_dim + self.rope_dim
        return Kv(id=self.id, kv_heads=self.q_heads, head_dim=width, v_head_dim=self.v_head_dim)

    @property
    def geometry(self) -> str:
        return f"{self.latent_dim} + {self.rope_dim} latent" if self.rope_dim else f"{self.latent_dim} latent"

    @property
    def is_default_source(self) -> bool:
        return True

    @property
    def queries(self) -> int | None:
        return self.q_heads

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int | None:
        """MLA's projections, with a norm on the latent and one on a low-rank query; those down are whole on a rank."""
        if self.q_heads is None or self.nope_head_dim is None or self.v_head_dim is None:
            return None
        heads = sharding.heads(self.q_heads)
        query_width = heads * (self.nope_head_dim + self.rope_dim)
        query = hidden * query_width
        if self.q_rank is not None:
            query = self.q_rank * (hidden + 1 + query_width)
        down = hidden * (self.latent_dim + self.rope_dim) + self.latent_dim
        up = self.latent_dim * heads * (self.nope_head_dim + self.v_head_dim)
        return query + down + up + heads * self.v_head_dim * hidden

    def matrices(self, hidden: int, source: Component | None, sharding: Sharding) -> tuple[Matrix, ...]:
        """Down projections in one matrix, the query up, the latent's two sides a head, and O.

        vllm model_executor/layers/mla.py MultiHeadLatentAttentionWrapper: fused_qkv_a_proj, q_b_proj, o_proj, with
        kv_b_proj absorbed into W_UK and W_UV, one matrix a head.
        """
        if self.parameters is not None or not (self.q_heads and self.nope_head_dim and self.v_head_dim):
            return super().matrices(hidden, source, sharding)
        heads = sharding.heads(self.q_heads)
        asked, kept = heads * (self.nope_head_dim + self.rope_dim), self.latent_dim + self.rope_dim
        down: tuple[Matrix, ...] = (Matrix(asked + kept, hidden),)
        if self.q_rank is not None:
            down = (Matrix(self.q_rank + kept, hidden), Matrix(asked, self.q_rank))
        sides = Matrix(self.latent_dim, self.nope_head_dim, heads), Matrix(self.v_head_dim, self.latent_dim, heads)
        return (*down, *sides, Matrix(hidden, heads * self.v_head_dim))

    def pair_flops(self, q_heads: int, is_prompt: bool) -> int:
        """A step scores against the latent and sums it; a prompt is spelled out into heads, which are narrower.

        Where a step selects `top_k` entries a prompt does too, and reads them as they are kept (vllm
        v1/attention/backends/mla/flashmla_sparse.py).
        """
        if is_prompt and self.top_k is None and self.nope_head_dim and self.v_head_dim:
            return 2 * q_heads * (self.nope_head_dim + self.rope_dim + self.v_head_dim)
        return 2 * q_heads * (2 * self.latent_dim + self.rope_dim)


class Index(Attended, frozen=True, kw_only=True, tag="index"):
    """One small key a token that selects what sparse attention reads; one head, whole on every rank."""

    head_dim: Count
    q_heads: Count | None = None
    q_rank: Count | None = None

    def parts(self, sharding: Sharding) -> tuple[Part, ...]:
        return (Part("index", 1, self.head_dim),)

    @property
    def selects(self) -> bool:
        return True

    @property
    def geometry(self) -> str:
        return f"{self.head_dim} key"

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int | None:
        """DeepSeek-V3.2's indexer: queries from the low-rank query, a key with a layer norm, a weight a head.

        Whole on every rank: vllm models/deepseek_v2.py Indexer makes replicated projections.
        """
        if self.q_heads is None:
            return None
        query = (self.q_rank or hidden) * self.q_heads * self.head_dim
        return query + hidden * (self.head_dim + self.q_heads) + 2 * self.head_dim

    def matrices(self, hidden: int, source: Component | None, sharding: Sharding) -> tuple[Matrix, ...]:
        if self.parameters is not None or self.q_heads is None:
            return super().matrices(hidden, source, sharding)
        key_and_weights = Matrix(self.head_dim + self.q_heads, hidden)
        return Matrix(self.q_heads * self.head_dim, self.q_rank or hidden), key_and_weights

    def pair_flops(self, q_heads: int, is_prompt: bool) -> int:
        """Scores alone, of its own heads, which every rank computes whole."""
        return 2 * (self.q_heads or q_heads) * self.head_dim


class Shared(Component, frozen=True, kw_only=True, tag="shared"):
    """Reads the cache of an earlier component and keeps nothing: CLA, YOCO, Gemma 3n, SambaY, V4.1 Reuse."""

    source: Label
    q_heads: Count | None = None
    top_k: Count | None = None
    window: Count | None = None
    bias: Bias = "none"
    qk_norm: QkNorm = "none"

    @property
    def source_label(self) -> str:
        return self.source

    @property
    def queries(self) -> int | None:
        return self.q_heads

    def read_limit(self, source: Component) -> int | None:
        limits = [limit for limit in (self.top_k or source.top_k, self.window) if limit is not None]
        return min(limits, default=None)

    def projection_parameters(self, hidden: int, source: Component | None, sharding: Sharding) -> int | None:
        """Its own Q and O over the heads of the source; nothing where its layer's queries belong to another."""
        if not self.q_heads:
            return 0
        if source is None:
            return None
        return source.query_parameters(hidden, self.q_heads, self.bias, self.qk_norm, sharding)

    def matrices(self, hidden: int, source: Component | None, sharding: Sharding) -> tuple[Matrix, ...]:
        found = source.query_matrices(hidden, self.q_heads or 0, sharding) if source and not self.parameters else ()
        return found or super().matrices(hidden, source, sharding)


class Gmu(Component, frozen=True, kw_only=True, tag="gmu"):
    """A gated memory unit (SambaY): mixes tokens with a memory that it is handed, and keeps nothing."""
