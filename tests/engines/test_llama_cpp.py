"""What llama.cpp printed, in runs of the software itself and in logs that people published."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

import kvcalc as api
from kvcalc.engines.engine import find_engine
from kvcalc.engines.llama_cpp import LlamaCpp
from kvcalc.engines.llama_cpp_types import kv_dtype_of
from kvcalc.engines.ollama import default_context, ollama_flags
from kvcalc.errors import KvcalcError
from kvcalc.model.importers.gguf import GgufHeader
from kvcalc.model.importers.gguf_model import gguf_document
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document

RUNS = json.loads((GOLDEN / "llama_cpp.json").read_text())
# One line a run, asked of the same build as llama_cpp.json: its first line says how.
FUZZED = [json.loads(line) for line in (GOLDEN / "llama_cpp_contexts.jsonl").read_text().splitlines()[1:]]
COMPRESSED = json.loads((GOLDEN / "llama_cpp_compressed.json").read_text())
LOGS = yaml.safe_load((GOLDEN / "llama_cpp_logs.yaml").read_text())
MIB = 2**20
TWO_DECIMALS = 0.00501


def spec_of(model):
    """The model as its GGUF metadata states it, the same that llama.cpp was given."""
    return spec_from(RUNS["models"][model]["arch"], RUNS["models"][model]["metadata"])


def spec_from(arch, metadata):
    header = GgufHeader(3, {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in metadata.items()}}, ())
    return resolve(msgspec.convert(gguf_document(header, Path("model.gguf")), Document))


def allocate(run, spec=None, **flags):
    """What the engine holds under the flags of a run."""
    spec, n_ctx, n_seq = spec or spec_of(run["model"]), run["n_ctx"], run["n_seq"]
    printed = next(iter(run["caches"]), {})
    type_k, type_v = (run.get(f"type_{side}") or printed.get(f"{side}_type", "f16") for side in "kv")
    size = api.size(spec, max(1, n_ctx // n_seq), n_seq, kv_dtype=kv_dtype_of(spec, type_k, type_v))
    own = {"ubatch_size": run["n_ubatch"], "kv_unified": run["unified"], "swa_full": run["swa_full"]}
    return LlamaCpp(ctx_size=n_ctx, flash_attn=bool(run["flash_attn"]), **own, **flags).allocate(size)


def assert_printed(allocation, run):
    """Every cache of the log, and nothing else: cells, streams, layers, and each tensor to 0.01 MiB."""
    caches = [part for part in allocation.parts if part.name != "states"]
    states = [part for part in allocation.parts if part.name == "states"]
    ours = sorted([p.layers, p.cells, p.streams, p.tensors["K"] / MIB, p.tensors["V"] / MIB] for p in caches)
    names = ("layers", "cells", "streams", "k_mib", "v_mib")
    assert len(ours) == len(run["caches"])
    for one, theirs in zip(ours, sorted([cache[name] for name in names] for cache in run["caches"]), strict=True):
        assert one == pytest.approx(theirs, abs=TWO_DECIMALS)
    ours = [[p.cells, p.tensors["R"] / MIB, p.tensors["S"] / MIB] for p in states]
    assert len(ours) == len(run["recurrent"])
    for one, state in zip(ours, run["recurrent"], strict=True):
        assert one == pytest.approx([state["cells"], state["r_mib"], state["s_mib"]], abs=TWO_DECIMALS)
    assert allocation.allocated_bytes == sum(sum(part.tensors.values()) for part in allocation.parts)


@pytest.mark.parametrize("run", RUNS["runs"], ids=lambda run: f"{run['model']}-{run['n_ctx']}-{run['n_seq']}")
def test_every_run_is_what_llama_cpp_printed(run):
    assert_printed(allocate(run), run)


@pytest.mark.parametrize("run", [run for run in FUZZED if not run["refused"]], ids=lambda run: run["model"])
def test_random_contexts_are_what_llama_cpp_printed(run):
    assert_printed(allocate(run, batch_size=run["n_batch"], spec_draft_n_max=run["n_rs_seq"]), run)


@pytest.mark.parametrize("run", [run for run in FUZZED if run["refused"]], ids=lambda run: run["model"])
def test_what_llama_cpp_refuses_is_refused(run):
    with pytest.raises(KvcalcError, match=r"llama\.cpp refuses"):
        allocate(run)


def test_the_runs_cover_every_flag_and_model():
    assert len(RUNS["runs"]) >= 74
    assert len([run for run in FUZZED if not run["refused"]]) >= 200
    assert {run["model"] for run in FUZZED} == set(RUNS["models"])
    for flag in ("unified", "swa_full", "flash_attn", "n_rs_seq"):
        assert len({bool(run[flag]) for run in FUZZED if not run["refused"]}) == 2, flag


@pytest.mark.parametrize("log", LOGS["logs"], ids=lambda log: log["id"])
def test_public_logs(kvcalc, spec_file, log):
    model = log["model"]
    if model in LOGS["specs"]:
        model = str(spec_file(LOGS["specs"][model], f"{model}.yaml"))
    answer = kvcalc("size", model, "--engine", "llama.cpp", *log["flags"].split(), "--format", "json")
    assert answer.code == 0, answer.err
    engine = answer.json["engine"]
    figures = {"all": engine["allocated_bytes"] / MIB}
    for part in engine["parts"]:
        figures |= {part["name"]: part["bytes"] / MIB, f"{part['name']}.cells": part["cells"]}
        figures |= {f"{part['name']}.{name}": held / MIB for name, held in part["tensors"].items()}
    for name, printed in log["logged"].items():
        decimals = len(printed.partition(".")[2])
        assert f"{figures[name]:.{decimals}f}" == printed, name


def test_catalogue_models_are_those_that_llama_cpp_ran():
    """The same figures from specs written from configs, where no GGUF says what llama.cpp makes of them."""
    compared = 0
    for run in RUNS["runs"]:
        if run["model"] not in set(api.models()) or run["flash_attn"] == 0:
            continue
        size = api.size(api.load(run["model"]), run["n_ctx"] // run["n_seq"], run["n_seq"])
        own = {"ubatch_size": run["n_ubatch"], "kv_unified": run["unified"], "swa_full": run["swa_full"]}
        if {one["k_type"] for one in run["caches"]} <= {"f16"}:
            assert_printed(LlamaCpp(ctx_size=run["n_ctx"], **own).allocate(size), run)
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize(("slots", "cells"), [(1, 10240), (2, 5120), (3, 3584), (4, 2560), (5, 2048), (6, 1792)])
def test_cells_of_a_slot(slots, cells):
    """10,000 tokens, by hand: padded to 10,240, divided, and padded again."""
    size = api.size("llama-3-8b", 10000 // slots, slots)
    allocation = LlamaCpp(ctx_size=10000).allocate(size)
    assert [(part.cells, part.streams) for part in allocation.parts] == [(cells, slots)]
    assert allocation.allocated_bytes == cells * slots * 131072


def test_three_slots_that_cost_more_than_four(kvcalc):
    answer = kvcalc("size", "llama-3-8b", "-c", "10000", "-np", "3", "--engine", "llama.cpp")
    assert "3 slots cost more than 4: -np 4 takes 1.25 GiB" in answer.out
    assert "cost more" not in kvcalc("size", "llama-3-8b", "-c", "10000", "-np", "4", "--engine", "llama.cpp").out


@given(
    total=st.integers(1, 200_000),
    slots=st.integers(1, 16),
    unified=st.booleans(),
    model=st.sampled_from(["llama-3-8b", "gemma-3-27b", "deepseek-v3", "qwen3.5-35b-a3b"]),
)
def test_whatever_is_asked_fits_and_more_never_costs_less(total, slots, unified, model):
    def held(total):
        size = api.size(model, max(1, total // slots), slots)
        return LlamaCpp(ctx_size=total, kv_unified=unified).allocate(size)

    allocation = held(total)
    cells = [part.cells for part in allocation.parts if part.name == "full"]
    assert all(one % 256 == 0 and one * (1 if unified else slots) >= total for one in cells)
    assert allocation.allocated_bytes <= held(total + 1000).allocated_bytes


def test_total_and_share(kvcalc):
    """-c is the total over the slots; --ctx is one sequence's, as everywhere."""
    total = kvcalc("size", "llama-8b", "-c", "32K", "-np", "4", "--engine", "llama.cpp", "--format", "json").json
    share = kvcalc("size", "llama-8b", "--ctx", "8K", "--batch", "4", "--engine", "llama.cpp", "--format", "json").json
    assert total == share
    assert total["request"]["context_tokens"] == 8192
    assert total["request"]["engine"] == "llama.cpp@b11549"
    assert total["engine"]["allocated_bytes"] == total["kv_cache"]["total_bytes"] == 4 * 2**30
    assert "read as" not in json.dumps(total["notes"])


def test_the_need_is_counted_in_the_types_of_the_engine(kvcalc):
    flags = ("-c", "4096", "-ctk", "q8_0", "-ctv", "q4_0", "--engine", "llama.cpp")
    answer = kvcalc("size", "llama-8b", *flags, "--format", "json").json
    # 32 layers of 1,024 values: 34 and 18 bytes for every 32 of them.
    assert answer["engine"]["allocated_bytes"] == answer["kv_cache"]["total_bytes"] == 4096 * 32 * 32 * (34 + 18)
    assert answer["engine"]["parts"][0]["tensors"] == {"K": 4096 * 32 * 32 * 34, "V": 4096 * 32 * 32 * 18}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-ub", "512"], ["--ubatch-size is a flag of llama.cpp", "--engine llama.cpp"]),
        (["--swa-full", "--engine", "transformers"], ["--swa-full is a flag of llama.cpp"]),
        (["-ctk", "q8_0"], ["--cache-type-k is a flag of llama.cpp"]),
        (["--engine", "llama.cpp@b1"], ["rules are known for llama.cpp b11549"]),
        (["--engine", "llama.cpp", "--max-model-len", "4096"], ["--max-model-len is a flag of vllm", "-c"]),
        (["--engine", "llama.cpp", "--max-num-seqs", "4"], ["--max-num-seqs is a flag of vllm", "-np"]),
        (["--engine", "llama.cpp", "--ctx", "4K", "-c", "8K"], ["both say it"]),
        (["--engine", "llama.cpp", "-c", "3", "-np", "4"], ["less than a token for each of 4 slots"]),
        (["--engine", "llama.cpp", "-np", "257"], ["at most 256 slots"]),
        (["--engine", "llama.cpp", "-c", "4G"], ["past 32 bits"]),
        (["--engine", "llama.cpp", "-ub", "0"], ["-ub", "at least 1"]),
        (["--engine", "llama.cpp", "-fa", "maybe"], ["neither on nor off"]),
        (["--engine", "llama.cpp", "-fa", "off", "-ctv", "q8_0"], ["refuses -ctv q8_0 without flash attention"]),
        (["--engine", "llama.cpp", "-ctk", "fp8"], ["keeps no cache in fp8", "q8_0"]),
        (["--engine", "llama.cpp", "-ctk", "q9"], ["unknown number format"]),
        (["--engine", "llama.cpp", "-ctk", "q8_0", "--kv-dtype", "f16"], ["both say it"]),
        (["--engine", "llama.cpp", "--kv-dtype", "kv=q8_0"], ["none for `kv`"]),
        (["--engine", "llama.cpp", "--tp", "2"], ["spreads layers over devices"]),
    ],
)
def test_bad_input(kvcalc, arguments, words):
    answer = kvcalc("size", "llama-8b", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert all(word in answer.err for word in words), answer.err


def test_a_head_that_blocks_do_not_divide_is_refused(kvcalc, spec_file):
    """llama.cpp: `K cache type q8_0 with block size 32 does not divide n_embd_head_k=48`; without -fa the row counts."""
    spec = spec_file("name: odd\ndtype: bf16\nlayers:\n- mixer: {kind: kv, kv_heads: 8, head_dim: 48}\n")
    ask = ("size", spec, "-c", "8192", "--engine", "llama.cpp", "-ctk", "q8_0")
    answer = kvcalc(*ask)
    assert answer.code == 2
    assert "its blocks do not divide the 48" in answer.err
    off = kvcalc(*ask, "-fa", "off", "--format", "json").json["engine"]["parts"][0]
    # Printed by llama.cpp for 32 such layers: K 102.00 MiB, V 192.00 MiB.
    assert {name: 32 * held / MIB for name, held in off["tensors"].items()} == {"K": 102.0, "V": 192.0}


def test_a_latent_takes_one_type(kvcalc):
    answer = kvcalc("size", "deepseek-v3", "--engine", "llama.cpp", "-ctk", "q8_0")
    assert answer.code == 2
    assert "refuses -ctk q8_0 beside -ctv f16" in answer.err


def test_a_gguf_whose_layers_all_slide():
    """Printed for gemma3 of 4 layers, 3 slots and 3,000 tokens: 1,024 cells, K and V 48.00 MiB each."""
    metadata = RUNS["models"]["gemma-3-27b"]["metadata"] | {"block_count": 4}
    size = api.size(spec_from("gemma3", metadata), 1000, 3)
    [part] = LlamaCpp(ctx_size=3000).allocate(size).parts
    assert (part.name, part.layers, part.cells, part.streams) == ("window", 4, 1024, 3)
    assert part.tensors == {"K": 48 * MIB, "V": 48 * MIB}


@pytest.mark.parametrize("model_type", ["qwen2", "mistral", "gemma3_text"])
def test_windows_that_llama_cpp_has_no_cache_for(model_type):
    """qwen2 with a window in some layers: a run of llama.cpp (qwen2-swa) shows that all of them keep everything."""
    spec = msgspec.structs.replace(api.load("gemma-3-27b"), model_type=model_type)
    names = [part.name for part in LlamaCpp().allocate(api.size(spec, 8192)).parts]
    assert names == (["full", "window"] if model_type == "gemma3_text" else ["full"])


@pytest.mark.parametrize("run", COMPRESSED["runs"], ids=lambda run: f"{run['n_ctx']}-{run['n_seq']}")
def test_compressed_caches_and_their_states(run):
    """DeepSeek-V4: caches of windows, of both ratios and of the indexer, and what their compressors are filling."""
    spec = spec_from(COMPRESSED["arch"], COMPRESSED["metadata"])
    if run["refused"]:
        with pytest.raises(KvcalcError, match=r"llama\.cpp refuses"):
            allocate(run, spec)
        return
    allocation = allocate(run, spec, spec_draft_n_max=run["n_rs_seq"])
    states = {part.name: part for part in allocation.parts if "scores" in part.tensors}
    for name, theirs in zip(("csa state", "hca state", "index state"), run["states"], strict=True):
        ours = states[name]
        assert (ours.cells, ours.streams, ours.layers) == (theirs["rows"], theirs["streams"], theirs["layers"])
        assert ours.bytes / MIB == pytest.approx(theirs["mib"], abs=TWO_DECIMALS)
    caches = msgspec.structs.replace(
        allocation,
        parts=tuple(part for part in allocation.parts if "K" in part.tensors),
        allocated_bytes=allocation.allocated_bytes - sum(part.bytes for part in states.values()),
    )
    assert_printed(caches, run | {"recurrent": []})


def test_ratios_that_have_no_rule(kvcalc):
    answer = kvcalc("size", "deepseek-v4.1-flash", "--engine", "llama.cpp")
    assert answer.code == 2
    assert "compresses by 4 and 128" in answer.err


@pytest.mark.parametrize(
    ("model", "flags", "rule"),
    [
        ("gemma-3-27b", ["-c", "32K"], "a window keeps 1,024 tokens and a batch of 512 (-ub)"),
        ("gemma-3-27b", ["-c", "32K", "-np", "4", "--kv-unified"], "a window keeps 4 x 1,024 tokens"),
        ("gemma-3-27b", ["-c", "32K", "--swa-full"], "windows keep everything"),
        ("mistral-7b-v0.1", ["-c", "8K"], "the window is ignored"),
        ("deepseek-v3", ["-c", "8K"], "a latent lies in K alone"),
        ("gemma-4-26b-a4b", ["-c", "8K", "-fa", "off"], "as wide as the widest, 2,048 values"),
        ("deepseek-v4-flash", ["-c", "9K", "-np", "3", "-kvu"], "9,216 cells in each of 3 slots"),
        ("deepseek-v4-flash", ["-c", "9K"], "compressors keep the rows that they are filling in f32"),
        ("llama-8b", ["-c", "8K", "-np", "4", "-kvu"], "8,192 cells shared by all slots"),
        ("llama-8b", ["-c", "1000"], "1,024 cells in 1 slot: padded to a multiple of 256 from 1,000"),
        ("qwen3.5-27b", ["-c", "8K", "--spec-draft-n-max", "3"], "4 rows of every state"),
        ("llama-8b", ["-c", "8K", "--spec-draft-n-max", "3"], "--spec-draft-n-max changes nothing"),
        ("t5-large", ["-c", "512"], "what the encoder leaves is no part of the cache"),
    ],
)
def test_every_rule_is_named(kvcalc, model, flags, rule):
    assert rule in kvcalc("size", model, *flags, "--engine", "llama.cpp").out


def test_the_engine_is_found_by_name():
    assert find_engine("llama.cpp").version == find_engine("llama.cpp@b11549").version


SPREAD = [
    # https://github.com/ikawrakow/ik_llama.cpp/issues/398: two alike; the fork splits as llama.cpp does.
    ("qwen3-30b-a3b", 32768, "f16", (1, 1), None, ["1600.00", "1472.00"]),
    # https://github.com/ikawrakow/ik_llama.cpp/issues/245: sixteen alike, 4 layers each, 3 on the eighth, 2 on the last.
    ("deepseek-v3", 2048, "f16", (1,) * 16, None, ["9.00"] * 7 + ["6.75"] + ["9.00"] * 7 + ["4.50"]),
    # A public log, without an address: two hosts and the CPU; -ngl 100 is worked back from 27 of 126 layers on it.
    ("llama-3.1-405b", 4096, "f16", (1, 1), 100, ["800.00", "784.00", "432.00"]),
    # https://github.com/ggml-org/llama.cpp/issues/21730: only layers 5, 11, 17 and 23 keep the full cache; the shares are
    # worked back from where they lie.
    ("gemma-4-e4b", 131072, "f16", (1, 1.5, 2.5), None, ["512.00", "1024.00", "512.00"]),
]


@pytest.mark.parametrize(
    ("model", "tokens", "kind", "shares", "gpu_layers", "printed"), SPREAD, ids=lambda one: str(one)[:20]
)
def test_the_buffers_of_devices_that_logs_print(model, tokens, kind, shares, gpu_layers, printed):
    engine = LlamaCpp(tensor_split=shares, n_gpu_layers=gpu_layers)
    full = engine.allocate(api.size(model, tokens, kv_dtype=kind)).parts[0]
    assert full.name == "full"
    assert [f"{held / MIB:.2f}" for held in full.devices if held] == printed
    assert sum(full.devices) == full.bytes


def test_three_devices_alike_hold_21_21_and_19_of_61_layers():
    """https://github.com/ikawrakow/ik_llama.cpp/discussions/258 prints buffers 0.02 to 0.03 MiB above these."""
    size = api.size("deepseek-v3", 153600, kv_dtype="q8_0")
    [part] = LlamaCpp(tensor_split=(1, 1, 1)).allocate(size).parts
    assert [held / MIB for held in part.devices] == pytest.approx([1882.63, 1882.63, 1703.33, 0], abs=0.04)


def test_devices_are_told_apart_only_where_they_are_asked_for(kvcalc):
    size = api.size("llama-3-8b", 8192)
    assert LlamaCpp().allocate(size).parts[0].devices == ()
    # 33 slots with the output layer's: 10 of them on the device are 9 layers.
    held = LlamaCpp(n_gpu_layers=10).allocate(size)
    assert held.parts[0].devices == (9 * 32 * MIB, 23 * 32 * MIB)
    assert "a cache lies on the device of its layer: 288.00 MiB, and 736.00 MiB on the host" in held.rules
    with pytest.raises(KvcalcError, match="no shares"):
        LlamaCpp(tensor_split=(0, 0)).allocate(size)


def test_ollama_multiplies_the_context_by_its_parallel_requests():
    """-c NumCtx * numParallel, -np, -b and -ub 512, one type for K and V (llm/llama_server.go)."""
    run = ollama_flags(8192, 4, "Q8_0", max_context=131072)
    assert (run.engine.ctx_size, run.slots, run.engine.ubatch_size, run.cache_type) == (32768, 4, 512, "q8_0")
    spec = api.load("gemma-3-12b")
    size = api.size(spec, run.context_tokens, run.slots, kv_dtype=kv_dtype_of(spec, run.cache_type, run.cache_type))
    full, window = run.engine.allocate(size).parts
    # 8 layers of 8,192 cells and 40 of up(1,024 + 512, 256), in each slot; 8 heads x 256 of 34 B for 32 values, K and V.
    assert (full.bytes, window.bytes) == (4 * 8192 * 8 * 2 * 2176, 4 * 1536 * 40 * 2 * 2176)


def test_ollama_chooses_a_context_by_vram_and_never_past_the_model():
    """server/routes.go: 4K, 32K from 23 GiB, 256K from 47 GiB; NewLlamaServer cuts it to the trained length."""
    assert [default_context(gib * 2**30) for gib in (8, 22, 23, 46, 47, 640)] == [
        4096,
        4096,
        32768,
        32768,
        262144,
        262144,
    ]
    assert ollama_flags(262144, max_context=8192).engine.ctx_size == 8192
    with pytest.raises(KvcalcError, match="OLLAMA_NUM_PARALLEL 0"):
        ollama_flags(4096, 0)
