"""Train a network of your own: any nn.Module class, or function, of (shape, classes).

    python examples/own_model.py

The last linear layer is found and split off, for the methods that work with features. From a shell the same class is
`raysim run --model examples.own_model:Net`.
"""

from torch import nn

import raysim


class Net(nn.Module):
    """Two convolutions and one linear layer, for images of any size."""

    def __init__(self, shape, classes, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.classify = nn.Linear(2 * width * 16, classes)

    def forward(self, x):
        return self.classify(self.body(x))


if __name__ == "__main__":
    run = raysim.run(model=Net, method="fedprox", clients=20, active=5, rounds=5, train_size=2000, test_size=500)
    print(f"accuracy {100 * run.accuracy:.1f} %; report: {run.path / 'report.html'}")
    net = run.model()  # a Net, with the trained weights
    print(type(net).__name__, sum(weights.numel() for weights in net.parameters()), "weights")
