"""What the API can compute, and what is refused with its cure."""

from __future__ import annotations

from assay.backends.base import Capabilities, LossSpec
from assay.backends.tinker.trained import AS_CUSTOM, BY_NAME
from assay.errors import ConfigError


def capabilities(*, losses: frozenset[str] = BY_NAME, custom: bool = True) -> Capabilities:
    """What a server can do that computes these losses by name, and custom ones or not."""
    return Capabilities(
        losses=losses | AS_CUSTOM if custom else losses,
        terms=frozenset({"policy", "kl"}) if custom else frozenset({"policy"}),
        lora=True,
        full_weights=False,
        exact_resume=False,
        batch_invariant=True,  # as far as can be told here: the server alone decides what it computes together
        own_losses=custom,
        tempered=False,
        precision="other",
    )


def check_loss(loss: LossSpec) -> None:
    """Refuse a loss that no server can compute.

    Raises:
        ConfigError: with the cure.
    """
    check_temperature(loss.temperature)
    if loss.entropy_coef:
        raise ConfigError(
            "An entropy bonus needs the whole distribution of each token, which the Tinker API does not give. Set "
            "grpo.entropy_coef=0, or backend=local."
        )
    if not callable(loss.surrogate) and loss.surrogate not in BY_NAME | AS_CUSTOM:
        raise ConfigError(f"loss {loss.surrogate!r} is not one of {', '.join(sorted(BY_NAME | AS_CUSTOM))}.")


def check_temperature(temperature: float) -> None:
    """Refuse a temperature other than 1.

    Raises:
        ConfigError: with the cure.
    """
    if temperature != 1:
        raise ConfigError(
            f"temperature={temperature:g}: the Tinker API computes log-probabilities at temperature 1 alone. Set "
            "temperature=1, or backend=local."
        )
