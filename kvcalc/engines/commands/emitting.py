"""A plan as the command that runs it, by the same tables as commands are read."""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kvcalc.cache.formats import AUTO, find_format
from kvcalc.engines.commands.arguments import SWITCH_WORDS
from kvcalc.engines.commands.tables import Table, table_of
from kvcalc.engines.engine import Engine
from kvcalc.engines.llama_cpp_types import DEFAULT_TYPE, TYPES
from kvcalc.errors import KvcalcError
from kvcalc.sizing.need import CacheSize

MOST_LETTERS = 100
"""Of a command on one line; a longer one has a line for each flag."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a command needs beside the size and the engine: the model as the engine finds it, and the devices."""

    model: str
    gpus: tuple[str, ...] = ()
    """Devices for CUDA_VISIBLE_DEVICES; without them the engine takes the first."""


def emit_command(engine: Engine, size: CacheSize, plan: Plan) -> str:
    """The command line that runs a plan, quoted for a shell; what no flag can say stands in comments above it.

    KvcalcError where the engine has no such command, or no flag for a format that was asked for.
    """
    emitter = _Emitter(engine, size)
    program = _PROGRAMS[emitter.table.engine](plan.model)
    env = [f"CUDA_VISIBLE_DEVICES={','.join(plan.gpus)}"] if plan.gpus else []
    flags = [*emitter.workload(), *emitter.own()]
    return "\n".join([*(f"# {one}" for one in emitter.unsaid), command_text([*env, *program], flags)])


def command_text(program: list[str], flags: list[tuple[str, ...]]) -> str:
    """Words quoted for a shell: one line, or one for each flag where that is too long."""
    parts = [shlex.join(program), *map(shlex.join, flags)]
    # An assignment is none once it is quoted whole.
    parts[0] = " ".join(_assignment(word) for word in program)
    line = " ".join(parts)
    return line if len(line) <= MOST_LETTERS else " \\\n  ".join(parts)


def _assignment(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if equals and name.isidentifier() else shlex.quote(word)


class _Emitter:
    """The flags of one engine for one size; `unsaid` is what they cannot say."""

    def __init__(self, engine: Engine, size: CacheSize) -> None:
        self.engine, self.size = engine, size
        self.table: Table = table_of(engine.name)
        self.unsaid: list[str] = []
        if engine.version != engine.versions[0]:
            self.unsaid.append(f"for {engine.name} {engine.version}")

    def workload(self) -> Iterator[tuple[str, ...]]:
        """The flags of the context, the formats and the ranks."""
        yield from self._slots() if self.engine.name == "llama.cpp" else self._context()
        yield from self._kv_format()
        yield from self._formats()
        sharding = self.size.sharding
        for field in ("tp", "pp", "dp", "dcp"):
            yield from self._flag(field, getattr(sharding, field), 1)
        if sharding.ep > 1:
            yield from self._experts(sharding.ep)
        if self.size.workload.draft_layers:
            yield from self._draft(self.size.workload.draft_layers)

    def own(self) -> Iterator[tuple[str, ...]]:
        """The engine's own flags where they differ from its defaults."""
        said = {"version", "ctx_size", "num_speculative_tokens", *self.table.workload}
        for field in msgspec.structs.fields(self.engine):
            value = getattr(self.engine, field.name)
            if field.name not in said and value != field.default and value is not None:
                yield from self._own_flag(field.name, value)

    def _flag(self, field: str, value: Any, default: Any = None) -> Iterator[tuple[str, ...]]:
        """A flag of the workload, a comment where the engine has none."""
        if value == default:
            return
        name = next((name for name, (one, _) in self.table.workload.items() if one == field), None)
        if name is None:
            self.unsaid.append(f"--{field} {value} has no flag of {self.engine.name}")
        else:
            yield f"--{name}", ",".join(f"{one:g}" for one in value) if isinstance(value, tuple) else str(value)

    def _context(self) -> Iterator[tuple[str, ...]]:
        yield from self._flag("ctx", self.size.workload.context_tokens)

    def _slots(self) -> Iterator[tuple[str, ...]]:
        """llama.cpp: the total over all slots, and the slots."""
        work = self.size.workload
        total = work.context_tokens * work.batch
        asked = getattr(self.engine, "ctx_size", None)
        yield "-c", str(asked if asked is not None and asked // work.batch == work.context_tokens else total)
        yield "-np", str(work.batch)

    def _kv_format(self) -> Iterator[tuple[str, ...]]:
        if self.size.workload.kv_dtype == AUTO:
            return
        asked = self.size.packer.request
        if self.engine.name == "llama.cpp" and set(asked.by_name) <= {"k", "v"}:
            for side in ("k", "v"):
                name = asked.by_name.get(side) or asked.everywhere or DEFAULT_TYPE
                yield f"-ct{side}", self._spelled(name, f"-ct{side}")
        elif asked.by_name:
            raise KvcalcError(
                f"{self.engine.name} has one KV format, not {self.size.workload.kv_dtype}", "give --kv-dtype one format"
            )
        elif asked.everywhere:
            yield from self._flag("kv_dtype", self._spelled(asked.everywhere, "--kv-dtype"))

    def _spelled(self, name: str, flag: str) -> str:
        """A KV format in the engine's words."""
        spellings = _KV_FORMATS[self.engine.name]
        if name not in spellings:
            raise KvcalcError(f"{self.engine.name} takes no {flag} {name}", f"it takes {', '.join(spellings)}")
        return spellings[name]

    def _formats(self) -> Iterator[tuple[str, ...]]:
        work = self.size.workload
        if work.dtype is not None:
            name = find_format(work.dtype, "--dtype").name
            yield from self._flag("dtype", _DTYPES.get(name, name))
        if work.weights is not None:
            yield from self._weights(self.size.weights_format)
        if work.state_dtype is not None:
            self.unsaid.append(f"recurrent states are planned in {work.state_dtype}")

    def _weights(self, name: str) -> Iterator[tuple[str, ...]]:
        """An engine brings weights to FP8 itself; other formats are a checkpoint's."""
        if name == "fp8" and "quantization" in self.table.workload:
            yield "--quantization", "fp8"
        else:
            self.unsaid.append(f"the weights are planned in {name}: name a checkpoint that is")

    def _experts(self, ranks: int) -> Iterator[tuple[str, ...]]:
        """vLLM spreads experts over all ranks of tensor and data parallelism, or none."""
        if self.engine.name != "vllm":
            yield from self._flag("ep", ranks, 1)
        elif ranks == self.size.sharding.tp * self.size.sharding.dp:
            yield ("--enable-expert-parallel",)
        else:
            self.unsaid.append(f"--ep {ranks}: vLLM spreads experts over all ranks of --tp and --dp, or none")

    def _draft(self, layers: int) -> Iterator[tuple[str, ...]]:
        """The model's own draft layer, where an engine has a flag for it."""
        if self.engine.name == "vllm":
            tokens = getattr(self.engine, "num_speculative_tokens", None) or 1
            yield "--speculative-config", f'{{"method": "mtp", "num_speculative_tokens": {tokens}}}'
        elif self.engine.name == "sglang":
            yield "--speculative-algorithm", "EAGLE"
        else:
            self.unsaid.append(f"{layers} draft layers are counted")

    def _own_flag(self, field: str, value: Any) -> Iterator[tuple[str, ...]]:
        names = [name for name, fields in self.table.fields.items() if field in fields]
        shapes = self.table.dialect.shapes
        spellings = [*names, field, field.replace("_", "-")]
        name = next((one for one in spellings if one in shapes.names), None)
        if name is None:
            self.unsaid.append(f"{field} = {value} has no flag of {self.engine.name}'s server")
        elif name in self.table.dialect.optional:
            yield f"--{name}", next(word for word, meaning in SWITCH_WORDS.items() if meaning is value)
        elif value is True:
            yield (f"--{name}",)
        elif value is False:
            yield (f"--no-{name}",)
        else:
            yield f"--{name}", ",".join(f"{one:g}" for one in value) if isinstance(value, tuple) else str(value)


def _vllm(model: str) -> list[str]:
    return ["vllm", "serve", model]


def _sglang(model: str) -> list[str]:
    return ["python", "-m", "sglang.launch_server", "--model-path", model]


def _llama_cpp(model: str) -> list[str]:
    return ["llama-server", "-m" if model.casefold().endswith(".gguf") else "-hf", model]


def _tensorrt_llm(model: str) -> list[str]:
    return ["trtllm-serve", model]


_PROGRAMS: dict[str, Callable[[str], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
    "tensorrt-llm": _tensorrt_llm,
}

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

_SAME_IN_VLLM = (
    "fp8 fp8_ds_mla nvfp4 nvfp4_ds_mla int4_per_token_head int8_per_token_head turboquant_k8v4 turboquant_4bit_nc "
    "turboquant_k3v4_nc turboquant_3bit_nc ultraquant_4bit"
)

_KV_FORMATS = {
    "vllm": {"bf16": "bfloat16", "fp16": "float16"} | {name: name for name in _SAME_IN_VLLM.split()},
    "sglang": {"bf16": "bfloat16", "fp8": "fp8_e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4"},
    "llama.cpp": TYPES,
    "tensorrt-llm": {"fp8": "fp8", "nvfp4": "nvfp4"},
}
"""What the engines take, by kvcalc's names: CacheDType of vLLM 0.33, fields/model.py of SGLang 0.5.23, and
trtllm-serve 1.3."""
