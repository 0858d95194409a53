"""Weights on one rank: how tensor, pipeline and expert parallelism divide what `size` counts as one copy."""

from collections.abc import Iterator, Sequence

import msgspec

from kvcalc.cache.sharding import Sharding
from kvcalc.model.parameters import Spread, StageCount, count_stage
from kvcalc.sizing.need import CacheSize
from kvcalc.sizing.notes import basis


class StageWeights(msgspec.Struct, frozen=True):
    """Bytes of the weights on the fullest rank of one pipeline stage.

    `low_bytes` has every parameter in the format of the weights, `high_bytes` embeddings, LM head, norms and routers
    in the model's own, in which most quantisers leave them. None where the spec states too little.
    """

    low_bytes: int | None
    high_bytes: int | None


class RankWeights(msgspec.Struct, frozen=True):
    """Bytes of the weights on a rank of each pipeline stage, and whether they are exact; `why` is one sentence."""

    stages: tuple[StageWeights, ...]
    basis: str
    why: str

    @property
    def stage_bytes(self) -> tuple[int | None, ...]:
        """Bytes of each stage with all in the format of the weights, as `CacheSize.weight_bytes` counts them."""
        return tuple(stage.low_bytes for stage in self.stages)

    @property
    def fullest(self) -> int | None:
        """Bytes on the fullest stage, None where unknown."""
        return None if self.worst_stage is None else self.stage_bytes[self.worst_stage]

    @property
    def worst_stage(self) -> int | None:
        """The number of the fullest stage, the first of equals."""
        known = [-1 if one is None else one for one in self.stage_bytes]
        return None if min(known) < 0 else known.index(max(known))


def weights_per_rank(size: CacheSize, *, attention_dp: bool = False) -> RankWeights:
    """The bytes of the weights that each rank holds under the sharding of `size`.

    Heads, MLPs, experts and the vocabulary are cut over --tp, rounded up to the fullest rank; KV heads that are fewer
    than ranks are copied, as are latent projections down, index projections, norms, routers and the biases of
    outputs. --ep ranks hold whole experts. Data-parallel ranks are copies of one another. With `attention_dp` they
    are taken from the tensor-parallel ones: mixers and the embedding lie on tp / dp of them, all else on tp (SGLang
    --enable-dp-attention, qwen2_moe.py; TensorRT-LLM enable_attention_dp has dp = tp). Weights that were read from
    files are divided as the parameters are.
    """
    key = "weights on a rank", attention_dp
    return size.shape_memo.get(key, lambda: _weights_per_rank(size, attention_dp))


def _weights_per_rank(size: CacheSize, attention_dp: bool) -> RankWeights:
    spread = spread_of(size.sharding, attention_dp)
    counts = [count_stage(size.spec, stage, spread) for stage in size.stages]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or size.parameters.total is None:
        return RankWeights((StageWeights(None, None),) * len(counts), "unknown", f"{size.parameters.unknown}")
    stages = tuple(_bytes(size, count) for count in known)
    reasons = list(_reasons(size, known))
    if any(stage.low_bytes != stage.high_bytes for stage in stages):
        kept = size.weights_lie_in.kept.name
        reasons.append(f"embeddings, norms and routers may stay in {kept} beside {size.weights_format}")
    why = "; ".join(reasons) or "every matrix is divided by its heads, channels, experts or rows"
    return RankWeights(stages, "assumed" if reasons else "exact", why)


def spread_of(sharding: Sharding, attention_dp: bool) -> Spread:
    """Where parts lie: routed experts whole over `ep`, each cut over the ranks that are left."""
    experts = Sharding(tp=max(1, sharding.tp // sharding.ep), ep=sharding.ep)
    attention = Sharding(tp=max(1, sharding.tp // sharding.dp)) if attention_dp else sharding
    return Spread(attention, sharding, experts)


def _bytes(size: CacheSize, count: StageCount) -> StageWeights:
    if size.weights_are_files:
        share = -(-(size.weight_bytes or 0) * count.total // (size.parameters.total or 1))
        return StageWeights(share, share)
    form, own, _ = size.weights_lie_in
    low = form.bulk_bytes(count.total, "weights")
    mixed = form.bulk_bytes(count.total - count.kept, "weights") + own.bulk_bytes(count.kept, "weights")
    return StageWeights(low, max(low, mixed))


def _reasons(size: CacheSize, counts: Sequence[StageCount]) -> Iterator[str]:
    """Why the bytes of a rank are not exact."""
    if basis(size, "weights") != "exact":
        yield "the weights themselves rest on an assumption"
    if size.weights_are_files and len(size.stages) * size.sharding.tp * size.sharding.ep > 1:
        yield "the bytes of the files are divided like the parameters"
    stated, total = sum(count.stated for count in counts), sum(count.total for count in counts)
    if size.sharding.tp > 1 and stated > total * _MINOR:
        yield f"{stated / total:.0%} are stated as numbers, taken as divided by --tp"
    if size.sharding.tp > 1 and size.spec.encoder:
        yield "the encoder is taken as divided by --tp"


_MINOR = 0.01
"""The share of a rank's parameters below which it does not matter how they are divided."""
