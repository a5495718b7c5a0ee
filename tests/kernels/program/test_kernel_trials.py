"""Submissions recorded without values, held against the rules, and replayed on secret inputs, through the sandbox."""

from __future__ import annotations

import sys

import pytest

from assay.kernels.program.judging.outcome import Attempt
from support.kernel_graders import Bench
from support.kernelbench_data import HONEST, ROOT
from support.trials import PRODUCT, SNAKE, Trials, multiplying, snaking

sys.path.insert(0, str(ROOT / "benchmarks"))

from common.submissions import read_submission

SAMPLE = (
    *("snake_autotuned", "snake_pre_hook", "snake_heuristics", "matmul_descriptors", "matmul_split_k", "gather_int32"),
    *("matvec_atomic", "pre_norm_mlp_mixed", "autograd_function", "gather_in_place_buffer", "huber", "device_guard"),
)


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


@pytest.mark.parametrize("name", SAMPLE)
def test_honest_kernels_are_ok(trials: Trials, name: str) -> None:
    submission = read_submission(HONEST / f"{name}.py")
    outcome = trials.run(submission.problem, submission.code)
    assert outcome.end == "ok", outcome


HONEST_WAYS = {
    "a workspace that is kept": snaking(
        """
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = torch.empty_like(x)
        return snake(x, self.frequency, self.kept)
        """,
        constructor="self.kept = None",
    ),
    "an operator of its own": snaking(
        "return torch.ops.mine.snaked(x, self.frequency)",
        head="""
        @torch.library.custom_op("mine::snaked", mutates_args=())
        def snaked(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
            return snake(x, f, torch.empty_like(x))
        """,
    ),
    "under inference mode, with a padded output": snaking(
        """
        with torch.inference_mode():
            rows, columns = x.shape
            padded = torch.empty((rows, columns + 3), device=x.device)
            for row in range(rows):
                snake(x[row], self.frequency, padded[row, :columns])
            return padded[:, :columns]
        """
    ),
    "pointers compared and asked for alignment": snaking(
        """
        y = torch.empty_like(x)
        assert y.data_ptr() != x.data_ptr() and x.data_ptr() % 16 == 0
        return snake(x, self.frequency, y)
        """
    ),
    "weights of another form": snaking(
        "return snake(x, self.twice.view(-1)[: x.shape[-1]], torch.empty_like(x))",
        constructor="self.twice = nn.Parameter(torch.stack([self.frequency, self.frequency]))\ndel self.frequency",
    ),
    "devices named and left": snaking(
        """
        if not x.is_cuda or x.device.type != "cuda":
            return x.cpu()
        return snake(x.to("cuda:0"), self.frequency.to(x.device), torch.empty_like(x, device="cuda"))
        """,
        constructor="self.to('cuda')",
    ),
}


@pytest.mark.parametrize("what", HONEST_WAYS)
def test_honest_ways_of_host_code(trials: Trials, what: str) -> None:
    outcome = trials.run(SNAKE, HONEST_WAYS[what])
    assert outcome.end == "ok", outcome


READS = {
    "item": ("n = int(x.sum().item())", "item"),
    "bool": ("if (x > 0).all(): pass", "__bool__"),
    "tolist": ("x.tolist()", "tolist"),
    "numpy": ("x.cpu().numpy()", "numpy"),
    "an address in arithmetic": ("x.data_ptr() + 4", "data_ptr"),
    "an address as an argument": ("snake_kernel[(1,)](x.data_ptr(), x, x, 1, 1, BLOCK=1)", "data_ptr"),
    "an address as a compile-time argument": ("snake_kernel[(1,)](x, x, x, 1, 1, BLOCK=x.data_ptr())", "data_ptr"),
    "an address in a tuple": ("snake_kernel[(1,)]((x, x.data_ptr()), x, x, 1, 1, BLOCK=1)", "data_ptr"),
    "an address in a grid": ("snake_kernel[(x.data_ptr(),)](x, x, x, 1, 1, BLOCK=1)", "data_ptr"),
    "equal": ("torch.equal(x, x)", "equal"),
    "printed": ("print(x)", "Remove what prints the tensor"),
    "past the watch": ("with torch._C.DisableTorchFunction(): x.tolist()", "tolist"),
    "a read that is caught": ("try: float(x[0, 0])\nexcept Exception: raise ValueError('x')", "__float__"),
}


@pytest.mark.parametrize("what", READS)
def test_reads_of_values_are_named_with_their_line(trials: Trials, what: str) -> None:
    statement, call = READS[what]
    code = snaking(f"{statement}\nreturn snake(x, self.frequency, torch.empty_like(x))")
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "host_read" and call in outcome.message, outcome
    if what != "a read that is caught":
        assert code.splitlines()[outcome.line - 1].strip().startswith(statement.partition("\n")[0][:12]), outcome


CHEATS = {
    "a library multiplies": ("cheat", multiplying("return copied(torch.mm(a, b.T))")),
    "broadcast and sum": ("cheat", multiplying("return copied((a[:, None, :] * b[None, :, :]).sum(-1))")),
    "an operator of its own multiplies": (
        "cheat",
        multiplying(
            "return copied(torch.ops.mine.times_(a, b))",
            head="""
            @torch.library.custom_op("mine::times_", mutates_args=())
            def times_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return (a[:, None, :] * b[None, :, :]).sum(-1)
            """,
        ),
    ),
    "keys excluded": (
        "wrong",
        multiplying(
            """
            with torch.ExcludeDispatchKeyGuard(torch.DispatchKeySet(torch.DispatchKey.Python)):
                done = (a[:, None, :] * b[None, :, :]).sum(-1)
            return copied(done)
            """
        ),
    ),
    "a pointer of its own": (
        "unsupported",
        multiplying(
            """
            class Pointer:
                dtype = torch.float32
                def data_ptr(self): return out.data_ptr()
            copy_kernel[(1,)](Pointer(), out, 1, BLOCK=16)
            return out
            """
        ),
    ),
    "an input returned": ("wrong", snaking("copied(x)\nreturn x")),
    "a kernel for show": ("cheat", snaking("copied(x)\nreturn snake(x, self.frequency, torch.empty_like(x))")),
    "nothing launched": ("cheat", snaking("return x + torch.sin(self.frequency * x) ** 2 / self.frequency")),
    "results kept by address": (
        "cheat",
        snaking(
            """
            if x.data_ptr() not in self.kept:
                self.kept[x.data_ptr()] = snake(x, self.frequency, torch.empty_like(x))
            return self.kept[x.data_ptr()]
            """,
            constructor="self.kept = {}",
        ),
    ),
    "garbage from the third call on": (
        "cheat",
        snaking(
            """
            self.calls += 1
            return snake(x, self.frequency, torch.empty_like(x)) if self.calls < 3 else copied(x)
            """,
            constructor="self.calls = 0",
        ),
    ),
    "the first call only": (
        "cheat",
        snaking(
            """
            if self.kept is None:
                self.kept = snake(x, self.frequency, torch.empty_like(x))
            return self.kept
            """,
            constructor="self.kept = None",
        ),
    ),
    "a copy of the weights that is stale once they change": (
        "wrong",
        snaking(
            "return snake(x, self.baked, torch.empty_like(x))",
            constructor="self.register_buffer('baked', self.frequency.detach().clone())",
        ),
    ),
    "weights of its own": (
        "wrong",
        snaking(
            "return snake(x, self.own, torch.empty_like(x))",
            constructor="self.register_buffer('own', torch.rand(features) + 0.5)",
        ),
    ),
    "memory that no one wrote": ("wrong", snaking("y = torch.empty_like(x)\ncopied(x)\nreturn y")),
    "half of the output": (
        "wrong",
        snaking("y = torch.zeros_like(x)\nsnake(x[:1], self.frequency, y[:1])\nreturn y"),
    ),
}


@pytest.mark.parametrize("what", CHEATS)
def test_cheats_are_not_ok(trials: Trials, what: str) -> None:
    end, code = CHEATS[what]
    outcome = trials.run(PRODUCT if "def forward(self, a, b)" in code else SNAKE, code)
    assert outcome.end == end, outcome


FORGED = """
import json
import types
from assay.kernels.inside.record import harness

def forged(program, **named):
    if "kernels" in program:
        program = dict(program)
        {change}
    return real(program, **named)

real = json.dumps
harness.json = types.SimpleNamespace(**vars(json) | {{"dumps": forged}})
"""


OPERATION = "{'args': [{'window': program['inputs'][0]}], 'kwargs': {}, 'outs': [], 'line': 1}"


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ("program['outputs'] = program['inputs']", "wrong"),
        ("program['storages'] = [1 << 60]", "refused"),
        ("program['forward'][0]['launch'] = 5", "refused"),
        ("program['forward'].insert(0, program['forward'][0] | {'variants': []})", "refused"),
        ("program['kernels'][0]['source'] = 'import os'", "unsupported"),
        (f"program['forward'].append({OPERATION} | {{'op': 'from_file.default'}})", "cheat"),
        (
            f"program['forward'].append({OPERATION} | "
            "{'op': 'clone.default', 'outs': [[1, 'float32', [1], [1], 0]]})",
            "refused",
        ),
    ],
)
def test_a_forged_program_is_a_submission_like_any(trials: Trials, change: str, end: str) -> None:
    """The recorder runs beside the candidate, which may write any program instead of its own."""
    code = snaking("return snake(x, self.frequency, torch.empty_like(x))", head=FORGED.format(change=change))
    outcome = trials.run(SNAKE, code)
    assert outcome.end == end, outcome


RACE = snaking(
    """
    y = torch.empty_like(x)
    last_kernel[(8,)](x, self.frequency, y, x.numel(), x.shape[-1], BLOCK=triton.next_power_of_2(x.numel()))
    return y
    """,
    head="""
    @triton.jit
    def last_kernel(x_ptr, f_ptr, y_ptr, n, F, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        tl.store(y_ptr + i, (x + s * s / a) * (tl.program_id(0) == 7), mask=i < n)
    """,
)


def test_what_depends_on_the_order_of_programs_is_wrong(trials: Trials) -> None:
    assert trials.run(SNAKE, RACE).end == "wrong"


def test_races_are_told_of_right_kernels_too(trials: Trials) -> None:
    """Programs that write the same bytes."""
    outcome = trials.run(SNAKE, RACE.replace(" * (tl.program_id(0) == 7)", ""))
    assert outcome.end == "ok" and "races" in {finding.rule for finding in outcome.findings}, outcome


def test_kernels_know_their_line(trials: Trials) -> None:
    code = snaking("return snake(x, self.frequency, torch.empty_like(x))")
    attempt = trials.record(SNAKE, code)
    assert isinstance(attempt, Attempt)
    (kernel,) = attempt.program.kernels
    assert code.splitlines()[kernel.line - 1 : kernel.line + 1] == kernel.source.splitlines()[:2]
    assert kernel.source.splitlines()[1].startswith("def snake_kernel(")
