"""Training with a loss of one's own: one that equals ppo does so to the bit, and a wrong one is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import GRPOConfig, GRPOTrainer, Recipe
from assay.backends.base import LossSpec
from assay.backends.local.losses import Streams, policy_loss
from assay.errors import ConfigError, TrainingError
from assay.grpo.recipes import LOSS
from assay.plugins import find
from support.losses import PPO, SQUARE, named_loss, own_loss
from support.off_policy import a_backend, rollouts, update
from support.own_rollouts import made_up, same, snapshot
from support.tiny_models import tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "grpo.md"
CASE: dict[str, Any] = {"kl_coef": 0.1, "learning_rate": 0.01, "num_substeps": 2, "rollout_epochs": 2}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def after(loss_fn: str | Recipe, **more: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The weights after a training step through the buffer, and its metrics."""
    model = tiny_model("gpt_neox")
    trainer = GRPOTrainer(model, config=GRPOConfig(loss_fn=loss_fn, **CASE, **more))
    metrics = trainer.training_step_with_rollout_epochs(made_up(tiny_model("gpt_neox")))
    return snapshot(model), metrics


def test_a_loss_that_equals_ppo_trains_the_same_weights_by_reference_and_as_an_object(tmp_path: Path) -> None:
    reference = own_loss(tmp_path, PPO)
    weights, metrics = after("ppo")
    assert not same(weights, snapshot(tiny_model("gpt_neox"))) and metrics["fraction_clipped"] > 0
    for loss_fn in (reference, find(reference, LOSS, "loss_fn")):
        found, measured = after(loss_fn)
        assert same(found, weights) and measured == metrics
    tight, _ = after(reference, loss_fn_config={"clip_high_threshold": 1.01})
    assert not same(tight, weights)
    assert same(tight, after("ppo", loss_fn_config={"clip_high_threshold": 1.01})[0])


def test_another_loss_trains_otherwise_and_has_no_clip_fraction(tmp_path: Path) -> None:
    reference = own_loss(tmp_path, SQUARE)
    weights, metrics = after(reference)
    assert "fraction_clipped" not in metrics and metrics["optimizer_steps"] == 4
    assert not same(weights, after("ppo", baseline="leave_one_out", aggregation="sequence")[0])
    assert not same(weights, after(reference, loss_fn_config={"pull": 5.0})[0])


def test_the_gradient_is_that_of_the_function(tmp_path: Path) -> None:
    torch.manual_seed(0)
    logprobs, behaviour, advantages = (torch.randn(7) for _ in range(3))
    data = Streams(torch.zeros(7), behaviour, advantages, torch.zeros(7, dtype=torch.long))
    spec = GRPOConfig(loss_fn=own_loss(tmp_path, SQUARE)).loss
    logprobs.requires_grad_()
    policy_loss(spec, logprobs, data).sum().backward()
    gap = (logprobs - behaviour).detach()
    torch.testing.assert_close(logprobs.grad, -gap.exp() * advantages + 2 * 0.5 * 2.0 * gap)


# A wrong one

Function = Callable[..., Any]
AT_ONCE: dict[str, tuple[Function, str]] = {
    "a number": (lambda p, q, a, s: 3.0, "returned a float. A surrogate returns a tensor with the loss of each token"),
    "nothing": (lambda p, q, a, s: None, "returned a NoneType"),
    "an array": (lambda p, q, a, s: (-p * a).detach().numpy(), "returned a ndarray"),
    "a sum": (lambda p, q, a, s: (-p * a).sum(), r"returned a tensor of shape \[\] for 5 tokens"),
    "one for each sequence": (lambda p, q, a, s: p.new_zeros(2).index_add(0, s, -p * a), r"shape \[2\] for 5 tokens"),
    "no gradient": (lambda p, q, a, s: -torch.exp(p.detach() - q) * a, "does not depend on logprobs, so nothing"),
    "integers": (lambda p, q, a, s: (p * 10).long(), "does not depend on logprobs"),
    "nan": (lambda p, q, a, s: -torch.log(p - q) * a, r"returned NaN .* for logprobs \[-1.0, "),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_wrong_surrogate_is_refused_before_training(case: str) -> None:
    function, message = AT_ONCE[case]
    with pytest.raises(ConfigError, match=f"loss_fn: .*<lambda> .*{message}") as caught:
        GRPOConfig(loss_fn=Recipe(function))
    assert "\n" not in str(caught.value)


def narrow(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    return -logprobs[:5] * advantages[:5]


def rooted(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    return -torch.sqrt(1.2 - (logprobs - behaviour)) * advantages


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (narrow, ConfigError, r"loss_fn: narrow returned a tensor of shape \[5\] for \d+ tokens"),
        (
            rooted,
            TrainingError,
            r"loss_fn: rooted returned NaN although all its inputs are finite: \d+ tokens with logprobs between -.*"
            r"behaviour between -.* advantages between -.*The weights were left as they were",
        ),
    ],
)
@pytest.mark.parametrize("budget", [16384, 1])
def test_what_only_real_data_show_ends_the_step_and_leaves_no_gradient(
    function: Function, kind: type[Exception], message: str, budget: int
) -> None:
    backend = a_backend(micro_batch_tokens=budget)
    before = [p.detach().clone() for p in backend._trained.values()]
    with pytest.raises(kind, match=message) as caught:
        update(backend, rollouts(1.0), {"loss_fn": Recipe(function), "learning_rate": 1.0})
    assert "\n" not in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, backend._trained.values(), strict=True))
    assert backend.policy_version == 0 and not any(p.grad is not None for p in backend._trained.values())
    (fresh,) = update(a_backend(micro_batch_tokens=budget), rollouts(1.0), {"loss_fn": "ppo"}).gradients
    (found,) = update(backend, rollouts(1.0), {"loss_fn": "ppo"}).gradients
    assert torch.equal(found, fresh)


def test_nan_that_was_handed_in_is_not_the_losses_fault(tmp_path: Path) -> None:
    # It is dropped with the optimizer step, as with any loss.
    backend = a_backend()
    (data,) = update(a_backend(), rollouts(1.0), {}).data
    data[0].advantages[data[0].mask > 0] = float("nan")
    for loss in (named_loss("ppo"), GRPOConfig(loss_fn=own_loss(tmp_path), kl_coef=0.0).loss):
        output = asyncio.run(backend.forward_backward(data, loss))
        assert output.metrics["loss:sum"] != output.metrics["loss:sum"]


def test_an_error_inside_a_surrogate_keeps_its_traceback() -> None:
    def broken(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
        return advantages.no_such_thing  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="no_such_thing"):
        GRPOConfig(loss_fn=Recipe(broken))


def test_a_reference_that_leads_nowhere_says_what_there_is(tmp_path: Path) -> None:
    reference = own_loss(tmp_path)
    with pytest.raises(ConfigError, match=r"the loss 'RECIPEE' in .*own_loss\.py\. It has RECIPE\."):
        GRPOConfig(loss_fn=f"{reference}E")
    with pytest.raises(ConfigError, match=r"looked for a loss in .*, and my_ppo is a function\. It has RECIPE\."):
        GRPOConfig(loss_fn=reference.replace("RECIPE", "my_ppo"))
    with pytest.raises(ConfigError, match=r"raises when it is loaded: line \d+: .*baseline='median' is not one of"):
        GRPOConfig(loss_fn=own_loss(tmp_path, PPO.replace("my_ppo)", "my_ppo, baseline='median')"), "other.py"))


def test_the_example_of_the_page_trains(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## A loss of your own", 1)[1].split("\n## ", 1)[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (written,) = re.findall(r"`assay train (loss_fn=\S+) (loss_fn_config\.\S+)`", section)
    assert written == ("loss_fn=mine.py:RECIPE", "loss_fn_config.most=4")
    reference = own_loss(tmp_path, example, "mine.py")
    config = GRPOConfig(loss_fn=reference)
    assert config.loss.config == {"low": 0.8, "high": 1.2, "most": 5.0} and config.recipe.by_std
    weights, metrics = after(reference, loss_fn_config={"most": 4.0})
    assert metrics["optimizer_steps"] == 4 and not same(weights, snapshot(tiny_model("gpt_neox")))
    # What the paper says: as ppo where the advantage is positive, bounded where it is not.
    ratio, advantages = torch.tensor([9.0, 0.1, 9.0, 2.0, 0.1]), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    data = Streams(torch.zeros(5), torch.zeros(5), advantages, torch.zeros(5, dtype=torch.long))
    found = policy_loss(config.loss, ratio.log().requires_grad_(), data)
    assert found.tolist() == pytest.approx([-1.2, -0.1, 5.0, 2.0, 0.8])


def test_a_loss_of_ones_own_is_named_in_messages() -> None:
    assert LossSpec(narrow).name == "narrow" and LossSpec("ppo").name == "ppo"
