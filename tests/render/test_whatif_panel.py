"""The what-if panel in a real browser: what it shows is what the engine of sizing says, to the byte."""

import json
import random
import re
from functools import cache
from html import unescape

import msgspec
import pytest
from browser import dump_dom

import kvcalc as api
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.engine import find_engine
from kvcalc.engines.fit import most_sequences
from kvcalc.engines.plan import Budget, Plan, evaluate
from kvcalc.engines.whatif import plan_case
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import catalogue_names
from kvcalc.render.whatif import panel
from kvcalc.sizing.need import MOST_BYTES, Workload, size_workload
from kvcalc.sizing.shards import weights_per_rank
from kvcalc.sizing.whatif import whatif_case, whatif_data
from kvcalc.units import memory

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"></head><body>
<main>{panel}</main><pre id="result"></pre>
<script>
const panel = document.querySelector(".whatif");
const field = (name) => panel.querySelector(`[data-field="${{name}}"]`);
const out = (name) => panel.querySelector(`[data-out="${{name}}"]`);
const input = (name) => field(name).dispatchEvent(new Event("input", {{ bubbles: true }}));
const set = (name, value) => {{ field(name).value = value; input(name); }};
const pick = (name, at) => {{ field(name).selectedIndex = at; input(name); }};
const done = (result) => {{ document.getElementById("result").textContent = JSON.stringify(result); }};
{script}
</script></body></html>"""

FIGURES = ("token", "sequence", "total", "rank", "all", "read", "weights")

DRIVE = """
const figures = %s;
done(%s.map(([model, kv, tp, ctx, batch]) => {
  if (field("model").selectedIndex !== model) pick("model", model);
  field("kv").selectedIndex = kv;
  field("tp").selectedIndex = tp;
  field("ctx").value = ctx;
  set("batch", batch);
  if (panel.classList.contains("stale")) return { verdict: out("verdict").textContent };
  const shown = figures.map((name) => [name, [out(name).value, out(name).textContent]]);
  const parts = [...out("parts").children].map((one) => [one.querySelector('.part').textContent, one.querySelector('.bytes').value]);
  return { ...Object.fromEntries(shown), command: out("command").textContent, verdict: out("verdict").textContent, parts };
}));
"""


def run(data, script, folder, fragment=""):
    """What `script` hands to done(), in the page of `data`."""
    dom = dump_dom(PAGE.format(panel=panel(data), script=script), folder, fragment)
    return json.loads(unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)[1]))


# One of every sort: what it stands for, the workload's own settings, and its ranks.
SORTS = {
    "llama-3.1-8b": ({}, {}),
    "deepseek-v3": ({"draft_layers": 1}, {"dp": 2}),
    "gemma-3-27b": ({}, {"pp": 3}),
    "llama-4-scout": ({}, {"dcp": 2}),
    "deepseek-v4-flash": ({}, {"pp": 2, "dcp": 4}),
    "deepseek-v4.1-flash": ({}, {}),
    "cla-1b-h128-gqa4-cla2": ({}, {"pp": 4}),
    "yoco-3b": ({}, {"pp": 2}),
    "qwen3.5-35b-a3b": ({"state_dtype": "bf16"}, {"dp": 3}),
    "mamba-2.8b": ({}, {}),
    "whisper-large-v3": ({}, {}),
    "t5-large": ({"encoder_tokens": 700}, {"dp": 2}),
    "gpt-oss-20b": ({"kv_dtype": "k=q8_0,v=q4_0"}, {}),
    "textbook-fp4": ({}, {}),
    "zamba2-2.7b": ({}, {}),
    "hunyuan-large": ({}, {}),
}


def catalogue():
    """Every model with few settings, and one of every sort with many: (name, spec, workload, ranks, choices)."""
    for name in catalogue_names():
        yield (
            name,
            api.load(name),
            Workload(encoder_tokens=512 if name == "t5-large" else None),
            Sharding(),
            (("fp8",), (1, 8)),
        )
    for name, (work, ranks) in SORTS.items():
        formats = ("fp8", "mxfp8", "nvfp4", "q8_0", "q4_0")
        yield f"{name} again", api.load(name), Workload(**work), Sharding(**ranks), (formats, (1, 4, 16))


def settings_of(cases, dice):
    """A few settings of every model of the catalogue, many of each sort; some past what may be asked."""
    for at, case in enumerate(cases):
        for _ in range(25 if case["name"].endswith(" again") else 2):
            kv, tp = dice.randrange(len(case["formats"])), dice.randrange(len(case["ranks"]))
            ctx = dice.choice([dice.randint(1, 300), int(2 ** dice.uniform(0, 21)), int(2 ** dice.uniform(20, 39))])
            yield at, kv, tp, ctx, dice.choice([1, dice.randint(1, 9), int(2 ** dice.uniform(0, 20))])


@cache
def fullest_weights(name, sharding, drafts):
    return weights_per_rank(
        size_workload(api.load(name), Workload(1, draft_layers=drafts, encoder_tokens=1), sharding)
    ).fullest


def expected(spec, workload, sharding):
    """Every figure as the engine of sizing has it, and as the command line prints it."""
    size = size_workload(spec, workload, sharding)
    weights = fullest_weights(spec.name, sharding, workload.draft_layers)
    counts = [
        size.bytes_per_sequence,
        size.total_bytes,
        size.bytes_per_rank,
        size.all_ranks_bytes,
        size.read_bytes_per_step,
    ]
    figures = {name: [str(count), memory(count)] for name, count in zip(FIGURES[1:], counts, strict=False)}
    figures["parts"] = [
        [row.name, str(row.stored_bytes(workload.context_tokens) * workload.batch)] for row in size.rows
    ]
    figures["weights"] = ["", "unknown"] if weights is None else [str(weights), memory(weights)]
    return figures | {"token": str(size.bytes_per_token)}


def test_every_model_shows_the_engines_own_bytes(tmp_path):
    asked = list(catalogue())
    cases = [
        whatif_case(name, spec, work, ranks, formats=formats, tps=tps)
        for name, spec, work, ranks, (formats, tps) in asked
    ]
    settings = list(settings_of(cases, random.Random(7)))  # noqa: S311
    shown = run(whatif_data(cases), DRIVE % (json.dumps(FIGURES), json.dumps(settings)), tmp_path)
    counted = {"right": 0, "past 8 EiB": 0, "cut": 0}
    for (at, kv, tp, ctx, batch), page in zip(settings, shown, strict=True):
        name, spec, work, ranks, _ = asked[at]
        form = cases[at]["formats"][kv]["names"][-1]
        work = msgspec.structs.replace(work, kv_dtype=form, context_tokens=ctx, batch=batch)
        ranks = msgspec.structs.replace(ranks, tp=cases[at]["ranks"][tp]["tp"])
        try:
            figures = expected(spec, work, ranks)
        except KvcalcError as error:
            kind = "past 8 EiB" if "8 EiB" in error.message else "cut"
            assert kind == "cut" or "8 EiB" in page["verdict"], (name, work, ranks, page)
            assert kind != "cut" or page["rank"] == ["", "not possible"], (name, work, ranks, page)
        else:
            kind = "right"
            token = figures.pop("token")
            assert page["token"][0] == token, (name, work, ranks)
            assert {one: page[one] for one in figures} == figures, (name, work, ranks)
        counted[kind] += 1
    assert counted["right"] > 600, counted
    assert counted["past 8 EiB"] > 5, counted
    assert counted["cut"] > 1, counted


def test_memory_is_printed_as_the_command_line_prints_it(tmp_path):
    dice = random.Random(3)  # noqa: S311
    edges = [
        unit * factor + step
        for unit in (1, 2**10, 2**20, 2**30, 2**40)
        for factor in (1, 9, 10, 1023, 1024)
        for step in (-1, 0, 1)
    ]
    halves = [2**power * 1000 // 8 + step for power in range(20, 50) for step in (-1, 0, 1)]
    counts = [*edges, *halves, MOST_BYTES, *(int(2 ** dice.uniform(0, 63)) for _ in range(3000))]
    script = f"done({json.dumps([str(count) for count in counts])}.map((count) => kvcalcUnits.memory(BigInt(count))));"
    shown = run(whatif_data([whatif_case("m", api.load("textbook-toy"), Workload(), Sharding())]), script, tmp_path)
    assert shown == [memory(count) for count in counts]


def plan_of(model="llama-3.1-8b", **sharding):
    return Plan(
        spec=api.load(model),
        workload=Workload(context_tokens=8192, batch=4),
        sharding=Sharding(**sharding),
        engine=find_engine("vllm"),
        budget=Budget.of(gpu="h100-sxm", gpu_memory=None, kv_cache_memory=None),
    )


def test_a_sliders_stop_shows_what_size_prints(tmp_path, kvcalc):
    """A person moves both sliders and both lists; the command that the page offers prints the same figures."""
    case = whatif_case("v4", api.load("deepseek-v4-flash"), Workload(), Sharding(pp=2))
    script = """
set("ctx-slider", 20);
set("batch-slider", 5);
pick("kv", 1);
pick("tp", 2);
done({ command: out("command").textContent, ctx: field("ctx").value, batch: field("batch").value, hash: location.hash,
  said: field("ctx-slider").getAttribute("aria-valuetext"), total: out("total").textContent, parts:
  [...out("parts").children].map((one) => [".part", ".bytes", ".why"].map((name) => one.querySelector(name).textContent)),
  rank: out("rank").textContent, all: out("all").textContent, read: out("read").textContent, token: out("token").textContent });
"""
    page = run(whatif_data([case]), script, tmp_path)
    assert page["ctx"] == str(case["contexts"][20])
    assert page["said"] == f"{case['contexts'][20]:,} tokens"
    assert page["hash"] == f"#model=v4&ctx={page['ctx']}&batch={page['batch']}&kv={case['formats'][1]['names'][0]}&tp=4"
    words = page["command"].split()
    assert words[:2] == ["kvcalc", "size"]
    assert words[-2:] == ["--pp", "2"]
    text = " ".join(kvcalc(*words[1:]).out.split())
    assert f"KV cache {page['total']} " in text
    assert f"one more token costs {page['token']} a sequence" in text
    assert f"a decode step reads {page['read']} " in text
    assert f"KV on the fullest rank: {page['rank']} " in text
    assert f"KV on all 8 ranks: {page['all']}" in text
    assert len(page["parts"]) == 4
    for name, _, why in page["parts"]:
        assert re.search(rf"{name} [0-9.,]+ [KMG]iB {re.escape(why.partition(', ')[2])}", text), (name, why, text)


STATE = """
const state = () => ({ note: out("note").textContent, verdict: out("verdict").textContent, total: out("total").value,
  stale: panel.classList.contains("stale"), limit: out("limit").textContent,
  fields: ["model", "ctx", "batch", "kv", "tp"].map((name) => field(name).value) });
const states = [state()];
"""
FOLLOW = """
for (const link of %s) {
  history.replaceState(null, "", link);
  dispatchEvent(new HashChangeEvent("hashchange"));
  states.push(state());
}
done(states);
"""


def two_cases():
    cases = [
        whatif_case(name, api.load(name), Workload(batch=3), Sharding()) for name in ("llama-3.1-8b", "gemma-3-27b")
    ]
    return whatif_data(cases)


def test_links_restore_the_state_that_they_name(tmp_path):
    """As the page opens, and as its fragment changes; a wrong link is said; an anchor of the page changes nothing."""
    links = ["#notes", "#model=%3Cb%3E&ctx=-4&tp=3", "#ctx=100"]
    first = "#model=gemma-3-27b&ctx=200000&batch=5&kv=fp8&tp=4"
    opened, anchor, wrong, part = run(two_cases(), STATE + FOLLOW % json.dumps(links), tmp_path, first)
    assert opened["fields"] == ["gemma-3-27b", "200000", "5", "fp8", "4"]
    size = size_workload(
        api.load("gemma-3-27b"), Workload(context_tokens=200000, batch=5, kv_dtype="fp8"), Sharding(tp=4)
    )
    assert opened["total"] == str(size.total_bytes)
    assert opened["limit"] == "The model's own limit is 131,072 tokens."
    assert anchor == opened
    asked = ("model=<b>", "ctx=-4", "tp=3")
    assert wrong["note"] == " ".join(f"The link asks for {what}, which is not offered here." for what in asked)
    assert wrong["fields"] == ["llama-3.1-8b", "8192", "3", "auto (bf16)", "1"]
    assert part["fields"] == ["llama-3.1-8b", "100", "3", "auto (bf16)", "1"]


def test_a_context_that_is_none_is_said(tmp_path):
    texts = ["", "0", "-1", "1.5", "1e3", "1000000000001"]
    script = f"done({json.dumps(texts)}.map((text) => {{ set('ctx', text); return state(); }}));"
    for text, page in zip(texts, run(two_cases(), STATE + script, tmp_path), strict=True):
        assert page["stale"], text
        assert page["verdict"] == "The context is a whole number from 1 to 1,000,000,000,000.", text


def test_an_engines_pool_at_the_stops_and_between(tmp_path):
    plan = plan_of(tp=2)
    case = plan_case("chat", plan)
    at = case["contexts"].index(65536)
    most = most_sequences(evaluate(plan.asking(context_tokens=65536)))
    longer = most_sequences(evaluate(plan.asking(context_tokens=131072)))
    script = """
const verdicts = %s.map(([ctx, batch]) => { field("ctx").value = ctx; set("batch", batch); return out("verdict").textContent; });
done(verdicts);
"""
    asked = [(65536, most), (65536, most + 1), (70000, longer), (70000, longer + 1), (70000, most + 1), (131073, 1)]
    shown = run(whatif_data([case]), script % json.dumps(asked), tmp_path)
    pool = memory(evaluate(plan).pool.expected)
    name = f"(vllm {plan.engine.version} on h100-sxm5-80gb, basis: engine rule)."
    assert longer < most
    assert (
        case["engine"]["pools"][0][case["ranks"].index(next(one for one in case["ranks"] if one["tp"] == 2))][at][1]
        == most
    )
    assert shown[0].startswith(
        f"Fits the pool of {pool} a rank, which carries {most} sequences of 65,536 tokens {name}"
    )
    assert shown[1].startswith(f"Does not fit the pool of {pool} a rank, which carries {most} sequences")
    assert shown[2].startswith(f"Fits: so many run even at 131,072 tokens {name}")
    assert shown[3].startswith("Not known between two stops of the slider")
    assert shown[4].startswith(f"Does not fit: fewer run already at 65,536 tokens {name}")
    assert shown[5].startswith("Not known between two stops of the slider")


HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>&\u2028"


def test_a_hostile_name_is_only_text(tmp_path):
    spec = msgspec.structs.replace(api.load("llama-3.1-8b"), name=HOSTILE)
    data = whatif_data([whatif_case(name, spec, Workload(), Sharding()) for name in (HOSTILE, "b")])
    script = "done({ title: document.title, images: document.images.length, model: field('model').value, command: out('command').textContent });"
    page = run(data, script, tmp_path)
    assert (page["title"], page["images"]) == ("", 0)
    assert page["model"].startswith("</script><script>")
    assert page["command"].startswith("kvcalc size '</script>")


def test_two_cases_of_one_name_are_refused():
    case = whatif_case("a", api.load("llama-3.1-8b"), Workload(), Sharding())
    with pytest.raises(KvcalcError, match="two cases are named 'a'"):
        whatif_data([case, case])
