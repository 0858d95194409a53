"""The JSON Schema of a plan file, for editors: made from the settings and the limits that there are."""

from typing import Any

from kvcalc.plan.limits import LIMITS
from kvcalc.plan.settings import Setting, Takes, Vocabulary

_WORD: dict[str, Any] = {"type": ["string", "number"]}
_TYPES: dict[Takes, dict[str, Any]] = {
    "switch": {"type": "boolean"},
    "whole": {"type": ["integer", "string"]},
    "number": {"type": ["number", "string"]},
    "text": _WORD,
    "file": {"type": "string"},
    "list": {"type": ["array", "string"], "items": {"type": "string"}},
}
_LIMITS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "tokens": {"type": ["integer", "string"]},
    "number": {"type": ["number", "string"]},
}


def plan_schema(vocabulary: Vocabulary) -> dict[str, Any]:
    """The whole schema; every spelling of a setting is a key, hyphens for underscores too."""
    settings = {key: _setting(one) for one in vocabulary.settings.values() for key in _keys(one)}
    axes = {key: _axis(one) for one in vocabulary.settings.values() if one.takes != "list" for key in _keys(one)}
    shared = {"matrix": {"$ref": "#/$defs/matrix"}}
    case = {"name": {"type": "string", "minLength": 1}, "limits": {"$ref": "#/$defs/limits"}, **shared, **settings}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvcalc.yaml",
        **_object(
            {
                "defaults": {**_nullable(_object({**shared, **settings})), "description": "Settings of every case."},
                "limits": {"$ref": "#/$defs/limits"},
                "cases": {"type": "array", "minItems": 1, "items": {**_object(case), "required": ["name"]}},
            }
        ),
        "required": ["cases"],
        "$defs": {
            "limits": _nullable(_object({name: _limit(name) for name in LIMITS})),
            "matrix": _nullable(_object(axes)),
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _nullable(kind: dict[str, Any]) -> dict[str, Any]:
    """The same, or nothing: null takes a default away."""
    types = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    return {**kind, "type": [*types, "null"]}


def _keys(setting: Setting) -> list[str]:
    return list(dict.fromkeys(key for one in setting.spellings for key in (one, one.replace("_", "-"))))


def _setting(setting: Setting) -> dict[str, Any]:
    return {**_nullable(_TYPES[setting.takes]), "description": setting.help}


def _axis(setting: Setting) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": _TYPES[setting.takes]}


def _limit(name: str) -> dict[str, Any]:
    limit = LIMITS[name]
    return {**_nullable(_LIMITS[limit.takes]), "description": limit.help, "examples": [limit.example]}
