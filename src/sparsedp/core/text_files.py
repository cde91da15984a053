"""Text and JSON files that may be anyone's, or damaged: read whole, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return parse_json(read_text(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """The fields of a JSON file that holds an object."""
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, not a {type(fields).__name__}")
    return fields


def parse_json(text: str, where: str) -> Any:
    """What a JSON text says; ``where`` it stands, for the message. Texts that no file can hold are refused."""
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error})") from None
    return value
