"""What is known of what engines hold beside the cache: bounds, each held against start-up logs (docs/overheads.md)."""

import msgspec

from kvcalc.engines.activations import Sampling

MIB = 2**20


class OverheadRules(msgspec.Struct, frozen=True):
    """What is known of one engine. Bytes are of one rank; `graph_bytes` are those of one layer."""

    sampling: tuple[tuple[tuple[int, ...], Sampling], ...]
    """From which version on how many copies of the logits there are, newest first."""
    tokens: tuple[str, ...]
    """Flags that bound the tokens of a pass, the first that is set counts."""
    rows: tuple[str, ...]
    graph_bytes: tuple[int, int]
    non_torch: tuple[int, int]
    communication: tuple[int, int]
    why: str
    activation_basis: str = "assumed"
    range_basis: str = "assumed"
    """Of graphs, communication and what torch does not hold."""
    is_ggml: bool = False
    takes_whole_prompts: bool = False

    @property
    def counts_whole_prompts(self) -> bool:
        """Whether the context and the batch move a term; else flags bound the tokens of a pass."""
        return self.takes_whole_prompts or self.is_ggml


VLLM = OverheadRules(
    # v1/sample/sampler.py: to 0.16 the profiling run also sorted the logits for top-k and top-p.
    sampling=(((0, 17), Sampling(2, 4)), ((), Sampling(2, 10))),
    tokens=("max_num_batched_tokens",),
    rows=("max_num_seqs",),
    graph_bytes=(1 * MIB, 48 * MIB),
    non_torch=(20 * MIB, 512 * MIB),
    communication=(64 * MIB, 2304 * MIB),
    why="vLLM's own profile of 2024 to 2026, docs/overheads.md",
    activation_basis="engine rule",
    range_basis="measured",
)
SGLANG = OverheadRules(
    sampling=(((), Sampling(0, 4)),),
    tokens=("chunked_prefill_size", "max_prefill_tokens"),
    rows=("max_running_requests",),
    graph_bytes=(0, 128 * MIB),
    non_torch=(20 * MIB, 1024 * MIB),
    communication=(64 * MIB, 3072 * MIB),
    why="SGLang leaves it out of mem_fraction_static",
)
ANY = OverheadRules(
    sampling=(((), Sampling(0, 10)),),
    tokens=("max_num_tokens",),
    rows=("max_batch_size",),
    graph_bytes=(0, 128 * MIB),
    non_torch=(20 * MIB, 1024 * MIB),
    communication=(64 * MIB, 3072 * MIB),
    why="the widest of the engines whose logs were read",
)
LLAMA_CPP = OverheadRules(
    sampling=(((), Sampling(0, 0)),),
    tokens=("ubatch_size",),
    rows=(),
    graph_bytes=(0, 0),
    non_torch=(100 * MIB, 800 * MIB),
    communication=(0, 512 * MIB),
    why="the CUDA context and cuBLAS, which llama.cpp's memory breakdown calls unaccounted",
    activation_basis="engine rule",
    is_ggml=True,
)
TRANSFORMERS = OverheadRules(
    sampling=(((), Sampling(1, 10)),),
    tokens=(),
    rows=(),
    graph_bytes=(0, 0),
    non_torch=(20 * MIB, 1024 * MIB),
    communication=(64 * MIB, 3072 * MIB),
    why="generate() passes whole prompts and makes no graphs",
    takes_whole_prompts=True,
)
