"""Predictions in batches, and what draws of rows give."""

import numpy as np
import torch

from raysim.methods.common.pseudo_labels import draw_rows, predictions, soft
from raysim.models import build


def test_predictions_are_the_largest_probabilities_whatever_the_batch():
    module, x = build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.randn(23, 1, 8, 8)
    labels, confidence = predictions(module, x, 10)
    logits = module(x).detach().double().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert labels.tolist() == probabilities.argmax(1).tolist()
    np.testing.assert_allclose(confidence, probabilities.max(1), rtol=1e-5)
    assert len(predictions(module, x[:0], 10)[0]) == 0


def test_soft_labels_stay_and_hard_ones_become_soft():
    assert soft(torch.tensor([1, 0], dtype=torch.int16), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    mixture = torch.tensor([[0.5, 0.5]])
    assert soft(mixture, 2) is mixture


def test_drawn_rows_are_of_those_given():
    rows = draw_rows(np.array([3, 8, 11]), np.random.default_rng(0), 300)
    assert set(rows) == {3, 8, 11}
