"""What a reference asks of its precision while it is computed in float64."""

from __future__ import annotations

import pytest
import torch

from assay.kernels.inside.problem.asked import AskedAs

X = torch.tensor([0.0, 1e-4, float("inf"), -float("inf")], dtype=torch.float64)


@pytest.mark.parametrize("precision", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_of_a_type_are_those_of_the_working_precision(precision: torch.dtype) -> None:
    info = torch.finfo(precision)
    with AskedAs(precision):
        assert torch.finfo(X.dtype).eps == info.eps and torch.finfo(X.dtype).tiny == info.tiny
        assert torch.finfo(torch.float16).eps == 2.0**-10
        assert torch.nan_to_num(X)[2:].tolist() == [info.max, info.min]
        assert torch.nan_to_num(X, 0.0, 7.0).tolist()[2:] == [7.0, info.min]
        assert X.nan_to_num(posinf=8.0, neginf=-9.0).tolist()[2:] == [8.0, -9.0]
        assert torch.nan_to_num(input=X).tolist()[2:] == [info.max, info.min]
        normed = torch.nn.functional.rms_norm(X[1:2], (1,))
        assert torch.allclose(normed, X[1:2] / (X[1:2] ** 2 + info.eps).sqrt())
        assert torch.nn.RMSNorm(1, eps=1e-3, dtype=torch.float64)(X[1:2]).item() == pytest.approx(
            1e-4 / 1e-3**0.5, 1e-3
        )
        assert torch.nn.RMSNorm(1, dtype=torch.float64)(X[1:2]).item() == pytest.approx(normed.item())
    assert torch.finfo(torch.float64).eps == 2.0**-52, "afterwards all is as before"


def test_it_is_as_before_where_a_reference_fails() -> None:
    before = torch.finfo
    with pytest.raises(ZeroDivisionError), AskedAs(torch.float32):
        1 / 0  # noqa: B018
    assert torch.finfo is before
