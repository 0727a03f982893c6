"""HFMDS and FedPA together as a single-purpose PyTorch script: one model, one federation, 2 processes, no framework.

    python -m benchmarks.synthesis      runs it; started alone it only waits for its turn (benchmarks/turns.py)

Written from the papers (arXiv 2308.04761; FedPA, TDSC 2024), without code of raysim's methods, and without tricks:
clients one after the other, images in their usual layout, torch's optimisers over the parameters one by one, gradients
of the weights computed in the synthesis too, though nothing uses them. The mathematics is that of
`--method hfmds+fedpa`; the random draws differ.
"""

import argparse
import json
import time

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional as F

from benchmarks.turns import Over, Turns
from benchmarks.workloads import BATCH, CLASSES, PROCESSES, TRAINING, Workload, client_batch, pixels, plain_model

SETTINGS = {
    "every": 20, "steps": 500, "per_client": 100, "alpha": 0.5, "mu": 0.5, "momentum": 0.5, "image_lr": 0.02,
    "lambda_ge": 0.5, "lambda_po": 0.01, "decay": 0.98, "gamma_fid": 25.0, "gamma_div": 1.0, "gamma_ad": 0.15,
    "gen_steps": 50, "gen_batch": 32, "gen_lr": 3e-4, "noise": 32,
}  # fmt: skip
process = {}  # what a worker process keeps


def class_sums(features, labels):
    """Per class the sum of its features, and how many there are."""
    sums = torch.zeros(CLASSES, features.shape[1]).index_add_(0, labels, features)
    return sums, torch.bincount(labels, minlength=CLASSES).float()


def generator(settings: dict, features: int) -> nn.Module:
    size = settings["noise"] + CLASSES
    return nn.Sequential(nn.Linear(size, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, features))


def generate(model, settings: dict, counts, size: int, draw: np.random.Generator):
    """Features of labels drawn as often as the clients had them; with the noise they were made from."""
    shares = (counts.double() / counts.sum()).numpy()
    labels = torch.from_numpy(draw.choice(CLASSES, size, p=shares))
    noise = torch.from_numpy(draw.standard_normal((size, settings["noise"]), dtype=np.float32))
    return model(torch.cat([noise, F.one_hot(labels, CLASSES)], 1)), labels, noise


# -- at the clients ----------------------------------------------------------------------------------------------------


def start_process(workload: Workload, x, y, made_x, made_y, settings: dict) -> None:
    torch.set_num_threads(1)
    process.update(
        workload=workload, x=x.numpy(), y=y.numpy(), made_x=made_x, made_y=made_y, settings=settings,
        model=plain_model(workload.model, workload.shape),
    )  # fmt: skip


def load_client(client: int, weights: dict):
    process["model"].load_state_dict(weights)
    data = client_batch(process["x"], process["y"], process["workload"].rows(client))
    return process["model"], process["settings"], *data


def synthesise(model, settings: dict, real, labels, prototypes, noise):
    """Images whose class-relevant features match hard ones of real images."""
    features, head = model[:-1], model[-1]
    with torch.no_grad():
        target = (1 + settings["mu"]) * features(real) - settings["mu"] * prototypes[labels]
        mask = head.weight[labels].relu()
    made = noise.clone().requires_grad_()
    optimizer = torch.optim.Adam([made], lr=settings["image_lr"])
    for _ in range(settings["steps"]):
        optimizer.zero_grad()
        z = features(made)
        got, wanted = F.log_softmax(z * mask, 1), F.log_softmax(target * mask, 1)
        loss = F.cross_entropy(head(z), labels, reduction="sum") + (got.exp() * (got - wanted)).sum()
        loss.backward()
        optimizer.step()
    return made.detach()


def client_synthesis(job):
    client, weights, prototypes, known, t = job
    model, settings, x, y = load_client(client, weights)
    draw = np.random.default_rng((t, client, 1))
    with torch.no_grad():  # a class without a prototype has the mean of its features
        sums, counts = class_sums(model[:-1](x), y)
    prototypes = torch.where(known[:, None], prototypes, sums / counts.clamp(min=1)[:, None])
    rows = draw.permutation(len(y))[: settings["per_client"]]
    noise = torch.from_numpy(draw.standard_normal((len(rows), *x.shape[1:]), dtype=np.float32))
    return client, synthesise(model, settings, x[rows], y[rows], prototypes, noise), y[rows]


def client_training(job):
    """Local steps on real and synthetic images, generated features and the distance to the global prototypes."""
    client, t, weights, sent, has_made = job
    model, settings, x, y = load_client(client, weights)
    features, head = model[:-1], model[-1]
    draw = np.random.default_rng((t, client, 2))
    optimizer = torch.optim.SGD(model.parameters(), **TRAINING)
    weight_ge, weight_po = (settings[key] * settings["decay"] ** (t - 1) for key in ("lambda_ge", "lambda_po"))
    own_sums, own_counts = torch.zeros(CLASSES, head.in_features), torch.zeros(CLASSES)
    if sent:
        maker = generator(settings, head.in_features).eval()
        maker.load_state_dict(sent["generator"])
    terms = np.zeros(3)
    batches = torch.from_numpy(draw.permutation(len(y))).split(BATCH)
    for batch in batches:
        z = features(x[batch])
        ce = F.cross_entropy(head(z), y[batch])
        loss, synthetic, aligned = ce, torch.zeros(()), torch.zeros(())
        if has_made:
            rows = torch.from_numpy(draw.integers(len(process["made_y"]), size=len(batch)))
            alpha = settings["alpha"]
            synthetic = (1 - alpha) * F.cross_entropy(model(process["made_x"][rows]), process["made_y"][rows])
            loss = alpha * ce + synthetic
        if sent:
            with torch.no_grad():
                made, labels, _ = generate(maker, settings, sent["counts"], BATCH, draw)
            distance = torch.linalg.vector_norm(z - sent["prototypes"][y[batch]], dim=1) * sent["known"][y[batch]]
            aligned = weight_ge * F.cross_entropy(head(made), labels) + weight_po * distance.mean()
            loss = loss + aligned
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums, counts = class_sums(z.detach(), y[batch])
        own_sums, own_counts = own_sums + sums, own_counts + counts
        terms += [ce.item(), synthetic.item(), aligned.item()]
    with torch.no_grad():
        sums, counts = class_sums(features(x), y)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    return client, trained, sums, counts, own_sums, own_counts, terms / len(batches)


# -- at the server -----------------------------------------------------------------------------------------------------


class Script:
    """The federation's state, and its rounds."""

    def __init__(self, workload: Workload, settings: dict, data: str | None):
        self.workload, self.settings = workload, settings
        x, y = (torch.from_numpy(np.array(values)).share_memory_() for values in pixels(workload, data))
        rows = workload.clients * min(settings["per_client"], workload.samples)
        self.made_x = torch.zeros(rows, *workload.shape).share_memory_()
        self.made_y = torch.zeros(rows, dtype=torch.int64).share_memory_()
        self.has_made = False
        model = plain_model(workload.model, workload.shape)
        self.weights, size = model.state_dict(), model[-1].in_features
        self.own = torch.zeros(workload.clients, CLASSES, size)  # the clients' prototypes
        self.own_known = torch.zeros(workload.clients, CLASSES, dtype=torch.bool)
        self.prototypes, self.known = torch.zeros(CLASSES, size), torch.zeros(CLASSES, dtype=torch.bool)
        self.generator = generator(settings, size)
        self.optimizer = torch.optim.Adam(self.generator.parameters(), lr=settings["gen_lr"])
        self.sent: dict = {}
        arguments = (workload, x, y, self.made_x, self.made_y, settings)
        self.pool = multiprocessing.get_context("spawn").Pool(PROCESSES, start_process, arguments)
        self.pool.map(len, ["", ""], chunksize=1)  # waits until they have started

    def round(self, t: int) -> dict:
        """The phases' seconds and the mean loss terms."""
        phases, started = {}, time.perf_counter()
        if t % self.settings["every"] == 0:
            self.synthesis(t)
            phases["synthesis"] = time.perf_counter() - started
        terms = self.training(t)
        phases["training"] = time.perf_counter() - started - phases.get("synthesis", 0.0)
        return {"phases": phases, "terms": dict(zip(("ce", "hfmds", "fedpa"), terms.tolist(), strict=True))}

    def synthesis(self, t: int) -> None:
        jobs = [(k, self.weights, self.own[k], self.own_known[k], t) for k in range(self.workload.clients)]
        for client, images, labels in self.pool.imap_unordered(client_synthesis, jobs):
            rows = slice(client * len(labels), (client + 1) * len(labels))
            self.made_x[rows], self.made_y[rows] = images, labels
        self.has_made = True

    def training(self, t: int) -> np.ndarray:
        size, draw = self.workload, np.random.default_rng(t)
        cohort = draw.choice(size.clients, size.active, replace=False).tolist()
        jobs = [(client, t, self.weights, self.sent, self.has_made) for client in cohort]
        results = list(self.pool.imap_unordered(client_training, jobs))
        clients, trained, sums, counts, own_sums, own_counts, terms = zip(*results, strict=True)
        # Clients have equally many samples: a plain mean.
        self.weights = {name: torch.stack([w[name] for w in trained]).mean(0) for name in self.weights}
        for client, total, count in zip(clients, own_sums, own_counts, strict=True):
            self.move_own(client, total / count.clamp(min=1)[:, None], count > 0)
        count = sum(counts)
        means = sum(sums) / count.clamp(min=1)[:, None]
        self.prototypes = torch.where(count[:, None] > 0, means, self.prototypes)
        self.known |= count > 0
        self.train_generator(t, trained, torch.stack(counts), count, draw)
        self.sent = {
            "generator": {name: value.clone() for name, value in self.generator.state_dict().items()},
            "prototypes": self.prototypes, "known": self.known.float(), "counts": count,
        }  # fmt: skip
        return np.mean(terms, axis=0)

    def move_own(self, client: int, means, seen) -> None:
        """Move a client's prototypes towards what it saw; the first time, set them to it."""
        momentum, before, known = self.settings["momentum"], self.own[client], self.own_known[client]
        moved = torch.where(known[:, None], (1 - momentum) * means + momentum * before, means)
        self.own[client] = torch.where(seen[:, None], moved, before)
        self.own_known[client] = known | seen

    def train_generator(self, t: int, trained, held, counts, draw) -> None:
        """Fidelity to the clients' heads, diversity, and distance from the prototypes."""
        s, heads = self.settings, [(list(w.values())[-2], list(w.values())[-1]) for w in trained]
        shares = held / counts.clamp(min=1)
        self.generator.train()
        for _ in range(s["gen_steps"]):
            made, labels, noise = generate(self.generator, s, counts, s["gen_batch"], draw)
            losses = [F.cross_entropy(F.linear(made, *head), labels, reduction="none") for head in heads]
            fidelity = (torch.stack(losses) * shares[:, labels]).mean()
            apart, noise_apart = (torch.linalg.vector_norm(v[:, None] - v, dim=2) for v in (made, noise))
            diversity = (-((labels[:, None] == labels) * apart * noise_apart).mean()).exp()
            distance = torch.linalg.vector_norm(made - self.prototypes[labels], dim=1) * self.known[labels]
            weight = s["gamma_fid"] * s["decay"] ** (t - 1)
            loss = weight * fidelity + s["gamma_div"] * diversity - s["gamma_ad"] * distance.mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.generator.eval()

    def stop(self) -> None:
        self.pool.terminate()
        self.pool.join()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--data", help="folder with CIFAR-10")
    parser.add_argument("--settings", type=json.loads, default={}, help="other settings, as JSON")
    asked = parser.parse_args(arguments)
    turns = Turns()
    torch.set_num_threads(1)
    script = Script(asked.workload, SETTINGS | asked.settings, asked.data)
    try:
        turns.ready()
        t = 1
        while True:
            turns.done(**script.round(t))
            t += 1
    except Over:
        script.stop()


if __name__ == "__main__":
    main()
