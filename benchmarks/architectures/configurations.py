"""Shrinks a configuration of transformers: few layers, narrow, few tokens, whatever the architecture.

Fields are recognised by their names, which the library shares between architectures. What follows from other fields is
left to the configuration itself.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

Level = Literal["narrow", "shallow"]
"""`shallow` leaves widths and image sizes as they are, for architectures in which they depend on one another."""

NUM_LAYERS = 3
"""Enough for a cut into three stages; a configuration that lists more layers by their numbers keeps as many."""
VOCABULARY = 128
FIRST_TOKEN = 32
"""Smaller tokens have a meaning of their own: padding, a beginning, a place for an image."""
WIDTH = 64
HEADS = 4
HEAD_DIM = 16

HINTS: dict[str, dict[str, Any]] = {
    "blip-2": {"image_token_index": 3},
    "cvt": {"depth": [1, 2, 3]},  # its stage number n reads the n-th of its layers
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8},
    "textnet": {"image_size": [64, 64]},  # its widths depend on one another, but not on the image
}
"""Fields that no rule for all architectures can know, by model type."""

_LAYER_COUNT = re.compile(r"(^|_)(n|num)_(\w+_)?(layers?|blocks)$|^(\w+_)?(en|de)coder_layers$|^depth$|^layers$")
_LAYER_INDICES = re.compile(r"index(es)?$|indices$|_layers$|layers_to_use$")
_LISTS_LAYERS = re.compile(r"index(es)?$|indices$|^_?out_features$")
_STAGE_DEPTHS = re.compile(r"^depths$|blocks_per_stage|stage_num_blocks|^layer_depths$|^num_blocks$|^num_layers$")
_IS_PROBABILITY = re.compile(r"drop|^mask_(time|feature)_prob$|^router_jitter_noise$")
_EXCLUDED_WIDTH = re.compile(
    r"(image|patch|window|kernel|vocab|codebook|chunk|block|input|feature|sample|crop|grid|pool|merge|stride)_?\w*(size|dim)$"
    r"|^num_|^scale|^mel_dim$|^audio_channels$|^in_channels$"
)


def shrunken(config_class: Any, level: Level) -> Any:
    """A configuration of this class that keeps its kind and loses its size."""
    default = config_class()
    return _rebuilt(default, _Tokens(), level, HINTS.get(default.model_type, {}))


class _Tokens:
    """Tokens with a meaning, renumbered from the start of a small vocabulary; one token keeps one number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {0: 0, 1: 1, 2: 2}

    def number(self, token: int) -> int:
        if token < 0:
            return token
        return self._numbers.setdefault(token, min(len(self._numbers), FIRST_TOKEN - 1))


def _rebuilt(default: Any, tokens: _Tokens, level: Level, hints: dict[str, Any]) -> Any:
    changes = _changes(default, tokens, level) | {
        name: value for name, value in hints.items() if not isinstance(getattr(default, name, None), type(default))
    }
    return type(default)(**changes)


def _changes(default: Any, tokens: _Tokens, level: Level) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(default) if field.init}
    shrink = _Shrink(default, tokens, level)
    changes: dict[str, Any] = {}
    for name, field in fields.items():
        value: Any = getattr(default, name, None)
        if getattr(value, "model_type", "") == "timm_backbone":
            changes[name] = _own_backbone(value)
            continue
        if hasattr(value, "model_type"):
            changes[name] = _rebuilt(value, tokens, level, HINTS.get(value.model_type, {}))
            continue
        given = field.default if field.default is not dataclasses.MISSING else _default_of(field)
        if given is None and _is_worked_out(name, value) and not shrink.is_by_layer(value):
            continue
        small = shrink.field(name, value)
        if small != given:
            changes[name] = small
    for name in ("out_features", "out_indices"):  # kept under another name
        if f"_{name}" in changes:
            changes[name] = changes.pop(f"_{name}")
    if "out_features" in changes and "out_indices" in changes:
        changes.pop("out_features")
    return changes


def _own_backbone(wrapper: Any) -> Any:
    """A ResNet of transformers itself, for configurations whose default comes from another library."""
    resnet = import_module("transformers").ResNetConfig
    num_features = len(wrapper.out_indices or (4,))
    return resnet(
        embedding_size=16,
        hidden_sizes=[32, 64, 128, 256],
        depths=[1, 1, 1, 1],
        out_features=[f"stage{stage}" for stage in range(5 - num_features, 5)],
    )


def _is_worked_out(name: str, value: Any) -> bool:
    """Whether the configuration has set a field itself, from its other fields."""
    is_size = isinstance(value, int | list | tuple | dict) and not isinstance(value, bool)
    return is_size and not name.endswith(("out_indices", "out_features", "rope_parameters"))


def _default_of(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else dataclasses.MISSING


class _Shrink:
    """The rules for one configuration, whose fields depend on one another."""

    def __init__(self, config: Any, tokens: _Tokens, level: Level) -> None:
        self._config = config
        self._tokens = tokens
        self._rules = _RULES if level == "narrow" else _SHALLOW_RULES
        self._num_layers = next(
            (n for name in ("num_hidden_layers", "num_layers", "n_layer") if isinstance(n := self._get(name), int)), 0
        )
        self.num_kept = max(NUM_LAYERS, self._num_listed())
        self._kept_layers = self._layers_to_keep()

    def field(self, name: str, value: Any) -> Any:
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return value
        if isinstance(value, float):
            return 0.0 if _IS_PROBABILITY.search(name) else value
        if isinstance(value, dict):
            return self._rotary(value) if self._has_sections() and name == "rope_parameters" else value
        if self.is_by_layer(value):
            return type(value)(value[layer] for layer in self._kept_layers)
        for pattern, rule in self._rules:
            if re.search(pattern, name):
                return rule(self, value)
        return value

    def is_by_layer(self, value: Any) -> bool:
        """Whether a list has an item for every layer."""
        return isinstance(value, list | tuple) and len(value) == self._num_layers > self.num_kept

    def token(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._tokens.number(token) for token in value if isinstance(token, int)]
        return self._tokens.number(value) if isinstance(value, int) else value

    def kv_heads(self, value: Any) -> Any:
        heads = self._get("num_attention_heads") or self._get("num_heads")
        return HEADS if value == heads else min(value, 2) if isinstance(value, int) else value

    def image(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self.image(side) for side in value)
        patch = self._get("patch_size")
        side = patch * 4 if isinstance(patch, int) and patch >= 8 else 64
        return min(value, side) if isinstance(value, int) else value

    def layer_indices(self, value: Any) -> Any:
        """Indices of layers, moved to the last of the few that are left."""
        if isinstance(value, int):
            return value if value < self.num_kept else self.num_kept - 1
        if not (isinstance(value, list | tuple) and value and all(isinstance(index, int) for index in value)):
            return value
        if max(value) <= self.num_kept:
            return value
        end = self.num_kept if max(value) >= self._num_layers > 0 else self.num_kept - 1
        return type(value)(range(max(0, end + 1 - len(value)), end + 1))

    def out_features(self, value: Any) -> Any:
        numbers = [int(digits) for name in value or () for digits in re.findall(r"^stage(\d+)$", str(name))]
        if not numbers or max(numbers) <= self.num_kept:
            return value
        return [f"stage{number}" for number in range(self.num_kept + 1 - len(numbers), self.num_kept + 1)]

    def _get(self, name: str) -> Any:
        return getattr(self._config, name, None)

    def _num_listed(self) -> int:
        """How many layers the longest list of layers names, where layers are listed at all."""
        lists = [value for name, value in vars(self._config).items() if _LISTS_LAYERS.search(name)]
        return max((len(value) for value in lists if isinstance(value, list | tuple) and len(value) <= 6), default=0)

    def _layers_to_keep(self) -> list[int]:
        """One layer of each kind, then the first ones."""
        kinds = self._get("layer_types") or self._get("layers_block_type") or []
        first = [layer for layer, kind in enumerate(kinds) if kind not in kinds[:layer]] if kinds else []
        others = [layer for layer in range(self._num_layers) if layer not in first]
        return sorted((first + others)[: self.num_kept])

    def _has_sections(self) -> bool:
        return "mrope_section" in getattr(self._config, "ignore_keys_at_rope_validation", ())

    def _rotary(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Sections of a rotary embedding add up to half a head; they are scaled together."""
        section = parameters.get("mrope_section", [16, 24, 24])
        bounds = [round(sum(section[:count]) * HEAD_DIM / 2 / sum(section)) for count in range(len(section) + 1)]
        return parameters | {"mrope_section": [end - start for start, end in pairwise(bounds)]}


Rule = Callable[[_Shrink, Any], Any]


def _at_most(limit: int) -> Rule:
    def rule(_: _Shrink, value: Any) -> Any:
        if isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
            return type(value)(min(item, limit) for item in value)
        return min(value, limit) if isinstance(value, int) else value

    return rule


def _layers(shrink: _Shrink, value: Any) -> Any:
    """Few layers; stages of one layer each, of two where there are only two stages."""
    if isinstance(value, int):
        return min(value, shrink.num_kept)
    if not all(isinstance(depth, int) for depth in value):
        return value
    most = 1 if len(value) > 2 else 2
    return type(value)(min(depth, most) for depth in value)


def _width(shrink: _Shrink, value: Any) -> Any:
    if isinstance(value, int):
        return WIDTH if value >= WIDTH else value
    if isinstance(value, list | tuple) and value and all(isinstance(width, int) for width in value):
        factor = 2 ** max(0, math.ceil(math.log2(max(value) / 256)))
        while factor > 1 and any(width % (8 * factor) for width in value if width > 8):
            factor //= 2
        return type(value)(width // factor if width > 8 else width for width in value)
    return value


def _stage_heads(_: _Shrink, value: Any) -> Any:
    if isinstance(value, list | tuple):
        divisible = all(isinstance(heads, int) and heads % value[0] == 0 for heads in value)
        return type(value)(heads // value[0] for heads in value) if divisible else value
    return min(value, HEADS) if isinstance(value, int) else value


_COUNT_RULES: tuple[tuple[str, Rule], ...] = (
    (r"token_id(s)?$|token_index$|_token_ids?_", lambda shrink, value: shrink.token(value)),
    (r"vocab_size|^num_embeddings$|^codebook_size$", _at_most(VOCABULARY)),
    (r"^num_kv_shared_layers$|^first_k_dense_replace$|^moe_layer_start_index$", _at_most(1)),
    (r"^moe_layer_end_index$|^max_window_layers$", _at_most(NUM_LAYERS - 1)),
    (_STAGE_DEPTHS.pattern, _layers),
    (r"^out_indices$|^_out_indices$", lambda shrink, value: shrink.layer_indices(value)),
    (r"^_?out_features$", lambda shrink, value: shrink.out_features(value)),
    (_LAYER_COUNT.pattern, _layers),
    (_LAYER_INDICES.pattern, lambda shrink, value: shrink.layer_indices(value)),
    (r"experts_per_tok|top_?k(_experts)?$|^moe_k$", _at_most(2)),
    (r"(^|_)(n|num|topk|num_expert)_groups?$|^topk_group$|^n_group$|^num_expert_group$", _at_most(1)),
    (r"experts?(_num)?$", _at_most(4)),
    (r"position_embeddings|^n_positions$|_positions$|^n_ctx$|^context_length$|^max_seq", _at_most(VOCABULARY)),
    (r"^num_queries$|^num_denoising$|^num_query_tokens$", _at_most(12)),
    (r"^train_num_points$", _at_most(64)),
)
_SHALLOW_RULES = _COUNT_RULES
_RULES: tuple[tuple[str, Rule], ...] = (
    *_COUNT_RULES,
    (r"sliding_window$|^local_attention$|^attention_window$|^attention_chunk_size$", _at_most(8)),
    (r"(im(age|g)_size)$|^input_size$", lambda shrink, value: shrink.image(value)),
    (r"^num_frames$", _at_most(4)),
    (r"^window_size$", _at_most(4)),
    (r"head_dim$|d_head$|dim_head$|^d_kv$|head_size$|^headdim$|channels_per_head", _at_most(HEAD_DIM)),
    (r"key_value_heads$|kv_heads$", lambda shrink, value: shrink.kv_heads(value)),
    (r"linear_num_key_heads$", _at_most(2)),
    (r"mamba\w*heads$", _at_most(2 * WIDTH // HEAD_DIM)),
    (r"^mamba_d_ssm$", _at_most(2 * WIDTH)),
    (r"heads?$|^num_attention_heads_per_stage$", _stage_heads),
    (r"rank$", _at_most(HEAD_DIM)),
    (r"^moe_intermediate_size$|expert_intermediate_size$", _at_most(WIDTH // 2)),
    (r"intermediate|ffn_dim|^mlp_dim$|^d_ff$|^d_inner$|ffn_hidden", _at_most(2 * WIDTH)),
    (_EXCLUDED_WIDTH.pattern, lambda _, value: value),
    (r"(size|sizes|dim|dims|channels|width|widths|d_model|n_embd|_dim_per_stage|channel_list)$", _width),
)
