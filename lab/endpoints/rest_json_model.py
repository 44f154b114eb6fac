"""Requests to a service of AWS that speaks REST with JSON, understood and checked by the service's own model."""

import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

import botocore.session

_LABEL = re.compile(r"{(\w+)(\+?)}")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "list": (list,),
    "map": (dict,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
}
"""Types of values in JSON, by the kinds of shapes."""
_SIZED = ("string", "list", "map")


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
            operation = self._model.operation_model(name)
            path = operation.http["requestUri"].partition("?")[0]
            pattern = _LABEL.sub(lambda label: f"(?P<{label[1]}>{'.+' if label[2] else '[^/]+'})", path)
            self._routes.append((operation.http["method"], re.compile(pattern), operation))

    def understand(self, method: str, target: str, body: bytes) -> Request:
        """Return what a request asks for; raises Refused if the model does not allow it."""
        path, _, query = target.partition("?")
        for route_method, pattern, operation in self._routes:
            match = pattern.fullmatch(path)
            if match is not None and method == route_method:
                labels = {name: urllib.parse.unquote(value) for name, value in match.groupdict().items()}
                given = self._parameters(operation.input_shape, labels, query, body)
                wrong = problems(operation.input_shape, given)
                if wrong:
                    raise Refused("ValidationException", 400, "; ".join(wrong))
                return Request(operation.name, given)
        raise Refused("UnknownOperationException", 404, f"{method} {path} is no operation of the service")

    def check_answer(self, operation: str, answer: dict[str, Any]) -> None:
        """Check that an answer is one that the service could give."""
        wrong = problems(self._model.operation_model(operation).output_shape, answer)
        assert not wrong, f"{operation} would never answer {answer}: {'; '.join(wrong)}"

    @staticmethod
    def _parameters(shape: Any, labels: dict[str, str], query: str, body: bytes) -> dict[str, Any]:
        if shape is None:
            return {}
        fields = dict(urllib.parse.parse_qsl(query))
        try:
            content = json.loads(body) if body else {}
        except ValueError as error:
            raise Refused("ValidationException", 400, f"the body is not JSON: {error}") from error
        known_in_body = [name for name, member in shape.members.items() if not member.serialization.get("location")]
        given = {name: value for name, value in content.items() if name in known_in_body}
        for name, member in shape.members.items():
            at = member.serialization.get("name", name)
            source = {"uri": labels, "querystring": fields}.get(member.serialization.get("location", ""), {})
            if at in source:
                given[name] = int(source[at]) if member.type_name == "integer" else source[at]
        unknown = content.keys() - set(known_in_body)
        if unknown:
            raise Refused("ValidationException", 400, f"{', '.join(sorted(unknown))} are no members of the request")
        return given


def problems(shape: Any, value: Any, at: str = "") -> list[str]:
    """List what is wrong with a value, by its shape: types, what is required, enumerations, patterns and sizes."""
    if shape is None:
        return []
    kind = shape.type_name
    if kind == "structure":
        return _structure_problems(shape, value, at)
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return [f"{at} must be a {kind}"]
    found = _size_problems(shape, value, at)
    if kind == "list":
        return found + [text for each in value for text in problems(shape.member, each, f"{at}[]")]
    if kind == "map":
        return found + [text for each in value.values() for text in problems(shape.value, each, f"{at}{{}}")]
    if kind == "string":
        pattern = shape.metadata.get("pattern")
        if shape.enum and value not in shape.enum:
            found.append(f"{at} must be one of {', '.join(shape.enum)}")
        if pattern and "\\p{" not in pattern and re.search(pattern, value) is None:  # they are not anchored
            found.append(f"{at} must match {pattern}")
    return found


def _structure_problems(shape: Any, value: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at or 'the request'} must be an object"]
    missing = [f"{at}.{name}".lstrip(".") for name in shape.required_members if name not in value]
    found = [f"{', '.join(missing)} must be given"] if missing else []
    for name, each in value.items():
        path = f"{at}.{name}".lstrip(".")
        found += problems(shape.members[name], each, path) if name in shape.members else [f"{path} is not known"]
    return found


def _size_problems(shape: Any, value: Any, at: str) -> list[str]:
    measured = len(value) if shape.type_name in _SIZED else value
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if isinstance(measured, bool):
        return []
    found = [f"{at} is {measured}, and must be at least {least}"] if least is not None and measured < least else []
    return found + ([f"{at} is {measured}, and must be at most {most}"] if most is not None and measured > most else [])
