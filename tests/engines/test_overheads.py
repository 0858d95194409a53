"""Terms beside the cache: held against figures that engines printed, and files of saved ones."""

import msgspec
import pytest
import yaml
from conftest import ROOT

import kvcalc
from kvcalc.engines.engine import Engine, engine_classes
from kvcalc.engines.overheads import SavedOverheads, overhead_terms, read_overheads, write_overheads
from kvcalc.errors import KvcalcError, SpecError
from kvcalc.model.spec import Checkpoint

GIB = 2**30
LOGS = yaml.safe_load((ROOT / "tests" / "golden" / "overheads.yaml").read_text())
SAVED = SavedOverheads(
    terms={"weights": 100, "activations": 7, "vision tower": 5},
    engine="vllm",
    version="0.33.0",
    model="llama-3.1-8b",
    gpu="H100",
    date="2026-11-29",
    tp=2,
)


class Unruled(Engine, frozen=True, kw_only=True):
    """An engine that has no flags here."""

    versions = ("1",)


def make_engine(fields):
    flags = {key: value for key, value in fields.items() if key != "name"}
    made = engine_classes().get(fields["name"])
    if made is None:
        made, flags = type("Named", (Unruled,), {"name": fields["name"]}, frozen=True), {"version": flags["version"]}
    return made(**flags)


def bounds(log):
    """Bounds of the log's figures in GiB; `non-torch` of a log has the communication in it."""
    spec = kvcalc.load(log["model"], log.get("set", ()))
    size = kvcalc.size(spec, log.get("ctx"), **log.get("kvcalc", {}))
    terms = {term.name: term for term in overhead_terms(size, make_engine(log["engine"]), None, None)}
    parts = {name: [name, "communication"] if name == "non-torch" else [name] for name in log["figures"]}
    return {
        name: tuple(
            sum(getattr(terms[part], end) for part in found if part in terms) / GIB
            for end in ("low_bytes", "high_bytes")
        )
        for name, found in parts.items()
    }


def is_inside(name, figure, low, high):
    """To the two decimals that logs print; weights to a hundredth, for buffers and what loading leaves."""
    slack = figure / 100 if name == "weights" else 0.005
    return low - slack <= figure <= high + slack


CASES = [(log, name) for log in LOGS for name in log["figures"]]


@pytest.mark.parametrize(("log", "name"), CASES, ids=[f"{log['id']} {name}" for log, name in CASES])
def test_bounds_hold_for_public_logs_where_nothing_says_otherwise(log, name):
    low, high = bounds(log)[name]
    outside = name in log.get("outside", {})
    assert is_inside(name, log["figures"][name], low, high) != outside, (log["figures"][name], low, high)


def test_nine_of_ten_public_figures_are_inside():
    outside = sum(len(log.get("outside", {})) for log in LOGS)
    assert len(CASES) >= 100
    assert outside / len(CASES) <= 0.1


def test_most_bounds_are_no_wider_than_a_reader_can_use():
    """Of activations under the flags of the log: the upper bound is within four times the figure for nine of ten."""
    found = [
        (log["figures"]["activations"], bounds(log)["activations"]) for log in LOGS if "activations" in log["figures"]
    ]
    assert sum(high <= 4 * figure for figure, (_, high) in found) >= 0.9 * len(found)


def names(terms):
    return [term.name for term in terms]


def test_terms_of_one_rank_and_of_two():
    one, two = (overhead_terms(kvcalc.size("llama-3.1-8b", tp=tp), None, None, None) for tp in (1, 2))
    assert names(one) == ["weights", "activations", "CUDA graphs", "non-torch"]
    assert names(two) == ["weights", "activations", "CUDA graphs", "communication", "non-torch"]
    assert all(term.low_bytes <= term.expected_bytes <= term.high_bytes for term in one + two)


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("vllm", ("engine rule", "measured")),
        ("llama.cpp", ("engine rule", "assumed")),
        ("transformers", ("assumed", "assumed")),
    ],
)
def test_only_what_was_read_or_measured_says_so(name, bases):
    found = {term.name: term.basis for term in overhead_terms(size_of_two(), engine_classes()[name](), None, None)}
    assert (found["activations"], found["non-torch"]) == bases
    assert ("CUDA graphs" in found) == (name == "vllm")


def size_of_two():
    return kvcalc.size("llama-3.1-8b", tp=2)


def test_loras_are_counted_by_hand():
    """Llama-3.1-8B: q and o of 4096, k and v of 1024, gate, up and down of 14336, in 32 layers; 3 of rank 8 in bf16."""
    widths = (4096 + 4096) * 2 + (4096 + 1024) * 2 + 3 * (4096 + 14336)
    term = next(
        term
        for term in overhead_terms(kvcalc.size("llama-3.1-8b"), None, None, None, loras=3, lora_rank=8)
        if term.name == "LoRA"
    )
    assert term.low_bytes == term.high_bytes == 3 * 8 * 32 * widths * 2
    assert term.basis == "exact"


def test_loras_on_experts_are_unknown_and_shown():
    terms = overhead_terms(kvcalc.size("qwen3-30b-a3b"), None, None, None, loras=1)
    lora = next(term for term in terms if term.name == "LoRA")
    assert (lora.low_bytes, lora.high_bytes, lora.basis, lora.expected_bytes) == (0, None, "unknown", 0)


def test_a_tower_that_the_spec_leaves_out_is_unknown_and_shown():
    """Gemma 3's config has a vision tower, Llama 3.1's has none."""
    tower = overhead_terms(kvcalc.size("gemma-3-4b"), None, None, None)[-1]
    assert (tower.name, tower.low_bytes, tower.high_bytes, tower.basis) == ("vision tower", 0, None, "unknown")
    assert "vision tower" not in names(overhead_terms(kvcalc.size("llama-3.1-8b"), None, None, None))
    files = Checkpoint(bytes=9 * 10**9, formats=("bf16",), source="files of all tensors")
    held = msgspec.structs.replace(kvcalc.load("gemma-3-4b"), checkpoint=files)
    assert "vision tower" not in names(overhead_terms(kvcalc.size(held), None, None, None))


@pytest.mark.parametrize(("loras", "rank"), [(-1, 16), (1, 0)])
def test_loras_that_cannot_be_are_refused(loras, rank):
    with pytest.raises(KvcalcError, match="rank"):
        overhead_terms(kvcalc.size("llama-3.1-8b"), None, None, None, loras=loras, lora_rank=rank)


def test_what_a_spec_lacks_is_unknown(spec_file):
    text = "name: x\ndtype: bf16\nlayers: [{mixer: {kind: kv, kv_heads: 8, head_dim: 128}}]\n"
    terms = {term.name: term for term in overhead_terms(kvcalc.size(str(spec_file(text))), None, None, None)}
    assert (terms["weights"].basis, terms["weights"].high_bytes) == ("unknown", None)
    assert (terms["activations"].basis, terms["activations"].high_bytes) == ("unknown", None)


def test_more_sequences_and_tokens_need_more():
    size, vllm = kvcalc.size("llama-3.1-8b"), engine_classes()["vllm"]
    few, rows, tokens = (
        overhead_terms(size, vllm(**flags), None, None)[1]
        for flags in (
            {"max_num_seqs": 256},
            {"max_num_seqs": 1024},
            {"max_num_seqs": 256, "max_num_batched_tokens": 65536},
        )
    )
    assert few.high_bytes < rows.high_bytes
    assert few.high_bytes < tokens.high_bytes


def test_saved_figures_take_the_place_of_bounds():
    terms = overhead_terms(kvcalc.size("llama-3.1-8b", tp=2), None, None, SAVED)
    assert names(terms) == ["weights", "activations", "CUDA graphs", "communication", "non-torch", "vision tower"]
    weights = terms[0]
    assert (weights.low_bytes, weights.high_bytes, weights.basis) == (100, 100, "measured")
    assert "vllm 0.33.0 with llama-3.1-8b on H100 tp 2, 2026-11-29" in weights.why


def test_a_saved_file_says_what_was_different():
    same = kvcalc.size("llama-3.1-8b", tp=2)
    vllm = engine_classes()["vllm"]()
    assert SAVED.differences(same, vllm, "h100") == ()
    assert SAVED.differences(same, None, None) == ()
    other = kvcalc.size("llama-3-70b", tp=4)
    said = " | ".join(SAVED.differences(other, engine_classes()["llama.cpp"](), "A100"))
    for difference in ("model llama-3.1-8b, and model llama-3-70b", "gpu H100", "engine vllm", "tp 2, and tp 4"):
        assert difference in said


def test_a_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "o.yaml"
    write_overheads(path, SAVED)
    assert read_overheads(path) == SAVED
    assert path.read_text().startswith("schema: kvcalc.overheads/1\n")
    with pytest.raises(KvcalcError, match="exists"):
        write_overheads(path, SAVED)
    write_overheads(path, msgspec.structs.replace(SAVED, date="2026-12-01"), force=True)
    assert read_overheads(path).date == "2026-12-01"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kvcalc.overheads/1", "kvcalc.overheads/2", "its schema is 'kvcalc.overheads/2'"),
        ("schema: kvcalc.overheads/1\n", "", "it states no schema"),
        ("weights: 100", "weights: -100", "weights"),
        ("weights: 100", "weights: lots", "weights"),
        ("weights: 100", "weight: 100", "unknown term 'weight'"),
        ("gpu: H100\n", "", "gpu"),
        ("gpu: H100", "gpus: 8\ngpu: H100", "gpus"),
        ("tp: 2", "tp: 0", "tp"),
        ("schema:", "[schema:", "no YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path, old, new, said):
    path = tmp_path / "o.yaml"
    write_overheads(path, SAVED)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SpecError) as caught:
        read_overheads(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_missing_file_and_a_wrong_term_are_refused(tmp_path):
    with pytest.raises(SpecError, match="No such file"):
        read_overheads(tmp_path / "none.yaml")
    with pytest.raises(KvcalcError, match="unknown term"):
        msgspec.structs.replace(SAVED, terms={"x": 1})
    with pytest.raises(KvcalcError, match="-1 bytes"):
        msgspec.structs.replace(SAVED, terms={"weights": -1})


def test_the_page_counts_the_figures_as_they_are():
    page = (ROOT / "docs" / "overheads.md").read_text()
    counts = {name: [0, 0] for name in ("weights", "activations", "CUDA graphs", "non-torch")}
    for log, name in CASES:
        counts[name][0] += 1
        counts[name][1] += name not in log.get("outside", {})
    counts["non-torch, with communication"] = counts.pop("non-torch")
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    for name, (figures, inside) in counts.items():
        assert f"| {name} | {figures} | {inside} |" in page


def test_the_file_on_the_page_can_be_read(tmp_path):
    page = (ROOT / "docs" / "overheads.md").read_text()
    path = tmp_path / "o.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert read_overheads(path).terms["weights"] == 8_063_549_440
