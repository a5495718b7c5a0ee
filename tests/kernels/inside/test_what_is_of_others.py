"""What a submission may touch of its caller's, and of which classes it may be and return."""

from __future__ import annotations

from typing import Any

import pytest

from assay.kernels.inside.record.host.models import TELLING
from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

T = "where a tensor is"
PARTS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) + x


def get_inputs():
    return [torch.randn(8, 96)[:, 32:64]]


def get_init_inputs():
    return []
"""
PART = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, xs, ys, ALL: tl.constexpr, MORE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, 32)
    x = tl.load(x_ptr + row * xs + i)
    if ALL:
        x = tl.sum(tl.where(i[None, :] < 0, tl.load(x_ptr + row * xs + 32 + i)[None, :], x[None, :]), 0)
    if MORE:
        tl.atomic_add(x_ptr + row * xs - 16 + i, 0.0, mask=i < 16)
    tl.store(y_ptr + row * ys + i, tl.sin(x) + x)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, device=x.device)
        beside = x.as_strided((8, 16), x.stride(), x.storage_offset() + 32)
        FORWARD
        return y
"""
ROWS, BESIDE = "rows[(8,)](x, y, x.stride(0), y.stride(0), ALL=False, MORE=False)", "that belongs to another tensor"
PARTLY = {
    "by its strides": (ROWS, "ok", ""),
    "an output beside it": (f"y = x.as_strided(x.shape, x.stride(), 64); {ROWS}", "crash", BESIDE),
    "an output under it": (f"y = x.as_strided(x.shape, x.stride(), 0); {ROWS}", "crash", BESIDE),
    "reads beside it": (ROWS.replace("ALL=False", "ALL=True"), "crash", BESIDE),
    "adds nothing beside it": (ROWS.replace("MORE=False", "MORE=True"), "crash", BESIDE),
    "clears what is beside it": (f"beside.zero_(); {ROWS}", "crash", "zero reads or writes memory"),
    "copies into it": (f"{ROWS}; beside.copy_(y[:, :16])", "crash", "copy reads or writes memory"),
    "keeps a copy of it": (f"kept = beside.clone(); {ROWS}", "crash", "clone reads or writes memory"),
}
DERIVED = """
class Lying(type(torch.Tensor)):
    def __eq__(self, other): return True
    def __hash__(self): return 0
class Mine(torch.Tensor, metaclass=Lying):
    pass
class Named(tuple): pass
class Text(str): pass
class Own(torch.nn.Parameter): pass
"""
MADE = "y = snake(x, self.frequency, torch.empty_like(x))\n"
RETURNS = {
    "a parameter": ("return torch.nn.Parameter(y)", "wrong", "requires a gradient"),
    "a parameter without a gradient": ("return torch.nn.Parameter(y, requires_grad=False)", "ok", ""),
    "one that asks for a gradient": ("return y.requires_grad_()", "wrong", "requires a gradient"),
    "a tensor of its own class": ("return y.as_subclass(Mine)", "wrong", "forward returned a Mine"),
    "one whose class is set": ("y.__class__ = Mine\nreturn y", "wrong", "forward returned a Mine"),
    "a parameter of its own class": ("return Own(y)", "wrong", "forward returned a Own"),
    "a tuple of its own class": ("return Named([y])", "wrong", "forward returned a Named"),
    "a dictionary by texts of its own": ("return {Text('y'): y}", "wrong", "forward returned a dict"),
    "one beside memory that changes back": (
        "import numpy as np\nbase = np.ones(4, np.float32)\nt = torch.from_numpy(base[1:2])\nbase[:] = 0.0\n"
        "q = t.to(x.device)\nbase[:] = 1.0\nreturn y",
        "unsupported",
        "changed after it was used",
    ),
    "one beside memory that stays": (
        "import numpy as np\nbase = np.ones(4, np.float32)\nq = torch.from_numpy(base[1:2]).to(x.device)\nreturn y",
        "ok",
        "",
    ),
    "a tensor with a note": ("y.note = 3\nreturn y", "ok", ""),
    "a method of its own": ("y.cpu = lambda: 0\nreturn y", "wrong", "a tensor with a cpu of its own"),
    "an input's method": ("x.sub = lambda *a: 0\nreturn y", "wrong", "another sub in the place of that of input 0"),
    "another place for an input": (
        "x.data_ptr = y.data_ptr\nreturn y",
        "wrong",
        "another data_ptr in the place of that of input 0",
    ),
    "an input's method, before a launch": (
        "y.sub = lambda *a: 0\nreturn snake(x, self.frequency, y)",
        "unsupported",
        "a tensor with a sub of its own",
    ),
    "an input of its class": ("x.__class__ = Mine\nreturn y", "wrong", "a Mine"),
    "a weight of its class": (
        "self.frequency.__class__ = Own\nreturn y",
        "wrong",
        "forward makes a Own of the parameter frequency",
    ),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench, [make_problem(9, 1, "Parts", PARTS, "local")])


@pytest.mark.parametrize("what", PARTLY)
def test_what_lies_beside_an_input_is_of_others(trials: Trials, what: str) -> None:
    forward, end, said = PARTLY[what]
    outcome = trials.run("9/1", PART.replace("FORWARD", forward))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("what", RETURNS)
def test_what_is_returned_is_of_pytorchs_own_classes(trials: Trials, what: str) -> None:
    returned, end, said = RETURNS[what]
    outcome = trials.run(SNAKE, snaking(MADE + returned, head=DERIVED))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("wrong", [{"b": T, "a": T}, {"a": T}, [T, T], {"a": T, "b": [T]}, {"a": T, "b": T, "c": None}])
def test_dictionaries_are_compared_in_their_order(wrong: Any) -> None:
    import torch
    from torch.utils._pytree import tree_map

    from assay.kernels.inside.record.host.returned import check_returned
    from assay.kernels.inside.record.places import Places
    from assay.kernels.inside.tensors import WrongOutputError, flat_tensors, structure_of

    found = {"a": torch.empty(1), "b": torch.empty(2)}
    assert [tensor.numel() for tensor in flat_tensors({"b": found["b"], "a": found["a"]})] == [2, 1]
    check_returned(found, [], {"structure": structure_of(dict(found))}, Places(), [])
    wanted = structure_of(tree_map(lambda part: found["a"] if part == T else part, wrong))
    with pytest.raises(WrongOutputError, match=r"forward returned \{'a': tensor, 'b': tensor\}"):
        check_returned(found, [], {"structure": wanted}, Places(), [])


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), ({1: 2}, {"1": 2}), (None, "None"), ((1, 2), (1, 2, None)), ([], {})]
)
def test_constants_of_an_output_are_compared_with_their_types(one: Any, other: Any) -> None:
    from assay.kernels.inside.tensors import WrongOutputError, check_structure, structure_of

    check_structure(one, structure_of(one))
    with pytest.raises(WrongOutputError):
        check_structure(one, structure_of(other))


@pytest.mark.parametrize("value", [{1}, object(), {1.5: 2}, [iter(())], 1j])
def test_an_output_that_cannot_be_compared_is_none(value: Any) -> None:
    from assay.kernels.inside.tensors import structure_of

    with pytest.raises(TypeError, match="cannot be compared"):
        structure_of(value)


def test_a_model_is_a_module(trials: Trials) -> None:
    code = snaking(MADE + "return y").replace("class ModelNew(nn.Module)", "class ModelNew")
    outcome = trials.run(SNAKE, code.replace("super().__init__()", "pass").replace("def forward", "def __call__"))
    assert outcome.end == "crash" and "no torch.nn.Module" in outcome.message


def test_a_model_that_says_that_it_is_a_module_is_none(trials: Trials) -> None:
    code = snaking(MADE + "return y").replace("class ModelNew(nn.Module)", "class ModelNew")
    says = "__class__ = property(lambda self: nn.Module)\n\n    def to(self, *args):\n        return self"
    code = code.replace("super().__init__()", "pass").replace("    def forward", f"    {says}\n\n    def __call__", 1)
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "crash" and "no torch.nn.Module" in outcome.message, outcome


TELLS = "has a {} of its own, by which its caller"
KEPT = "class Kept(nn.Module):\n    def {}(self, *args, **named):\n        return iter(())\n"
LYING = "class Lying(type(nn.Module)):\n    __mro__ = property(lambda kind: nn.Module.__mro__)\n"
DUCK = "class Duck:\n    _parameters = {}\n    def named_modules(self, *args):\n        return iter(())\n"
EQUAL = "class Equal(nn.Linear):\n    def __eq__(self, other):\n        return True\n"
LATE = "def to(self, *args, **named):\n        self.parameters = lambda: []\n        return super().to(*args, **named)"
ASKED = "def __getattribute__(self, name):\n        return super().__getattribute__(name)"
HAVING = "self.kept = Kept()"
FIXED = "class Fixed(nn.Parameter):\n    def copy_(self, *args, **named):\n        return self\n"
PROPERTY = (
    "_parameters = property(lambda self: vars(self)['_parameters'], "
    "lambda self, value: vars(self).update(_parameters=value))"
)
METHODS = [name for name in TELLING if not name.startswith("__")]
HOOK = "self._register_load_state_dict_pre_hook(lambda *args: None)"
NAMED = {
    **{name: ("", f"def {name}(self, *args, **named):\n        pass", "", TELLS.format(name)) for name in METHODS},
    **{f"a part's {name}": (KEPT.format(name), "", HAVING, f"Kept {TELLS.format(name)}") for name in METHODS},
    "of an instance": ("", "", "self.named_buffers = lambda: []", TELLS.format("named_buffers")),
    "set while it is moved": ("", LATE, "", TELLS.format("to")),
    "equal to all others": (EQUAL, "", "self.kept = Equal(2, 2)", f"Equal {TELLS.format('__hash__')}"),
    "a part that is no module": (DUCK, "", "self._modules['kept'] = Duck()", "a Duck among its modules"),
    "whatever is asked": ("", ASKED, "", TELLS.format("__getattribute__")),
    "a metaclass": (LYING + "class Kept(nn.Module, metaclass=Lying):\n    pass\n", "", HAVING, "a metaclass"),
    "PyTorch's own": ("nn.Module.parameters = lambda self: []\n", "", "", TELLS.format("parameters")),
    "a dict of its own": (
        "class Shown(dict):\n    pass\n",
        "",
        "self.__dict__['_parameters'] = Shown()",
        "_parameters of ModelNew is a Shown",
    ),
    "a dict of its class": ("", PROPERTY, "", "has a _parameters of its class"),
    "a set of its own": (
        "class Names(set):\n    pass\n",
        "",
        "self.__dict__['_non_persistent_buffers_set'] = Names()",
        "_non_persistent_buffers_set of ModelNew is a Names",
    ),
    "a weight of its class": (FIXED, "", "self.fixed = Fixed(torch.zeros(3))", "a class of its own (Fixed)"),
    "a buffer of its class": (
        FIXED.replace("nn.Parameter", "torch.Tensor"),
        "",
        "self.register_buffer('fixed', torch.zeros(3).as_subclass(Fixed))",
        "a class of its own (Fixed)",
    ),
    "a weight with a method": ("", "", "self.w = nn.Parameter(torch.zeros(3)); self.w.add_ = None", "a Parameter in"),
    "hooks": ("", "", HOOK, "hooks for weights"),
    "a whole dict of its own": (
        "class Shown(dict):\n    pass\n",
        "",
        "object.__setattr__(self, '__dict__', Shown(self.__dict__))",
        "the __dict__ of ModelNew is a Shown",
    ),
    "a dict of a weight": (
        "class Shown(dict):\n    pass\n",
        "",
        "self.w = nn.Parameter(torch.zeros(3)); self.w.__dict__ = Shown()",
        "a Parameter in _parameters of ModelNew has a __dict__",
    ),
    "a lazy layer": ("", "", "self.layer = nn.LazyLinear(3)", "has no shape before the first call"),
    "a conjugate": ("", "", "self.register_buffer('c', torch.zeros(3, dtype=torch.complex64).conj())", "conjugates"),
    "a dtype of gradients": (
        "",
        "",
        "self.w = nn.Parameter(torch.zeros(3)); self.w.grad_dtype = torch.float16",
        "one of another dtype (grad_dtype)",
    ),
    "a hook of its gradients": (
        "KEPT = []\n",
        "",
        "self.w = nn.Parameter(torch.zeros(3))\n"
        "        with torch.enable_grad(): KEPT.append(self.w.expand_as(self.w).grad_fn.next_functions[0][0])",
        "something holds the node of autograd",
    ),
}  # fmt: skip
"""Text before the class, a method, a statement of its constructor, and what is said."""


@pytest.mark.parametrize("what", NAMED)
def test_a_model_leaves_it_to_pytorch_to_say_what_its_parameters_are(trials: Trials, what: str) -> None:
    head, method, made, said = NAMED[what]
    code = snaking(MADE + "return y", head=head)
    code = code.replace("    def forward", f"    {method or 'pass'}\n\n    def forward", 1)
    code = code.replace("super().__init__()", f"super().__init__()\n        {made or 'pass'}", 1)
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "unsupported" and said in outcome.message, outcome


@pytest.mark.parametrize(
    "part",
    [
        "nn.BatchNorm1d(3)",
        "nn.ModuleList([nn.Linear(2, 2)])",
        "nn.LSTM(2, 2)",
        "nn.ParameterDict({'a': torch.ones(2)})",
    ],
)
def test_pytorchs_own_modules_may_say_more(trials: Trials, part: str) -> None:
    code = snaking(MADE + "return y").replace(
        "super().__init__()", f"super().__init__()\n        self.more = {part}", 1
    )
    outcome = trials.run(SNAKE, code)
    assert "of its own" not in outcome.message and "hooks" not in outcome.message, outcome


def test_the_worst_error_is_of_calls_that_count(trials: Trials) -> None:
    code = snaking(MADE.replace("self.frequency", "self.f") + "return y")
    joined = code.replace("self.frequency = nn.Parameter(", "self.f = nn.Parameter((").replace(
        "+ 0.5)", "+ 0.5)[None])"
    )
    outcome = trials.run(SNAKE, joined)
    assert outcome.end == "ok" and 0.0 < outcome.facts["worst"] <= 1.0, outcome


def test_a_weight_under_the_name_of_the_reference_has_its_shape(trials: Trials) -> None:
    def outcome(name: str) -> Any:
        code = snaking(MADE.replace("self.frequency", f"self.{name}") + "return y")
        made = f"self.{name} = nn.Parameter((torch.rand(features) + 0.5).view(-1, 1))"
        return trials.run(SNAKE, code.replace("self.frequency = nn.Parameter(torch.rand(features) + 0.5)", made))

    assert outcome("turned").end == "ok"
    found = outcome("frequency")
    assert found.end == "unsupported" and "load_state_dict of its weights fails" in found.message, found
