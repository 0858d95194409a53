"""Commands: published ones are read as they run, files too, hostile ones refused; what is written reads back."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml
from command_lines import LINES, Line
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.cache.formats import find_format
from kvcalc.cache.sharding import Sharding
from kvcalc.engines.commands import EngineCommand, Plan, emit_command, read_command
from kvcalc.engines.commands.arguments import load_shapes
from kvcalc.engines.commands.shell import read_shell
from kvcalc.engines.commands.tables import TABLES
from kvcalc.engines.engine import Engine, engine_classes, find_engine
from kvcalc.errors import KvcalcError
from kvcalc.model.catalog import load
from kvcalc.sizing.need import Workload, size_workload


def refused(text: str) -> KvcalcError:
    with pytest.raises(KvcalcError) as caught:
        read_command(text)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def fields_of(engine: str) -> tuple[str, ...]:
    found = engine_classes().get(engine)
    return found.flags() if found else ()


@pytest.mark.parametrize("line", LINES, ids=[f"{index}-{line.engine}" for index, line in enumerate(LINES)])
def test_published_commands_are_read_as_they_run(line: Line):
    command = read_command(line.text)
    assert command.engine == line.engine
    assert command.model == line.model
    assert command.workload == line.workload
    assert (command.gpus, command.gpu_count) == line.gpus
    assert command.unknown == line.unknown
    fields = fields_of(command.engine_name)
    assert command.flags == {name: value for name, value in line.flags.items() if name in fields}
    assert set(line.unsupported) <= set(command.unsupported)
    # A field that no class has yet is said, and nothing else is.
    homeless = [name for name in line.flags if name not in fields]
    assert len(command.unsupported) == len(line.unsupported) + len(homeless) - line.flags.get(
        "max_seq_len", 0
    ) // 49152 * ("max_seq_len" in homeless)


def test_no_flag_is_dropped():
    """Every flag of a line stands in the workload, the flags, or one list."""
    text = "vllm serve m --host ::1 --port 80 --max-model-len 8 --block-size 16 --swap-space 4 --nonsense 1 --seed 0"
    command = read_command(text)
    said = {one.split()[0] for one in (*command.ignored, *command.unsupported, *command.unknown)}
    assert said >= {"--host", "--port", "--nonsense", "--seed"}
    assert command.workload == {"ctx": "8"}
    assert command.flags["block_size"] == 16
    assert "swap_space" in command.flags or "--swap-space" in said


def test_the_last_flag_counts():
    assert read_command("vllm serve m -tp 2 --tensor-parallel-size 4").workload == {"tp": "4"}


def test_a_context_that_the_engine_chooses_is_not_made_up():
    command = read_command("vllm serve m --max-model-len auto")
    assert command.workload == {}
    assert command.ignored == ("--max-model-len auto",)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vllm serve $MODEL", "MODEL is not set"),
        ("vllm serve m --max-model-len $LEN", "LEN is not set"),
        ("vllm serve m $EXTRA_ARGS", "EXTRA_ARGS is not set"),
        ("vllm serve $(cat model.txt)", "$(cat model.txt) would have to be run"),
        ("vllm serve m -tp `nproc`", "`nproc` would have to be run"),
        ("N=$(nproc); vllm serve m -tp $N", "$(nproc) would have to be run"),
        ("vllm serve ${MODEL%/}", "${MODEL%/} is not read"),
        ("vllm serve 'm", "the quote ' before 'm' (line 1) is not closed"),
        ('vllm serve "m\nn', "(line 1) is not closed"),
        ("vllm serve m --max-model-len", "stands without a value"),
        ("vllm serve m --max-model-len lots", "'lots' is not a number"),
        ("vllm serve m --gpu-memory-utilization much", "'much' is not understood"),
        ("vllm serve m --gpu-memory-utilization nan", "is no number"),
        ("vllm serve m --speculative-config '[1]'", "is no JSON mapping"),
        ("vllm serve --port 80", "vllm is given no model"),
        ("llama-server -m f.gguf -c 3 -np 4", "less than a token for each of 4 slots"),
        ("docker run $IMAGE --model m", "the image of docker run"),
        ("vllm serve a; vllm serve b", "runs 2 engines"),
        ("echo hello world", "runs no engine"),
        ("pip install vllm serve", "runs no engine"),
        ("echo 'vllm serve m'", "runs no engine"),
        ("nowhere/start.sh", "is no file and no command"),
        ("", "is no file and no command"),
        ("bash -c " * 12 + "x", "runs no engine"),
    ],
)
def test_what_cannot_be_known_is_named(text: str, name: str):
    assert name in str(refused(text).message)


def test_what_is_not_needed_may_be_unknown():
    command = read_command('vllm serve m --api-key "$(cat key)" --port $PORT -tp 2 "$@"')
    assert command.workload == {"tp": "2"}
    assert command.unknown == ("$@",)
    assert "--port $PORT" in command.ignored


def test_nothing_is_run_and_nothing_of_this_process_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODEL", "from-outside")
    monkeypatch.chdir(tmp_path)
    refused("vllm serve $MODEL")
    refused("vllm serve $(touch made) `touch made`; touch made > made")
    script = tmp_path / "run.sh"
    script.write_text("touch made\nX=$(touch made)\nvllm serve m --seed $X <<< $(touch made)\n")
    assert read_command(str(script)).model == "m"
    assert not (tmp_path / "made").exists()


SHELL_WORDS = st.lists(st.text(st.sampled_from("ab c$\\'\"{}\t=#;&|<>()*~!"), max_size=6), min_size=1, max_size=5)


@given(SHELL_WORDS)
def test_quoted_words_are_those_of_the_standard_library(words: list[str]):
    """shlex.quote of Python's own, read back."""
    commands = read_shell("x " + shlex.join(words))
    assert [word.text for command in commands for word in command.words] == ["x", *words]
    assert not any(word.problem for command in commands for word in command.words)


EXPANSIONS = [
    'A=one B="two words"; show $A $B "$B" x$A.y ${A}z "${B}"',
    "A='$HOME `x` $(y)'; show \"$A\" '$A' \\$A \"\\$A\"",
    "show ${NONE:-default} ${NONE-'quoted'} \"${NONE:-}\" ${EMPTY:-full}",
    'L=(--a 1 "two words"); L+=(--b); show "${L[@]}"',
    "A=1\nexport B=$A$A\nshow $B\\\n  next # a comment\n",
    "A=--x; A+=y; show $A {a,b} 'it''s' a\"b\"'c'",
    "cat <<EOF > /dev/null\nshow not 'this\nEOF\nshow this",
    "if true; then show a; fi; false || show b && show c",
]


@pytest.mark.parametrize("text", EXPANSIONS)
def test_variables_and_quotes_are_what_bash_makes_of_them(text: str):
    """Held against bash itself, which runs these harmless lines; braces and globs are switched off there."""
    script = "set +B -f; show() { printf '<%s>' \"$@\"; echo; }; EMPTY=\n" + text
    asked = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    shown = [
        "".join(f"<{word.text}>" for word in command.words[index + 1 :]) + "\n"
        for command in read_shell("EMPTY=\n" + text)
        for index, first in enumerate(command.words[:2])
        if first.text == "show"
    ]
    assert "".join(shown) == asked.stdout


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


COMPOSE = """
x-common: &common
  restart: always
services:
  # github.com: a compose file of vLLM 0.6.3 on two cards
  vision:
    <<: *common
    image: vllm/vllm-openai:v0.6.3.post1
    command: [
      "--model", "/app/model/Llama-3.2-11B-Vision-Instruct",
      "--gpu-memory-utilization", "0.65",
      "--max-model-len", "16384",
      "--max-num-seqs","2",
      "--tensor-parallel-size", "2",
      "--quantization","fp8",
      "--enforce-eager",]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ['0','1']
              capabilities: [gpu]
  # github.com: variables with defaults, and four cards
  gemma:
    image: vllm/vllm-openai:latest
    command: --model ${MODEL:-google/gemma-2-9b-it} --gpu-memory-utilization ${GPU_MEMORY_UTILIZATION:-1.0}
      --tensor-parallel-size ${TENSOR_PARALLEL_SIZE:-4} --host 0.0.0.0
    environment:
      - HUGGING_FACE_HUB_TOKEN=${HUGGING_FACE_HUB_TOKEN}
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]}}}
  # docs of SGLang: an entrypoint and a command
  sglang:
    image: lmsysorg/sglang:v0.5.4
    entrypoint: python3 -m sglang.launch_server
    command: >
      --model-path meta-llama/Llama-3.1-8B-Instruct
      --host 0.0.0.0
      --context-length 4096
    gpus: all
  shell:
    image: lmsysorg/sglang:latest
    environment: {NAME: org/m}
    command: bash -c "python3 -m sglang.launch_server --model-path $$NAME --tp 2"
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    environment:
      LLAMA_ARG_MODEL: /models/f.gguf
      LLAMA_ARG_CTX_SIZE: 4096
      LLAMA_ARG_N_PARALLEL: 2
  web:
    image: nginx
    command: nginx -g 'daemon off;'
"""


def test_a_service_of_a_compose_file_is_chosen_by_name(tmp_path: Path):
    path = write(tmp_path / "docker-compose.yaml", COMPOSE)
    error = refused(path)
    assert all(name in error.message for name in ("vision", "gemma", "sglang", "shell", "llama"))
    assert "web" not in error.message
    assert "FILE#vision" in error.hint
    vision = read_command(f"{path}#vision")
    assert (vision.engine, vision.gpus, vision.gpu_count) == ("vllm@0.6.3.post1", ("0", "1"), 2)
    assert vision.workload == {"ctx": "16384", "tp": "2", "weights": "fp8"}
    assert vision.flags == {"gpu_memory_utilization": 0.65, "max_num_seqs": 2}
    assert vision.unsupported == ("--enforce-eager",)
    gemma = read_command(f"{path}#gemma")
    assert (gemma.model, gemma.workload, gemma.gpu_count) == ("google/gemma-2-9b-it", {"tp": "4"}, 4)
    sglang = read_command(f"{path}#sglang")
    assert (sglang.engine, sglang.workload, sglang.gpu_count) == ("sglang@0.5.4", {"ctx": "4096"}, None)
    assert read_command(f"{path}#shell").model == "org/m"
    llama = read_command(f"{path}#llama")
    assert (llama.model, llama.workload) == ("/models/f.gguf", {"batch": "2", "ctx": "2048"})
    assert "has no 'nobody'" in refused(f"{path}#nobody").message


MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: vllm}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.8.5
        env:
        - {name: MODEL_ID, value: meta-llama/Llama-3.1-8B-Instruct}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
        args: ["--model", "$(MODEL_ID)", "--max-model-len", "32K", "--api-key", "$(HF_TOKEN)"]
        resources: {limits: {nvidia.com/gpu: 2, memory: 64Gi}}
"""


def test_a_manifest_of_kubernetes(tmp_path: Path):
    """docs.vllm.ai, deployment/k8s: arguments, and `$(NAME)`, which Kubernetes fills in from env."""
    command = read_command(write(tmp_path / "k8s.yaml", MANIFEST))
    assert (command.engine, command.model) == ("vllm@0.8.5", "meta-llama/Llama-3.1-8B-Instruct")
    assert (command.workload, command.gpu_count) == ({"ctx": "32768"}, 2)
    secret = MANIFEST.replace("$(MODEL_ID)", "$(HF_TOKEN)")
    assert "HF_TOKEN comes from elsewhere" in refused(write(tmp_path / "secret.yaml", secret)).message
    shell = """
kind: Pod
spec:
  containers:
  - name: one
    image: my/vllm:1
    command: ["/bin/sh", "-c"]
    args: ["sleep 1 && exec vllm serve org/m -tp 8"]
"""
    assert read_command(write(tmp_path / "pod.yaml", shell)).workload == {"tp": "8"}


def test_a_modelfile(tmp_path: Path):
    """docs.ollama.com/modelfile."""
    text = 'FROM qwen3-coder\nPARAMETER num_ctx 65536\nPARAMETER temperature 0.2\nSYSTEM """\nFROM nothing\n"""\n'
    command = read_command(write(tmp_path / "Modelfile.long", text))
    assert (command.engine, command.model) == ("llama.cpp", "qwen3-coder")
    assert command.workload == {"ctx": "65536", "batch": "1"}
    assert command.ignored == ("PARAMETER temperature 0.2",)
    assert read_command(write(tmp_path / "other", text)).model == "qwen3-coder"
    silent = read_command(write(tmp_path / "Modelfile", "FROM ./f.gguf\n"))
    assert "ctx" not in silent.workload
    assert any("Ollama chooses the context" in note for note in silent.notes)


def test_a_dockerfile(tmp_path: Path):
    exec_form = 'FROM vllm/vllm-openai:v0.19.1\n# one\nENV A=1 \\\n    B=2\nCMD ["--model", "org/m", "-tp", "2"]\n'
    command = read_command(write(tmp_path / "Dockerfile", exec_form))
    assert (command.engine, command.model, command.workload) == ("vllm@0.19.1", "org/m", {"tp": "2"})
    shell_form = "FROM python:3.12\nENV MODEL=org/m\nRUN pip install vllm\nCMD vllm serve $MODEL --max-model-len 4096\n"
    assert read_command(write(tmp_path / "a.Dockerfile", shell_form)).workload == {"ctx": "4096"}
    both = 'FROM x\nENTRYPOINT ["llama-server", "-m", "f.gguf"]\nCMD ["-c", "512", "-np", "1"]\n'
    assert read_command(write(tmp_path / "Containerfile", both)).workload == {"batch": "1", "ctx": "512"}


def test_a_config_file_beside_the_script(tmp_path: Path):
    """load_config_file of vLLM's argparse_utils.py; the command line counts above it."""
    script = write(tmp_path / "run.sh", "vllm serve --config serve.yaml -tp 2\n")
    assert any("serve.yaml is not here" in note for note in read_command_or_notes(script))
    (tmp_path / "serve.yaml").write_text(
        "model: org/m\ntensor-parallel-size: 8\nmax-model-len: 32k\nenable-prefix-caching: false\n"
        "uvicorn-log-level: info\nspeculative-config: {method: mtp, num_speculative_tokens: 1}\n"
    )
    command = read_command(script)
    assert (command.model, command.flags["enable_prefix_caching"]) == ("org/m", False)
    assert command.workload == {"tp": "2", "ctx": "32000", "draft_layers": "1"}


def read_command_or_notes(script: str) -> tuple[str, ...]:
    """The notes of the same script with a model, since it has none without its config file."""
    text = Path(script).read_text().replace("serve ", "serve org/m ")
    return read_command(text).notes


def test_hostile_files_are_refused_in_bounded_time(tmp_path: Path):
    binary = tmp_path / "model.gguf"
    binary.write_bytes(b"GGUF\x03\x00\x00\x00\xff\xfe" * 9)
    assert "binary" in refused(str(binary)).message
    large = tmp_path / "large.sh"
    with large.open("wb") as stream:
        stream.truncate(100 * 2**20)
    assert "more than 1,048,576 bytes" in refused(str(large)).message
    assert refused(str(tmp_path)).message.endswith("is no regular file")


def test_yaml_bombs_are_refused(tmp_path: Path):
    nine = "[" + ", ".join(["*a"] * 9) + "]"
    levels = "\n".join(f"a{n}: &a{n + 1} {nine.replace('*a', f'*a{n}')}" for n in range(1, 12))
    laughs = f"a0: &a1 [x]\n{levels}\nservices: {{s: {{image: vllm/vllm-openai, command: *a12}}}}\n"
    assert "aliases expand" in refused(write(tmp_path / "bomb.yaml", laughs)).message
    merges = "a: &a {x: 1}\n" + "\n".join(
        f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]}}" for n in range(9)
    )
    assert "aliases expand" in refused(write(tmp_path / "merge.yaml", merges)).message
    assert "inside of itself" in refused(write(tmp_path / "self.yaml", "a: &a [*a]\n")).message
    assert "nest" in refused(write(tmp_path / "deep.yaml", "[" * 5000)).message
    assert "not YAML" in refused(write(tmp_path / "bad.yaml", "a: [1\nb: }")).message
    tagged = "services: {s: {image: vllm/vllm-openai, command: !!python/object/apply:os.system ['touch made']}}"
    assert "the tag tag:yaml.org,2002:python" in refused(write(tmp_path / "tag.yaml", tagged)).message


def test_variables_that_hold_variables_are_bounded():
    doubling = "A=xxxxxxxxxx;" + "A=$A$A$A$A$A$A$A$A$A$A;" * 9 + "vllm serve $A"
    assert "expand to more than" in refused(doubling).message
    many = "\n" * 50_000 + "x\n" * 50_000 + "vllm serve m"
    assert read_command(many).model == "m"


@settings(max_examples=300)
@given(st.text(st.sampled_from("vllm serve m-$(){}[]'\"\\`\n=#<>&|;:.0aA\t"), max_size=80))
def test_no_text_breaks_the_reader(text: str):
    try:
        command = read_command("vllm serve m " + text)
    except KvcalcError as error:
        assert error.message
    else:
        assert command.engine_name == "vllm"


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_name_flags_that_exist(name: str):
    table, shapes = TABLES[name], load_shapes()[name]
    if name == "ollama":
        return
    known = shapes.names | table.dialect.own
    named = {*table.aliases, *table.workload, *table.fields, *table.notes, *table.memory, *table.model}
    named |= {one.lstrip("!") for one in table.aliases.values()}
    # `model` of trtllm-serve is its positional.
    assert named - known == set()
    assert not {one.lstrip("!") for one in table.aliases.values()} & set(table.aliases)


def engine_cases() -> list[tuple[str, str]]:
    return [(name, model) for name in TABLES if name in engine_classes() for model in ("llama-8b", "deepseek-v3")]


KV_FORMATS = {
    "vllm": ("auto", "fp8", "bf16"),
    "sglang": ("auto", "fp8", "bf16"),
    "llama.cpp": ("auto", "q8_0", "f16"),
    "tensorrt-llm": ("auto", "fp8", "nvfp4"),
}
OWN_FLAGS = {
    "vllm": {"block_size": [None, 32], "max_num_seqs": [None, 64], "gpu_memory_utilization": [0.5, 0.875]},
    "sglang": {"page_size": [None, 16], "mem_fraction_static": [None, 0.75], "disable_radix_cache": [False, True]},
    "llama.cpp": {"ubatch_size": [512, 64], "flash_attn": [True, False], "swa_full": [False, True]},
    "tensorrt-llm": {"max_batch_size": [2048, 8], "kv_cache_free_gpu_mem_fraction": [0.9, 0.5]},
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_written_reads_back(data: st.DataObject):
    name, model = data.draw(st.sampled_from(engine_cases()))
    flags = {field: data.draw(st.sampled_from(values)) for field, values in OWN_FLAGS[name].items()}
    engine = find_engine(name, {field: value for field, value in flags.items() if value is not None})
    ranks = 1 if name == "llama.cpp" else data.draw(st.sampled_from([1, 2, 8]))
    work = Workload(
        context_tokens=data.draw(st.integers(256, 100_000)),
        batch=data.draw(st.integers(1, 64)),
        kv_dtype=data.draw(st.sampled_from(KV_FORMATS[name])),
        draft_layers=0,
    )
    size = size_workload(load(model), work, Sharding(tp=ranks))
    shown = data.draw(st.sampled_from(["org/m", "/a b/it's $HOME", "f.gguf", "-"]).filter(lambda one: one != "-"))
    gpus = data.draw(st.sampled_from([(), ("0", "3")]))
    command = read_command(emit_command(engine, size, Plan(model=shown, gpus=gpus)))
    check_same(command, engine, work, shown, gpus)
    assert command.workload.get("tp", "1") == str(ranks)


def check_same(command: EngineCommand, engine: Engine, work: Workload, model: str, gpus: tuple[str, ...]) -> None:
    assert (command.engine, command.model, command.gpus) == (engine.name, model, gpus)
    assert command.workload["ctx"] == str(work.context_tokens)
    if work.kv_dtype != "auto":
        assert find_format(command.workload["kv_dtype"]).name == find_format(work.kv_dtype).name
    expected = {
        field.name: value
        for field in msgspec.structs.fields(engine)
        if field.name != "version" and (value := getattr(engine, field.name)) != field.default
    }
    if engine.name == "llama.cpp":
        expected["ctx_size"] = work.context_tokens * work.batch
        assert command.workload["batch"] == str(work.batch)
    if engine.name == "tensorrt-llm":
        expected["max_seq_len"] = work.context_tokens
    assert command.flags == expected
    assert not command.unknown


def test_what_no_flag_says_stands_in_a_comment():
    size = size_workload(load("deepseek-v3"), Workload(weights="int4", draft_layers=1), Sharding(tp=4, ep=2))
    text = emit_command(find_engine("vllm"), size, Plan(model="org/m"))
    assert "# the weights are planned in int4: name a checkpoint that is" in text
    assert "# --ep 2: vLLM spreads experts over all ranks of --tp and --dp, or none" in text
    command = read_command(text)
    assert command.workload == {"ctx": "8192", "tp": "4", "draft_layers": "1"}


def test_what_an_engine_cannot_take_is_refused():
    size = size_workload(load("llama-8b"), Workload(kv_dtype="q8_0"), Sharding())
    with pytest.raises(KvcalcError, match="vllm takes no --kv-dtype q8_0"):
        emit_command(find_engine("vllm"), size, Plan(model="org/m"))
    split = size_workload(load("llama-8b"), Workload(kv_dtype="k=fp8,v=bf16"), Sharding())
    with pytest.raises(KvcalcError, match="vllm has one KV format"):
        emit_command(find_engine("vllm"), split, Plan(model="org/m"))
    with pytest.raises(KvcalcError, match="no command line is known that runs transformers"):
        emit_command(find_engine("transformers"), size, Plan(model="org/m"))


def test_a_written_command_is_what_bash_would_run():
    size = size_workload(load("llama-8b"), Workload(kv_dtype="k=q8_0,v=q4_0", batch=4), Sharding())
    text = emit_command(find_engine("llama.cpp"), size, Plan(model='/m/it\'s a "model" $x.gguf', gpus=("1",)))
    shown = f'function llama-server() {{ printf "%s\\n" "$CUDA_VISIBLE_DEVICES" "$@"; }}\n{text}'
    out = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout.splitlines()
    expected = ["1", "-m", '/m/it\'s a "model" $x.gguf', "-c", "32768", "-np", "4", "-ctk", "q8_0", "-ctv", "q4_0"]
    assert out == expected


def test_flags_yaml_is_plain_data():
    text = (Path(__file__).parents[2] / "kvcalc/engines/commands/flags.yaml").read_text()
    tables = yaml.safe_load(text)
    assert set(tables) == set(TABLES)
    assert json.dumps(tables)
    for name, shapes in load_shapes().items():
        assert shapes.source, name
        assert not shapes.values & shapes.switches, name


def test_only_the_beginning_of_one_name_is_a_name():
    """argparse: `--max-num-b` can be one flag alone, `--max-num` several."""
    assert read_command("vllm serve m --max-num-batched 2048").flags == {"max_num_batched_tokens": 2048}
    assert read_command("vllm serve m --max-num 2048").unknown[0].startswith("--max-num 2048")


def test_variables_hold_where_a_shell_has_them():
    assert "X is not set" in refused("X=org/m sleep 1; vllm serve $X").message
    host = read_command("CUDA_VISIBLE_DEVICES=1 docker run --gpus 2 vllm/vllm-openai --model m")
    assert (host.gpus, host.gpu_count) == ((), 2)
    inside = read_command("docker run --gpus all -e CUDA_VISIBLE_DEVICES=1 vllm/vllm-openai --model m")
    assert (inside.gpus, inside.gpu_count) == (("1",), 1)


def test_devices_are_quoted_too():
    size = size_workload(load("llama-8b"), Workload(), Sharding())
    text = emit_command(find_engine("vllm"), size, Plan(model="m", gpus=("$(x) y",)))
    assert text.startswith("CUDA_VISIBLE_DEVICES='$(x) y' vllm serve m")
