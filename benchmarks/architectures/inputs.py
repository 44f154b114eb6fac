"""Samples for any head, made from its forward's arguments and its configuration."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.architectures.configurations import FIRST_TOKEN
from benchmarks.architectures.heads import Head

TOKENS = 12
AUDIO_SAMPLES = 4000
Sample = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """How the samples of a data set are made: which inputs, which target, how many tokens stand for an image."""

    config: Any
    inputs: tuple[str, ...]
    target: str
    num_placeholders: int = 0
    placeholder: int = 0
    frames_first: bool = False
    video: bool = False

    def with_placeholders(self, number: int) -> "Recipe":
        return replace(self, num_placeholders=number)

    def sample(self, index: int) -> Sample:
        """The sample at this index, always the same one."""
        dice = torch.Generator().manual_seed(index)
        sample = {name: _INPUTS[name](self, dice) for name in self.inputs}
        if "attention_mask" in sample and index % 2 and not self.num_placeholders:
            sample["attention_mask"][-2:] = 0
        target: Sample = _TARGETS[self.target](self, dice, sample)
        return sample | target


def recipes(head: Head, config: Any) -> Iterator[Recipe]:
    """Possible ways to feed a head, the most complete ones first."""
    model_class = head.load()
    arguments = tuple(inspect.signature(model_class.forward).parameters)
    for inputs in _input_sets(arguments, getattr(model_class, "main_input_name", "input_ids")):
        for target in _targets(head, arguments):
            recipe = Recipe(config, inputs, target)
            if "input_ids" in inputs and len(set(inputs) & _MEDIA):
                placeholder = _placeholder(config, inputs)
                recipe = replace(
                    recipe, num_placeholders=1 if placeholder is not None else 0, placeholder=placeholder or 0
                )
            yield recipe
            if "input_features" in inputs or "input_values" in inputs:
                yield replace(recipe, frames_first=True)
            if "pixel_values" in inputs:
                yield replace(recipe, video=True)


_MEDIA = frozenset({"pixel_values", "input_features", "input_values", "pixel_values_videos"})
_TEXT = ("input_ids", "attention_mask")


def _input_sets(arguments: tuple[str, ...], main: str) -> list[tuple[str, ...]]:
    text = tuple(name for name in _TEXT if name in arguments)
    media = tuple(name for name in arguments if name in _MEDIA and name != "pixel_values_videos")
    layout = ("bbox",) if "bbox" in arguments else ()
    grids = tuple(name for name in ("image_grid_thw", "mm_token_type_ids") if name in arguments)
    sizes = ("image_sizes",) if "image_sizes" in arguments else ()
    sets: list[tuple[str, ...]] = []
    if "past_values" in arguments:
        sets.append(tuple(name for name in arguments if name in _TIME_SERIES))
        sets.append(("past_values",))
    if "input_ids" in arguments:
        sets += [(*text, *layout, *media[:1], *grids), (*text, *layout, *media[:1], *sizes)] if media else []
        sets += [(*text, *layout, *media[:1])] if media else []
    if main in media:
        sets += [(main,), (main, "decoder_input_ids")] if "decoder_input_ids" in arguments else [(main,)]
    if "input_ids" in arguments:
        sets += (
            [(*text, *layout), (*text, "decoder_input_ids")] if "decoder_input_ids" in arguments else [(*text, *layout)]
        )
    sets += [(name,) for name in media]
    if "input_ids" in arguments:
        sets.append(("input_ids", *layout))
    return list(dict.fromkeys(sets))


_TARGETS_OF_TASKS = {
    "CLASSIFICATION": ("class",),
    "TOKEN_CLASSIFICATION": ("token_classes",),
    "SEGMENTATION": ("pixel_classes", "outside"),
    "DETECTION": ("outside",),
    "CTC": ("text",),
    "MULTIPLE_CHOICE": ("class",),
}


def _targets(head: Head, arguments: tuple[str, ...]) -> tuple[str, ...]:
    if "future_values" in arguments or "target_values" in arguments:
        return ("nothing",)
    if "return_loss" in arguments and "labels" not in arguments:
        return ("contrast",)
    if "start_positions" in arguments and "labels" not in arguments:
        return ("span",)
    matching = [targets for end, targets in _TARGETS_OF_TASKS.items() if head.task.endswith(end)]
    if "Detection" in head.class_name or "Segmentation" in head.class_name:
        matching.append(("pixel_classes", "outside"))
    return matching[-1] if matching else ("tokens", "text", "class")


def _placeholder(config: Any, inputs: tuple[str, ...]) -> int | None:
    kinds = ("audio", "speech") if {"input_features", "input_values"} & set(inputs) else ("image", "media")
    for kind in kinds:
        for name in (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_context_token_id"):
            if isinstance(token := getattr(config, name, None), int):
                return token
    return None


def part_of(config: Any, *names: str) -> Any:
    """The first value of these fields, in the configuration or in one that it contains."""
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    parts = dict.fromkeys((*getattr(config, "sub_configs", {}), "backbone_config", "vision_config", "audio_config"))
    for part in parts:
        inner = getattr(config, part, None)
        if inner is not None and (value := part_of(inner, *names)) is not None:
            return value
    return None


def _tokens(recipe: Recipe, dice: torch.Generator, length: int = TOKENS) -> Tensor:
    vocabulary = part_of(recipe.config.get_text_config(), "vocab_size") or part_of(recipe.config, "vocab_size") or 128
    return torch.randint(min(FIRST_TOKEN, vocabulary // 2), vocabulary, (length,), generator=dice)


def _input_ids(recipe: Recipe, dice: torch.Generator) -> Tensor:
    places = torch.full((recipe.num_placeholders,), recipe.placeholder)
    tokens = _tokens(recipe, dice)
    return torch.cat([tokens[:2], places, tokens[2:]])


def _image(recipe: Recipe, dice: torch.Generator) -> Tensor:
    channels = part_of(recipe.config, "num_channels", "in_channels", "in_chans") or 3
    height, width = _image_size(recipe.config)
    if "image_grid_thw" in recipe.inputs:
        patch, time = part_of(recipe.config, "patch_size"), part_of(recipe.config, "temporal_patch_size") or 1
        return torch.randn(16, channels * time * patch * patch, generator=dice)
    frames = (part_of(recipe.config, "num_frames") or 2,) if recipe.video else ()
    return torch.randn(*frames, channels, height, width, generator=dice)


def _image_size(config: Any) -> tuple[int, int]:
    size = part_of(config, "image_size", "img_size")
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[-1])
    return (int(size), int(size)) if isinstance(size, int) else (64, 64)


def _features(recipe: Recipe, dice: torch.Generator) -> Tensor:
    bins = part_of(recipe.config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim") or 80
    positions = part_of(recipe.config, "max_source_positions")
    frames = part_of(recipe.config, "max_length") if "ASTConfig" in type(recipe.config).__name__ else None
    frames = frames or (2 * positions if isinstance(positions, int) and positions <= 256 else 128)
    return torch.randn(*((frames, bins) if recipe.frames_first else (bins, frames)), generator=dice)


def _wave(recipe: Recipe, dice: torch.Generator) -> Tensor:
    return _features(recipe, dice) if recipe.frames_first else torch.randn(AUDIO_SAMPLES, generator=dice)


def _boxes(recipe: Recipe, dice: torch.Generator) -> Tensor:
    corners = torch.randint(0, 60, (TOKENS + recipe.num_placeholders, 2), generator=dice)
    return torch.cat([corners, corners + 20], dim=1)


def _mask(recipe: Recipe, _: torch.Generator) -> Tensor:
    return torch.ones(TOKENS + recipe.num_placeholders, dtype=torch.long)


def _kinds_of_tokens(recipe: Recipe, _: torch.Generator) -> Tensor:
    """1 where a token stands for a part of an image."""
    kinds = torch.zeros(TOKENS + recipe.num_placeholders, dtype=torch.long)
    kinds[2 : 2 + recipe.num_placeholders] = 1
    return kinds


def _series(recipe: Recipe, dice: torch.Generator, length: int, width: int) -> Tensor:
    return torch.randn(*((length, width) if width else (length,)), generator=dice)


def _past_length(config: Any) -> int:
    lags = getattr(config, "lags_sequence", None)
    return int(config.context_length) + (max(lags) if lags else 0)


def _series_width(config: Any) -> int:
    width = int(getattr(config, "num_input_channels", 0) or getattr(config, "input_size", 1))
    return width if width > 1 or hasattr(config, "num_input_channels") else 0


_TIME_SERIES = {
    "past_values": lambda r, d: _series(r, d, _past_length(r.config), _series_width(r.config)),
    "past_time_features": lambda r, d: _series(r, d, _past_length(r.config), r.config.num_time_features),
    "past_observed_mask": lambda r, d: torch.ones_like(_series(r, d, _past_length(r.config), _series_width(r.config))),
    "future_values": lambda r, d: _series(r, d, r.config.prediction_length, _series_width(r.config)),
    "future_time_features": lambda r, d: _series(r, d, r.config.prediction_length, r.config.num_time_features),
    "target_values": lambda r, d: torch.randint(0, 2, (), generator=d),
}

_INPUTS: dict[str, Any] = {
    "input_ids": _input_ids,
    "attention_mask": _mask,
    "decoder_input_ids": _tokens,
    "pixel_values": _image,
    "input_features": _features,
    "input_values": _wave,
    "bbox": _boxes,
    "image_grid_thw": lambda *_: torch.tensor([1, 4, 4]),
    "mm_token_type_ids": _kinds_of_tokens,
    "image_sizes": lambda recipe, _: torch.tensor(_image_size(recipe.config)),
    **_TIME_SERIES,
}


def _like_tokens(recipe: Recipe, dice: torch.Generator, sample: Sample) -> Sample:
    """Labels of language models: the tokens themselves, without padding and places for images."""
    if "input_ids" not in sample:
        return {"labels": _tokens(recipe, dice)}
    labels = sample["input_ids"].clone()
    if recipe.num_placeholders:
        labels[labels == recipe.placeholder] = -100
    if "attention_mask" in sample:
        labels[sample["attention_mask"] == 0] = -100
    return {"labels": labels}


def _num_labels(recipe: Recipe) -> int:
    return int(getattr(recipe.config, "num_labels", None) or 2)


_TARGETS: dict[str, Any] = {
    "tokens": _like_tokens,
    "text": lambda recipe, dice, _: {"labels": _tokens(recipe, dice, 5)},
    "class": lambda recipe, dice, _: {"labels": torch.randint(0, _num_labels(recipe), (), generator=dice)},
    "token_classes": lambda recipe, dice, _: {
        "labels": torch.randint(0, _num_labels(recipe), (TOKENS,), generator=dice)
    },
    "pixel_classes": lambda recipe, dice, _: {
        "labels": torch.randint(0, _num_labels(recipe), _image_size(recipe.config), generator=dice)
    },
    "span": lambda _, dice, __: {"start_positions": torch.tensor(2), "end_positions": torch.tensor(4)},
    "contrast": lambda *_: {},
    "outside": lambda *_: {},
    "nothing": lambda *_: {},
}
