"""Host code reads values that it wrote down itself, and none that depend on an input, a weight, a draw or the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

RIGHT = "return snake(x, self.frequency, torch.empty_like(x))"
TAKEN = {
    "rates of dropout": "self.rates = [one.item() for one in torch.linspace(0, 0.5, 3)]\nassert self.rates[2] == 0.5",
    "a list": "assert torch.arange(6).view(2, 3).t().tolist() == [[0, 3], [1, 4], [2, 5]]",
    "literal values that change": (
        "t = torch.tensor([1.0, 2.0])\nassert t.tolist() == [1, 2]\nt.add_(1)\nt[1] = 7\nassert t.tolist() == [2, 7]\n"
        "assert torch.tensor(True) and int(t[0]) == 2 and 7 in t"
    ),
    "powers": (
        "t = 10000 ** (-torch.arange(0, 4, 2) / 4)\nassert [round(one, 6) for one in t.tolist()] == [1.0, 0.01]\n"
        "assert torch.outer(torch.ones(2), t)[1].tolist() == t.tolist()"
    ),
    "a size": "n = torch.tensor([[2, 3]])\nassert torch.empty(int(n[0, 0])).shape == (2,)\nlist(range(n[0, 1]))",
    "text": "assert str(torch.arange(3)) == 'tensor([0, 1, 2])' and f'{torch.tensor(2)}' == '2'",
    "arrays": (
        "import numpy\nt = torch.arange(3)\nassert t.numpy().tolist() == [0, 1, 2] == list(numpy.asarray(t))\n"
        "try:\n    t.numpy()[0] = 5\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"
    ),
    "comparisons": (
        "t = torch.linspace(0, 1, 3)\nassert torch.equal(input=t, other=t.clone()) and torch.allclose(t, t + 1e-9)\n"
        "assert (t >= 0).all() and not t.equal(t.flip(0))"
    ),
    "places": "assert torch.nonzero(torch.tensor([0, 3, 0, 2])).flatten().tolist() == [1, 3]",
    "another dtype": "assert torch.tensor([1.5, -1.5]).to(torch.int64).double().tolist() == [1, -1]",
}
READ = {
    "an input": "t = torch.zeros(1)\nt.copy_(x.flatten()[:1].cpu())\nt.item()",
    "a copy of an input": "(x[0].cpu() + torch.zeros(1)).tolist()",
    "what a kernel computed": "snake(x, self.frequency, torch.empty_like(x)).cpu().tolist()",
    "a tensor of the GPU": "torch.ones(1, device=x.device).item()",
    "a draw": "torch.rand(1).item()",
    "what a draw changed": "t = torch.zeros(2)\nt.uniform_()\nt[0].item()",
    "what depends on a draw": "t = torch.zeros(2)\nt += torch.rand(2)\nfloat(t[1])",
    "a parameter": "self.frequency.cpu().tolist()",
    "what nothing wrote": "torch.empty(2).tolist()",
    "more than is kept": "torch.zeros(1 << 20)[0].item()",
    "an array of an input": "x.cpu().numpy()",
    "a comparison with an input": "torch.equal(x.cpu(), torch.zeros(1))",
    "pinned memory, where a kernel may write": "torch.zeros(2).pin_memory().tolist()",
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


@pytest.mark.parametrize("what", TAKEN)
def test_what_host_code_wrote_down_it_may_read(trials: Trials, what: str) -> None:
    outcome = trials.run(SNAKE, snaking(RIGHT, constructor=TAKEN[what]))
    assert outcome.end == "ok", outcome


@pytest.mark.parametrize("what", READ)
def test_what_depends_on_anything_else_has_no_value(trials: Trials, what: str) -> None:
    outcome = trials.run(SNAKE, snaking(f"{READ[what]}\n{RIGHT}"))
    assert outcome.end == "host_read" and outcome.line > 0, outcome


def test_a_weight_of_the_constructor_has_no_value(trials: Trials) -> None:
    outcome = trials.run(SNAKE, snaking(RIGHT, constructor="self.frequency.detach()[0].item()"))
    assert outcome.end == "host_read", outcome
