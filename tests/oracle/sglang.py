"""What SGLang's own code sizes: pools, slots and requests for a model's geometry and a budget of bytes.

    SGLANG_SRC=DIR python -m tests.oracle.sglang CASES.json > GOLDEN.json

DIR is an unpacked wheel of SGLang 0.5.23 (pip download --no-deps sglang==0.5.23; unzip). Its configurators run as they
are, in torch on a CPU, on a model and a launch that are told here; everything else of SGLang is an empty module.
A case says `model` (what its ModelConfig would), `launch` (its flags), `pool_bytes`. Run by hand: tests read what it wrote.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

SRC = Path(os.environ.get("SGLANG_SRC", "sglang-src"))
REAL = {
    "sglang.srt.environ",
    "sglang.srt.configs.mamba_utils",
    "sglang.srt.distributed.utils",
    "sglang.srt.mem_cache.allocation_sizing",
    "sglang.srt.mem_cache.deepseek_v4_memory_pool",
    "sglang.srt.mem_cache.kv_cache_configurator",
    "sglang.srt.model_executor.pool_configurator",
    "sglang.kernels.ops.attention.dsv4.kv_layout",
}
"""Modules that run as they are."""


class Anything:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Anything,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != "sglang" and not name.startswith("sglang."):
            return None
        if name in REAL:
            return importlib.util.spec_from_file_location(name, SRC.joinpath(*name.split(".")).with_suffix(".py"))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        made = Stub(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module):
        pass


def stubbed(name):
    return importlib.import_module(name)


def prepare():
    """Empty modules get the few names that sizing really calls; the two configurators come back."""
    import torch

    sys.meta_path.insert(0, Finder())
    common = stubbed("sglang.srt.utils.common")
    common.ceil_div = lambda count, size: -(-count // size)
    common.ceil_align = lambda count, size: -(-count // size) * size
    common.is_float4_e2m1fn_x2 = lambda dtype: dtype is getattr(torch, "float4_e2m1fn_x2", None)
    for module in (common, stubbed("sglang.srt.utils")):
        module.is_hip = module.is_npu = module.is_cuda = lambda: False
        module.ceil_div = common.ceil_div
    stubbed("sglang.srt.layers.cp.utils").get_glm_dsa_layer_split_effective_num_layers = lambda kvc, layers: layers
    stubbed("sglang.srt.layers.cp.utils").get_glm_dsa_cp_layer_shard_info = lambda kvc: (None, 1)
    stubbed("sglang.srt.mem_cache.page_interleave").compute_page_shard_scratch_bytes = lambda *args, **kwargs: 0
    stubbed("sglang.srt.layers.attention.qsa.config").parse_qsa_profile = lambda config: None
    algorithm = SimpleNamespace(is_uno=lambda: False, has_draft_kv=lambda: True)
    stubbed("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.from_string = staticmethod(lambda name: algorithm)
    # Rows of a layout that is ROCm's alone.
    stubbed("sglang.kernels.ops.attention.dsv4.unified_kv_kernels").layout = Anything()
    unified = stubbed("sglang.srt.layers.attention.dsv4.unified_kv_gate")
    unified.is_unified_kv_triton = unified.is_unified_kv_fp8 = lambda: False
    stubbed("sglang.srt.mem_cache.memory_pool").DSATokenToKVPool = type(
        "DSATokenToKVPool",
        (),
        {
            "quant_block_size": 128,
            "index_k_with_scale_buffer_dtype": torch.uint8,
            "rope_storage_dtype": torch.bfloat16,
        },
    )
    arch = stubbed("sglang.srt.configs.model_config")
    arch.AttentionArch = SimpleNamespace(MLA="mla", MHA="mha")
    arch.is_deepseek_dsa = lambda config: config.index_head_dim is not None and not config.compress_ratios
    arch.is_deepseek_v4 = lambda config: bool(config.compress_ratios)
    arch.is_minimax_sparse = lambda config: False
    arch.get_dsa_index_head_dim = lambda config: config.index_head_dim
    arch.get_dsa_index_kpool = lambda config: 1
    arch.dsa_layer_skips_topk = lambda config, layer: layer in config.skips
    hybrid = stubbed("sglang.srt.configs.hybrid_arch")
    hybrid.mambaish_config = lambda config: config.mambaish
    hybrid.hybrid_gdn_config = hybrid.hybrid_kda_config = lambda config: None
    pools = importlib.import_module("sglang.srt.model_executor.pool_configurator")
    configurator = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
    configurator._should_elide_dsa_index_k = lambda *, is_draft_worker: not is_draft_worker
    torch.distributed.all_reduce = lambda *args, **kwargs: None
    return pools, configurator


class Context(SimpleNamespace):
    """The published flags of one launch; SGLang writes the slots that it found into them."""

    def override(self, source, **values):
        for name, value in values.items():
            setattr(self.schedule, name, value)


def context_of(launch):
    def flag(name, default=None):
        return launch.get(name, default)

    drafts = flag("speculative_num_draft_tokens")
    spec = SimpleNamespace(
        speculative_algorithm="EAGLE" if drafts or flag("draft_layers") else None,
        speculative_num_draft_tokens=drafts,
        speculative_num_steps=(drafts or 2) - 1,
        speculative_eagle_topk=1,
    )
    schedule = SimpleNamespace(
        max_total_tokens=flag("max_total_tokens"),
        max_running_requests=flag("max_running_requests", 48 if drafts else None),
        max_mamba_cache_size=flag("max_mamba_cache_size"),
        mamba_full_memory_ratio=flag("mamba_full_memory_ratio", 0.9),
        swa_full_tokens_ratio=flag("swa_full_tokens_ratio", 0.8),
        _swa_full_tokens_ratio_explicitly_set=flag("swa_full_tokens_ratio") is not None,
        swa_prefix_tails=None,
        chunked_prefill_size=flag("chunked_prefill_size", 8192),
        disable_overlap_schedule=flag("disable_overlap_schedule", False),
        page_size=flag("page_size", 1),
        mem_fraction_static=0.9,
    )
    memory = SimpleNamespace(
        enable_hisparse=False,
        enable_unified_memory=False,
        disable_radix_cache=flag("disable_radix_cache", False),
    )
    parallel = SimpleNamespace(
        attn_tp_size=flag("attention_tp", 1),
        attn_dcp_size=flag("dcp", 1),
        pp_size=1,
        world_group=SimpleNamespace(cpu_group=None),
    )
    strategy = flag("strategy", "extra_buffer")
    execution = SimpleNamespace(
        kernel=SimpleNamespace(
            dsa_prefill_backend="flashmla_kv",
            dsa_decode_backend="flashmla_kv",
            dsv4_attn_backend="flashmla",
            enable_deepseek_v4_fp4_indexer=False,
        ),
        mamba=SimpleNamespace(
            enable_linear_replayssm_spec=False,
            enable_mamba_extra_buffer=strategy != "no_buffer",
            enable_mamba_extra_buffer_lazy=strategy == "extra_buffer_lazy",
        ),
        features=SimpleNamespace(enable_encoder_swa_bounded_replay=False),
    )
    disagg = SimpleNamespace(disaggregation_mode="null", disaggregation_decode_extra_slots=0)
    return Context(
        spec=spec,
        schedule=schedule,
        memory=memory,
        parallel=parallel,
        execution=execution,
        disagg=disagg,
        draft_tokens=drafts,
    )


def publish(context, modules):
    getters = {
        "get_spec": context.spec,
        "get_schedule": context.schedule,
        "get_memory": context.memory,
        "get_parallel": context.parallel,
        "get_exec": context.execution,
        "get_disagg": context.disagg,
        "get_context": context,
        "get_platform": SimpleNamespace(is_sm100=False),
    }
    for module in (*modules, stubbed("sglang.srt.runtime_context")):
        for name, value in getters.items():
            setattr(module, name, lambda value=value: value)
        module.max_speculative_num_draft_tokens = lambda: context.draft_tokens


def model_of(model, context):
    """The part of a ModelConfig that sizing reads."""
    import torch

    tp = context.parallel.attn_tp_size

    def heads(count, tp=tp, dcp=1):
        return max(1, count // (tp // dcp))

    states = model.get("states")
    mambaish = None
    if states:
        utils = importlib.import_module("sglang.srt.configs.mamba_utils")
        fields = {key: value for key, value in states.items() if key != "layers"}
        shape = getattr(utils, fields.pop("class", "Mamba2StateShape")).create(tp_world_size=tp, **fields)
        holder = utils.KimiLinearCacheParams if "KimiLinear" in type(shape).__name__ else utils.Mamba2CacheParams
        params = holder(shape=shape, layers=states["layers"])
        mambaish = SimpleNamespace(full_attention_layer_ids=model["full"], mamba2_cache_params=params)
    config = SimpleNamespace(
        index_head_dim=model.get("index_head_dim"),
        compress_ratios=model.get("compress_ratios"),
        kv_source_layer_ids=model.get("kv_source_layer_ids", []),
        skips=set(model.get("skips", [])),
    )
    return SimpleNamespace(
        mambaish=mambaish,
        hf_config=config,
        hf_text_config=SimpleNamespace(),
        attention_arch="mla" if "kv_lora_rank" in model else "mha",
        quantization=None,
        is_multimodal=False,
        context_len=model["context"],
        num_hidden_layers=model["layers"],
        kv_lora_rank=model.get("kv_lora_rank"),
        qk_rope_head_dim=model.get("qk_rope_head_dim"),
        qk_nope_head_dim=model.get("qk_nope_head_dim"),
        index_head_dim=model.get("index_head_dim"),
        compress_ratios=model.get("compress_ratios"),
        window_size=model.get("window"),
        head_dim=model.get("head_dim"),
        v_head_dim=model.get("v_head_dim", model.get("head_dim")),
        swa_head_dim=model.get("swa_head_dim", model.get("head_dim")),
        swa_v_head_dim=model.get("swa_v_head_dim", model.get("v_head_dim", model.get("head_dim"))),
        get_num_kv_heads=lambda tp, dcp=1: heads(model["kv_heads"], tp, dcp),
        get_swa_num_kv_heads=lambda tp: heads(model.get("swa_kv_heads", model["kv_heads"]), tp),
        dtype=torch.bfloat16,
    )


def sized(case, pools, configurator):
    """The pools that SGLang would make: its own calls in its own order."""
    import torch

    launch, model = case["launch"], case["model"]
    context = context_of(launch)
    publish(
        context,
        (
            pools,
            configurator,
            importlib.import_module("sglang.srt.mem_cache.deepseek_v4_memory_pool"),
            importlib.import_module("sglang.srt.mem_cache.allocation_sizing"),
        ),
    )
    named = launch.get("kv_cache_dtype", "bf16")
    dtype = {"bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn, "mxfp8": torch.float8_e4m3fn}[named]
    config = model_of(model, context)
    drafts = launch.get("draft_layers")
    is_spec = context.spec.speculative_algorithm is not None
    kvc = object.__new__(configurator.KVCacheConfigurator)
    windows = model.get("windows")
    for name, value in {
        "server_args": SimpleNamespace(enable_hisparse=False),
        "kv_cache_dtype": dtype,
        "kv_cache_dtype_str": named,
        "model_dtype": torch.bfloat16,
        "model_config": config,
        "mambaish_config": config.mambaish,
        "hybrid_gdn_config": None,
        "hybrid_kda_config": None,
        "page_size": context.schedule.page_size,
        "sliding_window_size": model.get("window"),
        "is_draft_worker": False,
        "is_hybrid_swa": windows is not None or bool(config.compress_ratios),
        "use_mla_backend": "kv_lora_rank" in model,
        "attn_dp_size": launch.get("attention_dp", 1),
        "pp_size": 1,
        "extra_mamba_cache_bytes_per_req": 0,
        "post_capture_kv_active": False,
        "spec_algorithm": SimpleNamespace(
            is_eagle=lambda: is_spec,
            is_none=lambda: not is_spec,
            is_standalone=lambda: False,
            is_dflash_family=lambda: False,
            is_dspark=lambda: False,
        ),
        "spec_aux_config": SimpleNamespace(
            eagle_draft_num_layers=drafts, eagle_draft_swa_num_layers=launch.get("draft_windows")
        ),
        "layer_info": SimpleNamespace(
            start_layer=0,
            end_layer=model["layers"],
            num_effective_layers=model["layers"],
            full_attention_layer_ids=model.get("full"),
            swa_attention_layer_ids=windows,
        ),
        "dflash_draft_cell_size_per_token": None,
    }.items():
        object.__setattr__(kvc, name, value)
    type(kvc).fused_entry_bytes = lambda self, name: None
    rest = case["pool_bytes"] / 2**30
    if config.mambaish is not None:
        rest = kvc._handle_max_mamba_cache(rest)
    found = kvc.config_from_budget(int(rest * 2**30))
    found.max_running_requests = kvc.resolve_max_num_reqs(found.max_total_num_tokens)
    answer = {"tokens": found.max_total_num_tokens, "max_running_requests": found.max_running_requests}
    if found.swa_max_total_num_tokens is not None:
        answer["swa_tokens"] = found.swa_max_total_num_tokens
    if config.mambaish is not None:
        answer["mamba_slots"] = context.schedule.max_mamba_cache_size
    return answer


def main():
    logging.disable(logging.CRITICAL)
    pools, configurator = prepare()
    cases = json.loads(Path(sys.argv[1]).read_text())
    answers = []
    for case in cases:
        try:
            answers.append({**case, "answer": sized(case, pools, configurator)})
        except (RuntimeError, ValueError) as error:
            answers.append({**case, "error": str(error).splitlines()[0]})
    lines = ",\n".join(json.dumps(answer) for answer in answers)
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main()
