"""What a server says of its cache, in the formats of three engines."""

import time

import msgspec
import pytest
from fake_server import VLLM, VLLM_IDLE, ask, fake_servers

from kvcalc.profiler.server_metrics import CacheFigures, cache_figures, peak, samples

pytest.importorskip("httpx")


@pytest.fixture
def serve():
    """Start fake servers: serve(gap_seconds=0.01) -> Fake; all end with the test."""
    with fake_servers() as start:
        yield start


def test_vllm_by_its_own_page():
    # 27,448 blocks x 16 tokens = 439,168 tokens; a quarter of them is 109,792.
    assert cache_figures(VLLM) == CacheFigures("vllm", 16, 27448, 439_168, 0.25, 109_792)


def test_vllm_under_its_older_name():
    older = VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert cache_figures(older) == cache_figures(VLLM)


def test_vllm_engines_are_summed():
    page = "\n".join(
        f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="{blocks}"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {usage}'
        for engine, blocks, usage in ((0, 1000, 0.5), (1, 3000, 0.1))
    )
    # (0.5 x 1,000 + 0.1 x 3,000) / 4,000 = 0.2 of 64,000 tokens
    figures = cache_figures(page)
    assert (figures.blocks, figures.capacity_tokens, figures.peak_tokens) == (4000, 64_000, 12_800)
    assert figures.peak_usage_fraction == pytest.approx(0.2)


def test_vllm_capacity_is_its_own_where_it_tells_it():
    page = 'vllm:cache_config_info{block_size="8",num_gpu_blocks="320",kv_cache_size_tokens="463459"} 1.0'
    assert cache_figures(page) == CacheFigures("vllm", 8, 320, 463_459, None, None)


def test_vllm_blocks_that_are_not_known_are_not_made_up():
    page = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\nvllm:kv_cache_usage_perc 0.5\n'
    assert cache_figures(page) == CacheFigures("vllm", 16, None, None, 0.5, None)


def sglang_page(ranks):
    """Lines as in https://docs.sglang.ai/references/production_metrics.html, with the labels of each rank."""
    lines = ["# HELP sglang:token_usage The token usage.", "# TYPE sglang:token_usage gauge"]
    for labels, used, capacity in ranks:
        of = f'{{engine_type="unified",model_name="meta-llama/Llama-3.1-8B-Instruct",{labels}}}'
        lines += [
            f"sglang:num_used_tokens{of} {used}.0",
            f"sglang:token_usage{of} {used / capacity}",
            f"sglang:max_total_num_tokens{of} {capacity}.0",
        ]
    return "\n".join(lines)


def test_sglang_by_its_own_page():
    figures = cache_figures(sglang_page([('tp_rank="0",pp_rank="0"', 123_859, 454_142)]))
    assert figures == CacheFigures("sglang", None, None, 454_142, 123_859 / 454_142, 123_859)


def test_sglang_ranks_of_one_cache_count_once_and_those_of_data_parallelism_add():
    shards = [(f'tp_rank="{rank}",dp_rank="0"', 500, 1000) for rank in range(4)]
    assert cache_figures(sglang_page(shards)) == CacheFigures("sglang", None, None, 1000, 0.5, 500)
    replicas = [('tp_rank="0",dp_rank="0"', 500, 1000), ('tp_rank="0",dp_rank="1"', 100, 3000)]
    figures = cache_figures(sglang_page(replicas))
    assert (figures.capacity_tokens, figures.peak_tokens) == (4000, 600)
    assert figures.peak_usage_fraction == pytest.approx(600 / 4000)


def test_sglang_pages_where_it_tells_them():
    of = '{model_name="m",tp_rank="0"}'
    page = f"sglang:page_size{of} 64.0\nsglang:num_pages{of} 1562.0\nsglang:token_usage{of} 0.28\nsglang:max_total_num_tokens{of} 100000"
    assert cache_figures(page) == CacheFigures("sglang", 64, 1562, 100_000, 0.28, 28_000)


def test_llama_cpp_by_its_own_page():
    # The lines of `GET /metrics` in llama.cpp's tools/server/README.md.
    page = """# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.125
# HELP llamacpp:kv_cache_tokens KV-cache tokens.
# TYPE llamacpp:kv_cache_tokens gauge
llamacpp:kv_cache_tokens 512
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
"""
    assert cache_figures(page) == CacheFigures("llama.cpp", None, None, 4096, 0.125, 512)
    # Newer builds keep the page and leave out the cache.
    assert cache_figures("llamacpp:n_tokens_max 37\n") == CacheFigures("llama.cpp")


def test_labels_are_unescaped_and_odd_lines_passed_over():
    page = 'a:b{c="say \\"hi\\", {you}\\\\n",d="x\\ny"} 1.5 1700000000000\r\na:nan NaN\na:inf +Inf\na:less -5\na:word one\na:open{c="x 1\n:\n'
    (sample,) = samples(page)
    assert (sample.name, sample.value) == ("a:b", 1.5)
    assert sample.labels == {"c": 'say "hi", {you}\\n', "d": "x\ny"}


@pytest.mark.parametrize("page", ["", "<html>\n<body>a:b c</body>", "a:{" * 50_000, 'a:b{c="' + '\\"' * 50_000, "\x00"])
def test_pages_of_nothing_have_no_figures(page):
    began = time.perf_counter()
    assert cache_figures(page) == CacheFigures()
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("value", ["1e308", "-5", "1e-300", "0"])
@pytest.mark.parametrize("name", ["sglang:token_usage", "sglang:max_total_num_tokens", "llamacpp:kv_cache_usage_ratio"])
def test_absurd_values_are_no_traceback(name, value):
    page = f'{name}{{dp_rank="0"}} {value}\n{name}{{dp_rank="1"}} {value}\nllamacpp:kv_cache_tokens 7e17\n'
    assert msgspec.json.encode(cache_figures(page))


def test_the_peak_is_the_highest_reading():
    readings = [CacheFigures("vllm", 16, 100, 1600, usage, round(usage * 1600)) for usage in (0.0, 0.5, 0.25)]
    assert peak(readings) == readings[1]


def test_the_cache_is_read_while_the_streams_run(serve):
    pages = [VLLM_IDLE, VLLM_IDLE, VLLM, VLLM.replace("} 0.25", "} 0.5"), VLLM_IDLE]
    run = ask(serve(pages=pages, gap_seconds=0.15))
    assert run.cache == CacheFigures("vllm", 16, 27448, 439_168, 0.5, 219_584)
    assert run.doubts == []


def test_a_server_without_metrics_is_timed_all_the_same(serve):
    run = ask(serve())
    assert run.cache == CacheFigures()
    assert len(run.streams) == 1
    assert any("no cache figures" in doubt and "404" in doubt for doubt in run.doubts)


def test_metrics_that_break_off_while_the_streams_run_are_doubted(serve):
    pages = iter([VLLM_IDLE, VLLM])

    def metrics(handler):
        page = next(pages, None)
        handler.say(200, page) if page else handler.say(500, "gone")

    run = ask(serve(answers={"/metrics": metrics}, gap_seconds=0.1))
    assert run.cache.peak_usage_fraction == 0.25
    assert any("end early" in doubt and "500" in doubt for doubt in run.doubts)


def test_a_cache_in_use_by_others_is_doubted(serve):
    assert any("25.0% of the cache was in use before" in doubt for doubt in ask(serve(pages=[VLLM])).doubts)


def test_a_cache_that_never_shows_its_use_is_doubted(serve):
    assert any("every reading" in doubt for doubt in ask(serve(pages=[VLLM_IDLE])).doubts)


def test_a_page_that_tells_no_usage_is_doubted(serve):
    run = ask(serve(pages=["process_start_time_seconds 1.7e9\n"]))
    assert run.cache == CacheFigures()
    assert any("no peak usage" in doubt for doubt in run.doubts)
