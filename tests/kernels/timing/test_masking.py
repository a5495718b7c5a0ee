"""Masks and digests: both halves agree, and neither can be had without the key or the output."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from assay.kernels.inside.timing import masking as inside
from assay.kernels.timing import masking

KEY = (0xFEDCBA9876543210, 0x8123456789ABCDEF)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4096, 8 * masking.BLOCK, 300_001])
@pytest.mark.parametrize("number", [0, 12_345])
def test_the_child_takes_the_mask_off(size: int, number: int) -> None:
    data = random.Random(size).randbytes(size)
    masked = masking.mask(data, KEY, number)
    assert len(masked) == masking.padded(size)
    words = torch.from_numpy(np.frombuffer(masked, dtype=np.int64).copy())
    inside.unmask(words, KEY, number)
    assert words.numpy().tobytes()[:size] == data


def test_a_mask_hides() -> None:
    zeros = bytes(1 << 18)
    masked = np.frombuffer(masking.mask(zeros, KEY, 0), dtype=np.uint64)
    assert len(set(masked.tolist())) == len(masked)
    bits = np.unpackbits(masked.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005
    assert masking.mask(zeros, (KEY[0], KEY[1] ^ 1), 0) != masked.tobytes()
    other = np.frombuffer(masking.mask(zeros, KEY, 1), dtype=np.uint64)
    assert not set(masked.tolist()) & set(other.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (64, 33)])
def test_both_halves_digest_alike(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert int(inside.digest(tensor)) & 0xFFFFFFFFFFFFFFFF == masking.digest(raw)


def test_a_digest_follows_every_byte_and_its_place() -> None:
    data = bytearray(random.Random(3).randbytes(64))
    before = masking.digest(bytes(data))
    for place in range(64):
        data[place] ^= 1
        assert masking.digest(bytes(data)) != before
        data[place] ^= 1
    assert masking.digest(bytes(data[8:16] + data[:8] + data[16:])) != before


def test_a_view_into_the_middle_is_digested() -> None:
    tensor = torch.arange(9, dtype=torch.float32)[1:]
    assert int(inside.digest(tensor)) & 0xFFFFFFFFFFFFFFFF == masking.digest(tensor.numpy().tobytes())
