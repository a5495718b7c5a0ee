"""Static checks: what must be found, what must not, and that no text makes them fail."""

from __future__ import annotations

import ast

import pytest

from assay.kernels.static.checks import check
from assay.kernels.static.findings import Finding
from assay.kernels.static.names import read_source
from assay.kernels.static.native import NativeSource, native_sources
from support.kernelbench_data import TINY

HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
KERNEL = """

@triton.jit
def k(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.maximum(x, 0.0) * scale, mask=i < n)
"""
LAUNCH = (
    "out = torch.empty_like(x)\n        k[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), self.scale, BLOCK=1024)"
)


def source(before: str = "pass", launch: str = LAUNCH, returned: str = "out", top: str = "", init: str = "pass") -> str:
    return f"""{HEAD}{top}{KERNEL}

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        {init}

    def forward(self, x):
        {before}
        {launch}
        return {returned}
"""


def findings(code: str, reference: str | None = TINY) -> tuple[Finding, ...]:
    report = check(code, reference=reference)
    assert report.fault is None
    return report.findings


def kinds(code: str) -> set[tuple[str, str]]:
    return {(f.kind, f.severity) for f in findings(code)}


def test_an_honest_source_has_no_finding() -> None:
    report = check(source(), reference=TINY)
    assert report.findings == () and report.fault is None
    assert report.kernels == ("k",)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"before": "y = torch.matmul(x, x.T)"}, "library_call"),
        ({"before": "y = x @ x.T"}, "library_call"),
        ({"before": "x @= x.T"}, "library_call"),
        ({"before": "y = x.softmax(-1)"}, "library_call"),
        ({"before": "f = x.cumsum; y = f(0)"}, "library_call"),
        ({"before": "x = torch.relu(x)"}, "library_call"),
        ({"before": "x = x.contiguous().relu_()"}, "library_call"),
        ({"before": "x = F.relu(x)", "top": "from torch.nn import functional as F\n"}, "library_call"),
        ({"before": "t = torch; x = t.nn.functional.relu(x)"}, "library_call"),
        ({"before": "x = getattr(x, 'mat' + 'mul')(x.T)"}, "obfuscation"),
        ({"before": "x = getattr(x, 'matmul')(x.T)"}, "library_call"),
        ({"before": "x = nn.ReLU()(x)"}, "library_layer"),
        ({"init": "self.act = nn.ReLU()", "before": "x = self.act(x)"}, "library_layer"),
        ({"init": "self.act = nn.Sequential(nn.ReLU())", "before": "x = self.act[0](x)"}, "library_layer"),
        ({"before": "x = torch.compile(lambda y: y)(x)"}, "compiler"),
        ({"before": "import gc"}, "introspection"),
        ({"before": "from . import reference"}, "imports_reference"),
        ({"before": "exec('x')"}, "dynamic_code"),
        ({"before": "(lambda: 0).__globals__"}, "introspection"),
        ({"before": "torch.allclose = None"}, "monkeypatch"),
        ({"before": "del torch.allclose"}, "monkeypatch"),
        ({"before": "for torch.allclose in [None]: pass"}, "monkeypatch"),
        ({"before": "with open('x') as torch.allclose: pass"}, "monkeypatch"),
        ({"before": "x.__class__ = nn.Parameter"}, "tensor_subclass"),
        ({"before": "open('/etc/passwd')"}, "file_access"),
        ({"before": "torch.cuda.Stream()"}, "side_stream"),
        ({"before": "torch.cuda.CUDAGraph()"}, "cuda_graph"),
        ({"before": "torch.load('x')"}, "pickle"),
        ({"before": "f(torch)"}, "obfuscation"),
        ({"top": "from torch.nn.functional import *\n"}, "obfuscation"),
        ({"top": "import os\n", "before": "os._exit(0)"}, "process"),
        ({"top": "import os\n", "before": "os.environ['TRITON_CACHE_DIR'] = 'x'"}, "environment"),
        ({"launch": "", "returned": "x * 2"}, "decoy_kernel"),
        ({"launch": "y = torch.exp(x)\n        " + LAUNCH, "returned": "y"}, "decoy_kernel"),
        ({"launch": f"if False:\n            {LAUNCH.splitlines()[1].strip()}", "returned": "x"}, "decoy_kernel"),
        ({"before": "key = x.data_ptr(); self.cache[key] = x"}, "replay_cache"),
        ({"before": "if self.kept is not None: return self.kept"}, "replay_cache"),
        ({"before": "try: k\n        except Exception: return x * 2"}, "fallback"),
    ],
)
def test_cheats_are_found(part: dict[str, str], kind: str) -> None:
    assert (kind, "cheat") in kinds(source(**part))


@pytest.mark.parametrize(
    "part",
    [
        {"before": "# torch.matmul(x, x), exec('x'), try: except: pass, single pass"},
        {"before": '"""torch.relu(x) and F.softmax and import gc"""'},
        {"before": "text = 'torch.nn.functional.relu'"},
        {"init": "self.w = torch.nn.Parameter(torch.rand(3))"},
        {"init": "self.linear = nn.Linear(3, 4)", "before": "w = self.linear.weight.T.contiguous()"},
        {"init": "self.norm = nn.LayerNorm(4)", "before": "eps, w = self.norm.eps, self.norm.weight"},
        {"init": "nn.init.xavier_uniform_(torch.empty(3, 3))"},
        {"init": "self.register_buffer('table', torch.zeros(4))"},
        {"before": "x = x.contiguous().view(-1, 4).transpose(0, 1).reshape(4, -1)"},
        {"before": "n = max(1, min(x.shape[0] * x.shape[1] // 2, sum(x.shape)))"},
        {"before": "dtype = getattr(torch, 'float32'); ok = hasattr(torch, 'compile')"},
        {"before": "assert x.is_cuda or not x.is_cuda, 'device'"},
        {"before": "torch.cuda.synchronize() if x.is_cuda else None"},
        {"before": "aligned = x.data_ptr() % 16 == 0"},
        {"top": "\ndef unused(y):\n    return torch.matmul(y, y)\n"},
        {"top": "from dataclasses import dataclass\nimport math\nimport functools\n"},
        {"top": "\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"},
        {"top": "try:\n    from triton.language.extra import libdevice\nexcept ImportError:\n    libdevice = None\n"},
        {"top": "if __name__ == '__main__':\n    print(open('x').read(), torch.matmul)\n"},
        {"top": "\ndef get_inputs():\n    return [torch.relu(torch.rand(2, 2))]\n"},
    ],
)
def test_honest_code_gives_no_alarm(part: dict[str, str]) -> None:
    assert findings(source(**part)) == ()


def test_finishing_touches_are_suspect_and_not_cheats() -> None:
    assert kinds(source(returned="out.sum(-1)")) == {("library_call", "suspect")}
    assert kinds(source(before="y = torch.exp(x)")) == {("library_call", "suspect")}
    assert {f.severity for f in findings(source(before="x = torch.relu(x)"), reference=None)} == {"suspect"}


def test_a_finding_names_its_line_and_shows_the_text() -> None:
    (finding,) = (f for f in findings(source(before="y = torch.matmul(x, x.T)")) if f.kind == "library_call")
    assert finding.evidence == "torch.matmul"
    assert source(before="y = torch.matmul(x, x.T)").splitlines()[finding.line - 1].strip().startswith("y = torch.m")
    assert set(finding.to_json()) == {"kind", "line", "evidence", "severity"}


def test_bases_are_looked_at() -> None:
    inherits = source().replace("class ModelNew(nn.Module)", "class ModelNew(Model)")
    assert ("inherits_reference", "cheat") in kinds(inherits)
    through = inherits.replace("class ModelNew(Model)", "class Base(Model):\n    pass\n\n\nclass ModelNew(Base)")
    assert ("inherits_reference", "cheat") in kinds(through)


def test_products_that_a_gpu_rounds_to_tf32_are_reported() -> None:
    dot = source().replace("tl.maximum(x, 0.0)", "tl.dot(x, x)")
    assert check(dot).tf32_dot_possible
    assert not check(dot.replace("tl.dot(x, x)", 'tl.dot(x, x, input_precision="ieee")')).tf32_dot_possible
    assert not check(source()).tf32_dot_possible


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(:", "line 1"),
        ("x = 1", "no class ModelNew"),
        ("ModelNew = 3", "no class ModelNew"),
        (source() + source(), "more than once"),
        ("x = 1\0", "null bytes"),
        ("(" * 10_000, ""),
        ("a" + "+a" * 50_000, ""),
        ("x" * 10_000_000, "10000000 characters"),
        ("\ud800", ""),
        ("", "no class ModelNew"),
    ],
)
def test_what_is_no_submission_is_a_fault_and_no_exception(code: str, said: str) -> None:
    report = check(code, reference=TINY)
    assert report.fault is not None and said in report.fault


CUDA = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

PROTO = "torch::Tensor run(torch::Tensor x);"
BODY = r"""
// at::relu(x) in a comment is nothing
__global__ void relu(const float* x, float* y, int n) {}
torch::Tensor run(torch::Tensor x) { auto y = torch::empty_like(x); relu<<<1, 1>>>(0, 0, 0); return HOST; }
"""
module = load_inline("m", [PROTO], cuda_sources=[BODY + "// end"], functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.run(x)
'''


def natives(code: str) -> list[NativeSource]:
    return list(native_sources(read_source(ast.parse(code))))


def test_native_sources_are_followed_through_names_and_joins() -> None:
    cpp, cuda = natives(CUDA)
    assert (cpp.language, cuda.language) == ("cpp", "cuda")
    assert cuda.text.endswith("// end") and "__global__" in cuda.text and cuda.resolved


def test_an_honest_cuda_submission_has_no_finding_and_a_library_call_is_one() -> None:
    honest = CUDA.replace("HOST", "y")
    assert check(honest, "cuda", TINY).findings == ()
    cheating = check(CUDA.replace("HOST", "at::relu(x)"), "cuda", TINY)
    assert [f.kind for f in cheating.cheats] == ["library_call"]
    assert "native_code" in {f.kind for f in check(honest, "triton", TINY).cheats}


def test_native_text_that_only_running_would_give_is_said_to_be_unresolved() -> None:
    hidden = CUDA.replace("[BODY +", "[BODY.replace('x', 'y') +")
    assert [s.resolved for s in natives(hidden)] == [True, False]
    assert ("obfuscation", "suspect") in {(f.kind, f.severity) for f in check(hidden, "cuda", TINY).findings}
