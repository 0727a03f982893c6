"""FedPA (TDSC 2024): a generator of features and global prototypes, both from the server, regularise the clients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional as F

from raysim.methods.base import Part, Upload
from raysim.methods.common import feature_generator as gen
from raysim.methods.common.features import class_means, class_sums
from raysim.settings import setting
from raysim.training.fused import cross_entropies, pad


@dataclass(frozen=True)
class FedPA(Part):
    """FedPA: features aligned with global prototypes, the head trained on hard generated features."""

    lambda_ge: float = setting(25.0, "weight of CE on generated features; 0: no generator (λ_ge, eq. 12)", minimum=0)
    lambda_ge_floor: float = setting(0.0, "its lowest value", minimum=0)
    lambda_po: float = setting(5.0, "weight of the distance to the prototypes (λ_po, eq. 12)", minimum=0)
    lambda_po_floor: float = setting(0.15, "its lowest value", minimum=0)
    gamma_fid: float = setting(25.0, "generator: weight of fidelity, the clients' heads' CE (γ_fid, eq. 8)", minimum=0)
    gamma_fid_floor: float = setting(0.0, "its lowest value", minimum=0)
    decay: float = setting(0.98, "factor per round of the three", minimum=0)
    gamma_div: float = setting(1.0, "generator: weight of diversity (γ_div, eq. 8)", minimum=0)
    gamma_ad: float = setting(0.15, "generator: reward of distance from the prototypes (γ_ad, eq. 8)", minimum=0)
    pairs: Literal["same", "different", "all"] = setting("same", "labels of the pairs to keep apart (eq. 7: same)")
    gen_steps: int = setting(50, "generator's steps per round; not in the paper", minimum=1)
    gen_batch: int = setting(32, "features per step of the generator (B, eq. 5)", minimum=2, maximum=10**5)
    gen_lr: float = setting(3e-4, "of the generator's Adam (η_2)", above=0)
    gen_lr_decay: float = setting(1.0, "its factor per round", above=0)
    gen_weight_decay: float = setting(0.0, "of the generator's Adam", minimum=0)
    noise: int = setting(32, "size of the generator's noise (z, eq. 4)", minimum=1, maximum=10**4)

    def at(self, weight: str, t: int) -> float:
        """A decaying weight in round t; one that starts at 0 is off, whatever its floor."""
        start = getattr(self, weight)
        return max(getattr(self, f"{weight}_floor"), start * self.decay ** (t - 1)) if start else 0.0

    @property
    def aligns(self) -> bool:
        return bool(self.lambda_po or (self.lambda_ge and self.gamma_ad))

    # What the authors' published code does in another way: fedpa_reference.py.
    distance = staticmethod(gen.prototype_distance)
    fidelity = staticmethod(gen.fidelity)

    def draw(self, stream, counts, size):
        """Noise and labels for the generator; the labels from p̃(y)."""
        return gen.draw_inputs(stream, counts, size, self.noise)

    # -- client: what the server sent is empty in the first round ----------------------------------------------------

    def begin(self, client):
        client.scratch[self.name] = {"made": self.generated(client)}

    def generated(self, client):
        """Batch after batch of (features, labels) from the generator as it was sent, in evaluation mode."""
        sent, size, stream = client.broadcast[self.name], client.config.batch_size, client.stream(f"{self.name}/noise")
        model = gen.for_classifier(client.model, self.noise, sent["generator"])
        while True:
            made, labels = gen.make(model, *self.draw(stream, sent["counts"], gen.BLOCK * size))
            yield from zip(made.split(size), labels.split(size), strict=True)

    def loss(self, client, step):
        """λ_ge·L_ge (eq. 11) + λ_po·L_po (eq. 10)."""
        sent, terms = client.broadcast[self.name], []
        if "generator" in sent and (weight := self.at("lambda_ge", client.t)):
            made, labels = next(client.scratch[self.name]["made"])
            terms.append(weight * F.cross_entropy(client.model.module.head(made), labels))
        if "prototypes" in sent and (weight := self.at("lambda_po", client.t)):
            features = step.features[: len(step.real_y)]
            terms.append(weight * self.distance(features, step.real_y, sent["prototypes"], sent["known"]).mean())
        return sum(terms) if terms else None

    def fused_loss(self, clients, step):
        """The same, a value per client."""
        sent, t, terms = clients[0].broadcast[self.name], clients[0].t, []
        if "generator" in sent and (weight := self.at("lambda_ge", t)):
            made, labels, share = pad([next(client.scratch[self.name]["made"]) for client in clients])
            terms.append(weight * cross_entropies(step.model.head(made), labels, share))
        if "prototypes" in sent and (weight := self.at("lambda_po", t)):
            features = step.features[:, : step.real_y.shape[1]]
            distances = self.distance(features, step.real_y, sent["prototypes"], sent["known"])
            terms.append(weight * (distances * step.real_share).sum(1))
        return sum(terms) if terms else None

    @torch.no_grad()
    def end(self, client):
        """Local prototypes (eq. 2) times their counts, which add up to eq. 3; the head for eq. 5."""
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
            server.state[self.name] = gen.fresh_state(server.model, self.noise, seed)

    def broadcast(self, server):
        wanted = ("generator", "counts") * bool(self.lambda_ge) + ("prototypes", "known") * bool(self.lambda_po)
        return {name: server.state[self.name][name] for name in wanted} if "counts" in server.state[self.name] else {}

    def update(self, server, uploads):
        """Prototypes by counts (eq. 3), where a class nobody had keeps its last; then the generator's training."""
        if not uploads.sum:
            return
        state = server.state[self.name]
        state["counts"] = uploads.sum["counts"]
        if self.aligns:
            state |= class_means(uploads.sum["features"], state["counts"], state)
        if self.lambda_ge:
            self.update_generator(server, uploads)

    def update_generator(self, server, uploads):
        """Minimise γ_fid·L_fid + γ_div·L_div − γ_ad·L_ad (eq. 8) with this round's prototypes and label counts."""
        state, losses = server.state[self.name], {}
        if weight := self.at("gamma_fid", server.t):
            heads, biases, held = (uploads.stacked(key, server.device) for key in ("head", "bias", "counts"))
            shares = held / held.sum(0).clamp(min=1)
            losses["fid"] = weight, lambda made, y, z: self.fidelity(made, y, heads, biases, shares)
        if self.gamma_div:
            losses["div"] = self.gamma_div, lambda made, y, z: gen.diversity(made, y, z, self.pairs)
        if self.gamma_ad and "prototypes" in state:
            losses["ad"] = -self.gamma_ad, lambda h, y, z: self.distance(h, y, state["prototypes"], state["known"])
        untrained = gen.measure(*self.sample_features(server), "generator.untrained_") if server.t == 1 else {}
        model = gen.for_classifier(server.model, self.noise, state["generator"])
        inputs = self.draw(server.stream(f"{self.name}/noise"), state["counts"], self.gen_steps * self.gen_batch)
        adam = {"lr": self.gen_lr * self.gen_lr_decay ** (server.t - 1), "weight_decay": self.gen_weight_decay}
        trained = gen.train_generator(model, state["adam"], adam, inputs, self.gen_batch, losses)
        state["generator"] = model.weights
        server.metrics |= untrained | trained | gen.measure(*self.sample_features(server), "generator.")

    def sample_features(self, server, count=gen.MEASURED):
        if not self.lambda_ge:
            return None
        inputs = self.draw(server.stream(f"{self.name}/sample"), server.state[self.name]["counts"] > 0, count)
        return gen.make(gen.for_classifier(server.model, self.noise, server.state[self.name]["generator"]), *inputs)
