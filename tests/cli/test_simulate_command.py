"""kvcalc simulate on the command line: its document, its files, its pool, and what is refused."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import jsonschema
import msgspec
import pandas as pd
import pytest

from kvcalc.workload.documents import SCHEMAS

SMALL = """\
arrival_seconds,prompt_tokens,output_tokens
0,100,20
0.5,300,200
1.0,2000,10
1.5,50,400
"""
POOL = ("--kv-cache-memory", "1GiB")
DRAWN = ("simulate", "llama-8b", "--isl", "lognormal:mean=1200,p99=8000", "--osl", "lognormal:mean=200",
         "--rate", "2/s", "--requests", "200", "--gpu", "l40s")  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(SMALL)
    return path


@pytest.fixture
def shared(tmp_path):
    """Ten requests of a prefix of 1,024 tokens, in Mooncake's form."""
    lines = [
        {"timestamp": 100 * one, "input_length": 1100 + one, "output_length": 20, "hash_ids": [1, 2, 10 + one]}
        for one in range(10)
    ]
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def validated(answer, code=0):
    assert answer.code == code, answer.err
    jsonschema.validate(answer.json, msgspec.json.schema(SCHEMAS["kvcalc.simulate-1"]))
    assert answer.json["schema"] == "kvcalc.simulate/1"
    return answer.json


def run_of(answer):
    return validated(answer)["runs"][0]


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpu", "h100-sxm", "--engine", "vllm", "--max-model-len", "8192"),
        ("--gpu", "h100-sxm", "--engine", "vllm@0.10", "--max-model-len", "4096", "--block-size", "32"),
        ("--gpu", "l40s", "--engine", "sglang", "--ctx", "4096", "--page-size", "16"),
        ("--gpu", "l40s", "--engine", "tensorrt-llm", "--ctx", "4096", "--kv-dtype", "fp8"),
        ("--gpu", "l40s", "--ctx", "4096", "--weights", "fp8"),
        ("--gpu", "h100-sxm", "--tp", "2", "--engine", "vllm", "--ctx", "8192", "--gpu-memory-utilization", "0.8"),
        ("--kv-cache-memory", "4GiB", "--engine", "vllm", "--ctx", "8192", "--max-num-batched-tokens", "2048"),
        ("--gpu-memory", "40GiB", "--engine", "vllm", "--ctx", "8192"),
    ],
)
def test_the_pool_is_that_of_fit(kvcalc, trace, flags):
    fit = kvcalc("fit", "llama-8b", *flags, "--format", "json").json
    run = run_of(kvcalc("simulate", "llama-8b", trace, *flags, "--time-free", "--format", "json"))
    pool, capacity = run["pool"], fit["capacity"]
    assert pool["bytes"] == fit["pool_bytes"]
    assert run["setting"]["engine"] == fit["request"]["engine"]
    if "vllm" in str(fit["request"]["engine"]):
        assert pool["block_tokens"] == capacity["block_sizes"]
        # Block 0 is never given out (vLLM, v1/core/block_pool.py: null_block).
        assert capacity["blocks"] - pool["units"] == 1
    if "sglang" in str(fit["request"]["engine"]):
        assert pool["units"] == capacity["tokens"] // 16
    if capacity["tokens"] is not None:
        assert pool["tokens"] == capacity["tokens"]


def test_a_pool_of_windows_is_that_of_fit_too(kvcalc, trace):
    flags = ("--kv-cache-memory", "8GiB", "--engine", "vllm", "--ctx", "8192")
    fit = kvcalc("fit", "gemma-3-4b", *flags, "--format", "json").json
    pool = run_of(kvcalc("simulate", "gemma-3-4b", trace, *flags, "--format", "json"))["pool"]
    assert fit["pool_bytes"] // pool["bytes_per_unit"] == fit["capacity"]["blocks"]
    assert pool["units"] == fit["capacity"]["blocks"] - 1


def test_prefix_caching_is_the_flag_of_vllm(kvcalc, trace):
    """Beside states vLLM keeps one more with prefix caching: its peak for one request is what fit says it claims."""
    flags = ("--kv-cache-memory", "8GiB", "--engine", "vllm", "--ctx", "4096")
    peaks = []
    for switch, own in (("on", "--enable-prefix-caching"), ("off", "--no-enable-prefix-caching")):
        fit = kvcalc("fit", "qwen3-next-80b-a3b", *flags, own, "--format", "json").json
        saved = kvcalc("simulate", "qwen3-next-80b-a3b", trace, *flags, "--prefix-caching", switch, "--format", "json")
        if switch == "on":
            assert "does not say which prefixes are shared" in saved.err
            saved = kvcalc("simulate", "qwen3-next-80b-a3b", trace, *flags, own, "--format", "json")
        run = run_of(saved)
        assert run["pool"]["block_tokens"] == sorted(
            set(fit["capacity"]["block_sizes"]) & set(run["pool"]["block_tokens"])
        )
        peaks.append(run["use"]["peak_bytes"])
    assert peaks[0] > peaks[1]


def test_what_one_request_needs_by_hand(kvcalc, tmp_path):
    """llama-3.1-8b keeps 131,072 B a token; 100 and 20 tokens end with 119, in 8 blocks of 16."""
    (tmp_path / "one.csv").write_text("arrival_seconds,prompt_tokens,output_tokens\n0,100,20\n")
    run = run_of(kvcalc("simulate", "llama-8b", tmp_path / "one.csv", *POOL, "--step-time", "10ms", "--format", "json"))
    assert run["use"]["peak_bytes"] == 8 * 16 * 131_072
    assert run["requests"] == {"total": 1, "finished": 1, "unfinished": 0, "refused": {}}
    assert run["times"]["ttft"]["mean"] == pytest.approx(0.010)
    assert run["times"]["tpot"]["mean"] == pytest.approx(0.010)
    assert run["times"]["e2e"]["mean"] == pytest.approx(20 * 0.010)
    assert run["rates"]["output_tokens_per_second"] == pytest.approx(20 / 0.2)
    shares = run["use"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    pool_tokens = 2**30 / 131_072
    # 100 tokens in the step of the prompt, then 101, ... 119.
    assert shares["token_states"] == pytest.approx(sum(range(100, 120)) / 20 / pool_tokens)


def test_lists_make_a_setting_each(kvcalc, shared):
    listed = ("--prefix-caching", "on,off", "--block-size", "16,64", "--kv-dtype", "bf16,fp8")
    runs = validated(kvcalc("simulate", "llama-8b", shared, *POOL, *listed, "--format", "json"))["runs"]
    settings = [
        (one["setting"]["kv_dtype"], one["setting"]["prefix_caching"], one["pool"]["block_tokens"]) for one in runs
    ]
    assert settings == [
        (form, keeps, [block]) for form in ("bf16", "fp8") for keeps in (True, False) for block in (16, 64)
    ]
    assert [one["prefixes"] is not None for one in runs] == [True, True, False, False] * 2
    table = kvcalc("simulate", "llama-8b", shared, *POOL, *listed, "--format", "csv").out.splitlines()
    assert len(table) == 9
    several = ("--allocator", "paged,max,oracle", "--block-size", "16,32", "--max-model-len", "2048")
    runs = validated(kvcalc("simulate", "llama-8b", shared, *POOL, *several, "--format", "json"))["runs"]
    assert [one["setting"]["allocator"] for one in runs] == ["paged", "paged", "max", "oracle"]
    # Ten requests at once: pieces of 2,048 tokens, four to a pool of 8,192.
    assert runs[2]["at_once"]["running_peak"] == 4
    assert runs[0]["at_once"]["running_peak"] > 4


def test_prefixes_are_found(kvcalc, shared):
    """Nine of ten prompts find 1,024 tokens; blocks of 16 do not reach into what is each one's own."""
    document = validated(kvcalc("simulate", "llama-8b", shared, *POOL, "--step-time", "1s", "--format", "json"))
    run = document["runs"][0]
    assert run["prefixes"]["hit_tokens"] == 9 * 1024
    prompts = sum(1100 + one for one in range(10))
    assert run["prefixes"]["hit_rate"] == pytest.approx(9 * 1024 / prompts)
    curve = document["hit_curves"][0]
    assert curve["unlimited"] == pytest.approx(9 * 1024 / prompts) and curve["bytes_per_token"] == 131_072
    # A request's tail, which nobody else has, goes before its head: room for the prefix alone is enough.
    assert curve["capacity_tokens"][-1] == 1024
    assert any("--prefix-caching off" in note for note in document["notes"])
    off = run_of(
        kvcalc(
            "simulate", "llama-8b", shared, *POOL, "--prefix-caching", "off", "--step-time", "1s", "--format", "json"
        )
    )
    assert off["prefixes"] is None and off["use"]["mean"] > run["use"]["mean"]
    assert run["use"]["shared"] > 0


@pytest.mark.parametrize(
    ("flags", "keeps"),
    [
        (("--engine", "vllm"), True),
        (("--engine", "vllm", "--no-enable-prefix-caching"), False),
        (("--engine", "sglang"), True),
        (("--engine", "sglang", "--disable-radix-cache"), False),
        (("--engine", "llama.cpp"), False),
        ((), True),
    ],
)
def test_engines_keep_prefixes_unless_a_flag_says_no(kvcalc, shared, flags, keeps):
    run = run_of(kvcalc("simulate", "llama-8b", shared, *POOL, "--ctx", "2048", *flags, "--format", "json"))
    assert run["setting"]["prefix_caching"] is keeps


def test_three_requests_by_hand(kvcalc, tmp_path):
    """A pool of 32 blocks of 16 tokens, a step a second.

    The first takes 7 and 8 blocks and ends at second 20; the second comes at 1 with 19. The third, at 2, needs 10, finds
    at most 6, and is admitted at 20. At 200 and 168 tokens there is no 33rd block: it is computed again from there.
    """
    path = tmp_path / "three.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,100,20\n1,300,200\n2,150,40\n")
    pool = ("--kv-cache-memory", "64MiB", "--max-model-len", "512", "--step-time", "1s")
    run = run_of(kvcalc("simulate", "llama-8b", path, *pool, "--format", "json"))
    assert run["pool"]["units"] == 32 and run["use"]["peak_bytes"] == 64 << 20
    assert run["at_once"]["running_peak"] == 2 and run["at_once"]["waiting_peak"] == 1
    assert run["times"]["queueing"]["largest"] == 18 and run["times"]["ttft"]["largest"] == 19
    assert run["preemptions"] == {"count": 1, "requests": 1, "recomputed_tokens": 168}
    # In one piece: 119 and 189 tokens go with nobody, 499 fill the pool.
    whole = run_of(kvcalc("simulate", "llama-8b", path, *pool, "--allocator", "oracle", "--format", "json"))
    assert whole["at_once"]["running_peak"] == 1 and whole["rates"]["seconds"] == 20 + 200 + 40
    said = kvcalc("simulate", "llama-8b", path, *pool).out
    assert "the pool is full at times" in said and "1 preemption of 1 request, 168 tokens computed again" in said


@pytest.mark.parametrize("engine", [(), ("--engine", "vllm"), ("--engine", "sglang")])
def test_a_budget_cuts_a_prompt_into_steps(kvcalc, tmp_path, engine):
    """1,000 tokens in steps of 250: the first token comes at the end of the fourth."""
    (tmp_path / "one.csv").write_text("arrival_seconds,prompt_tokens,output_tokens\n0,1000,2\n")
    flag = "--chunked-prefill-size" if "sglang" in engine else "--max-num-batched-tokens"
    asked = ("simulate", "llama-8b", tmp_path / "one.csv", *POOL, "--ctx", "2048", *engine, flag, "250")
    run = run_of(kvcalc(*asked, "--step-time", "1s", "--format", "json"))
    assert run["setting"]["max_num_batched_tokens"] == 250
    assert run["times"]["ttft"]["mean"] == 4 and run["times"]["e2e"]["mean"] == 5


def test_a_server_that_is_too_slow_is_told(kvcalc):
    asked = ("simulate", "llama-8b", "--isl", "500", "--osl", "100", "--requests", "2000", "--gpu", "l40s")
    assert "it does not keep up: " in kvcalc(*asked, "--rate", "100/s").out
    assert "does not keep up" not in kvcalc(*asked, "--rate", "1/s").out


def test_equal_seeds_give_equal_answers(kvcalc):
    first, again, other = (
        kvcalc(*DRAWN, "--seed", seed, "--format", "json").json for seed in ("1", "1", "2")
    )  # fmt: skip
    assert first == again
    assert first["runs"] != other["runs"]
    assert first["trace"]["seed"] == 1
    assert "drawn by --seed 1" in first["notes"]
    assert "drawn by --seed 20230916" in kvcalc(*DRAWN).err


def test_other_rates_and_a_cut_of_a_trace(kvcalc, trace):
    def trace_of(*flags):
        return validated(kvcalc("simulate", "llama-8b", trace, "--gpu", "l40s", *flags, "--format", "json"))["trace"]

    assert trace_of()["duration_seconds"] == pytest.approx(1.5)
    assert trace_of("--rate-scale", "3")["duration_seconds"] == pytest.approx(0.5)
    assert trace_of("--rate", "inf")["duration_seconds"] == 0
    assert trace_of("--limit", "2")["requests"] == 2
    limited = trace_of("--max-model-len", "1024")
    assert limited["requests"] == 3 and limited["counted"] == {"left out: above the context limit": 1}
    cut = trace_of("--max-model-len", "1024", "--policy", "truncate")
    assert cut["requests"] == 4 and cut["prompt_tokens"]["largest"] == 1014


def test_files_say_the_same(kvcalc, trace, tmp_path):
    asked = ("simulate", "llama-8b", trace, "--gpu", "l40s")
    document = validated(kvcalc(*asked, "--format", "json"))
    for suffix in ("json", "csv", "md", "txt", "parquet"):
        assert kvcalc(*asked, "-o", tmp_path / f"x.{suffix}").code == 0
    assert json.loads((tmp_path / "x.json").read_text()) == document
    rows = pd.read_parquet(tmp_path / "x.parquet")
    run = document["runs"][0]
    assert rows["prompt_tokens"].tolist() == [100, 300, 2000, 50]
    assert (rows["finished_seconds"] - rows["arrival_seconds"]).mean() == pytest.approx(run["times"]["e2e"]["mean"])
    assert rows["refused"].isna().all()
    csv = pd.read_csv(tmp_path / "x.csv")
    assert csv["ttft_p99"].item() == pytest.approx(run["times"]["ttft"]["p99"])
    assert kvcalc(*asked, "-o", tmp_path / "x.parquet").code == 2
    assert kvcalc(*asked, "-o", tmp_path / "x.parquet", "--force").code == 0


def test_parquet_has_every_setting(kvcalc, shared, tmp_path):
    path = tmp_path / "x.parquet"
    assert kvcalc("simulate", "llama-8b", shared, *POOL, "--prefix-caching", "on,off", "-o", path).code == 0
    rows = pd.read_parquet(path)
    assert rows.groupby("setting").size().to_dict() == {"prefixes off": 10, "prefixes on": 10}


def test_requests_that_the_pool_cannot_hold_are_named(kvcalc, trace):
    answer = kvcalc("simulate", "llama-8b", trace, "--kv-cache-memory", "100MiB", "--step-time", "10ms")
    assert answer.code == 0
    assert "left out" not in answer.err
    assert (
        "1 request refused: longer than the server's contexts; the first is request 3, 2,000 and 10 tokens"
        in answer.out
    )
    assert "requests of up to 800 tokens, all that the pool takes" in answer.err


def test_a_description_and_a_fit(kvcalc, trace):
    answer = kvcalc("simulate", trace, "--describe", "--format", "json")
    jsonschema.validate(answer.json, msgspec.json.schema(SCHEMAS["kvcalc.trace-1"]))
    assert answer.json["trace"]["prompt_tokens"]["mean"] == pytest.approx(612.5) and answer.json["fits"] == {}
    fitted = kvcalc("simulate", trace, "--fit", "--format", "json").json["fits"]
    drawn = kvcalc("simulate", "llama-8b", *POOL, "--isl", fitted["--isl"][0]["spelling"],
                   "--osl", fitted["--osl"][0]["spelling"], "--requests", "50", "--format", "json")  # fmt: skip
    assert validated(drawn)["trace"]["requests"] == 50


@pytest.mark.parametrize(("tokens", "is_close"), [((1, 1, 1, 9000), False), (range(100, 200), True)])
def test_a_fit_that_is_not_close_says_so(kvcalc, tmp_path, tokens, is_close):
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_seconds,prompt_tokens,output_tokens\n"
        + "".join(f"{at},{one},{one}\n" for at, one in enumerate(tokens))
    )
    answer = kvcalc("simulate", path, "--fit")
    assert answer.code == 0 and ("file:TRACE" not in answer.out) is is_close


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "a card or a pool is needed"),
        (("--gpu", "l40s", *POOL), "one of them: --gpu and --kv-cache-memory given"),
        (("--kv-cache-memory", "100MiB", "--max-model-len", "8192"), "needs 1,073,741,824 bytes in a pool of 104,857,600"),
        (
            ("--kv-cache-memory", "100MiB", "--max-model-len", "8192", "--engine", "vllm"),
            "in a pool of 104,857,600: vllm does not start",
        ),
        (("--kv-cache-memory", "4MiB"), "fewer than the shortest request, number 1 of 100 and 20 tokens"),
        (("--gpu", "l40s", "--rate", "0/s"), "the rate is 0"),
        (("--gpu", "l40s", "--rate", "inf/s"), "an infinite rate has no unit"),
        (("--gpu", "l40s", "--rate", "2/s", "--rate-scale", "2"), "--rate and --rate-scale both say"),
        (("--gpu", "l40s", "--rate-scale", "nan"), "--rate-scale nan is no speed"),
        ((*POOL, "--rate", "2/s"), "--rate is about seconds, and a step is the unit of time without a GPU"),
        (("--gpu", "l40s", "--time-free", "--rate", "2/s"), "--rate is about seconds, and --time-free counts steps"),
        (("--gpu", "l40s", "--time-free", "--step-time", "2ms"), "--step-time and --time-free contradict"),
        (("--gpu", "l40s", "--time-free", "--max-ttft", "1s"), "--max-ttft is about seconds"),
        ((*POOL, "--prefix-caching", "on"), "trace.csv does not say which prefixes are shared"),
        ((*POOL, "--prefix-caching", "yes"), "'yes' is neither on nor off"),
        (
            (*POOL, "--engine", "vllm", "--prefix-caching", "off", "--enable-prefix-caching"),
            "--prefix-caching and --enable-prefix-caching contradict",
        ),
        ((*POOL, "--allocator", "max", "--prefix-caching", "on"), "--allocator max reserves for each request alone"),
        ((*POOL, "--allocator", "buddy"), "--allocator 'buddy' is not known"),
        ((*POOL, "--preemption", "kill"), "'kill' is neither recompute nor swap"),
        ((*POOL, "--isl", "4"), "--isl draws requests, and a trace is named"),
        ((*POOL, "--requests", "4"), "--requests draws requests, and a trace is named"),
        ((*POOL, "--seed", "4"), "nothing is drawn of a trace"),
        ((*POOL, "--policy", "drop"), "--policy 'drop' is not known"),
        ((*POOL, "--max-model-len", "8"), "above the context limit: 4"),
        ((*POOL, "--policy", "refuse", "--max-model-len", "1000"), "trace.csv:4: prompt and answer are above the context limit"),
        ((*POOL, "--routing", "least-loaded"), "there is one server"),
        ((*POOL, "--find", "rate"), "--find is of --max-ttft and --max-tpot"),
        (("--gpu", "l40s", "--max-ttft", "1s", "--find", "cheapest"), "cheapest"),
        ((*POOL, "--jobs", "0"), "--jobs 0"),
        (("--gpu", "l40s", "--dp", "2"), "--dp 2: a data-parallel rank is a server"),
        ((*POOL, "--mem-fraction-static", "0.8"), "--mem-fraction-static is a flag of sglang"),
        ((*POOL, "--format", "parquet"), "Parquet is no text"),
        (("--gpu", "l40s", "--weights", "bf16", "--set", "layers.repeat=400"), "nothing is left for a pool"),
    ],
)  # fmt: skip
def test_what_is_refused(kvcalc, trace, flags, said):
    answer = kvcalc("simulate", "llama-8b", trace, *flags)
    assert (answer.code, answer.out) == (2, ""), answer.err
    error, hint = answer.err.splitlines()
    assert error.startswith("error: ") and said in error
    assert hint.startswith("hint: ") and len(hint) > len("hint: x")


def test_drawn_requests_refuse_what_is_about_traces(kvcalc):
    for flags in (("--limit", "3"), ("--rate-scale", "2"), ("--sort",)):
        answer = kvcalc("simulate", "llama-8b", "--isl", "8", "--osl", "8", *POOL, *flags)
        assert answer.code == 2 and f"{flags[0]} is about a trace" in answer.err
    assert "no requests are named" in kvcalc("simulate", "llama-8b", *POOL).err
    recorded = kvcalc("simulate", "llama-8b", "--isl", "8", "--osl", "8", "--gpu", "l40s", "--rate", "recorded")
    assert "nothing was recorded" in recorded.err


def test_limits_are_kept_or_not(kvcalc):
    asked = (
        "simulate",
        "llama-8b",
        "--isl",
        "100",
        "--osl",
        "20",
        "--rate",
        "20/s",
        "--requests",
        "300",
        "--gpu",
        "l40s",
    )
    kept = validated(kvcalc(*asked, "--max-ttft", "1s", "--find", "rate,pool", "--format", "json"))
    goal = kept["goals"][0]
    assert goal["meets"] and goal["largest_rate_per_second"] > 20 and goal["fewest_gpus"] is None
    # One request of 119 tokens in blocks of 16 is the least; all at once the most.
    assert 8 * 16 * 131_072 <= goal["smallest_pool_bytes"] < kept["runs"][0]["pool"]["bytes"]
    broken = validated(kvcalc(*asked, "--max-tpot", "1ms", "--find", "rate", "--format", "json"), code=1)
    assert not broken["goals"][0]["meets"] and broken["goals"][0]["largest_rate_per_second"] is None
    gpus = validated(kvcalc(*asked, "--max-tpot", "40ms", "--find", "gpus", "--format", "json"))
    assert gpus["goals"][0]["fewest_gpus"] == 1


def test_a_fleet_is_one_answer(kvcalc, trace):
    asked = ("simulate", "llama-8b", trace, "--gpu", "l40s", "--replicas", "2")
    run = run_of(kvcalc(*asked, "--format", "json"))
    assert run["setting"]["gpus"] == 2 and run["setting"]["routing"] == "round-robin"
    assert [one["requests"] for one in run["replicas"]] == [2, 2]
    assert run["requests"]["finished"] == 4


def command(*arguments):
    return [sys.executable, "-m", "kvcalc", *map(str, arguments)]


LONG = ("simulate", "llama-8b", "--isl", "lognormal:mean=1200", "--osl", "lognormal:mean=400", "--requests", "300000",
        "--kv-cache-memory", "20GiB", "--step-time", "20ms", "--rate", "50/s", "--format", "json")  # fmt: skip


def test_ctrl_c_keeps_the_part_done():
    process = subprocess.Popen(command(*LONG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = json.loads(out)
    requests = document["runs"][0]["requests"]
    assert not document["complete"] and not document["runs"][0]["complete"]
    assert 0 < requests["finished"] < 300_000 and requests["unfinished"] == 300_000 - requests["finished"]
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(trace):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        command("simulate", "llama-8b", trace, *POOL, "-q"),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


def test_progress_is_for_terminals_alone(trace):
    master, slave = pty.openpty()
    for quiet, shows in (((), True), (("-q",), False)):
        flags = ("simulate", "llama-8b", trace, *POOL, *quiet)
        process = subprocess.Popen(
            command(*flags), stdout=subprocess.PIPE, stderr=slave, env={**os.environ, "TERM": "xterm"}
        )
        out, _ = process.communicate(timeout=60)
        os.set_blocking(master, False)
        try:
            seen = os.read(master, 100_000)
        except BlockingIOError:
            seen = b""
        assert process.returncode == 0 and out
        assert (b"requests" in seen.split(b"note")[0]) is shows
    os.close(slave)
    os.close(master)


def test_a_watermark_lets_fewer_run(kvcalc, trace):
    asked = (
        "simulate",
        "llama-8b",
        trace,
        "--kv-cache-memory",
        "256MiB",
        "--max-model-len",
        "2048",
        "--format",
        "json",
    )
    plain, kept = (kvcalc(*asked, *more).json["runs"][0] for more in ((), ("--watermark", "0.9")))
    assert (plain["setting"]["watermark"], kept["setting"]["watermark"]) == (0.0, 0.9)
    assert plain["at_once"]["running_peak"] > kept["at_once"]["running_peak"] == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--watermark", "1"), "no share below 1"),
        (("--watermark", "0.1", "--allocator", "max"), "room in one piece never grows"),
        (("--calibration", "x.json"), "a GPU's step times"),
        (("--calibration", "x.json", "--gpu", "l40s", "--step-time", "1s"), "a GPU's step times"),
    ],
)
def test_flags_about_nothing(kvcalc, trace, more, says):
    memory = () if "--gpu" in more else POOL
    answer = kvcalc("simulate", "llama-8b", trace, *memory, "--max-model-len", "2048", *more)
    assert answer.code == 2 and says in answer.err


def test_a_calibration_stretches_steps(kvcalc, trace, tmp_path):
    made = {
        "schema": "kvcalc.calibrate/1", "gpu": "h100-sxm5-80gb", "engine": "vllm", "factors": {"host": 20.0},
        "bands": {}, "points": 12, "date": "2026-01-01", "device": None, "driver": None,
        "error_before": {"mape": 0.2, "median": 0.1}, "error_left_out": None,
    }  # fmt: skip
    file = tmp_path / "c.json"
    file.write_bytes(msgspec.json.encode(made))
    asked = ("simulate", "llama-8b", trace, "--gpu", "h100-sxm", "--engine", "vllm", "--max-model-len", "4096")
    plain, scaled = (kvcalc(*asked, *more, "--format", "json").json for more in ((), ("--calibration", file)))
    host = kvcalc("throughput", "llama-8b", "--gpu", "h100-sxm", "--engine", "vllm", "--format", "json").json["terms"]
    added = 19 * next(term["seconds"] for term in host if term["name"] == "host")
    tpot = [document["runs"][0]["times"]["tpot"]["p50"] for document in (plain, scaled)]
    assert tpot[1] - tpot[0] == pytest.approx(added, rel=0.1)
    assert any("calibrated on 12 points" in note for note in scaled["notes"])
    other = kvcalc("simulate", "llama-8b", trace, "--gpu", "l40s", "--calibration", file)
    assert other.code == 2


def test_strict_is_that_of_fit(kvcalc, trace):
    asked = ("--gpu", "h100-sxm", "--strict")
    answers = [kvcalc("simulate", "llama-8b", trace, *asked), kvcalc("fit", "llama-8b", "--ctx", "8K", *asked)]
    assert [answer.code for answer in answers] == [2, 2]
    assert answers[0].err == answers[1].err
    assert kvcalc("simulate", "llama-8b", trace, *POOL, "--max-model-len", "4096", "--strict").code == 0


def test_slots_of_llama_cpp_hold_whole_contexts(kvcalc, trace):
    """Four slots of 2,048 tokens are 1 GiB of 131,072 bytes a token; with one buffer for all, requests hold their own."""
    asked = ("simulate", "llama-8b", trace, *POOL, "--ctx", "2048", "--engine", "llama.cpp", "--format", "json")
    slots, unified = (run_of(kvcalc(*asked, *more)) for more in ((), ("--kv-unified",)))
    assert [one["setting"]["allocator"] for one in (slots, unified)] == ["places", "paged"]
    assert slots["at_once"]["running_peak"] == unified["at_once"]["running_peak"] > 1
    assert slots["use"]["mean"] == pytest.approx(slots["at_once"]["running_mean"] / 4)
    shares = slots["use"]["shares"], unified["use"]["shares"]
    assert shares[0]["token_states"] == pytest.approx(shares[1]["token_states"])
    assert shares[0]["internal"] > shares[1]["internal"] == 0
