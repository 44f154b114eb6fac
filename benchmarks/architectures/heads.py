"""Which heads each architecture of transformers has, read from the library's own tables."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

PREFERRED_TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "CTC",
    "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION",
    "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "INSTANCE_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "QUESTION_ANSWERING",
    "PRETRAINING",
)
"""Tasks in the order in which an architecture's head is looked for; the library's other tasks come after them."""

TARGET_ARGUMENTS = frozenset({"labels", "start_positions", "future_values", "target_values", "return_loss"})
"""Arguments of a forward that make it compute a loss."""


@dataclass(frozen=True)
class Head:
    """A class of transformers that computes a loss, and the task for which the library lists it."""

    class_name: str
    task: str

    def load(self) -> Any:
        return getattr(import_module("transformers"), self.class_name)


def architectures() -> dict[str, str]:
    """The name of the configuration class of every model type; types that share one count once."""
    table: dict[str, str] = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    by_class: dict[str, str] = {}
    for model_type, class_name in table.items():
        rival = by_class.get(class_name)
        if rival is None or len(model_type) < len(rival):  # "gpt2" is the architecture, "gpt-sw3" a user of it
            by_class[class_name] = model_type
    return dict(sorted((model_type, class_name) for class_name, model_type in by_class.items()))


def heads_of(model_type: str, config_class: Any) -> Iterator[Head]:
    """The heads of a model type whose forward can compute a loss, preferred ones first."""
    seen: set[str] = set()
    for head in (*_listed_heads(model_type), *_unlisted_heads(config_class)):
        if head.class_name not in seen:
            seen.add(head.class_name)
            found = _load(head)
            if found is not None and TARGET_ARGUMENTS & set(inspect.signature(found.forward).parameters):
                yield head


def _load(head: Head) -> Any:
    try:
        return head.load()
    except (ImportError, AttributeError):  # a package is missing, or the class is not public
        return None


def _listed_heads(model_type: str) -> list[Head]:
    tables = vars(import_module("transformers.models.auto.modeling_auto"))
    prefix, suffix = "MODEL_FOR_", "_MAPPING_NAMES"
    tasks = [name[len(prefix) : -len(suffix)] for name in tables if name.startswith(prefix) and name.endswith(suffix)]
    ranks = {task: rank for rank, task in enumerate(PREFERRED_TASKS)}
    tasks.sort(key=lambda task: ranks.get(task, len(ranks)))
    heads: list[Head] = []
    for task in tasks:
        names = tables[f"{prefix}{task}{suffix}"].get(model_type, ())
        heads += [Head(name, task) for name in ((names,) if isinstance(names, str) else names)]
    return heads


def _unlisted_heads(config_class: Any) -> list[Head]:
    """Models of the configuration's own module that no table of the library lists."""
    module_name = config_class.__module__.replace(".configuration_", ".modeling_")
    try:
        module = import_module(module_name)
    except ImportError:
        return []
    return [
        Head(name, "")
        for name in getattr(module, "__all__", ())
        if inspect.isclass(model := getattr(module, name, None))
        and getattr(model, "config_class", None) is config_class
    ]
