"""An invocation's arguments as an `EngineCommand`, by the table of its engine."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kvcalc.engines.commands.arguments import SWITCH_WORDS, Given, merged_json
from kvcalc.engines.commands.command import EngineCommand, Invocation
from kvcalc.engines.commands.config import config_words
from kvcalc.engines.commands.tables import table_of
from kvcalc.engines.engine import Engine, engine_classes
from kvcalc.errors import KvcalcError, shorten
from kvcalc.units import parse_shares, parse_tokens

ALL_LAYERS = 99
"""Layers on devices from which on a number means all of them: no model of those days has more."""

LLAMA_SERVER_SLOTS = 4
"""Slots of llama-server where -np says none; they share one stream then: tools/server/server.cpp."""


def read_invocation(found: Invocation) -> EngineCommand:
    """What it says; KvcalcError for a value that is not known, and for a command without a model."""
    return _Reading(found).command()


class _Reading:
    """One invocation while its flags are sorted."""

    def __init__(self, found: Invocation) -> None:
        self.found, self.table = found, table_of(found.engine)
        self.notes: list[str] = []
        config, notes = config_words(found)
        self.notes += notes
        read = [self.table.dialect.read(words) for words in (config, found.arguments)]
        self.unknown = [one for arguments in read for one in arguments.unknown]
        self.positionals = [one for arguments in read for one in arguments.positionals]
        self.given: dict[str, list[Given]] = {}
        for one in (*self._env(), *found.extra, *read[0].given, *read[1].given):
            self._file(one)
        self.workload: dict[str, str] = {}
        self.flags: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.unsupported: list[str] = []

    def command(self) -> EngineCommand:
        """The command, every flag of it in one place."""
        model = self._model()
        for name, several in self.given.items():
            self._sort(name, several)
        for rule in _RULES[self.found.engine]:
            rule(self)
        version = f"@{self.found.version}" if self.found.version else ""
        return EngineCommand(
            engine=self.table.engine + version,
            model=model,
            workload=self.workload,
            flags=self.flags,
            gpus=self.found.devices.names,
            gpu_count=self.found.devices.count,
            ignored=tuple(self.ignored),
            unsupported=tuple(self.unsupported),
            unknown=tuple(self.unknown),
            notes=tuple(self.notes),
        )

    def _env(self) -> Iterator[Given]:
        names = self.table.env or self.table.dialect.shapes.env
        for variable, word in self.found.env.items():
            if variable in names:
                yield Given(names[variable], variable, (word,))

    def _file(self, one: Given) -> None:
        """Put a flag under its first name; the last one counts, unless its keys add up."""
        name = self.table.aliases.get(one.name, one.name)
        if name.startswith("!"):
            name, one = name[1:], msgspec.structs.replace(one, is_off=True)
        several = self.given.setdefault(name, [])
        if not one.path:
            several.clear()
        several.append(one)

    def _model(self) -> str:
        named = [self.given.pop(name)[-1] for name in self.table.model if name in self.given]
        if self.positionals and self.table.takes_positional:
            word = self.positionals.pop(0)
            named.append(Given("model", "the model", (word,)))
        # What stands behind a model for Ollama is a prompt.
        rest = self.ignored if self.found.engine == "ollama" else self.unknown
        rest += [shorten(one.text) for one in self.positionals]
        if not named:
            raise KvcalcError(
                f"{self.found.program} is given no model{self.found.where and f' ({self.found.where})'}",
                "add it to the command, or name the model beside --from",
            )
        return named[-1].text()

    def _sort(self, name: str, several: list[Given]) -> None:
        """Into the workload, the engine's own flags, or a list that is said."""
        last = several[-1]
        if name in self.table.notes:
            self.notes.append(f"{last.shown}: {self.table.notes[name]}")
        own = self._own(name)
        if name in self.table.workload:
            field, read = self.table.workload[name]
            text = read(last)
            if text is not None:
                self.workload[field] = text
            elif own is None:
                (self.unsupported if name in self.table.memory else self.ignored).append(last.said)
        if name in _HANDLED[self.found.engine]:
            return
        if own is not None and self.engine is not None:
            self.flags[own] = _value(last, self.engine, own)
        elif name in self.table.workload:
            return
        else:
            listed = self.unsupported if name in self.table.memory else self.ignored
            listed += [one.said for one in several]

    @property
    def engine(self) -> type[Engine] | None:
        """The engine's class, None where there is none yet."""
        return engine_classes().get(self.table.engine)

    def _own(self, name: str) -> str | None:
        """The field of the engine's class that a flag fills."""
        candidates = self.table.fields.get(name, (name.replace("-", "_"),))
        fields = self.engine.flags() if self.engine else ()
        return next((one for one in candidates if one in fields), None)

    def last(self, name: str) -> Given | None:
        """The flag that counts, None where it was not given."""
        return self.given[name][-1] if name in self.given else None

    def number(self, name: str, default: int) -> int:
        """A count that a flag gives."""
        one = self.last(name)
        return int(self.workload_text(one)) if one else default

    @staticmethod
    def workload_text(one: Given) -> str:
        """A count in digits."""
        return str(parse_tokens(one.text(), one.shown, "number"))


def _value(given: Given, engine: type[Engine], field: str) -> Any:
    """The value of an engine's own field, in the type that it has there."""
    kind = next(one.type for one in msgspec.structs.fields(engine) if one.name == field)
    if not given.values:
        return not given.is_off
    text = given.text()
    if kind is bool and text.casefold() in SWITCH_WORDS:
        return SWITCH_WORDS[text.casefold()] is not given.is_off
    try:
        value = msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        if "int" not in str(error):
            raise KvcalcError(f"{given.shown} {shorten(text)!r} is not understood", f"{error}") from error
        return parse_tokens(text, given.shown, "number")
    if isinstance(value, float) and not math.isfinite(value):
        raise KvcalcError(f"{given.shown} {shorten(text)!r} is no number", "write 0.9")
    return value


def _vllm_experts(reading: _Reading) -> None:
    """Experts are spread over all ranks of tensor and data parallelism: ParallelConfig of vLLM 0.33."""
    one = reading.last("enable-expert-parallel")
    if one is None:
        return
    ranks = reading.number("tensor-parallel-size", 1) * reading.number("data-parallel-size", 1)
    if not one.is_off:
        reading.workload["ep"] = str(ranks)


def _vllm_speculation(reading: _Reading) -> None:
    """`--speculative-config` and its parts: tokens of a draft, and the model's own draft layers."""
    config = merged_json(reading.given.get("speculative-config", []))
    short = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
    config |= {key: one.text() for name, key in short.items() if (one := reading.last(name))}
    if not config:
        return
    _draft(reading, str(config.get("method", "")), config.get("model"), "--speculative-config")
    _speculative_tokens(reading, config.get("num_speculative_tokens"))


def _speculative_tokens(reading: _Reading, tokens: Any) -> None:
    fields = reading.engine.flags() if reading.engine else ()
    if tokens is None:
        return
    if "num_speculative_tokens" in fields:
        reading.flags["num_speculative_tokens"] = parse_tokens(str(tokens), "num_speculative_tokens", "number")
    else:
        reading.unsupported.append(f"num_speculative_tokens {shorten(str(tokens))}")


def _draft(reading: _Reading, method: str, model: Any, flag: str) -> None:
    """Draft layers of the model itself count; another model does not, and ngrams take no memory."""
    if model:
        reading.unsupported.append(f"{flag}: the draft model {shorten(str(model))}")
    elif method.casefold().endswith(("mtp", "nextn", "eagle")):
        reading.workload["draft_layers"] = "1"
        reading.notes.append(f"{flag}: one draft layer of the model's own is counted")


def _sglang_speculation(reading: _Reading) -> None:
    """EAGLE and NEXTN without a draft model run the model's own draft layer: server_args.py."""
    algorithm, model = reading.last("speculative-algorithm"), reading.last("speculative-draft-model-path")
    if algorithm is not None:
        _draft(reading, algorithm.text(), model.text() if model else None, "--speculative-algorithm")


def _llama_slots(reading: _Reading) -> None:
    """`-c` is the total over `-np` slots; `-c 0` is the model's own context."""
    total = reading.last("ctx-size")
    asked = reading.last("parallel")
    slots = int(asked.text()) if asked and asked.text().isdecimal() else 0
    if not slots:
        is_server = reading.found.program.startswith("llama-server")
        slots = LLAMA_SERVER_SLOTS if is_server else 1
        if is_server:
            reading.flags.setdefault("kv_unified", True)
            reading.notes.append(f"llama-server has {slots} slots that share one stream where -np gives no number")
    reading.workload["batch"] = str(slots)
    text = total.text() if total else "0"
    if text == "0":
        return
    tokens = parse_tokens(text, "-c")
    if tokens < slots:
        raise KvcalcError(
            f"-c {tokens:,} is less than a token for each of {slots:,} slots", "-c is the total: raise it"
        )
    reading.flags["ctx_size"] = tokens
    reading.workload["ctx"] = str(tokens // slots)


def _llama_types(reading: _Reading) -> None:
    """`-ctk` and `-ctv` as one --kv-dtype, f16 where one of them is not given."""
    k, v = (reading.last(name) for name in ("cache-type-k", "cache-type-v"))
    if k is None and v is None:
        return
    type_k, type_v = (one.text() if one else "f16" for one in (k, v))
    reading.workload["kv_dtype"] = type_k if type_k == type_v else f"k={type_k},v={type_v}"


def _llama_layers(reading: _Reading) -> None:
    """Layers on devices, and their shares; 99 layers and the like are all of them."""
    shares, layers = reading.last("tensor-split"), reading.last("n-gpu-layers")
    if shares:
        reading.flags["tensor_split"] = parse_shares(shares.text(), shares.shown)
    if layers is None:
        return
    text = layers.text()
    if text in ("auto", "all", "-1") or (text.isdecimal() and int(text) >= ALL_LAYERS):
        reading.ignored.append(layers.said)
    else:
        reading.flags["n_gpu_layers"] = parse_tokens(text, layers.shown, "number") if text != "0" else 0


def _ollama_rules(reading: _Reading) -> None:
    """What Ollama chooses itself."""
    if "ctx" not in reading.workload:
        reading.notes.append("Ollama chooses the context by the memory there is: num_ctx or OLLAMA_CONTEXT_LENGTH")
    reading.workload.setdefault("batch", "1")
    reading.notes.append("counted by llama.cpp's rules: models that run in Ollama's own engine may differ")


_RULES: dict[str, tuple[Callable[[_Reading], None], ...]] = {
    "vllm": (_vllm_experts, _vllm_speculation),
    "sglang": (_sglang_speculation,),
    "llama.cpp": (_llama_slots, _llama_types, _llama_layers),
    "tensorrt-llm": (),
    "ollama": (_ollama_rules,),
}
"""What takes more than one flag to know."""

_HANDLED = {
    "vllm": {"enable-expert-parallel", "speculative-config", "spec-method", "spec-model", "spec-tokens", "config"},
    "sglang": {"speculative-algorithm", "speculative-draft-model-path"},
    "llama.cpp": {"ctx-size", "parallel", "cache-type-k", "cache-type-v", "tensor-split", "n-gpu-layers"},
    "tensorrt-llm": {"config"},
    "ollama": set[str](),
}
"""Flags that those rules read."""
