"""Schema text: what a body, or a part of it, has to be, in words."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import PydanticJsonSchemaWarning

from orchestrix.api.patterns import ASCII, NAME, UNTOLD

Node = Mapping[str, Any]
ANYTHING: Final = "a value"

_ADDRESS: Final = "executor-address"
_GROUP: Final = "executor-group"
_FORMATS: Final = {
    "date-time": "a time with its zone such as 2026-01-31T12:00:00Z",
    "date": "a date such as 2026-01-31",
    "time": "a time of day such as 12:00:00",
    "duration": "a length of time such as PT30S",
    "uuid": "a UUID such as 0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "email": "an address such as ada@example.org",
    "uri": "a URL such as https://example.org",
    _ADDRESS: "http://host:port or https://host:port",
    _GROUP: "the name of an executor group, a text of 1 to 200 code points",
}


@dataclass(frozen=True, slots=True)
class Form:
    """What may stand at one place of a body: one of `nodes`, which are JSON schemas whose references lie in `top`."""

    top: Node
    nodes: tuple[Node, ...]

    @property
    def known(self) -> list[str]:
        """The names of the fields that an object may have there."""
        return list(dict.fromkeys(name for node in self.nodes for name in node.get("properties", ())))

    @property
    def kind(self) -> str:
        """What is expected there, with its bounds. `ANYTHING` where that is not known."""
        words = list(dict.fromkeys(word for node in self.nodes if (word := _word(node))))
        return " or ".join([word for word in words if word != "null"] or words) or ANYTHING

    def part(self, name: str | int) -> Form:
        """What may stand below it, in the field or at the place of that name."""
        below = [found for node in self.nodes if isinstance(found := _below(node, name), Mapping)]
        return Form(self.top, tuple(flat for node in below for flat in _flat(node, self.top)))


@cache
def form_of(model: type[BaseModel] | None) -> Form:
    """What `model` takes; nothing is known without one, and of one that no JSON schema describes."""
    top = _schema(model) if model is not None else {}
    return Form(top, tuple(_flat(top, top)))


def _schema(model: type[BaseModel]) -> Node:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # about defaults, which are not used here
        try:
            return model.model_json_schema()
        except Exception:  # an author's model may describe itself, and fail in any way
            return {}


def _flat(node: Node, top: Node) -> Iterator[Node]:
    """All that `node` may be, one after the other."""
    if "$ref" in node:
        yield from _flat(top["$defs"][str(node["$ref"]).rpartition("/")[2]], top)
        return
    branches = [branch for word in ("anyOf", "oneOf", "allOf") for branch in node.get(word, ())]
    if not branches or "properties" in node:  # what is beside the fields says how they fit together
        yield node
        return
    for branch in branches:
        yield from _flat(branch, top)


def _below(node: Node, name: str | int) -> object:
    if isinstance(name, str):
        return node.get("properties", {}).get(name, node.get("additionalProperties"))
    first = node.get("prefixItems", ())
    return first[name] if name < len(first) else node.get("items")


def _word(node: Node) -> str | None:
    if "const" in node:
        return json.dumps(node["const"])
    if "enum" in node:
        return f"one of {', '.join(one if isinstance(one, str) else json.dumps(one) for one in node['enum'])}"
    describe = _KINDS.get(str(node.get("type")))
    return describe(node) if describe is not None else None


def _text(node: Node) -> str:
    if "format" in node:
        return _FORMATS.get(node["format"], f"a text of the form {node['format']}")
    ascii = node.get("pattern") == ASCII
    size = _size(node.get("minLength"), node.get("maxLength"), "visible ASCII character" if ascii else "code point")
    return size.removeprefix(" of ") if size and ascii else f"a text{size}{_fitting(node)}"


def _fitting(node: Node) -> str:
    return f" that fits {node['pattern']}" if node.get("pattern", NAME) not in UNTOLD else ""


def _array(node: Node) -> str:
    item = node.get("items", {})
    unit = "address" if isinstance(item, Mapping) and item.get("format") == _ADDRESS else "item"
    return f"an array{_size(node.get('minItems'), node.get('maxItems'), unit)}"


def _size(low: int | None, high: int | None, unit: str) -> str:
    match low, high:
        case None, None:
            return ""
        case _, None:
            return f" of at least {_many(low, unit)}"
        case None, _:
            return f" of at most {_many(high, unit)}"
        case _:
            return f" of {_many(high, unit)}" if low == high else f" of {low} to {_many(high, unit)}"


def _many(count: int | None, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}{'es' if unit.endswith('s') else 's'}"


def _integer(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if "exclusiveMinimum" in node:
        low = node["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in node:
        high = node["exclusiveMaximum"] - 1
    return f"a whole number{_bounds({'minimum': low, 'maximum': high})}{_multiple(node)}"


def _number(node: Node) -> str:
    return f"a number{_bounds(node)}{_multiple(node)}"


def _bounds(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {_plain(low)} to {_plain(high)}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    texts = " and ".join(f"{word} {_plain(node[name])}" for name, word in words.items() if node.get(name) is not None)
    return f", {texts}" if texts else ""


def _plain(number: float) -> float:
    """The number, without a fraction that is 0."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _multiple(node: Node) -> str:
    return f", a multiple of {node['multipleOf']}" if "multipleOf" in node else ""


_KINDS: Final[Mapping[str, Callable[[Node], str]]] = {
    "string": _text,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "boolean": lambda _node: "true or false",
    "object": lambda _node: "an object",
    "null": lambda _node: "null",
}
