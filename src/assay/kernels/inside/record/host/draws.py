"""The default generator of the host: what a replay draws from the caller's seed, one draw after the other."""

from __future__ import annotations

import torch

from assay.kernels.inside.record.reads import NotRecordableError

GENERATOR = torch.default_generator
"""The host's, whatever stands for it later."""


class Draws:
    """The state of the generator between the draws of a recording.

    Draws on tensors without memory leave it alone. So each moves it on by a number, as a draw does on a GPU's machine:
    then a state that host code kept and put back is another one.
    """

    def __init__(self) -> None:
        self.of_weights = False
        """Whether draws are those of weights: in the constructor."""
        self._left = _state()

    def begin(self) -> None:
        """The caller has seeded the generator, whatever host code did to it before."""
        self._left = _state()

    def check(self, base: str) -> None:
        """Note a draw.

        Raises:
            NotRecordableError: it is not made from where the one before it has left the generator.
        """
        if _state() != self._left:
            raise NotRecordableError(
                f"{base} draws after host code put the generator into a state of its own choice (torch.manual_seed, "
                "set_rng_state, the end of a fork_rng), and each draw is replayed from where the one before it left "
                "the generator, from the caller's seed on. Leave the generator alone, and draw the weights first, in "
                "the order of the reference"
            )
        move_on()
        self._left = _state()


def move_on() -> None:
    """Draw a number that nobody sees: also where host code seeds the generator of a GPU, of which there is none."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        torch.rand(1, device="cpu")


def _state() -> bytes:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return bytes(GENERATOR.get_state().numpy())
