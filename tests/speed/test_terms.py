"""What a pass moves and computes, against arithmetic by hand and against what caches are known to read."""

import msgspec
import pytest

import kvcalc
from kvcalc.cache.sharding import WHOLE, Sharding
from kvcalc.model.parameters import count_parameters
from kvcalc.model.spec import Checkpoint
from kvcalc.speed.kernels import US
from kvcalc.speed.machine import find_machine, load_constants
from kvcalc.speed.setting import Use, decode_costs, machine_for, make_setting, prefill_costs, seconds_of
from kvcalc.speed.timing import floor_seconds

H100 = "h100-sxm5-80gb"


def setting(model, gpu=H100, engine=None, overrides=(), **use):
    used = Use(**use)
    return make_setting(kvcalc.load(model, overrides), machine_for(gpu, engine, used), used)


def term(costs, name):
    return [cost for cost in costs if cost.term == name]


def moved_bytes(costs, name, gpu=H100):
    """Bytes that a term reads at the least."""
    return sum(cost.floor_moving for cost in term(costs, name)) * find_machine(gpu).bytes_per_second


def reached_bytes(costs, name):
    """Bytes that the estimate of an attention term moves: at the share of an H100's bandwidth that is reached."""
    share = find_machine(H100).kernels["attention"].bandwidth_share
    return sum(cost.moving for cost in term(costs, name)) * share * find_machine(H100).bytes_per_second


def test_the_roofline_of_llama_by_hand():
    """Llama-3.1-8B, bf16, batch 32 at 4,096 tokens on an H100: 3,350 GB/s and 989 TFLOP/s (data sheet)."""
    costs = decode_costs(setting("llama-3.1-8b"), 32, 4096)
    # Embedding rows are looked up, norms are not matrices: 128,256 x 4,096 and 65 x 4,096 of 8,030,261,248 parameters.
    weights = (8_030_261_248 - 128_256 * 4096 - 65 * 4096) * 2
    cache = 32 * 4096 * 131_072
    written = 32 * 131_072
    assert floor_seconds(costs) == pytest.approx((weights + cache + written) / 3.35e12)
    flops = 32 * (weights // 2 * 2 + 32 * 4096 * 2 * 32 * 2 * 128)
    assert sum(cost.floor_working for cost in costs) == pytest.approx(flops / 989e12)


def test_one_projection_by_hand():
    """Q, K and V of a layer are one matrix of 6,144 x 4,096: start, bytes and FLOPs as docs/throughput.md derives them."""
    qkv = decode_costs(setting("llama-3.1-8b"), 32, 4096)[0]
    assert qkv.start / 32 == pytest.approx(3.66 * 0.85 * US)
    assert qkv.moving / 32 == pytest.approx((6144 * 4096 * 2 + 32 * (6144 + 4096) * 2) / (3.35e12 * 0.862))
    assert qkv.working / 32 == pytest.approx(2 * 32 * 6144 * 4096 / (989e12 * 0.803))
    assert qkv.seconds == pytest.approx(qkv.start + (qkv.moving**3 + qkv.working**3) ** (1 / 3))


def test_a_prompt_attends_to_a_triangle():
    """T queries see 1 ... T entries: T (T + 1) / 2 pairs, 4 x 128 FLOPs a pair and query head."""
    attention = term(prefill_costs(setting("llama-3.1-8b"), 2048), "attention")
    pairs = 2048 * 2049 // 2
    assert sum(one.floor_working for one in attention) == pytest.approx(32 * pairs * 32 * 4 * 128 / 989e12)


def test_a_prompt_behind_a_prefix_attends_to_a_trapezium():
    attention = term(prefill_costs(setting("llama-3.1-8b"), 1024, 1024), "attention")
    pairs = (2048 * 2049 - 1024 * 1025) // 2
    assert sum(one.floor_working for one in attention) == pytest.approx(32 * pairs * 32 * 4 * 128 / 989e12)


def test_what_matrices_hold_is_what_parameters_count():
    """Matrices, routed experts, embeddings: within 2% of every model whose layers all state their sizes."""
    for name in kvcalc.models():
        spec = kvcalc.load(name)
        total = count_parameters(spec).total
        if total is None or spec.encoder or any(layer.shares_weights for layer in spec.layers):
            continue
        sources, held = spec.source_of(), spec.lookup_parameters + spec.extra_parameters
        for index, layer in enumerate(spec.layers):
            held += layer.extra_parameters
            for place, one in enumerate(layer.components):
                held += sum(
                    matrix.values for matrix in one.matrices(spec.hidden_size, sources.get((index, place)), WHOLE)
                )
            if layer.mlp is not None:
                held += sum(matrix.values for matrix in layer.mlp.matrices(spec.hidden_size, WHOLE))
                routed = layer.mlp.routed(spec.hidden_size, WHOLE)
                held += routed.held * sum(matrix.values for matrix in routed.matrices) if routed else 0
        held += spec.vocab_size * spec.hidden_size * (1 if spec.tie_embeddings else 2)
        assert held == pytest.approx(total, rel=0.02), name


def test_tensor_parallelism_divides_matrices_and_adds_sums():
    one, four = (decode_costs(setting("llama-3.1-70b", sharding=Sharding(tp=tp)), 8, 4096) for tp in (1, 4))
    for name in ("projections", "feed-forward", "attention"):
        assert moved_bytes(four, name) == pytest.approx(moved_bytes(one, name) / 4)
    assert not term(one, "all-reduce")
    sums = term(four, "all-reduce")
    # Two sums a layer of 8 x 8,192 bf16 numbers over 4 ranks, 2 x 3/4 of them over the link of 450 GB/s.
    size = 8 * 8192 * 2
    free = {name: constant.value for name, constant in load_constants().free.items()}
    wire = 2 * 3 / 4 * size / (450e9 * free["link_share"])
    expected = 160 * ((free["reduce_us"] + 2 * free["reduce_peer_us"]) * US + wire)
    assert sum(cost.seconds for cost in sums) == pytest.approx(expected)


def test_decode_context_ranks_share_what_grows():
    """A latent is whole on every tensor-parallel rank; over 8 decode-context ranks each keeps and reads an eighth."""
    whole, shared = (decode_costs(setting("deepseek-v3", sharding=Sharding(tp=8, dcp=dcp)), 4, 8192) for dcp in (1, 8))
    assert moved_bytes(shared, "attention") == pytest.approx(moved_bytes(whole, "attention") / 8)


def test_a_window_caps_what_a_step_reads():
    """Gemma-3-27B: 52 windows of 1,024, 10 layers that see all, 16 KV heads of 128 in bf16 (config.json)."""
    for context in (512, 1024, 32_768):
        costs = decode_costs(setting("gemma-3-27b"), 1, context)
        entries = 52 * min(context, 1024) + 10 * context
        assert moved_bytes(costs, "attention") == pytest.approx(entries * 2 * 16 * 128 * 2)
        assert reached_bytes(costs, "attention") == pytest.approx(entries * 2 * 16 * 128 * 2)


def test_sharing_a_cache_saves_no_reading():
    """Cross-layer attention (arXiv 2405.12981) halves what is kept: each layer reads it all the same."""
    own, shared = (decode_costs(setting(name), 4, 8192) for name in ("textbook-gqa", "textbook-gqa-cla2"))
    assert moved_bytes(own, "attention") == moved_bytes(shared, "attention")


def test_top_k_bounds_what_attention_reads_and_the_index_reads_all():
    """DeepSeek-V3.2: 2,048 entries of 576 numbers a step, whatever the context, and every key of 128 numbers."""
    for context in (1024, 2048, 131_072):
        costs = decode_costs(setting("deepseek-v3.2", sharding=Sharding(tp=16)), 1, context)
        assert moved_bytes(costs, "attention") == pytest.approx(61 * min(context, 2048) * 576 * 2)
        assert reached_bytes(costs, "attention") == pytest.approx(61 * min(context, 2048) * 576 * 2)
        assert moved_bytes(costs, "index and top-k") == pytest.approx(61 * context * 128 * 2)


def test_a_batch_reads_the_experts_that_it_reaches():
    """Mixtral: one token reaches 2 of 8 experts, many reach all of them; 8 (1 - (6/8)^n) of n that choose alone."""
    spread = load_constants().free["routing_spread"].value
    expert = 3 * 4096 * 14_336 * 2
    for batch in (1, 4, 1000):
        costs = decode_costs(setting("mixtral-8x7b", sharding=Sharding(tp=2)), batch, 64)
        reached = 8 * (1 - 0.75 ** (1 + spread * (batch - 1)))
        assert moved_bytes(costs, "experts") == pytest.approx(32 * reached * expert / 2)
    assert moved_bytes(costs, "experts") == pytest.approx(32 * 8 * expert / 2)


def test_expert_parallel_ranks_hold_whole_experts():
    tensor, expert = (
        decode_costs(setting("qwen3-235b-a22b", sharding=Sharding(tp=8, ep=ep)), 256, 64) for ep in (1, 8)
    )
    assert moved_bytes(tensor, "experts") == pytest.approx(moved_bytes(expert, "experts"))


def test_recurrent_states_are_read_and_written_and_do_not_grow():
    """Mamba-2.8B: 64 layers keep 5,120 x 16 fp32 numbers and 3 columns of 5,120 in the model's own format."""
    short, long = (
        term(decode_costs(setting("mamba-2.8b"), 2, context), "recurrent states") for context in (1, 100_000)
    )
    assert short == long
    state = 64 * (5120 * 16 * 4 + 5120 * 3 * 2)
    assert moved_bytes(short, "recurrent states") == pytest.approx(2 * 2 * state)


def test_upper_layers_see_only_the_end_of_a_prompt():
    """YOCO's cross-decoder (arXiv 2405.05254, section 2.3): its 13 upper layers of 26 see the last token alone."""
    spec = kvcalc.load("yoco-3b")
    whole = msgspec.structs.replace(spec, prefill_layers=None)
    use = Use()
    machine = machine_for(H100, None, use)
    half, full = (prefill_costs(make_setting(one, machine, use), 8192) for one in (spec, whole))
    mlp = [sum(cost.floor_working for cost in term(costs, "feed-forward")) for costs in (half, full)]
    assert mlp[0] / mlp[1] == pytest.approx(spec.prefill_layers / len(spec.layers), rel=0.01)


def test_weights_without_units_save_bytes_and_no_flops():
    """fp8 on an A100: vLLM's Marlin kernels unpack to bf16; on an H100 the units take fp8."""
    plain, packed = (setting("llama-3.1-8b", "a100-sxm4-80gb", weights=name) for name in (None, "fp8"))
    costs = [term(decode_costs(one, 8, 64), "feed-forward") for one in (plain, packed)]
    ratio = [sum(getattr(cost, name) for cost in costs[1]) / sum(getattr(cost, name) for cost in costs[0])
             for name in ("floor_moving", "floor_working")]  # fmt: skip
    assert ratio == pytest.approx([0.5, 1.0])
    assert "multiplied in bf16" in packed.numbers.notes[0]
    native = setting("llama-3.1-8b", weights="fp8")
    assert native.numbers.notes == ()
    assert native.numbers.matrices.rate == "fp8"


def test_four_bits_reach_the_routed_experts_alone():
    """gpt-oss: mxfp4 experts, all else bf16 (config.json, quantization_config.modules_to_not_convert)."""
    numbers = setting("gpt-oss-120b", "b200-sxm", weights="mxfp4").numbers
    assert (numbers.experts.name, numbers.matrices.name, numbers.head.name) == ("mxfp4", "bf16", "bf16")
    assert numbers.experts.bytes_per_value == 17 / 32
    assert setting("llama-3.1-8b", "b200-sxm", weights="nvfp4").numbers.matrices.name == "nvfp4"


def test_a_recipe_of_llama_cpp_weighs_what_its_file_does():
    """Meta-Llama-3-8B Q4_K_M has 4.92 GB, its embedding (q4_k) among them: bartowski/Meta-Llama-3-8B-Instruct-GGUF."""
    from kvcalc.speed.room import weight_bytes

    found = weight_bytes(setting("llama-3-8b", "rtx-4090", "llama.cpp", weights="q4_k_m"))
    table = 128_256 * 4096
    as_listed = found - table * 6.5625 / 8 + table * 4.5 / 8
    assert as_listed == pytest.approx(4.92e9, rel=0.01)


def test_weights_that_were_read_from_files_weigh_what_the_files_do():
    """The bytes of a GGUF or safetensors index over all parameters; a format that is asked for replaces them."""
    files = Checkpoint(bytes=4_920_734_272, formats=("q4_k", "q6_k"), source="Meta-Llama-3-8B.Q4_K_M.gguf")
    spec = msgspec.structs.replace(kvcalc.load("llama-3-8b"), checkpoint=files)
    machine = machine_for("rtx-4090", "llama.cpp", Use())
    numbers = make_setting(spec, machine, Use()).numbers
    assert numbers.matrices.bytes_per_value == pytest.approx(4_920_734_272 / 8_030_261_248)
    assert "4.90 bits" in numbers.notes[0]
    assert make_setting(spec, machine, Use(weights="bf16")).numbers.matrices.bytes_per_value == 2


def test_pipeline_stages_pass_each_token_on():
    """A step of a pipeline takes every stage's time once; even stages wait for nothing but the sends."""
    one, two = (setting("llama-3.1-70b", sharding=Sharding(pp=pp)) for pp in (1, 2))
    whole, halves = decode_costs(one, 4, 1024), decode_costs(two, 8, 1024)
    assert seconds_of(halves) - seconds_of(term(halves, "pipeline")) == pytest.approx(seconds_of(whole))
    assert 0 < seconds_of(term(halves, "pipeline")) < 1e-4


def test_uneven_stages_wait_for_the_fullest():
    three = decode_costs(setting("llama-3.1-70b", sharding=Sharding(pp=3)), 3, 1024)
    layers = seconds_of([cost for cost in three if cost.term not in ("pipeline", "LM head", "host")])
    assert seconds_of(term(three, "pipeline")) == pytest.approx(layers * (3 * 27 / 80 - 1), rel=0.05)


def test_attention_dp_gathers_what_it_does_not_cut():
    """Attention of dp ranks is whole on each for a share of the batch; experts see the tokens of all."""
    cut = decode_costs(setting("deepseek-v3", "h200-sxm-141gb", sharding=Sharding(tp=8, ep=8)), 64, 4096)
    use = {"sharding": Sharding(tp=8, dp=8, ep=8), "attention_dp": True}
    gathered = decode_costs(setting("deepseek-v3", "h200-sxm-141gb", **use), 64, 4096)
    h200 = "h200-sxm-141gb"
    assert moved_bytes(gathered, "attention", h200) == pytest.approx(moved_bytes(cut, "attention", h200) / 8)
    assert moved_bytes(gathered, "experts", h200) == pytest.approx(moved_bytes(cut, "experts", h200))
    assert not term(gathered, "all-reduce")
    assert term(gathered, "all-to-all")


@pytest.mark.parametrize("batch", [1, 8, 9, 64])
def test_a_bound_counts_the_tokens_that_are_asked(batch):
    """Over 8 ranks ceil(batch / 8) sequences are on the fullest, and the others may have fewer: not 8 times as many."""
    h200, ranks = "h200-sxm-141gb", Sharding(tp=8, dp=8, ep=8)
    one = term(decode_costs(setting("deepseek-v3", h200, sharding=Sharding(tp=8, ep=8)), batch, 4096), "experts")
    many = term(decode_costs(setting("deepseek-v3", h200, sharding=ranks, attention_dp=True), batch, 4096), "experts")
    for name in ("floor_moving", "floor_working"):
        floors = [sum(getattr(cost, name) for cost in costs) for costs in (one, many)]
        assert floors[1] == pytest.approx(floors[0])
