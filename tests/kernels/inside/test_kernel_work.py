"""The trace of PyTorch's work, and the kinds of its operators."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from assay.kernels.inside.work import WorkTrace
from assay.kernels.operators import HEAVY, is_heavy, kind_of, normal_name

Call = Callable[[], object]
X = torch.randn(4, 8)
IMAGE = torch.randn(2, 4, 10, 10)
HEADS = torch.randn(2, 3, 5, 8)
LAYERS = {
    "linear": nn.Linear(8, 16),
    "grouped": nn.Conv2d(4, 6, 3, groups=2),
    "transposed": nn.ConvTranspose2d(4, 6, 3, stride=2),
    "lstm": nn.LSTM(8, 16),
}


def traced(call: Call) -> dict[str, tuple[int, int]]:
    trace = WorkTrace()
    with torch.no_grad(), trace:
        call()
    return trace.operations


@pytest.mark.parametrize(
    ("call", "name", "work"),
    [
        (lambda: LAYERS["linear"](X), "addmm", 4 * 8 * 16),
        (lambda: X @ X.T, "mm", 4 * 8 * 4),
        (lambda: torch.bmm(HEADS[0], HEADS[0].mT), "bmm", 3 * 5 * 8 * 5),
        (lambda: torch.mv(X, X[0]), "mv", 4 * 8),
        (lambda: torch.dot(X[0], X[1]), "dot", 8),
        (lambda: torch.addbmm(torch.zeros(5, 5), HEADS[0], HEADS[0].mT), "addbmm", 3 * 5 * 8 * 5),
        (lambda: torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist"), "_cdist_forward", 4 * 4 * 8),
        (lambda: LAYERS["grouped"](IMAGE), "convolution", 2 * 6 * 8 * 8 * 2 * 9),
        (lambda: LAYERS["transposed"](IMAGE), "convolution", 2 * 4 * 100 * 6 * 9),
        (lambda: LAYERS["lstm"](X.reshape(4, 1, 8)), "mkldnn_rnn_layer", 4 * (4 * 16 * 8 + 4 * 16 * 16)),
        (lambda: X.relu_(), "relu", 32),
        (lambda: X + torch.zeros(3, 1, 1), "add", 96),
        (lambda: X.sum(dim=1), "sum", 32),
        (lambda: F.embedding(torch.tensor([1, 2, 1]), X), "embedding", 24),
        (lambda: F.softmax(X, dim=1), "_softmax", 32),
        (lambda: F.max_pool2d(IMAGE, 2), "max_pool2d_with_indices", 800),
        (lambda: torch.linalg.inv(IMAGE[0]), "linalg_inv_ex", 400 * 10),
    ],
)
def test_work_is_multiply_adds_or_elements(call: Call, name: str, work: int) -> None:
    assert traced(call)[name] == (1, work)


def test_attention_counts_both_products() -> None:
    found = traced(lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS))
    assert sum(work for name, (_, work) in found.items() if is_heavy(name)) == 2 * (6 * 5 * 5 * 8)


def test_moving_and_making_tensors_is_no_work() -> None:
    def move() -> None:
        made = torch.cat([X.view(8, 4).T.contiguous(), X[:, :8].clone(), torch.empty_like(X), torch.zeros(4, 8)])
        made.to(torch.float64).copy_(made.flip(0)).unsqueeze(0).expand(2, -1, -1).reshape(-1)
        F.pad(made, (1, 1)).chunk(2)
        made.data_ptr()
        made.fill_(1.0)

    assert {name: work for name, (_, work) in traced(move).items() if work} == {}


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_are_those_without_a_trace(grad: Callable[[], torch.autograd.grad_mode.no_grad]) -> None:
    def compute() -> list[torch.Tensor]:
        torch.manual_seed(0)
        hidden = LAYERS["lstm"](X.reshape(4, 1, 8))[0]
        parts = [LAYERS["linear"](X), LAYERS["grouped"](IMAGE), hidden, torch.einsum("ij,kj->ik", X, X)]
        return [*parts, F.dropout(X), F.layer_norm(X, (8,)), F.scaled_dot_product_attention(HEADS, HEADS, HEADS)]

    with grad():
        plain = compute()
        trace = WorkTrace()
        with trace:
            seen = compute()
        assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    work = trace.operations
    assert sum(w for name, (_, w) in work.items() if kind_of(name) == "product") >= 4 * 8 * 16 + 4 * 8 * 4


def test_errors_and_odd_tensors_pass_through() -> None:
    class Odd(torch.Tensor):
        def numel(self) -> int:
            raise RuntimeError("not yours to count")

    odd = X.clone().as_subclass(Odd)
    trace = WorkTrace()
    with torch.no_grad(), trace:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            X @ X
        torch.add(odd, 1)
        X.sin()
    assert trace.operations["sin"] == (1, 32)
    assert "mm" not in trace.operations


def test_a_trace_goes_on_where_it_is_entered_again() -> None:
    trace = WorkTrace()
    for _ in range(3):
        with trace:
            X.cos()
        X.cos()
    assert trace.operations == {"cos": (3, 96)}


def test_names_lose_overloads_and_in_place_marks() -> None:
    names = {"aten::relu_": "relu", "aten::add.Tensor": "add", "aten::__and__.Tensor": "__and__", "mm": "mm"}
    assert {name: normal_name(name) for name in names} == names
    assert normal_name("torchvision::nms") == "torchvision::nms"


@pytest.mark.parametrize(
    "pattern",
    [
        r"mm|bmm|addmm|addmv|baddbmm|matmul|linear|mv|dot|einsum",
        r"(cudnn_|mkldnn_|miopen_|slow_|thnn_)?conv\w*[123]d\w*|convolution\w*",
        r".*(batch|layer|group|instance|rms)_norm|linalg_vector_norm|norm",
        r".*softmax|logsumexp|logcumsumexp|cumsum|cumprod|cummax|cummin",
        r".*(max|avg)_pool[123]d.*",
        r".*_loss|.*_loss_forward|kl_div|binary_cross_entropy",
        r"sort|topk|kthvalue|median|_fft_\w+|_embedding_bag|grid_sampler_2d|upsample_bilinear2d",
        r"_scaled_dot_product\w+attention\w*|\w*(lstm|gru)(_cell)?|_cudnn_rnn|mkldnn_rnn_layer",
        r"linalg_(inv|solve|svd|eigh|qr|cholesky)\w*|cdist|_cdist_forward",
    ],
)
def test_operators_that_are_whole_problems_are_heavy(pattern: str) -> None:
    every = {normal_name(name) for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    found = {name for name in every if re.fullmatch(pattern, name)}
    assert found and not {name for name in found if not is_heavy(name)}


def test_what_honest_candidates_use_is_not_heavy() -> None:
    light = [
        "add",
        "mul",
        "relu",
        "exp",
        "where",
        "sum",
        "mean",
        "amax",
        "gelu",
        "index",
        "gather",
        "copysign",
        "rsqrt",
    ]
    assert not [name for name in light if is_heavy(name)]
    free = ["empty", "empty_strided", "view", "t", "permute", "clone", "_to_copy", "zeros_like", "cat", "fill", "copy"]
    assert {kind_of(name) for name in free} == {"free"} and "free" not in HEAVY
    assert kind_of("convolution_backward") == "convolution" and kind_of("mine::something") == "pointwise"
