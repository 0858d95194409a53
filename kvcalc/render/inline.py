"""What a page carries inside of itself: the text of files beside this one, and data for its scripts."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


@cache
def file_text(name: str) -> str:
    """A style sheet or a script of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def script_json(value: Any) -> str:
    """JSON that can end no script element, start no comment and break no line of a script."""
    return msgspec.json.encode(value).decode().translate(_ESCAPES)


_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
