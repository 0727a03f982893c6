"""FedPA (TDSC 2024): a feature generator and global prototypes from the server regularise the clients' training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.base import Part, Upload, Uploads
from raysim.methods.common import feature_generator as gen
from raysim.methods.common.features import class_means, class_sums
from raysim.models.flat import FlatModel
from raysim.models.generator import HIDDEN, for_classifier
from raysim.settings import setting
from raysim.training.client import Client
from raysim.training.fused import cross_entropies

if TYPE_CHECKING:
    from raysim.engine.server import Server


@dataclass(frozen=True)
class FedPA(Part):
    """FedPA: features aligned with global prototypes, and a head also trained on hard generated features."""

    updates_models = False

    lambda_ge: float = setting(
        25.0, "weight of the loss on generated features; 0: no generator (λ_ge, eq. 12)", minimum=0
    )
    lambda_ge_floor: float = setting(0.0, "lowest value of lambda_ge", minimum=0)
    lambda_po: float = setting(5.0, "weight of the distance to the prototypes (λ_po, eq. 12)", minimum=0)
    lambda_po_floor: float = setting(0.15, "lowest value of lambda_po", minimum=0)
    gamma_fid: float = setting(
        25.0,
        "weight of fidelity, the cross-entropy of the clients' heads, in the generator's loss (γ_fid, eq. 8)",
        minimum=0,
    )
    gamma_fid_floor: float = setting(0.0, "lowest value of gamma_fid", minimum=0)
    decay: float = setting(0.98, "factor per round on the weights that have a lowest value", minimum=0)
    gamma_div: float = setting(1.0, "weight of diversity in the generator's loss (γ_div, eq. 8)", minimum=0)
    gamma_ad: float = setting(
        0.15, "reward for distance from the prototypes in the generator's loss (γ_ad, eq. 8)", minimum=0
    )
    ad_reach: float | None = setting(
        None, "no reward beyond this many times the distance to the nearest other prototype; by default no limit",
        above=0,
    )  # fmt: skip
    pairs: Literal["same", "different", "all"] = setting(
        "same", "labels of the pairs that diversity keeps apart (eq. 7: same)"
    )
    gen_steps: int = setting(50, "steps of the generator per round; not given in the paper", minimum=1)
    gen_batch: int = setting(32, "features per step of the generator (B, eq. 5)", minimum=2, maximum=10**5)
    gen_lr: float = setting(3e-4, "learning rate of the generator's Adam (η_2)", above=0)
    gen_lr_decay: float = setting(1.0, "factor per round on the generator's learning rate", above=0)
    gen_weight_decay: float = setting(0.0, "weight decay of the generator's Adam", minimum=0)
    noise: int = setting(32, "size of the generator's noise vector (z, eq. 4)", minimum=1, maximum=10**4)
    hidden: int = setting(HIDDEN, "units of the generator's hidden layer", minimum=1, maximum=10**5)

    def at(self, weight: str, t: int) -> float:
        """Return a decaying weight in round t; a weight that starts at 0 stays 0, whatever its floor."""
        start = getattr(self, weight)
        return max(getattr(self, f"{weight}_floor"), start * self.decay ** (t - 1)) if start else 0.0

    @property
    def aligns(self) -> bool:
        """Whether prototypes are needed, by the clients' loss or by the generator's."""
        return bool(self.lambda_po or (self.lambda_ge and self.gamma_ad))

    # These three, and `draw`, differ in the authors' published code: fedpa_reference.py overrides them.
    distance = staticmethod(gen.prototype_distance)
    fidelity = staticmethod(gen.fidelity)
    diversity = staticmethod(gen.diversity)

    def draw(self, stream: np.random.Generator, counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Draw noise and labels, the labels from p̃(y), as the generator's input."""
        return gen.draw_inputs(stream, counts, size, self.noise)

    def idle(self, config, sizes):
        if config.rounds == 1:
            return "clients get generator and prototypes of the round before; raise --rounds"

    def generator(self, classifier: FlatModel, weights: Tensor | None = None, seed: int = 0) -> FlatModel:
        """Return a generator of this classifier's features with these weights, or new ones."""
        return for_classifier(classifier, self.noise, self.hidden, weights, seed)

    # -- client; the broadcast is empty in the first round -----------------------------------------------------------

    def begin(self, client):
        weights = {name: self.at(name, client.t) for name in ("lambda_ge", "lambda_po")}
        scratch = {name: weight for name, weight in weights.items() if weight}
        if "generator" in client.broadcast[self.name] and "lambda_ge" in scratch:
            scratch["made"] = self.generated(client)
        client.scratch[self.name] = scratch

    def generated(self, client: Client) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of (features, labels) from the broadcast generator, in evaluation mode; all is drawn now."""
        broadcast, size = client.broadcast[self.name], client.config.batch_size
        if self.name not in client.kept:  # once for all clients of the actor
            generator = self.generator(client.model, broadcast["generator"])
            client.kept[self.name] = generator, broadcast["counts"].cpu()
        generator, counts = client.kept[self.name]
        stream, blocks = client.stream(f"{self.name}/noise"), -(-client.steps // gen.BLOCK)
        draws = [self.draw(stream, counts, gen.BLOCK * size) for _ in range(blocks)]
        noise, labels = (torch.cat(drawn).to(client.y.device) for drawn in zip(*draws, strict=True))
        return gen.in_blocks(generator, noise, labels, size)

    def loss(self, client, step):
        """Return λ_ge·L_ge (eq. 11) + λ_po·L_po (eq. 10)."""
        broadcast, scratch, terms = client.broadcast[self.name], client.scratch[self.name], []
        if "made" in scratch:
            generated, labels = next(scratch["made"])
            terms.append(scratch["lambda_ge"] * F.cross_entropy(client.model.module.head(generated), labels))
        if "prototypes" in broadcast and "lambda_po" in scratch:
            distances = self.distance(step.real_features, step.real_y, broadcast["prototypes"], broadcast["known"])
            terms.append(scratch["lambda_po"] * distances.mean())
        return sum(terms) if terms else None

    def fused_loss(self, clients, step):
        """Return λ_ge·L_ge (eq. 11) + λ_po·L_po (eq. 10), one value per client."""
        broadcast, t, terms = clients[0].broadcast[self.name], clients[0].t, []
        if "generator" in broadcast and (weight := self.at("lambda_ge", t)):
            made = zip(*(next(client.scratch[self.name]["made"]) for client in clients), strict=True)
            generated, labels = map(torch.stack, made)
            share = torch.full(labels.shape, 1 / labels.shape[1], device=labels.device)
            terms.append(weight * cross_entropies(step.model.head(generated), labels, share))
        if "prototypes" in broadcast and (weight := self.at("lambda_po", t)):
            distances = self.distance(step.real_features, step.real_y, broadcast["prototypes"], broadcast["known"])
            terms.append(weight * (distances * step.real_share).sum(1))
        return sum(terms) if terms else None

    @torch.no_grad()
    def end(self, client):
        """Upload local prototypes (eq. 2) times their counts, which add up to eq. 3, and the head for eq. 5."""
        if not (self.lambda_ge or self.lambda_po):
            return None
        module, counts = client.model.module, F.one_hot(client.y, client.classes).sum(0)
        upload = Upload(sum={"counts": counts})
        if self.aligns:
            sums = (class_sums(module.features(x), y, client.classes)[0] for x, y in client.everything())
            upload.sum["features"] = sum(sums)
        if self.lambda_ge and self.gamma_fid:  # clones: the next client trains in the same memory
            upload.each = {"head": module.head.weight.clone(), "bias": module.head.bias.clone(), "counts": counts}
        return upload

    # -- server ------------------------------------------------------------------------------------------------------

    def setup(self, server):
        if self.lambda_ge:
            seed = int(server.stream(f"{self.name}/init").integers(2**63))
            server.state[self.name] = gen.fresh_state(self.generator(server.model, seed=seed))

    def broadcast(self, server):
        wanted = ("generator", "counts") * bool(self.lambda_ge) + ("prototypes", "known") * bool(self.lambda_po)
        return {name: server.state[self.name][name] for name in wanted} if "counts" in server.state[self.name] else {}

    def update(self, server, uploads):
        """Average the prototypes by counts (eq. 3); a class without samples keeps its last. Train the generator."""
        if not uploads.sum:
            return
        state = server.state[self.name]
        state["counts"] = uploads.sum["counts"]
        if self.aligns:
            state |= class_means(uploads.sum["features"], state["counts"], state)
        if self.lambda_ge:
            self.update_generator(server, uploads)

    def update_generator(self, server: "Server", uploads: Uploads) -> None:
        """Minimise γ_fid·L_fid + γ_div·L_div − γ_ad·L_ad (eq. 8) with this round's prototypes and label counts."""
        state = server.state[self.name]
        losses: dict[str, tuple[float, gen.Loss]] = {}
        if weight := self.at("gamma_fid", server.t):
            heads, biases, counts = (uploads.stacked(key, server.device) for key in ("head", "bias", "counts"))
            shares = counts / counts.sum(0).clamp(min=1)
            losses["fid"] = weight, lambda h, y, z: self.fidelity(h, y, heads, biases, shares)
        if self.gamma_div:
            losses["div"] = self.gamma_div, lambda h, y, z: self.diversity(h, y, z, self.pairs)
        if self.gamma_ad and "prototypes" in state:
            known, limits = (state["prototypes"], state["known"]), torch.full((), torch.inf, device=server.device)
            if self.ad_reach is not None:
                limits = self.ad_reach * gen.nearest_prototype(self.distance, *known)
            limits = limits.expand(len(state["known"]))
            losses["ad"] = -self.gamma_ad, lambda h, y, z: self.distance(h, y, *known).minimum(limits[y])
        if server.t == 1:
            features, labels = self.sample_features(server)
            server.metrics |= gen.measure(features, labels, "generator.untrained_")
        model = self.generator(server.model, state["generator"])
        inputs = self.draw(server.stream(f"{self.name}/noise"), state["counts"], self.gen_steps * self.gen_batch)
        adam = {"lr": self.gen_lr * self.gen_lr_decay ** (server.t - 1), "weight_decay": self.gen_weight_decay}
        server.metrics |= gen.train_generator(model, state["adam"], adam, inputs, self.gen_batch, losses)
        state["generator"] = model.weights
        features, labels = self.sample_features(server)
        server.metrics |= gen.measure(features, labels, "generator.")

    def sample_features(self, server, count=gen.MEASURED):
        if not self.lambda_ge:
            return None
        state = server.state[self.name]
        noise, _ = self.draw(server.stream(f"{self.name}/sample"), state["counts"], count)
        held = (state["counts"] > 0).nonzero().flatten()
        labels = held[torch.arange(count, device=held.device) % len(held)]  # of every class as many
        return gen.make(self.generator(server.model, state["generator"]), noise, labels)
