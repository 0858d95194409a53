"""What fits: every answer is the edge that it says it is, and every change that is offered works."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcalc as api
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import find_engine
from kvcalc.engines.fit import answer, largest_context, outcome_or_none
from kvcalc.engines.held import largest
from kvcalc.engines.plain import Plain
from kvcalc.engines.plan import Budget, Plan, evaluate
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import Workload
from kvcalc.sizing.shards import weights_per_rank

GIB = 2**30
MODELS = ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "qwen3.5-35b-a3b", "gpt-oss-20b", "mamba-2.8b")


def plan_of(model, engine=None, ctx=8192, batch=1, *, ranks=None, pool=None, card=None, **workload):
    return Plan(
        spec=api.load(model),
        workload=Workload(context_tokens=ctx, batch=batch, **workload),
        sharding=Sharding(**(ranks or {})),
        engine=find_engine(engine) if engine else Plain(),
        budget=Budget(pool_bytes=pool, total_bytes=card),
    )


def test_the_textbook_pool():
    """llama-8b keeps 131,072 B a token (2 x 32 layers x 8 heads x 128 x 2 B): 4 GiB are 32,768 tokens."""
    found = answer(plan_of("llama-3.1-8b", pool=4 * GIB))
    assert found.longest_context == 32768
    assert answer(plan_of("llama-3.1-8b", ctx=1000, pool=4 * GIB)).outcome.sequences == 4 * GIB // (1000 * 131072)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_the_largest_of_a_monotone_question(edge, most):
    assert largest(lambda count: count <= edge, most) == min(edge, most)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from([None, "vllm", "transformers"]),
    st.integers(2**27, 2**36),
    st.integers(1, 20),
    st.sampled_from([100, 4096, 5000]),
)
def test_every_answer_is_an_edge(model, engine, pool, batch, ctx):
    """One token, or one sequence, more does not fit."""
    plan = plan_of(model, engine, ctx, batch, pool=pool)
    longest = largest_context(plan)
    most = plan.spec.max_context or 2**24
    assert longest == 0 or evaluate(plan.asking(context_tokens=longest)).fits
    assert longest >= most or not evaluate(plan.asking(context_tokens=longest + 1)).fits
    sequences = evaluate(plan).sequences
    assert sequences == 0 or evaluate(plan.asking(batch=sequences)).fits
    assert not evaluate(plan.asking(batch=sequences + 1)).fits


@pytest.mark.parametrize("slots", [1, 3, 4])
def test_a_llama_cpp_context_of_so_many_slots(slots):
    """Every slot has cells in steps of 256: 1 GiB is 8,192 cells of 131,072 B, 2,730 a slot for three."""
    plan = plan_of("llama-3.1-8b", "llama.cpp", 256, slots, pool=GIB)
    assert largest_context(plan) == 8192 // slots // 256 * 256


def test_fewest_gpus_are_the_fewest():
    """70.6 B parameters in bf16 are 131.4 GiB: two cards of 79.6 GiB hold them, and 4.7 GiB short of 40 GiB of cache each."""
    found = answer(plan_of("llama-3.1-70b", "vllm", 8192, 32, card=int(79.6 * GIB)))
    assert found.fewest is not None
    fewest = found.fewest.plan
    assert (fewest.gpus, fewest.sharding.tp) == (4, 4)
    for count in range(1, fewest.gpus):
        for fewer in fewest.on_cards(count):
            outcome = outcome_or_none(fewer)
            assert outcome is None or not outcome.fits


def test_every_change_that_is_offered_fits_and_half_of_it_does_not():
    plan = plan_of("llama-3.1-8b", "vllm", 8192, 60, card=int(79.6 * GIB))
    found = answer(plan)
    assert not found.outcome.fits
    changes = {change.what: change for change in found.changes}
    assert set(changes) == {"context", "batch", "KV format", "weights' format", "GPUs"}
    assert [change.share for change in found.changes] == sorted(change.share for change in found.changes)
    assert evaluate(plan.asking(context_tokens=changes["context"].becomes)).fits
    assert evaluate(plan.asking(batch=changes["batch"].becomes)).fits
    assert evaluate(plan.asking(kv_dtype=changes["KV format"].becomes)).fits
    assert evaluate(plan.asking(weights=changes["weights' format"].becomes)).fits
    assert not evaluate(plan.asking(context_tokens=(changes["context"].becomes + 8192) // 2)).fits


@pytest.mark.parametrize(("gpu", "offered"), [("l40s", set()), ("b200", {"nvfp4"})])
def test_a_format_that_the_card_does_not_read_is_not_offered(kvcalc, gpu, offered):
    """Kernels for a cache in FP4 need the units of Blackwell."""
    asked = ("--engine", "vllm", "--kv-dtype", "fp8", "--ctx", "128K", "--batch", "8", "--gpu", gpu)
    found = json.loads(kvcalc("fit", "qwen3-32b", *asked, "--format", "json").out)
    assert not found["fits"]
    assert {change["becomes"] for change in found["changes"] if change["flag"] == "--kv-dtype"} == offered


def test_what_fits_needs_no_change():
    assert answer(plan_of("llama-3.1-8b", "vllm", pool=40 * GIB)).changes == ()


def test_memory_below_the_weights_is_an_answer_and_not_an_error():
    found = answer(plan_of("llama-3.1-70b", "vllm", card=24 * GIB))
    assert not found.outcome.fits
    assert found.outcome.capacity is None
    assert (found.longest_context, found.outcome.sequences) == (0, 0)


def test_the_worst_stage_has_the_smallest_pool():
    """61 layers of DeepSeek-V3 over two stages: 31 and 30, the first three of them dense and light."""
    outcome = evaluate(plan_of("deepseek-v3", "vllm", card=500 * GIB, ranks={"pp": 2}))
    weights = weights_per_rank(outcome.size).stage_bytes
    assert outcome.worst_stage == weights.index(max(weights))


def test_data_parallel_ranks_have_a_pool_each():
    one, four = (evaluate(plan_of("llama-3.1-8b", "vllm", pool=4 * GIB, ranks={"dp": dp})) for dp in (1, 4))
    assert four.sequences == 4 * one.sequences


def test_what_lies_on_a_card_adds_up():
    """vLLM may use 0.92 of it, rounded up: what it leaves free, the terms and the pool are the card."""
    card = int(79.6 * GIB)
    outcome = evaluate(plan_of("llama-3.1-8b", "vllm", card=card))
    expected = sum(term.expected_bytes for term in outcome.terms)
    assert expected + outcome.aside_bytes + outcome.pool.expected == card
    assert outcome.aside_bytes == card - -(-card * Fraction(92, 100) // 1)
    assert outcome.pool.low <= outcome.pool.expected <= outcome.pool.high


def test_the_exit_code_is_the_answer(kvcalc):
    assert kvcalc("fit", "llama-8b", "--kv-cache-memory", "4GiB", "--ctx", "32K").code == 0
    assert kvcalc("fit", "llama-8b", "--kv-cache-memory", "4GiB", "--ctx", "32769").code == 1


def test_json_has_need_pool_and_capacity_apart(kvcalc):
    found = json.loads(
        kvcalc(
            "fit", "llama-8b", "--kv-cache-memory", "4GiB", "--engine", "vllm", "--ctx", "10K", "--format", "json"
        ).out
    )
    assert found["schema"] == "kvcalc.fit/1"
    assert found["need_bytes"] == 10240 * 131072
    assert found["pool_bytes"] == 4 * GIB
    # 4 GiB are 2,048 blocks of 16 tokens; a request takes 640, and one block is never given out.
    assert found["capacity"]["blocks"] == 2048
    assert found["capacity"]["block_tokens"] == 16
    assert found["capacity"]["tokens"] == 32768
    assert found["capacity"]["concurrency_at_context"] == 3.2
    assert found["max_batch"] == 3
    assert found["max_context_tokens"] == 2047 * 16
    assert found["min_gpus"] is None
    assert found["gpu"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "none given"),
        (("--gpu-memory", "80G"), "no amount of memory with its base"),
        (("--gpu-memory", "80GiB", "--kv-cache-memory", "4GiB"), "--gpu-memory and --kv-cache-memory given"),
        (("--gpu-memory", "80GiB", "--engine", "vllm", "--gpu-memory-utilization", "0"), "share above 0"),
        (("--gpu-memory", "80GiB", "--engine", "vllm", "--gpu-memory-utilization", "1.5"), "share above 0"),
        (("--gpu-memory", "80GiB", "--engine", "vllm", "--tp", "3"), "does not divide"),
        (("--gpu-memory", "80GiB", "--pp", "33"), "only 32 layers"),
        (("--gpu-memory", "80GiB", "--tp", "2", "--gpus", "4"), "the ranks are 2"),
        (("--gpu-memory", "80GiB", "--engine", "vllm", "--block-size", "0"), "at least 1"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ctk", "q9_0"), "q9_0"),
        (("--gpu", "h1000"), "unknown GPU"),
        (("--gpu", "h100-sxm", "--engine", "sglang", "--strict"), "--strict: activations of a rank: assumed"),
        (("--gpu", "nosuch"), "kvcalc gpus list"),
        (("--gpu-memory", "80GiB", "--engine", "vllm,sglang"), "kvcalc compare"),
        (("--gpu-memory", "80GiB", "--engine", "vllm@"), "rules are known for"),
        (("--gpu-memory", "80GiB", "--engine", "vllm@0.6", "--swap-space", "1e300"), "0 or more is needed"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ts", "1,1", "--gpus", "3"), "shares of 2"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ts", "3,1"), "equal shares"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ts", "1e308,1e308"), "no shares of anything"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ts", "1e-320"), "no shares of anything"),
        (("--gpu-memory", "80GiB", "--engine", "llama.cpp", "-ngl", "32"), "leaves layers on the host"),
        (("--gpu-memory", "80GiB", "--emit", "vllm", "--format", "json"), "--emit prints a command"),
        (("--gpu-memory", "80GiB", "--emit", "transformers"), "vllm, sglang, llama.cpp, tensorrt-llm\n"),
    ],
)
def test_wrong_questions_are_errors_with_a_hint(kvcalc, arguments, said):
    answer = kvcalc("fit", "llama-8b", *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert "hint: " in answer.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve m --gpu-memory-utilization 7", "--gpu-memory-utilization 7: a share above 0 and up to 1"),
        ("vllm serve m --gpu-memory-utilization 0", "a share above 0"),
        ("vllm serve m --block-size -16", "--block-size -16: at least 1"),
        ("vllm serve m --max-num-seqs -3", "--max-num-seqs -3: at least 1"),
        ("vllm serve m --max-num-batched-tokens -5", "at least 1"),
        ("trtllm-serve m --kv_cache_free_gpu_memory_fraction 3", "a share above 0"),
        ("trtllm-serve m --max_num_tokens -1", "at least 1"),
        ("python -m sglang.launch_server --model-path m --page-size 0", "at least 1"),
        ("llama-server -m m.gguf -c 8192 -ub -5", "--ubatch-size -5: at least 1"),
        ("llama-server -m m.gguf -c 8192 -ngl 0", "leaves layers on the host"),
    ],
)
def test_flags_of_a_command_have_the_bounds_of_typed_ones(kvcalc, command, said):
    found = kvcalc("fit", "llama-8b", "--from", command, "--gpu-memory", "80GiB")
    assert found.code == 2
    assert said in found.err


def test_a_model_that_a_command_names_and_nobody_knows_is_named_beside_it(kvcalc):
    for command in ("llama-server -m nosuch.gguf -c 8192", "vllm serve nosuch/model", "ollama run nosuch"):
        found = kvcalc("fit", "--from", command, "--gpu-memory", "80GiB")
        assert found.code == 2
        assert "kvcalc fit MODEL --from" in found.err


def test_sglang_has_no_pool_on_a_card_that_others_fill():
    """1 GiB, and up to 4 GiB of NCCL and CUDA libraries beside it: a negative share of less than nothing is no pool."""
    outcome = evaluate(plan_of("llama-3.1-8b", "sglang", card=GIB, ranks={"tp": 2, "pp": 3}))
    assert outcome.pool.high < 0
    assert outcome.pool.low <= outcome.pool.expected <= outcome.pool.high


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp", "vllm"])
def test_the_most_sequences_are_an_edge_though_a_larger_batch_leaves_a_smaller_pool(engine):
    """generate() passes whole prompts, and ggml masks the whole context: activations grow with the batch."""
    plan = plan_of("yoco-3b", engine, 200_000, 4, card=80 * GIB)
    most = answer(plan).most_sequences
    assert evaluate(plan.asking(batch=most)).fits
    assert not evaluate(plan.asking(batch=most + 1)).fits


def test_a_batch_whose_activations_fill_the_card_has_a_smaller_one_that_fits():
    found = answer(plan_of("llama-3.1-8b", "transformers", 8192, 1_000_000, card=80 * GIB))
    (change,) = [one for one in found.changes if one.what == "batch"]
    assert evaluate(found.outcome.plan.asking(batch=change.becomes)).fits
    assert not evaluate(found.outcome.plan.asking(batch=change.becomes + 1)).fits


def test_the_rank_that_holds_the_most_may_keep_no_states():
    """Over 32 stages one has attention alone, and beside a single slot it is the fullest; slots count all the same."""
    engine = find_engine("sglang@0.5.10", {"max_mamba_cache_size": 1})
    size = evaluate(plan_of("phi-4-mini-flash", ctx=4096, ranks={"pp": 32}, pool=GIB)).size
    figures = engine.capacity(size, GIB).figures
    assert figures["mamba_slots"] == 1
    assert "conv_bytes" not in figures


def test_slots_that_a_pool_cannot_pay_for_are_none():
    size = evaluate(plan_of("jamba-1.5-mini", ctx=17, pool=GIB)).size
    assert find_engine("sglang").capacity(size, 2**20).figures["mamba_slots"] == 0


@pytest.mark.parametrize("model", ["mamba-2.8b", "rwkv6-7b"])
def test_blocks_without_a_layer_that_keeps_tokens_are_not_made_up(model):
    size = evaluate(plan_of(model, pool=GIB)).size
    engine = find_engine("tensorrt-llm", {"enable_block_reuse": False})
    with pytest.raises(KvcalcError, match="no layer of a rank keeps tokens"):
        engine.capacity(size, 13 * GIB)


def test_slots_of_llama_cpp_stay_within_32_bits():
    """`-c` is an int32: 255 slots of 2^23 cells, and not 256, though a state takes so little."""
    outcome = evaluate(plan_of("mamba-2.8b", "llama.cpp", 2**23, pool=40 * GIB))
    assert outcome.sequences == (2**31 - 1) // 2**23 == 255
    assert outcome.capacity.limited_by == "slots"


def test_what_lies_on_several_cards_adds_up():
    """Libraries lie on every card that layers are spread over."""
    plan = plan_of("llama-3.1-70b", "llama.cpp", card=80 * GIB)
    outcome = evaluate(next(plan.on_cards(2)))
    assert sum(term.expected_bytes for term in outcome.terms) + outcome.pool.expected == 160 * GIB


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mistral-7b-v0.1", "--ctx", "200000"), "200,000 tokens (as asked; the model's own limit is 32,768)"),
        (("mamba-2.8b", "--ctx", "1000"), "16,777,216 tokens (no more is tried)"),
        (("llama-8b", "--ctx", "1"), "it fits: 1 sequence of 1 token, "),
    ],
)
def test_a_number_that_is_no_edge_is_said_to_be_none(kvcalc, arguments, said):
    assert said in kvcalc("fit", *arguments, "--kv-cache-memory", "40GiB").out


VLLM = "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 32K --kv-cache-dtype fp8 --block-size 32 --port 80"


def test_a_command_is_a_question(kvcalc):
    """What it says is asked; what is typed beside it goes before."""
    found = json.loads(kvcalc("fit", "--from", VLLM, "--gpu-memory", "24GiB", "--batch", "3", "--format", "json").out)
    asked = found["request"]
    assert (asked["context_tokens"], asked["batch"], asked["kv_dtype"], asked["tp"]) == (32768, 3, "fp8", 2)
    assert found["capacity"]["block_tokens"] == 32
    typed = json.loads(
        kvcalc(
            "fit",
            "--from",
            VLLM,
            "--gpu-memory",
            "24GiB",
            "--ctx",
            "8K",
            "--tp",
            "4",
            "--block-size",
            "16",
            "--format",
            "json",
        ).out
    )
    assert (typed["request"]["context_tokens"], typed["request"]["tp"]) == (8192, 4)
    assert typed["capacity"]["block_tokens"] == 16
    assert "--port 80" in kvcalc("fit", "--from", VLLM, "--gpu-memory", "24GiB").err


def test_a_command_without_a_context_has_the_models_own(kvcalc):
    found = json.loads(
        kvcalc("fit", "--from", "vllm serve meta-llama/Llama-3.1-8B", "--gpu-memory", "80GiB", "--format", "json").out
    )
    assert found["request"]["context_tokens"] == 131072


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", ("--ctx", "16K", "--kv-dtype", "fp8", "--max-num-seqs", "32", "--tp", "2")),
        ("sglang", ("--ctx", "16K", "--page-size", "16", "--tp", "2")),
        ("llama.cpp", ("-c", "64K", "-np", "4", "-ctk", "q8_0", "-ctv", "q8_0")),
        ("tensorrt-llm", ("--ctx", "16K", "--kv-cache-free-gpu-mem-fraction", "0.8")),
    ],
)
def test_what_is_emitted_is_read_back(kvcalc, engine, flags, tmp_path):
    """The command asks what was asked: the same pool, the same capacity."""
    memory = ("--gpu-memory", "80GiB")
    command = kvcalc("fit", "llama-8b", "--emit", engine, *flags, *memory).out
    asked = json.loads(kvcalc("fit", "llama-8b", "--engine", engine, *flags, *memory, "--format", "json").out)
    script = tmp_path / "run.sh"
    script.write_text(command)
    read = json.loads(kvcalc("fit", "llama-8b", "--from", str(script), *memory, "--format", "json").out)
    assert {key: asked[key] for key in ("pool_bytes", "capacity", "fits")} == {
        key: read[key] for key in ("pool_bytes", "capacity", "fits")
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu-memory", "80GiB"), "fit needs a model"),
        (("--from", "ls -la", "--gpu-memory", "80GiB"), "no engine that is known"),
        (("--from", VLLM, "--engine", "sglang", "--gpu-memory", "80GiB"), "the command is vllm's"),
        (("llama-8b", "--engine", "vllm", "--emit", "sglang", "--gpu-memory", "80GiB"), "the engine is vllm"),
        (("llama-8b", "--emit", "exllama", "--gpu-memory", "80GiB"), "unknown engine"),
    ],
)
def test_wrong_commands_are_errors(kvcalc, arguments, said):
    answer = kvcalc("fit", *arguments)
    assert answer.code == 2
    assert said in answer.err


def test_overheads_of_a_log_give_its_pool(kvcalc, tmp_path, spec_file):
    """A public log of opt-125m on a 24 GB card: 23.98 GiB x 0.90 - 0.24 - 0.53 - 0.49 are the 20.33 GiB that it prints."""
    model = spec_file("name: opt\nlayers: [{repeat: 12, mixer: {kind: kv, q_heads: 12, kv_heads: 12, head_dim: 64}}]\n")
    terms = {"weights": 0.24, "activations": 0.49, "CUDA graphs": 0, "non-torch": 0.53}
    saved = tmp_path / "overheads.yaml"
    listed = "".join(f"  {name}: {int(gib * GIB)}\n" for name, gib in terms.items())
    saved.write_text(
        "schema: kvcalc.overheads/1\nengine: vllm\nversion: 0.7.3\nmodel: opt\ngpu: a card\ndate: 2025-02-01\n"
        f"terms:\n{listed}"
    )
    asked = ("--engine", "vllm@0.7.3", "--ctx", "2048", "--dtype", "fp16", "--gpu-memory", "23.98GiB")
    found = json.loads(kvcalc("fit", str(model), *asked, "--overheads", str(saved), "--format", "json").out)
    assert abs(found["pool_bytes"] / GIB - 20.33) < 0.015
    assert abs(found["capacity"]["blocks"] - 37011) < 30
    assert [term["basis"] for term in found["terms"]] == ["measured"] * 4
