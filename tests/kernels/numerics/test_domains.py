"""Inputs in a domain: no input is given up that could vary."""

from __future__ import annotations

import numpy as np
import pytest

from assay.kernels.arrays import HostTensor, host_tensor
from assay.kernels.numerics.domains import DOMAINS, Domain, narrowed

VARIED = np.array([-1.2, 0.7, 0.0, 30.0, 0.0, -4.0])
WITHIN: dict[Domain, tuple[float, float]] = {
    "unit": (0.0, 1.0),
    "not negative": (0.0, np.inf),
    "positive": (1e-9, np.inf),
}


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3)])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, -2.0])
@pytest.mark.parametrize("domain", DOMAINS)
def test_an_input_that_is_one_number_everywhere_varies_in_every_domain(
    domain: Domain, value: float, shape: tuple[int, ...]
) -> None:
    drawn = np.full(shape, value)
    varied = VARIED[: drawn.size].reshape(shape)
    new = narrowed(host_tensor(drawn, "float32"), host_tensor(varied, "float32"), domain)
    assert isinstance(new, HostTensor) and new.shape == shape
    found = new.array()
    assert np.isfinite(found).all() and (found != value).any()
    if domain in WITHIN and (domain != "unit" or 0 <= value <= 1):
        least, most = WITHIN[domain]
        assert ((found >= least).all() and (found <= most).all()) or (domain == "positive" and value == 0)
    if domain == "as drawn":
        assert np.abs(found - value).max() <= 0.06 * abs(value) or value == 0


def test_a_range_that_was_drawn_is_kept() -> None:
    drawn = np.array([0.2, 0.9, 0.4, 0.3, 0.5, 0.8])
    new = narrowed(host_tensor(drawn, "float32"), host_tensor(VARIED, "float32"), "as drawn")
    assert isinstance(new, HostTensor)
    found = new.array()
    assert (found >= np.float32(0.2)).all() and (found <= np.float32(0.9)).all()
