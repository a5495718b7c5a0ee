"""The child's half of `assay.kernels.timing.masking`, in PyTorch, so that a GPU is as fast at it as its memory."""

from __future__ import annotations

import torch

from assay.kernels.timing.masking import BLOCK, FIRST, SECOND, STEP, WORD, numbered, padded


def _signed(value: int) -> int:
    """The same 64 bits as PyTorch's integers have them."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def _mixed(z: torch.Tensor) -> torch.Tensor:
    z.bitwise_xor_(_shifted(z, 30)).mul_(_signed(FIRST))
    z.bitwise_xor_(_shifted(z, 27)).mul_(_signed(SECOND))
    return z.bitwise_xor_(_shifted(z, 31))


def keystream(key: tuple[int, int], start: int, count: int, device: torch.device) -> torch.Tensor:
    """`count` words of the mask, from word number `start`."""
    z = torch.arange(start, start + count, dtype=torch.int64, device=device)
    _mixed(z.mul_(_signed(STEP)).add_(_signed(key[0])))
    return _mixed(z.add_(_signed(key[1])))


def unmask(words: torch.Tensor, key: tuple[int, int], number: int) -> None:
    """Take the mask of buffer `number` off, in place."""
    first, second = keystream(key, 0, BLOCK, words.device), keystream(key, BLOCK, BLOCK, words.device)
    factors = keystream(key, numbered(number), -(-words.numel() // BLOCK), words.device)
    whole = words.numel() // BLOCK
    words[: whole * BLOCK].view(whole, BLOCK).bitwise_xor_(factors[:whole, None] * second + first)
    rest = words[whole * BLOCK :]
    if rest.numel():
        rest.bitwise_xor_((second * factors[-1] + first)[: rest.numel()])


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """The digest of a dense tensor's bytes, still on its device."""
    flat = tensor.reshape(-1).view(torch.uint8)
    short = padded(flat.numel()) - flat.numel()
    if short:
        flat = torch.nn.functional.pad(flat, (0, short))
    elif flat.storage_offset() % WORD:
        flat = flat.clone()
    words = flat.view(torch.int64)
    odd = torch.arange(words.numel(), dtype=torch.int64, device=words.device).mul_(2).add_(1)
    return odd.mul_(words).sum()
