"""A sample of hostile inputs for every decoder: project errors only, no hang, no memory beyond what the input takes."""

import pytest

from tests.fuzz.decoders import decoders
from tests.fuzz.tcp_decoders import TCP_DECODERS
from tests.fuzz.trials import Decoder, run

SEED = 20260
NUM_INPUTS = 100

DECODERS = {decoder.name: decoder for decoder in decoders()}


@pytest.mark.parametrize("name", DECODERS)
def test_hostile_inputs_do_no_harm(name: str) -> None:
    report = run(DECODERS[name], NUM_INPUTS, SEED)
    print(f"seed {SEED}: {report}")
    assert report.num_inputs == NUM_INPUTS
    assert not report.failures
    if DECODERS[name] in TCP_DECODERS:
        assert report.num_refused > NUM_INPUTS // 10


class TestTheTrialItself:
    """What a trial could not notice would pass unnoticed."""

    def test_an_error_that_is_not_ours_is_noticed(self) -> None:
        report = run(Decoder("raising", lambda data: [b"a"].index(data), [b"a"]), 20, SEED)
        assert any("raises ValueError" in failure for failure in report.failures)

    def test_memory_that_an_input_claims_is_noticed(self) -> None:
        report = run(Decoder("claiming", lambda data: bytearray(0 if data == b"a" else 10**7), [b"a"]), 20, SEED)
        assert any("bytes of memory" in failure for failure in report.failures)

    def test_a_hang_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.fuzz.trials.TIME_LIMIT_S", 0.05)
        report = run(Decoder("hanging", _hang_unless_valid, [b"a"]), 3, SEED)
        assert any("takes more than" in failure for failure in report.failures)

    def test_the_same_seed_gives_the_same_inputs(self) -> None:
        seen: list[bytes] = []
        decoder = Decoder("listing", seen.append, [b'{"a": [1, 2]}'])
        run(decoder, 50, SEED)
        first, second = seen[2:], len(seen)
        run(decoder, 50, SEED)
        assert seen[second + 2 :] == first
        assert len(set(first)) > 25


def _hang_unless_valid(data: bytes) -> None:
    while data != b"a":
        pass
