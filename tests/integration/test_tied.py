"""Parameters that several stages use: every copy is trained as the one parameter of the untouched model is."""

from pathlib import Path

import pytest

import zooid
from tests.integration.jobs import COARSE, plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import train_composed_layers, train_untouched_model
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step, read_manifest

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
TIED = """
class Decoder(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, values):
        return F.linear(values, self.weight.t(), self.bias)


class TiedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 24)
        self.middle = nn.Linear(24, 24)
        self.decoder = Decoder(self.encoder.weight)
        self.last = nn.Linear(64, 10)

    def forward(self, images):
        values = torch.tanh(self.encoder(images.flatten(1)))
        values = torch.tanh(self.middle(values))
        return self.last(torch.tanh(self.decoder(values)))

"""


@pytest.mark.parametrize(("num_replicas", "cuts"), [(2, (2,)), (1, (1, 2))])
def test_tied_parameters_train_as_one(
    forking: RecordingPlatform, tmp_path: Path, num_replicas: int, cuts: tuple[int, ...]
) -> None:
    fields = {**COARSE, "model": "lambda: TiedModel().double()", "epochs": "2"}
    job_file = write_job(tmp_path / "tied.py", extra=TIED, fields=fields)
    url = (tmp_path / "run").as_uri()
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=cuts)
    result = zooid.train(job_file, store=url, plan=plan, platform=forking)
    for reference in (train_composed_layers(job_file), train_untouched_model(job_file)):
        assert reference.loss_difference(result.losses) <= TOLERANCE
        assert reference.weight_difference(result.checkpoint) <= TOLERANCE
    store = open_store(url)
    shards = read_manifest(store, last_step(store)).shards
    names = [name for shard in shards for name in shard.names]
    assert len(names) == len(set(names)), "a checkpoint holds a tied parameter once"
