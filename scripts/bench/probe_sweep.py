"""All logistic probes of a run in one pass beside scikit-learn layer by layer; prints JSON.

Rows of two overlapping classes are made up, 30 layers of 20,000 rows of width 576. Their spread along the
k-th principal axis falls as 1 / k: the ill-conditioned covariance that residual streams have. Both sides take
the same float32 tensor [rows, layers, width], standardise and fit layer after layer, in turns:

    python scripts/bench/probe_sweep.py [--turns 3] [--layers 30] [--rows 20000] [--width 576] [--decay 1.0]

scikit-learn: StandardScaler() and LogisticRegression(), both with all defaults (lbfgs, C=1, tol=1e-4,
max_iter=100). Where those end before the minimum is found, at another accuracy, `enough_iterations` has
max_iter=10,000 for the first layers. With --converge one layer is also run to tol=1e-8 in float64, which
shows that both minimise the same loss, and what the defaults leave undone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from easysteer_data.probes import LinearProbe
from easysteer_data.probes.standardise import Moments

Array = npt.NDArray[Any]


def made(
    n_rows: int, n_layers: int, width: int, decay: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows [n, layers, width] and classes to train on, and as many to test on."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (2 * n_rows,), generator=generator)
    x = torch.empty(2 * n_rows, n_layers, width)
    spread = torch.arange(1, width + 1) ** -decay
    for layer in range(n_layers):
        axes = torch.linalg.qr(torch.randn(width, width, generator=generator)).Q
        step = torch.randn(width, generator=generator)
        step *= 1.5 / step.norm()
        noise = torch.randn(2 * n_rows, width, generator=generator)
        x[:, layer] = ((noise + y[:, None] * step) * spread) @ axes
    return x[:n_rows], y[:n_rows], x[n_rows:], y[n_rows:]


def ours(x: torch.Tensor, y: torch.Tensor) -> LinearProbe:
    """Every layer's probe, standardising included."""
    probe = LinearProbe(range(x.shape[1]), x.shape[2], ("no", "yes"))
    probe.readout.standardise(Moments.of_rows(x))
    probe.readout.minimise(x, y, probe.layer_ids)
    return probe


def theirs(x: torch.Tensor, y: torch.Tensor, dtype: Any, **settings: Any) -> list[Any]:
    """Scaler, regression and seconds to standardise and to fit, of every layer."""
    fitted = []
    for layer in range(x.shape[1]):
        rows = x[:, layer].numpy().astype(dtype)
        started = time.perf_counter()
        scaler = StandardScaler()
        scaled = scaler.fit_transform(rows)
        standardised = time.perf_counter()
        model = LogisticRegression(**settings).fit(scaled, y.numpy())
        fitted.append((scaler, model, standardised - started, time.perf_counter() - standardised))
    return fitted


def accuracies(fitted: list[Any], x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Share of rows that get their class, by layer."""
    return [
        float(model.score(scaler.transform(x[:, layer].numpy().astype(model.coef_.dtype)), y.numpy()))
        for layer, (scaler, model, *_) in enumerate(fitted)
    ]


def loss(scaled: Array, y: Array, weight: Array, bias: float, penalty: float) -> float:
    """What both minimise, by numpy in float64."""
    logits = scaled @ weight + bias
    return float(np.logaddexp(0, logits).mean() - (y * logits).mean() + penalty * weight @ weight / 2)


def to_convergence(x: torch.Tensor, y: torch.Tensor, probe: LinearProbe, default: Any) -> dict[str, float]:
    """The loss of one layer of each beside that of scikit-learn run to the end."""
    ((scaler, model, _, seconds),) = theirs(x[:, :1], y, np.float64, tol=1e-8, max_iter=20_000)
    scaled = scaler.transform(x[:, 0].numpy().astype(np.float64))

    def of(weight: Array, bias: float) -> float:
        return loss(scaled, y.numpy(), weight.astype(np.float64), bias, 1 / len(y))

    least = of(model.coef_[0], float(model.intercept_[0]))
    own = of(probe.readout.weight[0, 0].detach().numpy(), float(probe.readout.bias[0, 0]))
    return {
        "scikit_learn_s": round(seconds, 3),
        "scikit_learn_iterations": int(model.n_iter_[0]),
        "loss": least,
        "ours_above": own - least,
        "defaults_above": of(default.coef_[0], float(default.intercept_[0])) - least,
    }


def apart(own: list[float], other: list[float]) -> dict[str, float]:
    """The least and the most that the accuracies of layers differ by."""
    differences = [a - b for a, b in zip(own, other, strict=True)]
    return {"least": round(min(differences), 4), "most": round(max(differences), 4)}


def main() -> None:
    """Make the rows, measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--decay", type=float, default=1.0, help="spread of the k-th axis is k ** -decay")
    parser.add_argument("--enough-layers", type=int, default=3)
    parser.add_argument("--converge", action="store_true", help="run one layer to tol=1e-8; a minute or more")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    x, y, x_test, y_test = made(arguments.rows, arguments.layers, arguments.width, arguments.decay)
    seconds: dict[str, list[float]] = {"ours": [], "defaults": [], "enough_iterations": []}
    few = slice(0, min(arguments.enough_layers, arguments.layers))
    for _ in range(arguments.turns):
        started = time.perf_counter()
        probe = ours(x, y)
        seconds["ours"].append((time.perf_counter() - started) / arguments.layers)
        default = theirs(x, y, np.float32)
        seconds["defaults"].append(sum(one[2] + one[3] for one in default) / len(default))
        enough = theirs(x[:, few], y, np.float32, max_iter=10_000)
        seconds["enough_iterations"].append(sum(one[2] + one[3] for one in enough) / len(enough))
    own = (probe.score(x_test).argmax(dim=-1) == y_test[:, None]).double().mean(dim=0).tolist()
    report = {
        "layers": arguments.layers,
        "rows": arguments.rows,
        "width": arguments.width,
        "decay": arguments.decay,
        "torch_threads": torch.get_num_threads(),
        "scikit_learn": f"{sklearn.__version__}, StandardScaler() and LogisticRegression()",
        "seconds_a_layer": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "times_faster": {
            name: round(
                statistics.median(a / b for a, b in zip(seconds[name], seconds["ours"], strict=True)), 1
            )
            for name in ("defaults", "enough_iterations")
        },
        "mean_test_accuracy": round(statistics.mean(own), 4),
        "accuracy_minus_defaults": apart(own, accuracies(default, x_test, y_test)),
        "accuracy_minus_enough_iterations": apart(own[few], accuracies(enough, x_test[:, few], y_test)),
        "iterations": {
            "defaults": [int(one[1].n_iter_[0]) for one in default],
            "enough_iterations": [int(one[1].n_iter_[0]) for one in enough],
        },
    }
    if arguments.converge:
        report["layer_0_to_convergence"] = to_convergence(x, y, probe, default[0][1])
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
