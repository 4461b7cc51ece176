"""CaptureResult checks what it is given and hands out views by sample."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from easysteer_data.hidden_states import CaptureResult, RowLabels

OUTPUTS = [SimpleNamespace(request_id="7"), SimpleNamespace(request_id="8"), SimpleNamespace(request_id="9")]
LABELS = RowLabels(["7", "7", "9"], [0, 1, 4], [11, 12, 13])


def test_labels_of_whole_requests_are_those_of_their_rows() -> None:
    tensors = torch.tensor([0, 1, 4]), torch.tensor([11, 12, 13])
    labels = RowLabels(["7", "8", "9"], *tensors, n_rows=(2, 0, 1))
    assert len(labels) == 3
    assert labels == LABELS
    assert labels != RowLabels(["7", "7", "9"], [0, 1, 5], [11, 12, 13])
    assert repr(labels) == "RowLabels(req_ids=['7', '7', '9'], positions=[0, 1, 4], token_ids=[11, 12, 13])"


ROWS = {1: torch.arange(6.0).view(3, 2), 0: torch.arange(6.0).view(3, 2) + 10}


def result() -> CaptureResult:
    return CaptureResult(ROWS, {0: LABELS, 1: LABELS}, OUTPUTS)


def test_samples_are_found_by_their_labels() -> None:
    assert result().layer_ids == [0, 1]
    assert torch.equal(result().sample(0)[1], ROWS[1][:2])
    assert result().sample(1)[1].shape == (0, 2)
    assert torch.equal(result().sample(2)[0], ROWS[0][2:])
    assert result().sample_positions(2) == [4]
    assert result().sample_token_ids(0) == [11, 12]
    assert [len(sample) for sample in result().to_nested()] == [2, 2, 2]
    assert len(result()) == 3
    assert result().labelled


def test_a_sample_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="sample 3: there are 3"):
        result().sample(3)


def test_rows_without_labels_can_not_be_split() -> None:
    unlabelled = CaptureResult(ROWS, None, OUTPUTS)
    assert not unlabelled.labelled
    assert unlabelled.rows(0).shape == (3, 2)
    with pytest.raises(RuntimeError, match="no labels"):
        unlabelled.sample(0)


def test_labels_of_some_layers_only_are_refused() -> None:
    with pytest.raises(ValueError, match="row labels missing for layer 0"):
        CaptureResult(ROWS, {1: LABELS}, OUTPUTS)


def test_another_number_of_labels_than_rows_is_refused() -> None:
    short = RowLabels(["7"], [0], [11])
    with pytest.raises(RuntimeError, match="layer 1 has 3 rows but 1 labels"):
        CaptureResult(ROWS, {0: LABELS, 1: short}, OUTPUTS)


def test_layouts_must_fit_their_layer() -> None:
    layout = {"width": 2, "num_heads": 2, "head_size": 1}
    assert CaptureResult(ROWS, None, OUTPUTS, {0: layout}).layouts == {0: layout}
    with pytest.raises(ValueError, match="layer 5"):
        CaptureResult(ROWS, None, OUTPUTS, {5: layout})
    with pytest.raises(ValueError, match="width 4, the rows 2"):
        CaptureResult(ROWS, None, OUTPUTS, {0: {**layout, "width": 4}})
