"""Files that run an engine: shell scripts, docker-compose, Kubernetes, Dockerfiles, and Ollama's Modelfile.

Formats after their references: the Compose Specification (services: command, entrypoint, environment, deploy),
Kubernetes (core/v1 Container: command, args, env, resources), the Dockerfile reference (CMD, ENTRYPOINT, ENV), and
docs/modelfile of Ollama (FROM, PARAMETER).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvcalc.engines.commands.arguments import Given
from kvcalc.engines.commands.command import Devices, Invocation
from kvcalc.engines.commands.data import read_yaml
from kvcalc.engines.commands.launch import Setting, image_runs, shell_runs
from kvcalc.engines.commands.shell import read_shell
from kvcalc.engines.commands.words import Allowance, Word
from kvcalc.errors import KvcalcError
from kvcalc.model.files import read_bounded

MOST_BYTES = 2**20
_WHAT = "file with a command"


def read_text_file(path: Path) -> str:
    """The text of a file of at most a MiB; KvcalcError for a folder, a binary file, and what is larger."""
    hint = "name a script, a docker-compose file, a manifest, a Dockerfile or a Modelfile"
    raw = read_bounded(path, MOST_BYTES, _WHAT, hint, hint)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KvcalcError(f"{path}: this is a binary file, not text", hint) from error
    if "\0" in text:
        raise KvcalcError(f"{path}: this is a binary file, not text", hint)
    return text


def invocations_in_file(path: Path) -> list[Invocation]:
    """Every run of an engine in a file, by what kind of file it is."""
    text = read_text_file(path)
    folder, name = path.parent, path.name.casefold()
    if name.endswith((".yaml", ".yml")):
        found = [_runs_in(document, folder) for document in read_yaml(text, str(path))]
        return [one for several in found for one in several]
    if "modelfile" in name or _is_modelfile(text):
        return _modelfile(text, path.stem)
    if "dockerfile" in name or "containerfile" in name:
        return _dockerfile(text, folder)
    return shell_runs(text, Setting(folder=folder, allowance=Allowance()))


def _runs_in(document: Any, folder: Path) -> Iterator[Invocation]:
    """The services of a compose file, or the containers anywhere in a manifest."""
    services = document.get("services") if isinstance(document, dict) else None
    if isinstance(services, dict):
        for name, service in services.items():
            if isinstance(service, dict):
                yield from _service(name, service, folder)
        return
    for container in _containers(document):
        yield from _container(container, folder)


def _service(name: str, service: Mapping[str, Any], folder: Path) -> Iterator[Invocation]:
    env = {key: _interpolated(value) for key, value in _pairs(service.get("environment")).items()}
    devices = Devices()
    reserved = _at(service, "deploy", "resources", "reservations", "devices") or _listed(service.get("gpus"))
    for device in reserved if isinstance(reserved, list) else ():
        devices = _compose_devices(device)
    setting = Setting(env=env, devices=devices, where=name, folder=folder, allowance=Allowance())
    entrypoint = _compose_words(service.get("entrypoint"))
    arguments = _compose_words(service.get("command")) or []
    image = _interpolated(str(service.get("image", "")))
    if image.problem:
        raise KvcalcError(f"image of {name}: {image.problem}", "write it into the file")
    yield from image_runs(image.text, entrypoint, arguments, setting)


def _listed(value: Any) -> Any:
    """Compose's `gpus: all`, or the list of devices that it may be."""
    return [{"count": value}] if isinstance(value, str) else value


def _compose_devices(device: Any) -> Devices:
    if not isinstance(device, dict):
        return Devices()
    ids = device.get("device_ids")
    if isinstance(ids, list):
        return Devices(tuple(map(str, ids)), len(ids))
    count = str(device.get("count", "all"))
    return Devices(count=int(count)) if count.isdecimal() else Devices()


def _compose_words(value: Any) -> list[Word] | None:
    """A command as compose takes it: a list of words, or a line that is split as a shell would."""
    if value is None or value == "":
        return None
    if isinstance(value, list):
        return [_interpolated(str(one)) for one in value]
    # Compose joins the lines of a command; the shell's end of line means nothing to it.
    text = re.sub(r"(?<!\\)\n", " ", str(value).strip())
    return [word for command in read_shell(_escaped(text)) for word in command.words]


def _escaped(text: str) -> str:
    """`$$` is a dollar that compose hands on to a shell in the container."""
    return text.replace("$$", "\\$")


def _interpolated(text: str) -> Word:
    """Compose's `${VAR:-default}`, without splitting into words."""
    quoted = _escaped(text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`"))
    commands = read_shell(f'x "{quoted}"')
    return commands[0].words[1] if commands else Word("")


def _pairs(value: Any) -> dict[str, str]:
    """An environment: a mapping, or a list of NAME=VALUE."""
    if isinstance(value, dict):
        return {str(key): str(one) for key, one in value.items() if not isinstance(one, dict | list)}
    listed = value if isinstance(value, list) else []
    return {key: text for key, equals, text in (str(one).partition("=") for one in listed) if equals}


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a manifest that has arguments or an image of its own."""
    if isinstance(value, list):
        for one in value:
            yield from _containers(one)
    elif isinstance(value, dict):
        if isinstance(value.get("args"), list) or isinstance(value.get("command"), list):
            yield value
        for one in value.values():
            yield from _containers(one)


def _container(container: Mapping[str, Any], folder: Path) -> Iterator[Invocation]:
    env = {}
    for one in container.get("env") or ():
        if isinstance(one, dict) and "name" in one:
            known = isinstance(one.get("value"), str)
            name = str(one["name"])
            env[name] = Word(one["value"]) if known else Word("", f"{name} comes from elsewhere in the cluster")
    limits = _at(container, "resources", "limits") or _at(container, "resources", "requests") or {}
    counts = [str(count) for name, count in limits.items() if str(name).endswith("/gpu")]
    devices = Devices(count=int(counts[0])) if counts and counts[0].isdecimal() else Devices()
    setting = Setting(env=env, devices=devices, where=str(container.get("name", "")), folder=folder)
    command, arguments = (
        [_substituted(str(one), env) for one in value] if isinstance(value := container.get(key), list) else []
        for key in ("command", "args")
    )
    yield from image_runs(str(container.get("image", "")), command or None, arguments, setting)


def _substituted(text: str, env: Mapping[str, Word]) -> Word:
    """Kubernetes' `$(NAME)`, which is a variable of the container and runs nothing."""
    problems = []

    def value(match: re.Match[str]) -> str:
        word = env.get(match[1])
        if word is None:
            return match[0]
        problems.append(word.problem)
        return word.text

    done = re.sub(r"\$\((\w+)\)", value, text)
    return Word(done, next(filter(None, problems), ""))


def _dockerfile(text: str, folder: Path) -> list[Invocation]:
    """The last stage's ENTRYPOINT and CMD, which its image may complete."""
    lines = re.sub(r"(?m)^\s*#.*\n", "", text.replace("\r\n", "\n"))
    image, env = "", dict[str, Word]()
    last: dict[str, list[Word]] = {}
    for line in re.sub(r"\\\s*\n", " ", lines).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        match instruction.upper():
            case "FROM":
                image, env, last = _from(rest), {}, {}
            case "ENV" | "ARG":
                env |= _docker_env(rest)
            case "ENTRYPOINT" | "CMD" as name:
                last[name] = _docker_words(rest)
    setting = Setting(env=env, where="Dockerfile", folder=folder)
    return image_runs(image, last.get("ENTRYPOINT"), last.get("CMD", []), setting)


def _from(rest: str) -> str:
    return next((word for word in rest.split() if not word.startswith("--")), "")


def _docker_env(rest: str) -> dict[str, Word]:
    if "=" not in rest.split(" ", maxsplit=1)[0]:
        name, _, value = rest.partition(" ")
        return {name: Word(value.strip())} if value else {}
    commands = read_shell(f"export {rest}\n:")
    return commands[0].env if commands else {}


def _docker_words(rest: str) -> list[Word]:
    """The exec form, a JSON list, or the shell form, which a shell runs."""
    if rest.lstrip().startswith("["):
        listed = read_yaml(rest, "Dockerfile")[0]
        return [Word(str(one)) for one in listed]
    return [Word("sh"), Word("-c"), Word(rest)]


def _is_modelfile(text: str) -> bool:
    return bool(re.search(r"(?im)^\s*FROM\s", text) and re.search(r"(?im)^\s*PARAMETER\s", text))


def _modelfile(text: str, name: str) -> list[Invocation]:
    """FROM is the model, PARAMETER its defaults; texts in three quotes are left out."""
    plain = re.sub(r'"""[\s\S]*?(?:"""|$)', "", text)
    sources = re.findall(r"(?im)^\s*FROM\s+(\S.*?)\s*$", plain)
    extra = tuple(
        Given(key.lower(), f"PARAMETER {key}", (Word(value.strip("\"'")),))
        for key, value in re.findall(r"(?im)^\s*PARAMETER\s+(\w+)\s+(\S.*?)\s*$", plain)
    )
    words = tuple(map(Word, sources[-1:]))
    return [Invocation(engine="ollama", program="a Modelfile", arguments=words, extra=extra, where=name)]
