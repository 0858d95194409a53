"""Command lines as people publish them, each with its source and what it says."""

from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True):
    """`engine`, `model`, `workload` and `flags` are whole; `gpus` are (names, count); `said` are parts of the lists."""

    source: str
    text: str
    engine: str
    model: str
    workload: dict[str, str] = {}
    flags: dict[str, Any] = {}
    gpus: tuple[tuple[str, ...], int | None] = ((), None)
    unsupported: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


LINES = [
    Line(
        "https://qwen.readthedocs.io/en/stable/deployment/vllm.html",
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4",
        "vllm",
        "Qwen/Qwen3-8B",
        {"tp": "4"},
    ),
    Line(
        "https://docs.vllm.ai/projects/recipes/en/latest/Qwen/Qwen3.5.html",
        """vllm serve Qwen/Qwen3.6-35B-A3B \\
  --tensor-parallel-size 8 \\
  --max-model-len 262144 \\
  --reasoning-parser qwen3 \\
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'
""",
        "vllm",
        "Qwen/Qwen3.6-35B-A3B",
        {"tp": "8", "ctx": "262144", "draft_layers": "1"},
        {"num_speculative_tokens": 2},
    ),
    Line(
        "https://docs.vllm.ai/projects/recipes/en/latest/Qwen/Qwen3.5.html",
        """docker run --gpus all \\
  -p 8000:8000 \\
  --ipc=host \\
  -v ~/.cache/huggingface:/root/.cache/huggingface \\
  vllm/vllm-openai Qwen/Qwen3.5-397B-A17B \\
    --tensor-parallel-size 8
""",
        "vllm",
        "Qwen/Qwen3.5-397B-A17B",
        {"tp": "8"},
    ),
    Line(
        "https://huggingface.co/Intel/Qwen3-Next-80B-A3B-Instruct-int4-AutoRound",
        "vllm serve Intel/Qwen3-Next-80B-A3B-Instruct-int4-AutoRound --port 8000 --max-model-len 262144 "
        """--speculative-config '{"method":"qwen3_next_mtp","num_speculative_tokens":2}'""",
        "vllm",
        "Intel/Qwen3-Next-80B-A3B-Instruct-int4-AutoRound",
        {"ctx": "262144", "draft_layers": "1"},
        {"num_speculative_tokens": 2},
    ),
    Line(
        "https://github.com/southfreebird/vllm, run_vllm.sh",
        """vllm serve meta-llama/Meta-Llama-3.1-8B-Instruct \\
          --served-model-name meta-llama/Meta-Llama-3.1-8B-Instruct-fast \\
          --trust-remote-code \\
          --disable-log-requests \\
          --tensor-parallel-size 2 \\
          --gpu-memory-utilization 0.97 \\
          --enable-auto-tool-choice \\
          --tool-call-parser llama3_json \\
          --speculative-config '{"model": "./mlp_based_lk/", "num_speculative_tokens": 3, "method": "mlp_speculator"}'
          # --speculative-config '{"model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}'
""",
        "vllm",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        {"tp": "2"},
        {"gpu_memory_utilization": 0.97, "num_speculative_tokens": 3},
        unsupported=("--speculative-config: the draft model ./mlp_based_lk/",),
    ),
    Line(
        "https://github.com/WohimLee/vLLM-Tutorial, 6.openai_server/src/launch_vllm.sh",
        """python -m vllm.entrypoints.openai.api_server \\
  --model models/Qwen3-8B \\
  --max-model-len 8192 \\
  --gpu-memory-utilization 0.85 \\
  --max-num-seqs 64 \\
  --tensor-parallel-size 1 \\
  --port 8000


# python -m vllm.entrypoints.openai.api_server \\
#   --model LLaMA-Factory/saves/llama3-8b/lora/sft_r_16/checkpoint-411 \\
#   --max-model-len 8192
""",
        "vllm",
        "models/Qwen3-8B",
        {"ctx": "8192", "tp": "1"},
        {"gpu_memory_utilization": 0.85, "max_num_seqs": 64},
    ),
    Line(
        "https://github.com/KNU-PLML-Lab/ViewPlasticSurgeonBot, README.md: flags of vLLM 0.6",
        'CUDA_VISIBLE_DEVICES="3" vllm serve --host 0.0.0.0 Qwen/Qwen2.5-14B-Instruct-AWQ  '
        "--speculative_model Qwen/Qwen2.5-7B-Instruct-AWQ --num_speculative_tokens 16 --gpu_memory_utilization 0.95 "
        "--tensor-parallel-size 1 --max_model_len 8192",
        "vllm",
        "Qwen/Qwen2.5-14B-Instruct-AWQ",
        {"tp": "1", "ctx": "8192"},
        {"gpu_memory_utilization": 0.95, "num_speculative_tokens": 16},
        (("3",), 1),
        unsupported=("--speculative_model Qwen/Qwen2.5-7B-Instruct-AWQ",),
    ),
    Line(
        "https://github.com/yandy/dockerapps, vllm/run.ps1",
        "docker run --rm --gpus all -v $PWD/.cache/huggingface:/root/.cache/huggingface -p 8000:8000 --ipc=host "
        "vllm/vllm-openai:v0.6.6.post1 --model deepseek-ai/DeepSeek-V3 --trust-remote-code\n",
        "vllm@0.6.6.post1",
        "deepseek-ai/DeepSeek-V3",
    ),
    Line(
        "https://github.com/dagnaputra/nlp, scripts/serve_7b_model.sh",
        """docker run -d --runtime nvidia --gpus all \\
    -v ~/.cache/huggingface:/root/.cache/huggingface \\
    -p 9898:8000 \\
    --ipc=host \\
    vllm/vllm-openai:latest \\
    --model Qwen/Qwen2.5-7B-Instruct --max_model_len 1024 --api-key "key" --gpu_memory_utilization 0.7""",
        "vllm",
        "Qwen/Qwen2.5-7B-Instruct",
        {"ctx": "1024"},
        {"gpu_memory_utilization": 0.7},
    ),
    Line(
        "https://github.com/lijiawei20161002/password_locking, local_inference_setup/serve.sh",
        """#vllm serve $HOME/models/DeepSeek-R1-Distill-Qwen-7B
HOME=/home/me
CUDA_VISIBLE_DEVICES=1 python -m vllm.entrypoints.openai.api_server \\
  --model $HOME/models/DeepSeek-R1-Distill-Qwen-1.5B \\
  --max-model-len 2048 \\
  --gpu-memory-utilization 0.9 \\
  --port 9000""",
        "vllm",
        "/home/me/models/DeepSeek-R1-Distill-Qwen-1.5B",
        {"ctx": "2048"},
        {"gpu_memory_utilization": 0.9},
        (("1",), 1),
    ),
    Line(
        "https://github.com/zzhx1/vllm-ascend, examples/external_online_dp/run_dp_template.sh, its parameters set",
        """export VLLM_LOGGING_LEVEL="info"
vllm serve model_path \\
    --host 0.0.0.0 \\
    --port $2 \\
    --data-parallel-size 4 \\
    --data-parallel-rank $4 \\
    --data-parallel-address $5 \\
    --tensor-parallel-size 4 \\
    --enable-expert-parallel \\
    --seed 1024 \\
    --served-model-name dsv3 \\
    --max-model-len 8192 \\
    --max-num-batched-tokens 2048 \\
    --max-num-seqs 16 \\
    --trust-remote-code \\
    --gpu-memory-utilization 0.9 \\
    --quantization ascend \\
    --speculative-config '{"num_speculative_tokens": 1, "method":"deepseek_mtp"}' \\
""",
        "vllm",
        "model_path",
        {"dp": "4", "tp": "4", "ep": "16", "ctx": "8192", "draft_layers": "1"},
        {
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 16,
            "gpu_memory_utilization": 0.9,
            "num_speculative_tokens": 1,
        },
        unsupported=("--quantization ascend",),
    ),
    Line(
        "vLLM 0.33, utils/argparse_utils.py and engine/arg_utils.py: spellings that its parser takes",
        "vllm serve --max-model-len 25.6k Org/Model -tp=4 --pipeline-par 2 --no-enable-prefix-caching -q fp8 "
        "--kv_cache_dtype fp8_e4m3 --max-num-batched-tokens=16K --kv-cache-memory-bytes 40G -O3 -dcp 2 "
        "--compilation-config.mode 3 --hf-token --disable-cascade-attn",
        "vllm",
        "Org/Model",
        {
            "ctx": "25600",
            "tp": "4",
            "pp": "2",
            "weights": "fp8",
            "kv_dtype": "fp8_e4m3",
            "kv_cache_memory": f"{40 * 2**30}B",
            "dcp": "2",
        },
        {"enable_prefix_caching": False, "max_num_batched_tokens": 16384},
    ),
    Line(
        "https://docs.sglang.io/basic_usage/deepseek_v32.html",
        "python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --dp 8 --enable-dp-attention",
        "sglang",
        "deepseek-ai/DeepSeek-V3.2-Exp",
        {"tp": "8", "dp": "8"},
        {"enable_dp_attention": True},
    ),
    Line(
        "https://docs.sglang.io/basic_usage/deepseek_v32.html",
        "# Launch with EP + DP\npython -m sglang.launch_server --model deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --ep 8",
        "sglang",
        "deepseek-ai/DeepSeek-V3.2-Exp",
        {"tp": "8", "ep": "8"},
    ),
    Line(
        "https://docs.sglang.io/platforms/ascend_npu_deepseek_example.html, MODEL_PATH set",
        """export SGLANG_ENABLE_SPEC_V2=1
MODEL_PATH=deepseek-ai/DeepSeek-V3
python3 -m sglang.launch_server \\
    --model-path ${MODEL_PATH} \\
    --tp 16 \\
    --trust-remote-code \\
    --attention-backend ascend \\
    --device npu \\
    --quantization modelslim \\
    --watchdog-timeout 9000 \\
    --cuda-graph-bs 8 16 24 28 32 \\
    --mem-fraction-static 0.68 \\
    --max-running-requests 128 \\
    --context-length 8188 \\
    --disable-radix-cache \\
    --chunked-prefill-size -1 \\
    --max-prefill-tokens 16384 \\
    --moe-a2a-backend deepep \\
    --deepep-mode auto \\
    --enable-dp-attention \\
    --dp-size 4 \\
    --enable-dp-lm-head \\
    --speculative-algorithm NEXTN \\
    --speculative-num-steps 3 \\
    --speculative-eagle-topk 1 \\
    --speculative-num-draft-tokens 4 \\
    --dtype bfloat16
""",
        "sglang",
        "deepseek-ai/DeepSeek-V3",
        {"tp": "16", "ctx": "8188", "dp": "4", "dtype": "bfloat16", "draft_layers": "1"},
        {
            "mem_fraction_static": 0.68,
            "max_running_requests": 128,
            "disable_radix_cache": True,
            "chunked_prefill_size": -1,
            "enable_dp_attention": True,
            "speculative_num_draft_tokens": 4,
        },
        unsupported=("--quantization modelslim", "--cuda-graph-bs 8 16 24 28 32"),
    ),
    Line(
        "https://huggingface.co/AQ-MedAI/Kimi-K2-Instruct-eagle3, README.md",
        """python3 -m sglang.launch_server \\
  --model-path /models/Kimi-K2-Instruct \\
  --host 0.0.0.0 --port 30012 \\
  --trust-remote-code \\
  --attention-backend flashinfer \\
  --mem-fraction-static 0.9 \\
  --tp-size 8 \\
  --speculative-algorithm EAGLE3 \\
  --speculative-draft-model-path AQ-MedAI/Kimi-K2-Instruct-eagle3 \\
  --speculative-num-steps 3
""",
        "sglang",
        "/models/Kimi-K2-Instruct",
        {"tp": "8"},
        {"mem_fraction_static": 0.9},
        unsupported=("--speculative-algorithm: the draft model AQ-MedAI/Kimi-K2-Instruct-eagle3",),
    ),
    Line(
        "https://github.com/BBuf/how-to-optim-algorithm-in-cuda, deepseek-v41-kernel-journey/random-dspark/launch-tp4.sh",
        """#!/usr/bin/env bash
set -euo pipefail
MODEL_PATH=/models/DeepSeek-V4.1-Flash
unset SGLANG_SIMULATE_ACC_LEN
export CUDA_VISIBLE_DEVICES=0,1,2,3
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"
dspark_args=()
if [[ "${DSPARK:-1}" == 1 ]]; then
  dspark_args=(--speculative-algorithm DSPARK --speculative-dspark-block-size 5)
fi
python -m sglang.launch_server \\
  --model-path "$MODEL_PATH" \\
  --served-model-name deepseek-ai/DeepSeek-V4.1-Flash \\
  --tp 4 --ep-size 1 --trust-remote-code \\
  --moe-a2a-backend none --moe-runner-backend flashinfer_mxfp4 \\
  --mem-fraction-static 0.80 --max-total-tokens 33554432 \\
  --chunked-prefill-size 4096 \\
  --cuda-graph-bs-decode 1 2 4 8 16 32 64 \\
  --max-running-requests 128 --skip-server-warmup \\
  --decode-log-interval 10 --host 127.0.0.1 --port 30021 \\
  "${dspark_args[@]}"
""",
        "sglang",
        "/models/DeepSeek-V4.1-Flash",
        {"tp": "4", "ep": "1"},
        {
            "mem_fraction_static": 0.8,
            "max_total_tokens": 33554432,
            "chunked_prefill_size": 4096,
            "max_running_requests": 128,
        },
        (("0", "1", "2", "3"), 4),
    ),
    Line(
        "https://github.com/marieai/marie-ai, config/sglang/sglang-qwq-x8.sh",
        """docker run --gpus '"device=0,1,2,3,4,5,6,7"' \\
  --shm-size 32g \\
  -p 8000:8000 \\
  -e OMP_NUM_THREADS=1 \\
  -v ~/.cache/huggingface:/root/.cache/huggingface \\
  --ipc=host \\
  lmsysorg/sglang:latest \\
  python3 -m sglang.launch_server \\
    --model-path Qwen/QwQ-32B \\
    --host 0.0.0.0 --port 8000 \\
    --trust-remote-code \\
    --attention-backend flashinfer \\
    --quantization fp8 \\
    --chat-template qwen2-vl \\
    --dp-size 4 \\
    --tp 2 \\
    --pp-size 1 \\
    --schedule-policy fcfs \\
    --schedule-conservativeness 0.1 \\
    --max-running-requests 64 \\
    --mem-fraction-static 0.7

""",
        "sglang",
        "Qwen/QwQ-32B",
        {"weights": "fp8", "dp": "4", "tp": "2", "pp": "1"},
        {"max_running_requests": 64, "mem_fraction_static": 0.7},
        (tuple("01234567"), 8),
    ),
    Line(
        "https://github.com/genglinliu/WebCoach, start_LLM_inference/ASG/start_sglang_server_qwen_vl_7b.sh",
        """docker run --gpus '"device=5"' \\
    --shm-size 32g \\
    -p 30003:30003 \\
    --ipc=host \\
    lmsysorg/sglang:latest \\
    bash -c "python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host 0.0.0.0 --port 30003 --tp-size 1 --mem-fraction-static 0.7\"""",
        "sglang",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        {"tp": "1"},
        {"mem_fraction_static": 0.7},
        (("5",), 1),
    ),
    Line(
        "https://github.com/dmitrymailk/hidden_capacity_reasoning, sglang.sh",
        """volume=$PWD/data
model=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
docker run -d -ti --rm --gpus all \\
    --shm-size 1g \\
    -p 1337:30000 \\
    -v $volume:/root/.cache/huggingface \\
    -v ./:/code \\
    -w /code \\
    --ipc=host \\
    lmsysorg/sglang:v0.4.5-cu125 \\
    python3 -m sglang.launch_server --model-path $model --host 0.0.0.0 --port 30000""",
        "sglang@0.4.5",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    ),
    Line(
        "https://github.com/lum7671/Scripts, run_llvm_coder.zsh",
        """#!/usr/bin/env zsh

llama-server \\
    -hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF \\
    --port 8012 -ngl 99 -fa -ub 1024 -b 1024 -dt 0.1 \\
    --ctx-size 0 --cache-reuse 256 &
""",
        "llama.cpp",
        "ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF",
        {"batch": "4"},
        {"flash_attn": True, "ubatch_size": 1024, "batch_size": 1024, "kv_unified": True},
    ),
    Line(
        "https://github.com/XavierSpycy/hands-on-lora, examples/llama_chinese/deploy_cli.sh",
        """llama.cpp/llama-server -m ./Meta-Llama-3-8B-Instruct-zh-10k/meta-llama-3-8b-instruct-zh-10k.Q8_0.gguf \\
    -c 512 \\
    -b 64 \\
    -n 256 \\
    -t 12 \\
    --repeat_penalty 1.2 \\
    --top_k 20 \\
    --host 0.0.0.0""",
        "llama.cpp",
        "./Meta-Llama-3-8B-Instruct-zh-10k/meta-llama-3-8b-instruct-zh-10k.Q8_0.gguf",
        {"batch": "4", "ctx": "128"},
        {"ctx_size": 512, "batch_size": 64, "kv_unified": True},
    ),
    Line(
        "https://github.com/davkk/.config, nvim/llama.sh",
        """llama-server \\
    --hf-repo ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF \\
    --hf-file qwen2.5-coder-0.5b-q8_0.gguf \\
    --n-gpu-layers 999 \\
    --batch-size 1024 \\
    --ubatch-size 512 \\
    --flash-attn on \\
    --cache-reuse 256 \\
    --port 8012
""",
        "llama.cpp",
        "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF",
        {"batch": "4"},
        {"batch_size": 1024, "ubatch_size": 512, "flash_attn": True, "kv_unified": True},
    ),
    Line(
        "tools/server/README.md and common/arg.cpp of llama.cpp: short names",
        "llama-server -m F.gguf -c 32768 -np 4 -ctk q8_0 -ctv q4_0 -fa 0 -no-kvu --swa-full -md draft.gguf "
        "--draft-max 8 -ngl 20",
        "llama.cpp",
        "F.gguf",
        {"batch": "4", "ctx": "8192", "kv_dtype": "k=q8_0,v=q4_0"},
        {"ctx_size": 32768, "flash_attn": False, "kv_unified": False, "swa_full": True, "spec_draft_n_max": 8}
        | {"n_gpu_layers": 20},
        unsupported=("-md draft.gguf",),
    ),
    Line(
        "common/arg.cpp of llama.cpp: variables that stand for flags; -np is 1 for llama-cli",
        "LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_N_GPU_LAYERS=all llama-cli -m F.gguf -p 'a prompt' -ctk q8_0 -ctv q8_0",
        "llama.cpp",
        "F.gguf",
        {"batch": "1", "ctx": "4096", "kv_dtype": "q8_0"},
        {"ctx_size": 4096},
    ),
    Line(
        "https://github.com/ggml-org/llama.cpp, docs/docker.md: the image of a build",
        "docker run -v /path/to/models:/models -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda-b6123 "
        "-m /models/7B/ggml-model-q4_0.gguf --port 8080 --host 0.0.0.0 -n 512 --n-gpu-layers 99 -np 1",
        "llama.cpp@b6123",
        "/models/7B/ggml-model-q4_0.gguf",
        {"batch": "1"},
    ),
    Line(
        "https://github.com/banjuede/deepseek-test, trt-llm/serve.sh",
        """trtllm-serve /userdata/llms/deepseek-ai/DeepSeek-R1 \\
            --backend pytorch \\
            --tp_size 8 \\
            --pp_size 1 \\
            --ep_size 4 \\
            --max_batch_size 161 \\
            --max_num_tokens 1160 \\
            --kv_cache_free_gpu_memory_fraction 0.8 \\
            --trust_remote_code
""",
        "tensorrt-llm",
        "/userdata/llms/deepseek-ai/DeepSeek-R1",
        {"tp": "8", "pp": "1", "ep": "4"},
        {"max_batch_size": 161, "max_num_tokens": 1160, "kv_cache_free_gpu_mem_fraction": 0.8},
    ),
    Line(
        "https://github.com/phatvo9/benchmark_gpu, tuning/tensorrt_llm/deepseek-r1/mtp/start_config1.sh",
        """trtllm-serve nvidia/DeepSeek-R1-FP4 \\
    --host 0.0.0.0 --port 26666 --backend pytorch \\
    --tp_size 8 --ep_size 2 \\
    --trust_remote_code \\
    --kv_cache_free_gpu_memory_fraction 0.7 --extra_llm_api_options ./tuning/trt_bench_mtp.yaml""",
        "tensorrt-llm",
        "nvidia/DeepSeek-R1-FP4",
        {"tp": "8", "ep": "2"},
        {"kv_cache_free_gpu_mem_fraction": 0.7},
    ),
    Line(
        "https://github.com/taco-project/FlexKV, examples/trt_adaption/launch.sh",
        """mkdir -p logs
TIMESTAMP=$(date +%Y.%m.%d-%H:%M:%S)
MODEL_PATH=/cfs_zhongwei/models/deepseek-ai/DeepSeek-V3.1-W4AFP8-MTP
# MODEL_PATH=/cfs_zhongwei/models/Qwen3-0.6B
TP_SIZE=8
EP_SIZE=$TP_SIZE

cat <<EOF > ./flexkv_config.json
{
    "server_recv_port": "ipc:///tmp/flexkv_test",
    "num_log_interval_requests": 200
}
cat <<EOF > ./flexkv_config.json
{
    "server_recv_port": "ipc:///tmp/flexkv_test",
    "num_log_interval_requests": 200
}
EOF

export FLEXKV_CONFIG_PATH="./flexkv_config.json"
export MODEL_PATH=$MODEL_PATH
# export CUDA_LAUNCH_BLOCKING=1

trtllm-serve serve $MODEL_PATH \\
    --host 0.0.0.0 \\
    --port 6000 \\
    --backend pytorch \\
    --tp_size $TP_SIZE \\
    --ep_size $EP_SIZE \\
    --max_seq_len 49152 \\
    --max_num_tokens 24576 \\
    --max_batch_size 16 \\
    --kv_cache_free_gpu_memory_fraction 0.75 \\
    --extra_llm_api_options extra-llm-api-config.yml 2>&1 | tee logs/$TIMESTAMP.log
""",
        "tensorrt-llm",
        "/cfs_zhongwei/models/deepseek-ai/DeepSeek-V3.1-W4AFP8-MTP",
        {"tp": "8", "ep": "8", "ctx": "49152"},
        {
            "max_seq_len": 49152,
            "max_num_tokens": 24576,
            "max_batch_size": 16,
            "kv_cache_free_gpu_mem_fraction": 0.75,
        },
    ),
    Line(
        "https://github.com/LogicDaemon/PersonalUseScripts, Distributives/LLMs/ollama/readme.txt; docs.ollama.com/faq",
        "OLLAMA_CONTEXT_LENGTH=16k OLLAMA_NUM_PARALLEL=2 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 "
        "ollama run gemma3:4b --verbose 'tell me a story'",
        "llama.cpp",
        "gemma3:4b",
        {"ctx": "16000", "batch": "2", "kv_dtype": "q8_0"},
        {"flash_attn": True},
    ),
    Line(
        "a session as READMEs show it, with a prompt and wrappers",
        "$ sudo -E env CUDA_VISIBLE_DEVICES=2,3 numactl --interleave=all uv run --no-sync vllm serve org/m -tp 2 > log 2>&1 &",
        "vllm",
        "org/m",
        {"tp": "2"},
        {},
        (("2", "3"), 2),
    ),
    Line(
        "flags that no parser has are said",
        "vllm serve org/m --max-model-length 8192 --frobnicate",
        "vllm",
        "org/m",
        unknown=("--max-model-length 8192 (did you mean --max-model-len?)", "--frobnicate"),
    ),
]
