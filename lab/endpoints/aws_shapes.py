"""Requests to services of AWS, understood and checked by the services' own models."""

import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.model import ListShape, MapShape, Shape, StructureShape

_LABEL = re.compile(r"{(\w+)(\+?)}")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "list": (list,),
    "map": (dict,),
    "structure": (dict,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
    "blob": (bytes, str),
}
"""Types of values in JSON, by the kinds of shapes."""
_NUMBERS = ("integer", "long", "float", "double")
_SIZED = ("string", "list", "map", "blob")
_NOT_BLANK = r"[^\s]+"
"""The pattern of texts that must not be blank, but may have spaces. All other patterns are those of whole texts."""


class Refused(Exception):
    """A request that the service refuses, with its exception's name and status."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    operation: str
    parameters: dict[str, Any]


class RestJsonModel:
    """A service of AWS as its model in botocore describes it."""

    def __init__(self, service: str) -> None:
        self._model = botocore.session.get_session().get_service_model(service)
        self._routes = []
        for name in self._model.operation_names:
            http = self._model.operation_model(name).http
            path = http["requestUri"].partition("?")[0].rstrip("/")
            self._routes.append((http["method"], _pattern(path), name))
        # a path without labels is meant before one whose label would match it as well
        self._routes.sort(key=lambda route: route[1].pattern.count("(?P<"))

    def understand(self, method: str, target: str, body: bytes, headers: Mapping[str, str] | None = None) -> Request:
        """Return the operation and the parameters of a request; Refused if the model does not allow it."""
        path, _, query = target.partition("?")
        for its_method, pattern, name in self._routes:
            match = pattern.fullmatch(path.rstrip("/")) if its_method == method else None
            if match is not None:
                labels = {label: urllib.parse.unquote(value) for label, value in match.groupdict().items()}
                pairs = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
                return Request(name, self._parameters(name, labels, pairs, headers or {}, body))
        raise Refused("UnknownOperationException", 404, f"{method} {path} is no request to {self._model.service_name}")

    def _parameters(
        self,
        operation: str,
        labels: Mapping[str, str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> dict[str, Any]:
        shape = self._model.operation_model(operation).input_shape
        if shape is None:
            return {}
        assert isinstance(shape, StructureShape)
        sources = {
            "uri": labels,
            "querystring": query,
            "header": {key.lower(): value for key, value in headers.items()},
        }
        payload = shape.serialization.get("payload")
        content = {} if payload else _decoded(body)
        found: dict[str, Any] = {payload: body} if payload else {}
        for name, member in shape.members.items():
            location = member.serialization.get("location")
            wire_name = member.serialization.get("name", name)
            if location in sources:
                key = wire_name.lower() if location == "header" else wire_name
                if key in sources[location]:
                    found[name] = _converted(member, sources[location][key])
            elif wire_name in content:
                found[name] = content.pop(wire_name)
        check(shape, found, operation)
        if content:
            raise Refused("ValidationException", 400, f"{operation} has no {', '.join(sorted(content))}")
        return found

    def check_answer(self, operation: str, answer: Mapping[str, Any]) -> None:
        """Check an answer of the laboratory, so that no client gets one that the service could not give."""
        shape = self._model.operation_model(operation).output_shape
        if shape is None:
            assert not answer, f"{operation} answers nothing"
            return
        problems = problems_of(shape, answer)
        assert not problems, f"{operation} answers {answer}: {'; '.join(problems)}"


def check(shape: Shape | None, value: Any, operation: str) -> None:
    """Refuse a request that is not as its shape says."""
    problems = [] if shape is None else problems_of(shape, value)
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected"
        raise Refused("ValidationException", 400, f"{operation}: {count}: {'; '.join(problems)}")


def problems_of(shape: Shape, value: Any, path: str = "") -> list[str]:
    """Return what is wrong with a value, as the services say it."""
    has_type = isinstance(value, _TYPES[shape.type_name]) and isinstance(value, bool) <= (shape.type_name == "boolean")
    if not has_type:
        return [f"Value at '{path}' is a {type(value).__name__}, and must be a {shape.type_name}"]
    found = [f"Value '{value}' at '{path}' failed to satisfy constraint: {rule}" for rule in _broken(shape, value)]
    if isinstance(shape, StructureShape):
        for name in shape.required_members:
            if name not in value:
                found.append(
                    f"Value null at '{_below(path, name)}' failed to satisfy constraint: Member must not be null"
                )
        for name, member in value.items():
            if name not in shape.members:
                found.append(f"Value at '{_below(path, name)}' is unknown")
            else:
                found += problems_of(shape.members[name], member, _below(path, name))
    elif isinstance(shape, MapShape):
        for key, member in value.items():
            found += problems_of(shape.key, key, f"{path}.key")
            found += problems_of(shape.value, member, f"{path}.{key}")
    elif isinstance(shape, ListShape):
        for number, member in enumerate(value, start=1):
            found += problems_of(shape.member, member, f"{path}.{number}")
    return found


def _broken(shape: Shape, value: Any) -> list[str]:
    """Return the rules about size, pattern and choice that a value breaks."""
    rules: Mapping[str, Any] = shape.metadata
    is_number = shape.type_name in _NUMBERS
    size = value if is_number else len(value) if shape.type_name in _SIZED else None
    what = "value" if is_number else "length"
    broken = []
    if size is not None and "min" in rules and size < rules["min"]:
        broken.append(f"Member must have {what} greater than or equal to {rules['min']}")
    if size is not None and "max" in rules and size > rules["max"]:
        broken.append(f"Member must have {what} less than or equal to {rules['max']}")
    if "enum" in rules and value not in rules["enum"]:
        broken.append(f"Member must satisfy enum value set: {rules['enum']}")
    matches = re.search if rules.get("pattern") == _NOT_BLANK else re.fullmatch
    if "pattern" in rules and matches(_own(rules["pattern"]), value) is None:
        broken.append(f"Member must satisfy regular expression pattern: {rules['pattern']}")
    return broken


def _own(pattern: str) -> str:
    """Write classes of Java's regular expressions as those of Python."""
    return pattern.replace(r"\p{L}\p{Z}\p{N}_", r"\w\s").replace(r"\p{L}", r"\w").replace(r"\p{N}", r"\d")


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path with labels such as `/functions/{FunctionName}`."""
    parts = []
    last = 0
    for match in _LABEL.finditer(path):
        parts += [re.escape(path[last : match.start()]), f"(?P<{match[1]}>{'.+' if match[2] else '[^/]+'})"]
        last = match.end()
    return re.compile("".join((*parts, re.escape(path[last:]))))


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body or b"{}")
    except ValueError as error:
        raise Refused("SerializationException", 400, f"the body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused("SerializationException", 400, "the body must be an object")
    return content


def _converted(shape: Shape, text: str) -> Any:
    """Return a value that has travelled as text."""
    try:
        if shape.type_name in ("integer", "long"):
            return int(text)
        if shape.type_name in ("float", "double"):
            return float(text)
    except ValueError as error:
        raise Refused("SerializationException", 400, f"{text!r} is no {shape.type_name}") from error
    return text == "true" if shape.type_name == "boolean" else text


def _below(path: str, name: str) -> str:
    own = name[0].lower() + name[1:]
    return f"{path}.{own}" if path else own
