"""Requests to Azure and its answers, checked by the models in Azure's own packages.

The packages come from two generators. The older one lists in each class which fields travel under which names. Fields
of the newer one know their names, and have annotations.
"""

import datetime
import enum
import re
import types
import typing
from functools import cache
from typing import Any

from azure.mgmt.appcontainers import models as jobs
from azure.mgmt.appcontainers.models import _models as job_models
from azure.mgmt.containerinstance import models as groups

_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "iso-8601": (str,),
    "object": (object,),
}


def group_problems(name: str, value: Any, *, is_answer: bool = False, at: str = "") -> list[str]:
    """List what is wrong with a value that should be a model of container groups.

    Fields that only answers have are not accepted in a request, and what a request must have may lack in an answer.
    """
    if not isinstance(value, dict):
        return [f"{at or 'the body'} must be an object"]
    model: Any = getattr(groups, name)
    validation = model._validation if hasattr(model, "_validation") else {}
    fields = {each["key"]: (field, each["type"]) for field, each in model._attribute_map.items()}
    found, known = [], set()
    for key, (field, kind) in fields.items():
        known.add(key.partition(".")[0])
        is_given, given = _nested(value, key)
        rules = validation.get(field, {})
        where = f"{at}.{key}".lstrip(".")
        if is_given and given is not None:
            if rules.get("readonly") and not is_answer:
                found.append(f"{where} may not be set")
            found += _group_field_problems(kind, given, where, is_answer=is_answer)
        elif rules.get("required") and not is_answer:
            found.append(f"{where} must be given")
    inner = {key.split(".")[1] for key in fields if "." in key}
    properties = value.get("properties", {}) if inner else {}
    unknown = [*value.keys() - known, *(f"properties.{key}" for key in properties.keys() - inner)]
    return found + [f"{at}.{key} is not known".lstrip(".") for key in unknown]


def _nested(value: dict[str, Any], key: str) -> tuple[bool, Any]:
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _group_field_problems(kind: str, value: Any, at: str, *, is_answer: bool) -> list[str]:
    if kind[0] == "[":
        if not isinstance(value, list):
            return [f"{at} must be a list"]
        return [text for each in value for text in _group_field_problems(kind[1:-1], each, at, is_answer=is_answer)]
    if kind[0] == "{":
        if not isinstance(value, dict):
            return [f"{at} must be an object"]
        values = value.values()
        return [text for each in values for text in _group_field_problems(kind[1:-1], each, at, is_answer=is_answer)]
    if kind in _PLAIN:
        is_right = isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if is_right else [f"{at} must be a {kind}"]
    return group_problems(kind, value, is_answer=is_answer, at=at)


def job_problems(name: str, value: Any, *, is_answer: bool = False) -> list[str]:
    """List what is wrong with a value that should be a model of Container Apps; as `group_problems`."""
    return _job_model_problems(getattr(jobs, name), value, "", is_answer=is_answer)


def _job_model_problems(model: Any, value: Any, at: str, *, is_answer: bool) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at or 'the body'} must be an object"]
    if "_attr_to_rest_field" not in model.__dict__:
        model()  # the package fills a class in when it is first used
    hints = _hints(model)
    found, known = [], set()
    for field, rest in model._attr_to_rest_field.items():
        key, hint = rest._rest_name, hints[field]
        known.add(key)
        where = f"{at}.{key}".lstrip(".")
        is_optional = type(None) in typing.get_args(hint)
        if value.get(key) is not None:
            if rest._visibility == ["read"] and not is_answer:
                found.append(f"{where} may not be set")
            found += _hinted_problems(hint, value[key], where, is_answer=is_answer)
        elif not is_optional and not is_answer:
            found.append(f"{where} must be given")
    return found + [f"{at}.{key} is not known".lstrip(".") for key in value.keys() - known]


@cache
def _hints(model: Any) -> dict[str, Any]:
    return typing.get_type_hints(model, {**vars(job_models), "_models": jobs})


def _hinted_problems(hint: Any, value: Any, at: str, *, is_answer: bool) -> list[str]:
    origin, inner = typing.get_origin(hint), [each for each in typing.get_args(hint) if each is not type(None)]
    if origin in (typing.Union, types.UnionType):
        enums = [each for each in inner if isinstance(each, type) and issubclass(each, enum.Enum)]
        if enums:
            allowed = [each.value for each in enums[0]]
            return [] if value in allowed else [f"{at} is {value!r}; it must be one of {', '.join(allowed)}"]
        return min((_hinted_problems(each, value, at, is_answer=is_answer) for each in inner), key=len)
    if origin is typing.Literal:
        return [] if value in inner else [f"{at} is {value!r}; it must be one of {', '.join(inner)}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{at} must be a list"]
        return [text for each in value for text in _hinted_problems(inner[0], each, at, is_answer=is_answer)]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{at} must be an object"]
        return [text for each in value.values() for text in _hinted_problems(inner[1], each, at, is_answer=is_answer)]
    if hint is datetime.datetime:
        return [] if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", str(value)) else [f"{at} must be a time"]
    if isinstance(hint, type) and hint.__name__ in _PLAIN:
        is_right = isinstance(value, _PLAIN[hint.__name__]) and (hint is bool or not isinstance(value, bool))
        return [] if is_right else [f"{at} must be a {hint.__name__}"]
    return _job_model_problems(hint, value, at, is_answer=is_answer)
