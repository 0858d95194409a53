"""Two runs: what counts as worse, better or the same, and what is left undecided."""

import copy
import itertools
import json
import math
import random
import statistics

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample import run_document

import docs
from kvcalc.errors import KvcalcError
from kvcalc.profiler.comparison import compare_runs, overall
from kvcalc.profiler.samples import judge, median_interval, rank_test
from kvcalc.render.terminal import report_text
from kvcalc.render.text import to_csv

NAMES = ("old.json", "new.json")
OPPOSITE = {"better": "worse", "worse": "better", "same": "same", "undecided": "undecided"}
seconds = st.floats(1e-6, 1e3)
few = st.lists(seconds, min_size=1, max_size=7)
many = st.lists(seconds, min_size=8, max_size=40)


# The rank test


def test_the_rank_test_on_a_published_example():
    # scipy 1.11, scipy.stats.mannwhitneyu, Examples: age at onset of diabetes, by the normal approximation.
    assert rank_test([19, 22, 16, 29, 24], [20, 11, 17, 12]) == pytest.approx(0.11134688653314041, rel=1e-12)


def exact_p(first, second):
    """The share of all ways to deal the samples out that are at least as far apart; by counting."""
    pooled, n = [*first, *second], len(first)

    def distance(chosen):
        rest = list(pooled)
        for one in chosen:
            rest.remove(one)
        u = sum((a > b) + (a == b) / 2 for a in chosen for b in rest)
        return abs(u - n * (len(pooled) - n) / 2)

    limit = distance(first)
    deals = list(itertools.combinations(pooled, n))
    return sum(distance(deal) >= limit for deal in deals) / len(deals)


@pytest.mark.parametrize("seed", range(6))
def test_the_rank_test_is_near_the_exact_one(seed):
    dice = random.Random(seed)  # noqa: S311 - timings, not secrets
    first = [dice.gauss(1, 0.2) for _ in range(6)]
    second = [dice.gauss(1.1, 0.2) for _ in range(6)]
    assert rank_test(first, second) == pytest.approx(exact_p(first, second), abs=0.02)


@given(many, many)
def test_the_rank_test_is_a_probability_and_symmetric(first, second):
    assert 0 <= rank_test(first, second) <= 1
    assert rank_test(first, second) == pytest.approx(rank_test(second, first))


def test_equal_samples_are_no_evidence():
    assert rank_test([1.0] * 10, [1.0] * 10) == 1
    # By chance alone one comparison in 500 may come out, so no more than a few of 2,000 do.
    dice = random.Random(1)  # noqa: S311 - timings, not secrets
    series = [[dice.lognormvariate(0, 0.3) for _ in range(10)] for _ in range(4000)]
    alarms = sum(rank_test(a, b) < 0.002 for a, b in zip(series[::2], series[1::2], strict=True))
    assert alarms <= 12


@pytest.mark.parametrize("n", [6, 7, 8, 9, 10, 15, 20, 50, 51, 200, 1000])
def test_the_interval_of_a_median_holds_it_in_95_of_100(n):
    low, high = median_interval(range(1, n + 1))
    assert low + high == n + 1
    # The k-th smallest lies above the median where fewer than k of n fair coins fall heads.
    outside = 2 * sum(math.comb(n, heads) for heads in range(low)) / 2**n
    assert outside <= 0.05


# One pair of series


@given(few | many)
def test_a_series_is_never_better_or_worse_than_itself(samples):
    assert judge(samples, samples, 0.05) in ("same", "undecided")


@given(few | many, few | many, st.sampled_from([0.0, 0.05, 0.5]))
def test_swapping_turns_worse_into_better(first, second, threshold):
    assert judge(second, first, threshold) == OPPOSITE[judge(first, second, threshold)]


@given(st.lists(st.floats(1.0, 1.2), min_size=8, max_size=40))
def test_half_as_long_again_is_worse(samples):
    slower = [1.5 * sample for sample in samples]
    assert judge(samples, slower, 0.05) == "worse"
    assert judge(samples, slower, 0.6) in ("same", "undecided")


@given(few, few, many)
def test_one_or_two_samples_decide_nothing(first, second, plenty):
    if len(first) < 3:
        assert judge(first, second, 0.05) == judge(first, plenty, 0.05) == "undecided"


def test_few_samples_must_lie_apart_by_more_than_the_threshold():
    assert judge([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], 0.05) == "worse"
    assert judge([1.0, 1.1, 1.2], [1.21, 1.4, 1.5], 0.05) == "undecided"
    assert judge([1.0, 1.1, 1.2], [1.19, 1.4, 1.5], 0.05) == "undecided"
    assert judge([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], 0.05) == "better"


def test_many_samples():
    quiet = [1 + 0.001 * step for step in range(20)]
    assert judge(quiet, [1.02 * one for one in quiet], 0.05) == "same"
    assert judge(quiet, [1.2 * one for one in quiet], 0.05) == "worse"
    noisy = [1 + 0.05 * step for step in range(20)]
    # Medians near each other, and far too noisy to say that they are the same.
    assert judge(noisy, [1.02 * one for one in noisy], 0.05) == "undecided"
    # Medians apart, and no more so than chance would have it.
    assert judge(noisy, [1.08 * one for one in noisy], 0.05) == "undecided"


# Two runs


def scaled(run, factor, what="decode"):
    """The run with every timing of one name `factor` times as long."""
    slower = copy.deepcopy(run)
    for point in slower["points"]:
        series = point[what]
        for key in ("median_seconds", "p10_seconds", "p90_seconds"):
            series[key] *= factor
        series["samples_seconds"] = [factor * sample for sample in series["samples_seconds"]]
    return slower


def verdicts(report, what):
    return {pair["verdict"] for pair in report.document["pairs"] if pair["what"] == what}


def test_a_run_against_itself():
    run = run_document()
    report = compare_runs(run, run, NAMES)
    assert report.document["verdict"] == "same"
    assert report.exit_code == 0
    assert report.document["differences"] == []
    assert len(report.document["pairs"]) == 12
    assert verdicts(report, "decode") == {"same"}
    # Five samples of a prefill can lie apart, and cannot be said to be the same.
    assert verdicts(report, "prefill") == {"undecided"}


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_two_quiet_runs_of_one_thing_are_not_worse(first, second):
    runs = [run_document(contexts=(1024,), batches=(1,), seed=seed) for seed in (first, second)]
    assert compare_runs(*runs, NAMES).exit_code == 0


def test_a_slower_run_fails_and_a_faster_one_does_not():
    run = run_document()
    slower = compare_runs(run, scaled(run, 1.5), NAMES)
    assert (slower.document["verdict"], slower.exit_code) == ("worse", 1)
    assert verdicts(slower, "decode") == {"worse"}
    assert all(pair["ratio"] == pytest.approx(1.5) for pair in slower.document["pairs"] if pair["what"] == "decode")
    faster = compare_runs(scaled(run, 1.5), run, NAMES)
    assert (faster.document["verdict"], faster.exit_code) == ("better", 0)
    assert compare_runs(run, scaled(run, 1.5), NAMES, threshold=0.6).exit_code == 0


def test_few_samples_of_a_much_slower_prefill_are_enough():
    run = run_document()
    assert verdicts(compare_runs(run, scaled(run, 1.5, "prefill"), NAMES), "prefill") == {"worse"}


def test_nothing_decided():
    run = run_document(samples=2)
    report = compare_runs(run, scaled(run, 1.5), NAMES)
    assert (report.document["verdict"], report.exit_code) == ("undecided", 0)
    assert any("2 samples of a run cannot be judged" in note for note in report.notes)


def test_more_memory_is_worse_and_less_is_better():
    run = run_document()
    more = copy.deepcopy(run)
    more["points"][0]["components"][0]["measured_bytes"] += 64
    report = compare_runs(run, more, NAMES)
    assert (report.document["verdict"], report.exit_code) == ("worse", 1)
    assert "kv at context 1,024, batch 1: 16,777,216 B -> 16,777,280 B" in report.document["differences"]
    assert compare_runs(more, run, NAMES).document["verdict"] == "better"
    assert "Memory that differs" in report_text(report)


def renamed(run, name, share):
    """The run with every component called `name`, holding `share` of the bytes."""
    other = copy.deepcopy(run)
    for point in other["points"]:
        for one in point["components"]:
            one |= {"name": name, "measured_bytes": int(one["measured_bytes"] * share)}
    return other


def test_no_component_in_common():
    run = run_document(contexts=(1024,), batches=(1,))
    # 1,024 tokens x 2 layers x K and V x 8 heads x 128 x 4 B = 16 MiB; 3/64 of that are 0.75 MiB.
    less = renamed(run, "latent", 3 / 64)
    report = compare_runs(run, less, NAMES)
    assert "memory: no component in common: 16.00 MiB against 0.75 MiB" in report.lines
    assert "kv is held in the first run alone" in report.lines
    assert report.document["verdict"] == "better"
    back = compare_runs(less, run, NAMES)
    assert (back.document["verdict"], back.exit_code) == ("worse", 1)


def test_a_component_of_one_run_alone_counts_in_the_total():
    run = run_document(contexts=(1024,), batches=(1,))
    more = copy.deepcopy(run)
    more["points"][0]["components"].append({**run["components"][0], "name": "state", "measured_bytes": 64})
    report = compare_runs(run, more, NAMES)
    assert "memory: 1 more, 0 less, 0 the same" in report.lines
    assert "total at context 1,024, batch 1: 16,777,224 B -> 16,777,288 B" in report.document["differences"]
    assert report.exit_code == 1
    assert compare_runs(more, run, NAMES).document["verdict"] == "better"


def test_the_same_bytes_are_said_only_of_everything():
    run, longer = run_document(contexts=(1024,)), run_document(contexts=(1024, 4096))
    assert "memory: the same bytes" in compare_runs(run, run, NAMES).lines
    # Two points of two batches, each with its component and its rule; the longer run's others have no partner.
    assert "memory: 0 more, 0 less, 4 the same" in compare_runs(run, longer, NAMES).lines


def test_memory_that_was_not_measured_is_not_the_same():
    run = run_document()
    for point in run["points"]:
        point |= {"components": [], "rules": []}
    for pair in ((run, run), (run, run_document())):
        assert "memory not measured" in compare_runs(*pair, NAMES).lines


def test_memory_alone_is_compared_where_nothing_was_timed():
    run = run_document(contexts=(1024,), batches=(1,))
    run["points"][0] |= {"prefill": None, "decode": None}
    assert compare_runs(run, run, NAMES).document["verdict"] == "same"


@pytest.mark.parametrize(
    ("times", "memory", "verdict"),
    [
        (["same", "better", "worse"], ["same"], "worse"),
        (["better"], ["worse"], "worse"),
        (["better", "undecided"], ["same"], "better"),
        (["same", "undecided"], [], "same"),
        (["undecided"], ["same"], "undecided"),
        (["undecided"], ["better"], "better"),
        ([], ["same", "better"], "better"),
        ([], [], "undecided"),
    ],
)
def test_one_verdict_of_many(times, memory, verdict):
    assert overall(times, memory) == verdict


def test_differences_are_named():
    old, new = run_document(), run_document()
    new["environment"] |= {"torch": "2.15.0", "driver": "590.1", "started": "later", "power_watts": 300.0}
    new["request"] |= {"kv_dtype": "fp8", "set": ["mixer.kv_heads=4"]}
    new["spec"]["layers"][0]["mixer"]["kv_heads"] = 4
    assert compare_runs(old, new, NAMES).document["differences"] == [
        "torch 2.13.0+cpu -> 2.15.0",
        "driver none -> 590.1",
        "kv dtype fp32 -> fp8",
        "set none -> mixer.kv_heads=4",
        "spec.layers[0].mixer.kv_heads 8 -> 4",
    ]


def test_many_differences_of_the_spec_are_counted():
    old, new = run_document(spec={"layers": list(range(40))}), run_document(spec={"layers": list(range(1, 41))})
    found = compare_runs(old, new, NAMES).document["differences"]
    assert len(found) == 9
    assert found[-1] == "32 more differences of the spec"


def test_other_machines_and_models_are_compared_with_a_note():
    old, new = run_document(doubts=[]), run_document(model={"name": "other", "source": None}, doubts=["not quiet"] * 2)
    new["environment"] |= {"device": "cuda", "device_name": "H200", "throttled": ["power cap"]}
    new["machine"]["read_bytes_per_second"] *= 2
    report = compare_runs(old, new, NAMES)
    assert report.notes == (
        "the runs are of different models",
        "the runs are of different devices",
        "the machine's own read bandwidth was 2x the first run's",
        "new.json: throttled (power cap)",
        "new.json: not quiet",
    )
    assert report.exit_code == 0


@pytest.mark.parametrize(("what", "rate"), [("decode", "read_bytes_per_second"), ("prefill", "gemm_flops_per_second")])
def test_a_machine_that_moved_as_much_leaves_it_undecided(what, rate):
    run = run_document()
    for factor in (1.5, 1 / 1.5):
        for drift, verdict in ((1.6, "undecided"), (1.4, "worse" if factor > 1 else "better")):
            other = scaled(run, factor, what)
            other["machine"][rate] /= drift if factor > 1 else 1 / drift
            report = compare_runs(run, other, NAMES)
            assert verdicts(report, what) == {verdict}
            assert report.exit_code == (verdict == "worse")


def test_the_rate_that_does_not_bound_a_timing_excuses_nothing():
    run = run_document()
    other = scaled(run, 1.5)
    other["machine"]["gemm_flops_per_second"] /= 2
    assert verdicts(compare_runs(run, other, NAMES), "decode") == {"worse"}


@pytest.mark.parametrize("place", [0, 1])
def test_a_busy_machine_decides_nothing(place):
    runs = [run_document(), scaled(run_document(), 1.5)]
    runs[place]["doubts"] = ["the machine was busy: a load of 31.0 on 16 processors"]
    report = compare_runs(*runs, NAMES)
    assert verdicts(report, "decode") == {"undecided"}
    assert report.exit_code == 0


def test_points_of_one_run_alone_are_named():
    report = compare_runs(run_document(), run_document(contexts=(1024, 4096)), NAMES)
    assert "context 8,192, batch 4 only in old.json" in report.notes
    assert "context 4,096, batch 1 only in new.json" in report.notes
    assert {pair["context_tokens"] for pair in report.document["pairs"]} == {1024}


def test_runs_without_a_common_point_are_no_question():
    with pytest.raises(KvcalcError, match=r"share no point: old.json has context 1,024.*new.json has none") as caught:
        compare_runs(run_document(contexts=(1024,)), run_document(contexts=(1,), batches=(9,), points=[]), NAMES)
    assert "--ctx" in caught.value.hint


def served(factor):
    times = {"samples_seconds": [factor * (0.1 + 0.0001 * step) for step in range(20)]}
    for key in ("median_seconds", "p10_seconds", "p90_seconds"):
        times[key] = statistics.median(times["samples_seconds"])
    found = {"url": "http://127.0.0.1:8000/v1", "served_model": "tiny", "ttft": times, "tpot": times}
    return run_document(points=[], served={**found, "tokens_per_second": 100.0 / factor, "cache": {"blocks": 320}})


def test_servers_are_compared_by_their_two_times():
    report = compare_runs(served(1), served(1.5), NAMES)
    assert report.exit_code == 1
    found = {pair["what"] for pair in report.document["pairs"] if pair["verdict"] == "worse"}
    assert found == {"time to first token", "time per output token"}


def test_the_document_satisfies_its_schema_and_csv_has_a_row_a_pair():
    run = run_document()
    report = compare_runs(run, scaled(run, 1.5), NAMES)
    schema = json.loads((docs.DOCS / "schemas" / "kvcalc.compare_runs-1.json").read_text())
    jsonschema.validate(report.document, schema)
    head, *rows = to_csv(report).splitlines()
    assert head == "context_tokens,batch,what,first_seconds,second_seconds,ratio,verdict"
    assert len(rows) == 12


# The command


@pytest.fixture
def files(tmp_path):
    """Write runs and return their paths: files(run, run)."""

    def write(*runs):
        paths = [tmp_path / f"{place}.json" for place in range(len(runs))]
        for path, run in zip(paths, runs, strict=True):
            path.write_text(json.dumps(run))
        return paths

    return write


def test_compare_takes_run_files(kvcalc, files):
    run = run_document()
    slower = run_document(points=scaled(run, 1.5)["points"])
    answer = kvcalc("compare", *files(run, slower), "--fail-on", "5%")
    assert answer.code == 1
    assert kvcalc("compare", *files(run, slower)).code == 0  # what nobody asks for fails nothing
    assert "1.5x" in answer.out
    assert kvcalc("compare", *files(run, slower), "--fail-on", "60%").code == 0
    assert kvcalc("compare", *files(run, run), "--format", "json").json["verdict"] == "same"


def test_what_compare_refuses(kvcalc, files, tmp_path):
    old, new = files(run_document(), run_document())
    for arguments, message in (
        ((old,), "two at a time, not 1"),
        ((old, new, "--ctx", "8K", "--tp", "2"), "--ctx, --tp: a run has its own workload"),
        ((old, new, "--fail-on", "0.05"), "not a percentage"),
        ((old, new, "--fail-on", "9999%"), "more than 1000%"),
        (("llama-8b", "--fail-on", "5%"), "alone is one answer"),
    ):
        answer = kvcalc("compare", *arguments)
        assert (answer.code, answer.out) == (2, ""), arguments
        assert message in answer.err


def test_a_config_is_compared_as_before(kvcalc, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 100,
        "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = kvcalc("compare", tmp_path / "config.json", "textbook-toy", "--format", "json")
    assert answer.code == 0
    assert answer.json["cases"][0]["kv_cache"]["bytes_per_token"] == 2 * 2 * 2 * 64 * 2
