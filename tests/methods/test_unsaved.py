"""What a checkpoint would lack: attributes that are tensors of any kind."""

import pytest
import torch
from bench.methods.unsaved import changed_since, unsaved
from torch import nn


@pytest.mark.parametrize(
    "kind",
    [
        torch.Tensor.to_sparse,
        lambda value: torch.complex(value, value).conj(),
        lambda value: torch.complex(value, value).conj().imag,
        torch.Tensor.bfloat16,
    ],
)
def test_an_attribute_of_any_kind_of_tensor_is_seen_to_change_and_not_to_change(kind):
    model = nn.Linear(2, 2)
    model.graph = kind(torch.eye(2))
    before = unsaved(model)
    assert not changed_since(before, model)
    model.graph = kind(2 * torch.eye(2))
    assert list(changed_since(before, model)) == ["graph"]


def test_a_tensor_without_values_has_none_to_change():
    model = nn.Linear(2, 2)
    model.shape = torch.zeros(2, device="meta")
    assert not changed_since(unsaved(model), model)


def test_a_view_of_a_parameter_changes_with_it_and_is_not_lost():
    model = nn.Linear(2, 2)
    model.row = model.weight[0]
    before = unsaved(model)
    with torch.no_grad():
        model.weight += 1
    assert not changed_since(before, model)
