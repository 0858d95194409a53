"""GGUF metadata as specs: held against real llama.cpp, and against what its keys mean one by one."""

import json
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from conftest import GOLDEN
from gguf_writer import Tensor, Typed, model, write
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cache.sharding import WHOLE
from kvcalc.errors import SpecError
from kvcalc.model.importers.gguf import GgufHeader, read_header
from kvcalc.model.importers.gguf_arch import KNOWN, SLIDING
from kvcalc.model.importers.gguf_model import gguf_document
from kvcalc.model.resolve import resolve
from kvcalc.model.spec import Document

LLAMA_CPP = json.loads((GOLDEN / "llama_cpp.json").read_text())
MIB = 2**20
TWO_DECIMALS = 0.00501


def document_of(tmp_path, arch, keys, tensors=()):
    file = write(tmp_path / "some-model.gguf", model(arch, keys), list(tensors))
    return gguf_document(read_header(file), file)


def spec_of(tmp_path, arch, keys, tensors=()):
    return resolve(msgspec.convert(document_of(tmp_path, arch, keys, tensors), Document))


def kinds(spec, layers=None):
    return [[one.kind for one in layer.components] for layer in (spec.layers if layers is None else layers)]


def base(**more):
    keys = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2}
    return keys | {name.replace("__", "."): value for name, value in more.items()}


def caches_of(spec):
    """Layers, values of K and values of V of one cell, for every sort of cache that llama.cpp would make."""
    found = defaultdict(lambda: [0, 0, 0])
    for component in (one for layer in spec.layers for one in layer.components):
        if not component.keeps_entries or component.is_encoder_fed:
            continue
        v = sum(part.heads * part.width for part in component.parts(WHOLE) if part.name == "v")
        both = sum(part.heads * part.width for part in component.parts(WHOLE))
        sums = found[component.kind, component.span.cap]
        sums[:] = sums[0] + 1, sums[1] + both - v, sums[2] + v
    return sorted(map(tuple, found.values()))


def states_of(spec):
    """Values of R (convolutions and shifts) and of S, over all layers."""
    states = [state for layer in spec.layers for one in layer.components for state in one.states(WHOLE)]
    of_r = sum(state.values for state in states if state.format == "model")
    return of_r, sum(state.values for state in states) - of_r


def runs(with_caches):
    found = [run for run in LLAMA_CPP["runs"] if run["flash_attn"] and bool(run["caches"]) == with_caches]
    return [run for run in found if {one["k_type"] for one in run["caches"]} <= {"f16"}]


@pytest.mark.parametrize("run", runs(True), ids=lambda run: f"{run['model']}-{run['n_ctx']}-{run['n_seq']}")
def test_layers_and_bytes_per_cell_are_those_of_llama_cpp(tmp_path, run):
    named = LLAMA_CPP["models"][run["model"]]
    ours = caches_of(spec_of(tmp_path, named["arch"], named["metadata"]))
    theirs = sorted((one["layers"], one["k_mib"], one["v_mib"], one["cells"] * one["streams"]) for one in run["caches"])
    assert len(ours) == len(theirs)
    for (layers, k, v), (their_layers, k_mib, v_mib, cells) in zip(ours, theirs, strict=True):
        assert layers == their_layers
        assert k * 2 * cells / MIB == pytest.approx(k_mib, abs=TWO_DECIMALS)
        assert v * 2 * cells / MIB == pytest.approx(v_mib, abs=TWO_DECIMALS)


@pytest.mark.parametrize("run", [run for run in LLAMA_CPP["runs"] if run["recurrent"]], ids=lambda run: run["model"])
def test_states_are_those_of_llama_cpp(tmp_path, run):
    named = LLAMA_CPP["models"][run["model"]]
    r, s = states_of(spec_of(tmp_path, named["arch"], named["metadata"]))
    [theirs] = run["recurrent"]
    assert r * 4 * theirs["cells"] / MIB == pytest.approx(theirs["r_mib"], abs=TWO_DECIMALS)
    assert s * 4 * theirs["cells"] / MIB == pytest.approx(theirs["s_mib"], abs=TWO_DECIMALS)


def test_most_runs_are_held_against_something():
    assert len(runs(True)) >= 60
    assert len({run["model"] for run in LLAMA_CPP["runs"]}) == len(LLAMA_CPP["models"]) == 55


def test_a_plain_model(tmp_path):
    document = document_of(tmp_path, "llama", base(context_length=4096, feed_forward_length=128, vocab_size=1000))
    assert document == {
        "name": "some-model",
        "source": "some-model.gguf (general.architecture = llama)",
        "max_context": 4096,
        "hidden_size": 64,
        "vocab_size": 1000,
        "dtype": "fp16",
        "state_dtype": "fp32",
        "layers": [
            {
                "repeat": 4,
                "mixer": {"kind": "kv", "q_heads": 4, "kv_heads": 2, "head_dim": 16},
                "mlp": {"kind": "dense", "intermediate_size": 128},
            }
        ],
    }


def test_every_architecture_of_llama_cpp_is_sized_without_assuming(tmp_path):
    for arch in sorted(KNOWN - {"clip"}):
        keys = base(ssm__state_size=8, ssm__inner_size=8, ssm__conv_kernel=4, ssm__time_step_rank=2, ssm__group_count=1)
        hybrid = arch in {"qwen3next", "qwen35", "qwen35moe", "falcon-h1"}
        document = document_of(tmp_path, arch, keys if hybrid else base())
        assert "cache" not in document.get("assumed", {}), arch


def test_an_unknown_architecture_is_sized_and_says_what_was_assumed(tmp_path):
    keys = base(attention__sliding_window=32, attention__novel_thing=3, attention__layer_norm_epsilon=1e-5)
    document = document_of(tmp_path, "future", keys)
    text = " / ".join(document["assumed"]["cache"])
    assert "architecture future is not known" in text
    assert "attention.novel_thing is not understood" in text
    assert "epsilon" not in text
    assert "window" in text
    assert caches_of(resolve(msgspec.convert(document, Document))) == [(4, 4 * 32, 4 * 32)]


def test_heads_per_layer_and_no_attention_where_there_are_none(tmp_path):
    keys = base(attention__head_count_kv=[2, 0, 1, 4], attention__key_length=32, attention__value_length=8)
    spec = spec_of(tmp_path, "deci", keys)
    assert kinds(spec) == [["kv"], [], ["kv"], ["kv"]]
    assert [one.kv_heads for layer in spec.layers for one in layer.components] == [2, 1, 4]
    assert spec.layers[0].components[0].widths == (32, 8)


@pytest.mark.parametrize(
    ("arch", "keys", "windows"),
    [
        ("gemma2", {}, [4096, None, 4096, None]),
        ("gemma2", {"attention__sliding_window": 8}, [8, None, 8, None]),
        ("gemma3", {"attention__sliding_window": 8}, [8, 8, 8, 8]),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": 2}, [8, None, 8, None]),
        ("cohere2moe", {"attention__sliding_window": 8}, [None, 8, 8, 8]),
        ("smallthinker", {"attention__sliding_window": 8}, [None, 4096, 4096, 4096]),
        ("olmo2", {"attention__sliding_window": 8}, [8, 8, 8, None]),
        ("olmo2", {}, [None] * 4),
        ("exaone4", {"attention__sliding_window": 8}, [None] * 4),
        ("phi3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": 4}, [None] * 4),
        ("llama", {"attention__sliding_window": 8}, [None] * 4),
        ("llama4", {"attention__sliding_window": 0}, [None] * 4),
        ("future", {"attention__sliding_window": 8, "attention__sliding_window_pattern": 0}, [8] * 4),
        ("future", {"attention__sliding_window": 8, "attention__sliding_window_pattern": 1}, [None] * 4),
        (
            "future",
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True, False, False, True]},
            [8, None, None, 8],
        ),
        ("future", {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True, False]}, [8, None] * 2),
    ],
)
def test_which_layers_slide(tmp_path, arch, keys, windows):
    spec = spec_of(tmp_path, arch, base(**keys))
    assert [layer.components[0].window for layer in spec.layers] == windows


def test_exaone4_slides_in_its_large_model(tmp_path):
    spec = spec_of(tmp_path, "exaone4", base(block_count=64))
    assert [layer.components[0].window for layer in spec.layers[:4]] == [4096, 4096, 4096, None]


def test_llama4_keeps_chunks(tmp_path):
    spec = spec_of(tmp_path, "llama4", base())
    assert [layer.components[0].chunk for layer in spec.layers] == [8192, 8192, 8192, None]


def test_every_pattern_in_the_table_belongs_to_an_architecture():
    assert set(SLIDING) - {"kolibri1"} <= KNOWN


def test_shared_layers_read_the_last_kept_one_of_their_sort(tmp_path):
    keys = base(
        attention__sliding_window=8,
        attention__shared_kv_layers=2,
        attention__key_length_swa=8,
        attention__value_length_swa=8,
    )
    keys["attention.sliding_window_pattern"] = [True, False, True, False]
    spec = spec_of(tmp_path, "gemma4", keys)
    assert kinds(spec) == [["kv"], ["kv"], ["shared"], ["shared"]]
    assert [(read.layer, read.owner_layer) for read in spec.reads] == [(2, 0), (3, 1)]
    assert [layer.components[0].head_dim for layer in spec.layers[:2]] == [8, 16]


MLA = {
    "attention__kv_lora_rank": 512,
    "rope__dimension_count": 64,
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
    "attention__head_count_kv": 1,
}


def test_a_latent_and_its_query_widths(tmp_path):
    [latent] = spec_of(tmp_path, "deepseek2", base(**MLA, attention__q_lora_rank=32)).layers[0].components
    assert (latent.latent_dim, latent.rope_dim, latent.nope_head_dim, latent.v_head_dim, latent.q_rank) == (
        512,
        64,
        128,
        128,
        32,
    )


def test_an_old_file_of_a_latent_model_says_that_llama_cpp_expands_it(tmp_path):
    keys = base(**{**MLA, "attention__key_length_mla": 0, "attention__key_length": 192, "attention__value_length": 128})
    document = document_of(tmp_path, "deepseek2", keys)
    assert "key_length_mla" in document["assumed"]["other"][0]
    assert document["layers"][0]["mixer"]["nope_head_dim"] == 128


def test_an_indexer_in_the_layers_that_have_one(tmp_path):
    indexer = {
        "attention__indexer__key_length": 128,
        "attention__indexer__head_count": 8,
        "attention__indexer__top_k": 2048,
    }
    every = spec_of(tmp_path, "deepseek32", base(**MLA, **indexer))
    assert kinds(every) == [["latent", "index"]] * 4
    some = spec_of(tmp_path, "glm-dsa", base(**MLA, **indexer, attention__indexer__types=[1, 0, 0, 1]))
    assert kinds(some) == [["latent", "index"], ["latent"], ["latent"], ["latent", "index"]]
    assert some.layers[1].components[0].top_k == 2048
    tensors = [Tensor("blk.1.indexer.attn_k.weight"), Tensor("blk.0.attn_k_b.weight")]
    assert kinds(spec_of(tmp_path, "glm-dsa", base(**MLA, **indexer), tensors))[:2] == [["latent"], ["latent", "index"]]


def test_compressed_caches_of_deepseek_v4(tmp_path):
    keys = base(attention__key_length=512, rope__dimension_count=64, attention__sliding_window=128)
    keys |= {
        "attention.compress_ratios": [0, 0, 4, 128],
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 512,
    }
    spec = spec_of(tmp_path, "deepseek4", keys | {"attention.head_count_kv": 1})
    assert kinds(spec) == [["latent"], ["latent"], ["latent", "latent", "index"], ["latent", "latent"]]
    assert [one.span.ratio for one in spec.layers[2].components] == [1, 4, 4]
    assert spec.layers[0].components[0].window == 128


MAMBA = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16, "ssm__time_step_rank": 8}


def test_which_layers_keep_a_state(tmp_path):
    two = {**MAMBA, "ssm__group_count": 2}
    by_heads = spec_of(tmp_path, "jamba", base(**MAMBA, attention__head_count_kv=[0, 2, 0, 0]))
    assert kinds(by_heads) == [["mamba1"], ["kv"], ["mamba1"], ["mamba1"]]
    one_part = base(**two, attention__head_count_kv=[0, 2, 0, 0], feed_forward_length=[0, 0, 64, 0])
    assert kinds(spec_of(tmp_path, "nemotron_h", one_part)) == [["mamba2"], ["kv"], [], ["mamba2"]]
    assert kinds(spec_of(tmp_path, "qwen3next", base(**two))) == [["gated_delta"]] * 3 + [["kv"]]
    other = base(**two, full_attention_interval=2)
    assert kinds(spec_of(tmp_path, "qwen3next", other)) == [["gated_delta"], ["kv"]] * 2
    listed = base(**two, attention__recurrent_layers=[False, True, True, False])
    assert kinds(spec_of(tmp_path, "qwen35", listed)) == [["kv"], ["gated_delta"], ["gated_delta"], ["kv"]]
    indices = base(**two, attention__layer_indices=[1])
    assert kinds(spec_of(tmp_path, "future", indices)) == [["mamba2"], ["kv"], ["mamba2"], ["mamba2"]]
    assert kinds(spec_of(tmp_path, "falcon-h1", base(**two))) == [["kv", "mamba2"]] * 4


def test_tensors_tell_where_no_key_does(tmp_path):
    two = {**MAMBA, "ssm__group_count": 2}
    tensors = [
        Tensor("blk.0.ssm_in.weight"),
        Tensor("blk.1.attn_k.weight"),
        Tensor("blk.2.ssm_in.weight"),
        Tensor("blk.2.attn_k.weight"),
    ]
    spec = spec_of(tmp_path, "future", base(**two), tensors)
    assert kinds(spec) == [["mamba2"], ["kv"], ["kv", "mamba2"], ["kv"]]
    delta = spec_of(tmp_path, "future", base(**two), [Tensor("blk.0.ssm_beta.weight"), Tensor("blk.0.attn_qkv.weight")])
    assert kinds(delta) == [["gated_delta"], ["kv"], ["kv"], ["kv"]]
    document = document_of(tmp_path, "future", base(**two))
    assert any("which layers keep a state" in line for line in document["assumed"]["cache"])


def test_delta_attention_of_kimi(tmp_path):
    keys = base(**MLA, kda__head_dim=128, ssm__conv_kernel=4) | {"attention.head_count_kv": [0, 0, 0, 1]}
    spec = spec_of(tmp_path, "kimi-linear", keys)
    assert kinds(spec) == [["gated_delta"]] * 3 + [["latent"]]
    # llama-hparams.cpp: R is 3 x (kernel - 1) x heads x head_dim, S is head_dim^2 x heads.
    assert states_of(spec) == (3 * 3 * 3 * 4 * 128, 3 * 128 * 128 * 4)


def test_kv_heads_without_query_heads_attend_nothing(tmp_path):
    rwkv = {"block_count": 2, "embedding_length": 64, "attention.head_count": 0, "wkv.head_size": 16}
    spec = spec_of(tmp_path, "rwkv6qwen2", rwkv | {"attention.head_count_kv": 4, "token_shift_count": 1})
    assert kinds(spec) == [["recurrent"]] * 2


def test_short_convolutions_and_rwkv(tmp_path):
    spec = spec_of(tmp_path, "lfm2", base(shortconv__l_cache=3, attention__head_count_kv=[0, 2, 0, 2]))
    assert kinds(spec) == [["short_conv"], ["kv"]] * 2
    assert states_of(spec) == (2 * 2 * 64, 0)
    rwkv = {"block_count": 2, "embedding_length": 64, "attention.head_count": 0, "wkv.head_size": 16}
    assert states_of(spec_of(tmp_path, "rwkv6", rwkv)) == (2 * 2 * 64, 2 * 64 * 16)
    assert states_of(spec_of(tmp_path, "arwkv7", rwkv | {"token_shift_count": 1})) == (2 * 64, 2 * 64 * 16)


def test_draft_layers_stand_apart(tmp_path):
    keys = base(block_count=5, nextn_predict_layers=1)
    spec = spec_of(tmp_path, "glm4moe", keys)
    assert (len(spec.layers), len(spec.draft_layers)) == (4, 1)
    blocks = [Tensor(f"blk.{layer}.attn_k.weight") for layer in range(5)]
    with_them = spec_of(tmp_path, "glm4moe", keys, [*blocks, Tensor("blk.4.nextn.eh_proj.weight")])
    assert (len(with_them.layers), len(with_them.draft_layers)) == (4, 1)
    never_counted = spec_of(tmp_path, "deepseek4", keys, blocks)
    assert (len(never_counted.layers), len(never_counted.draft_layers)) == (5, 0)
    left_out = spec_of(tmp_path, "glm4moe", keys, blocks[:4])
    assert (len(left_out.layers), len(left_out.draft_layers)) == (4, 0)
    hybrid = base(**MAMBA, ssm__group_count=2, block_count=5, nextn_predict_layers=1)
    assert kinds(spec_of(tmp_path, "qwen35", hybrid), spec_of(tmp_path, "qwen35", hybrid).draft_layers) == [["kv"]]


def test_an_encoder_decoder_and_encoders(tmp_path):
    spec = spec_of(tmp_path, "t5", base(decoder_block_count=2))
    assert kinds(spec) == [["kv", "cross"]] * 2
    assert len(spec.encoder) == 4
    for arch in ("bert", "gemma-embedding", "llada"):
        assert kinds(spec_of(tmp_path, arch, base())) == [[]] * 4
    document = document_of(tmp_path, "llama-embed", base(attention__causal=False))
    assert "keeps no cache" in document["assumed"]["other"][0]


def test_feed_forward_parts(tmp_path):
    keys = base(feed_forward_length=256, expert_count=8, expert_used_count=2, expert_feed_forward_length=32)
    keys |= {"leading_dense_block_count": 1, "expert_shared_count": 2}
    mlps = [layer.mlp for layer in spec_of(tmp_path, "deepseek2", keys).layers]
    assert [type(mlp).__name__ for mlp in mlps] == ["Dense", "Moe", "Moe", "Moe"]
    assert (mlps[1].experts, mlps[1].active, mlps[1].shared, mlps[1].intermediate_size) == (8, 2, 2, 32)
    step = base(feed_forward_length=256, expert_count=8, interleave_moe_layer_step=2, expert_feed_forward_length=32)
    assert [type(layer.mlp).__name__ for layer in spec_of(tmp_path, "llama4", step).layers] == ["Dense", "Moe"] * 2
    tensors = [Tensor("blk.0.ffn_up.weight", (64, 256)), Tensor("token_embd.weight", (64, 1000))]
    plain = spec_of(tmp_path, "falcon", base(feed_forward_length=256), tensors)
    assert (plain.layers[0].mlp.gated, plain.tie_embeddings) == (False, True)
    fused = spec_of(tmp_path, "phi3", base(feed_forward_length=128), tensors)
    assert fused.layers[0].mlp.gated


@pytest.mark.parametrize(
    ("arch", "keys", "words"),
    [
        ("llama", {"block_count": 0}, "block_count is 0"),
        ("llama", {"block_count": 20_000}, "block_count is 20,000"),
        ("llama", {"block_count": True}, "block_count is True, no count"),
        ("llama", {"block_count": 2.5}, "no count"),
        ("llama", {"block_count": "32"}, "no count"),
        ("llama", {"attention__head_count_kv": 3}, "q_heads 4 is no multiple of kv_heads 3"),
        ("llama", {"attention__head_count_kv": [1, 2]}, "2 items for 4 layers"),
        ("llama", {"attention__head_count_kv": Typed(5, -1)}, "-1, no count"),
        ("llama", {"attention__key_length": Typed(10, 2**60)}, "no count"),
        ("llama", {"embedding_length": 0}, "embedding_length is 0"),
        ("llama", {"nextn_predict_layers": 4}, "nextn_predict_layers 4"),
        ("mamba2", {**MAMBA, "ssm__group_count": 2, "ssm__time_step_rank": 7}, "no multiple of ssm.time_step_rank"),
        ("rwkv6", {"wkv__head_size": 7}, "no multiple of wkv.head_size"),
        ("gemma4", {"attention__shared_kv_layers": 4}, "global"),
        ("deepseek2", {"attention__kv_lora_rank": 512}, "rope.dimension_count is missing"),
        ("clip", {}, "vision part"),
    ],
)
def test_keys_that_make_no_model(tmp_path, arch, keys, words):
    with pytest.raises(SpecError, match=re.escape(words)) as caught:
        document_of(tmp_path, arch, base(**keys))
    assert "some-model.gguf: " in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": 3}, {"general.architecture": ""}])
def test_a_file_that_names_no_architecture(metadata):
    with pytest.raises(SpecError, match=r"no general\.architecture"):
        gguf_document(GgufHeader(3, metadata, ()), Path("x.gguf"))


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_other_files_are_named_for_what_they_are(tmp_path, kind):
    with pytest.raises(SpecError, match="keeps no cache"):
        document_of(tmp_path, "llama", base() | {"general.type": kind})


def test_names_stand_on_one_line(tmp_path):
    file = write(
        tmp_path / "a\n\x1b[31m\u202eb-00001-of-00001.gguf", model("lla\nma\x1b", {}) | {"lla\nma\x1b.block_count": 1}
    )
    document = gguf_document(read_header(file), file)
    assert document["name"] == "a__[31m_b"
    msgspec.convert(document, Document)


SUFFIXES = (
    "block_count embedding_length context_length vocab_size feed_forward_length attention.head_count attention.head_count_kv "
    "attention.key_length attention.value_length attention.key_length_mla attention.kv_lora_rank rope.dimension_count "
    "attention.sliding_window attention.sliding_window_pattern attention.shared_kv_layers attention.recurrent_layers "
    "attention.layer_indices attention.compress_ratios attention.indexer.key_length attention.indexer.types "
    "attention.indexer.top_k full_attention_interval nextn_predict_layers ssm.state_size ssm.inner_size ssm.conv_kernel "
    "ssm.group_count ssm.time_step_rank kda.head_dim wkv.head_size shortconv.l_cache token_shift_count expert_count "
    "expert_used_count expert_feed_forward_length expert_shared_feed_forward_length leading_dense_block_count "
    "decoder_block_count attention.causal interleave_moe_layer_step"
)
COUNTS = st.integers(0, 12) | st.sampled_from([64, 128, 2**31, 2**64 - 1, -1])
ANYTHING = (
    COUNTS
    | st.booleans()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(COUNTS, max_size=12)
    | st.lists(st.booleans(), max_size=12)
)
GUESSES = st.dictionaries(st.sampled_from(SUFFIXES.split()), COUNTS | ANYTHING, max_size=12)


@given(arch=st.sampled_from(sorted(KNOWN | {"future"})), keys=GUESSES, plain=st.booleans())
def test_whatever_the_keys_say_they_make_a_model_or_one_line(arch, keys, plain):
    keys = (base() if plain else {}) | keys
    header = GgufHeader(3, {"general.architecture": arch, **{f"{arch}.{key}": keys[key] for key in keys}}, ())
    try:
        document = gguf_document(header, Path("x.gguf"))
    except SpecError as error:
        assert "\n" not in error.message
        return
    assert resolve(msgspec.convert(document, Document)).layers
