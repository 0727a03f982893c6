"""Search for a learning rate and a method's weight: Optuna ends bad trials early.

    pip install 'raysim[search]' && python examples/search.py

The same call again goes on where it stopped. From a shell it is `raysim search --over lr=loguniform:1e-3,1e-1 …`.
"""

import raysim

if __name__ == "__main__":
    found = raysim.search(
        over={"lr": "loguniform:1e-3,1e-1", "fedprox.mu": "uniform:0,0.1"}, trials=8, method="fedprox",
        model="small-cnn", clients=20, active=5, rounds=10, train_size=2000, test_size=500,
    )  # fmt: skip
    print(found.table)
    best = found.best
    print(f"best {100 * best.accuracy:.1f} % with lr {best.settings['lr']:.4f}; report: {found.path / 'report.html'}")
