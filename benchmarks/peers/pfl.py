"""FedAvg in pfl-research on PyTorch, as a side of benchmarks/compare.py.

    python -m benchmarks.compare --peers

torch.distributed.run starts it twice, and the users of a round are split between the two. Evaluation is off, except
pfl's own in the first round, which is not timed. pfl does the local steps itself, with torch's plain SGD.
"""

import os

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F

from benchmarks.peers import parsed
from benchmarks.turns import Over, Turns
from benchmarks.workloads import BATCH, TRAINING, Workload, client_batch, pixels, plain_model

NEVER = 10**9


class Classifier(nn.Module):
    """The two methods pfl asks of a model."""

    def __init__(self, workload: Workload):
        super().__init__()
        self.layers = plain_model(workload.model, workload.shape)

    def loss(self, x, y):
        return F.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"loss": Weighted(F.cross_entropy(self.layers(x), y, reduction="sum").item(), len(y))}


class TakesTurns(TrainingProcessCallback):
    """The first process talks to the benchmark; the other waits for it, or it would start the next round early."""

    def __init__(self, rounds: int):
        self.rounds = rounds
        self.turns = Turns() if os.environ.get("RANK", "0") == "0" else None

    def on_train_begin(self, *, model):
        if self.turns:
            self.turns.ready()
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if self.turns:
            try:
                self.turns.done()
            except Over:
                if central_iteration + 1 < self.rounds:  # they count from 0
                    raise
        self.wait()
        return False, Metrics()

    def wait(self):
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(__doc__, arguments)
    workload = asked.workload
    torch.set_num_threads(1)
    np.random.seed(0)  # pfl draws its users from NumPy's global generator, alike in both processes
    images = pixels(workload, asked.data)

    def user_data(user) -> Dataset:
        return Dataset(raw_data=list(client_batch(*images, workload.rows(int(user)))), user_id=str(user))

    sampler = get_user_sampler("minimize_reuse", list(range(workload.clients)))
    data = FederatedDataset(user_data, sampler)
    classifier = Classifier(workload)
    options = {name: value for name, value in TRAINING.items() if name != "lr"}
    model = PyTorchModel(
        classifier,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, **options),
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds, evaluation_frequency=NEVER,
            train_cohort_size=workload.active, val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=TRAINING["lr"], local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[TakesTurns(asked.rounds)],
        send_metrics_to_platform=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
