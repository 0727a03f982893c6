"""Two clients in float64, written out: what methods that change the server's or the client's step are compared with.

Batches hold all of a client's samples and there is no local momentum, so no draw but the cohort's matters.
"""

import numpy as np
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.models import build
from raysim.rng import stream
from tests.data.dealing import partition
from tests.simulate import blobs, simulate

TWO = {
    "clients": 2, "rounds": 3, "local_steps": 3, "lr": 0.1, "momentum": 0, "batch_size": 400, "partition": "dirichlet",
    "beta": 1.0,
}  # fmt: skip


def simulated(method: str, **settings) -> tuple[np.ndarray, dict]:
    """The parameters that raysim's own run ends in, and the method's state at the server."""
    runner = InProcess()
    result = simulate(blobs(), runner, **TWO | {"method": method} | settings)
    flat_model = np.concatenate([values.ravel() for values in result.models[0].values()])
    return flat_model, runner.server.state[method.partition("+")[0]]


def computed(server_step, further_gradient=lambda k, w, start: 0.0, after=lambda k, end, start: None, active=2):
    """The same in float64: `server_step(start, mean, cohort)` gives the new parameters.

    `further_gradient(k, w, start)` is added to that of the cross-entropy; `after(k, end, start)` sees a client's end.
    """
    dataset = blobs()
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=2, seed=3, beta=1.0)
    images = torch.from_numpy(dataset.train.x.astype(np.float64))
    images = (images - images.mean()) / images.std(correction=0)
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    w = flat(module.parameters())
    for t in (1, 2, 3):
        cohort = sorted(stream(3, "cohort", t).choice(2, active, replace=False).tolist())
        trained, sizes = [], []
        for k in cohort:
            rows = dealt.order[dealt.offsets[k] : dealt.offsets[k + 1]]
            x, y = images[rows], torch.from_numpy(dataset.train.y[rows])
            own = w
            for _ in range(3):
                torch.nn.utils.vector_to_parameters(own, module.parameters())
                gradient = flat(torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters())))
                own = own - 0.1 * (gradient + further_gradient(k, own, w))
            after(k, own, w)
            trained.append(own)
            sizes.append(len(y))
        mean = sum(n * own for n, own in zip(sizes, trained, strict=True)) / sum(sizes)
        w = server_step(w, mean, cohort)
    return w.numpy()


def flat(values) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in values])


def check_adaptive(method, second_moment, active, **settings) -> None:
    """Compare a server optimiser with its algorithm in float64: x + η·m/(√v + τ), v by `second_moment(v, Δ²)`."""
    m, v = 0.0, 0.1**2

    def step(start, mean, cohort):
        nonlocal m, v
        m = 0.6 * m + 0.4 * (mean - start)
        v = second_moment(v, (mean - start) ** 2)
        return start + 0.05 * m / (v**0.5 + 0.1)

    settings = {"lr": 0.05, "beta1": 0.6, "tau": 0.1} | settings
    got, state = simulated(method, active=active, **{f"{method}.{key}": value for key, value in settings.items()})
    np.testing.assert_allclose(got, computed(step, active=active), atol=3e-6)
    np.testing.assert_allclose(state["0"]["m"], m, atol=2e-6)
    np.testing.assert_allclose(state["0"]["v"], v, atol=2e-6)
