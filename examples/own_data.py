"""Train on data of your own, shared out as it was collected: a column says whose each image is.

    python examples/own_data.py

Data may also be a torch Dataset or a Hugging Face Dataset; from a shell it is the function of a module:
`raysim run --dataset examples.own_data:load --partition column --client-column writer --clients 12`.
"""

import numpy as np

import raysim

WRITERS = 12


def load() -> dict[str, np.ndarray]:
    """Strokes at four angles, drawn by twelve writers, each with a hand of its own."""
    draw = np.random.default_rng(0)

    def strokes(count: int) -> dict[str, np.ndarray]:
        y, writer = draw.integers(0, 4, count), draw.integers(0, WRITERS, count)
        angle = y * np.pi / 4 + (writer - WRITERS / 2) / WRITERS * 0.5  # some lean to the left, others to the right
        rows, columns = np.mgrid[-1:1:16j, -1:1:16j]
        away = np.abs(rows * np.cos(angle)[:, None, None] + columns * np.sin(angle)[:, None, None])
        x = np.clip(1 - 3 * away, 0, 1) + 0.1 * draw.random((count, 16, 16))
        return {"x": np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8), "y": y, "writer": writer}

    train, test = strokes(1200), strokes(300)
    return train | {"x_test": test["x"], "y_test": test["y"]}


def by_size(labels, clients, rng):
    """A partition of your own: the client of each sample. Here client k has k + 1 shares of them."""
    shares = np.repeat(np.arange(clients), np.arange(clients) + 1)
    return rng.permutation(shares[np.arange(len(labels)) % len(shares)])


if __name__ == "__main__":
    settings = {"dataset": load, "model": "small-cnn", "clients": WRITERS, "rounds": 5}
    natural = raysim.run(partition="column", client_column="writer", **settings)
    uneven = raysim.run(partition=by_size, **settings)
    print(f"by writer {100 * natural.accuracy:.1f} %, by size {100 * uneven.accuracy:.1f} %")
