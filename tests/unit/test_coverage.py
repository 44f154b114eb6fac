"""The benchmark of architectures: its configurations, its processes and its counts."""

import os
import time
from typing import Any

import pytest
import torch

from benchmarks.architectures.agreement import Outcome, largest_difference
from benchmarks.architectures.configurations import shrunken
from benchmarks.architectures.heads import architectures, heads_of
from benchmarks.architectures.processes import run_all
from benchmarks.coverage import summary


def config_class(model_type: str) -> Any:
    return pytest.importorskip("transformers").CONFIG_MAPPING[model_type]


def test_architectures_come_from_the_library() -> None:
    names = architectures()
    assert len(names) > 400
    assert {"bert", "gpt2", "t5", "whisper", "detr"} <= names.keys()
    assert "gpt-sw3" not in names  # it has the configuration of gpt2


def test_the_preferred_head_of_an_encoder_decoder_uses_both() -> None:
    heads = [head.class_name for head in heads_of("bart", config_class("bart"))]
    assert heads[0] == "BartForConditionalGeneration"
    assert "BartForCausalLM" in heads
    assert "BartModel" not in heads  # it computes no loss


def test_a_configuration_is_shrunken_as_a_whole() -> None:
    config = shrunken(config_class("llava"), "narrow")
    assert config.text_config.num_hidden_layers == config.vision_config.num_hidden_layers == 3
    assert config.text_config.hidden_size == 64
    assert config.image_token_index < config.text_config.vocab_size == 128


def test_one_layer_of_each_kind_is_kept() -> None:
    full = config_class("gemma3_text")()
    assert len(set(full.layer_types[:3])) == 1
    assert set(shrunken(config_class("gemma3_text"), "narrow").layer_types) == set(full.layer_types)


def test_layers_that_are_listed_by_their_numbers_exist() -> None:
    config = shrunken(config_class("dpt"), "narrow")
    assert len(config.backbone_out_indices) == 4
    assert max(config.backbone_out_indices) < config.num_hidden_layers


def answer(name: str) -> dict[str, Any]:
    if name == "slow":
        while True:
            pass
    if name == "waits":
        time.sleep(600)
    if name == "dies":
        os._exit(3)
    return {"architecture": name, "outcome": "exact"}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_dies_or_takes_too_long_is_an_error() -> None:
    rows = {row["architecture"]: row for row in run_all(answer, ["waits", "slow", "fine", "dies"], 2, time_limit_s=1)}
    assert rows["fine"]["outcome"] == "exact"
    assert (rows["slow"]["outcome"], rows["slow"]["reason"]) == ("error", "it took more than 1 s of processor time")
    assert (rows["waits"]["outcome"], rows["waits"]["reason"]) == ("error", "it has not ended after 10 s")
    assert (rows["dies"]["outcome"], rows["dies"]["reason"]) == ("error", "its process ended with status 3")


def test_the_summary_counts_what_can_be_trained() -> None:
    rows = [{"outcome": outcome} for outcome in ("exact", "exact", "exact", "whole")]
    found = summary(rows, num_left_out=7)
    assert (found["architectures"], found["exact"], found["error"], found["left_out"]) == (4, 3, 0, 7)
    assert (found["exact_share"], found["whole_share"]) == (0.75, 0.25)


def outcome(weight: float, *, buffer: float = 1.0) -> Outcome:
    return Outcome(
        {"grain 0": torch.tensor(2.0)},
        {"weight": torch.tensor([weight, 4.0])},
        {"mask": torch.tensor([True, False]), "bias": torch.tensor([buffer, -float("inf")])},
    )


def test_differences_are_found_wherever_they_are() -> None:
    assert largest_difference(outcome(1.0), outcome(1.0))[0] == 0
    assert largest_difference(outcome(1.5), outcome(1.0)) == (0.125, "gradient weight")
    assert largest_difference(outcome(1.0, buffer=2.0), outcome(1.0)) == (1.0, "buffer bias")
    assert largest_difference(outcome(float("nan")), outcome(1.0)) == (float("inf"), "gradient weight")
    assert largest_difference(Outcome({"grain 0": torch.tensor(2.0)}, {}, {}), outcome(1.0)) == (1.0, "gradient weight")
