"""Kinds that are trained in epochs, on made-up rows of which it is known what they can learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from easysteer_data.datamodule import ActivationDataModule
from easysteer_data.errors import RunError, SettingsError
from easysteer_data.probes import AttentionPooledProbe, MLPProbe, ProbeData, fit_probe
from easysteer_data.settings import ProbeSettings
from tests.runs import SPLIT_CYCLE, MadeRows, labelled_rows, write_run

QUICK: dict[str, Any] = {"bootstrap": 20, "control": False, "bag_of_tokens": False}


def exclusive_or(n_prompts: int = 600) -> MadeRows:
    """Two layers: in the first, the class is whether two elements have the same sign; the second is noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_prompts, 2, 4)).astype(np.float32)
    same = x[:, 0, 0] * x[:, 0, 1] > 0
    return MadeRows(
        x=x,
        n_rows=[1] * n_prompts,
        splits=[SPLIT_CYCLE[i % 5] for i in range(n_prompts)],
        labels=[("false", "true")[int(one)] for one in same],
        layer_ids=(3, 7),
    )


def marked_tokens(n_prompts: int = 500) -> MadeRows:
    """Two to nine rows a prompt; one has a mark in element 0, and beside it the class in element 1."""
    rng = np.random.default_rng(0)
    n_rows = rng.integers(2, 10, n_prompts)
    starts = np.cumsum([0, *n_rows[:-1]])
    x = rng.normal(size=(n_rows.sum(), 1, 6)).astype(np.float32)
    y = rng.integers(0, 2, n_prompts)
    told = starts + rng.integers(0, n_rows)
    x[:, 0, 0] = 0
    x[told, 0, 0] = 6
    x[told, 0, 1] = 2 * (2 * y - 1)
    return MadeRows(
        x=x,
        n_rows=n_rows.tolist(),
        splits=[SPLIT_CYCLE[i % 5] for i in range(n_prompts)],
        labels=[("false", "true")[one] for one in y],
        layer_ids=(4,),
    )


def test_a_hidden_layer_reads_what_no_line_separates(tmp_path: Path) -> None:
    data = ActivationDataModule(write_run(tmp_path / "run", exclusive_or()), batch_size=64)
    mlp = fit_probe(data, ProbeSettings(kind="mlp", lr=0.02, max_epochs=40, hidden=32, **QUICK)).report
    line = fit_probe(data, ProbeSettings(**QUICK)).report
    assert mlp.best_layer == 3
    assert mlp.layers[0].test_auroc > 0.9 > 0.65 > line.layers[0].test_auroc  # type: ignore[operator]
    assert mlp.layers[1].test_auroc < 0.65  # type: ignore[operator]


def test_a_hidden_layer_predicts_numbers(tmp_path: Path) -> None:
    rows = labelled_rows((3.0, 1.0))
    numbers = [float(abs(x - 1000)) for x in rows.x[:, 0, 1]]
    run = write_run(tmp_path / "run", replace(rows, labels=numbers, label_kind="numeric"))
    settings = ProbeSettings(kind="mlp", lr=0.02, max_epochs=40, hidden=32, **QUICK)
    fitted = fit_probe(ActivationDataModule(run, batch_size=64), settings)
    report = fitted.report
    assert (report.task, report.selected_by, report.best_layer) == ("numeric", "r2", 0)
    r2 = report.best.test["r2"]
    assert r2.value > 0.8  # type: ignore[operator]
    assert r2.low < r2.value < r2.high  # type: ignore[operator]
    predicted = np.array(report.details.predictions)
    assert np.corrcoef(predicted.T)[0, 1] == pytest.approx(report.best.test["pearson"].value, abs=1e-6)


def test_attention_finds_the_token_that_tells_the_class(tmp_path: Path) -> None:
    rows = marked_tokens()
    data = ActivationDataModule(write_run(tmp_path / "run", rows), batch_size=64)
    settings = ProbeSettings(kind="attention_pooled", C=100.0, lr=0.05, max_epochs=15, **QUICK)
    fitted = fit_probe(data, settings)
    assert fitted.report.best.test_auroc > 0.97  # type: ignore[operator]
    n_prompts = sum(split == "test" for split in rows.splits)
    assert fitted.report.counts["test"].examples == fitted.report.n_test == n_prompts
    assert fitted.report.counts["test"].rows == len(rows.rows_of("test"))
    assert isinstance(fitted.probe, AttentionPooledProbe)

    x, prompt = torch.from_numpy(rows.x), torch.from_numpy(rows.prompt)
    shares = fitted.probe.readout.shares(x, prompt)[:, 0]
    torch.testing.assert_close(torch.zeros(500).index_add(0, prompt, shares), torch.ones(500))
    assert shares[x[:, 0, 0] == 6].mean() > 0.7
    # A prompt alone has the score that it has among others, in any batch.
    together = fitted.probe.score(x, prompt)
    for number in (0, 17, 499):
        alone = fitted.probe.score(x[prompt == number])
        torch.testing.assert_close(alone[0], together[number], atol=1e-5, rtol=1e-5)


def test_pooled_examples_are_whole_prompts_in_every_batch(tmp_path: Path) -> None:
    rows = marked_tokens(50)
    data = ProbeData(ActivationDataModule(write_run(tmp_path / "run", rows), batch_size=20), pooled=True)
    seen = {}
    for batch in data.shuffled(epoch=0):
        assert 1 <= len(batch["x"]) < 20 + 9
        for number, prompt in enumerate(batch["prompt"].tolist()):
            x = batch["x"][batch["example"] == number]
            assert np.array_equal(x, rows.x[rows.prompt == prompt])
            seen[prompt] = int(batch["y"][number])
    expected = [p for p in range(50) if rows.splits[p] == "train"]
    assert sorted(seen) == expected
    assert seen == {p: ("false", "true").index(str(rows.labels[p])) for p in expected}
    orders = [[p for b in data.shuffled(epoch) for p in b["prompt"].tolist()] for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_attention_over_one_row_a_prompt_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", labelled_rows((1.0,)))
    with pytest.raises(RunError, match=r"has one row a prompt.*capture with select=all"):
        fit_probe(ActivationDataModule(run), ProbeSettings(kind="attention_pooled", **QUICK))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"probe\.hidden must be above zero, found 1\.0 and 0"):
        MLPProbe((0,), 3, ("a", "b"), hidden=0)
    with pytest.raises(SettingsError, match=r"probe\.C must be above zero, found 0"):
        AttentionPooledProbe((0,), 3, ("a", "b"), C=0)
    with pytest.raises(SettingsError, match="at least two classes"):
        AttentionPooledProbe((0,), 3, ())
