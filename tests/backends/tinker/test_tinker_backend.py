"""The Tinker backend against a real server of ours: the local backend's numbers, runs that resume, and faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

from assay.backends.base import AdamParams, KLTerm, LossSpec
from assay.backends.config import LocalBackend, PolicySpec, ScratchModel, TinkerService
from assay.backends.local.backend import TorchBackend
from assay.backends.seeds import spread
from assay.backends.tinker.backend import TinkerBackend, open_backend
from assay.backends.tinker.limits import capabilities
from assay.cli.main import main
from assay.envs.base import EnvData
from assay.errors import CheckpointError, ConfigError, ModelError, ServiceError, TrainingError
from assay.grpo.config import AlgorithmConfig
from assay.training.loop import train
from assay.training.session import beyond
from assay.types import Datum, SamplingParams
from support.scripted import CORPUS
from support.tinker_behind_faults import NAME, LocalServer, RestartAt
from support.tinker_faults import Copies, Disorder, Echo, Late, Lost, Resets, Storm
from support.tinker_proxy import Fault
from support.tiny_run import tiny
from support.toy_env import ToyBuilder

SETTINGS = TinkerService(probe=False, connect_timeout_s=20, train_timeout_s=30, sample_timeout_s=30)
ADAM = AdamParams(1e-2, grad_clip_norm=0)
DATA = EnvData(train=[], heldout=[], sft=None, tokenizer_corpus=CORPUS)  # type: ignore[arg-type]
KEY = "tml-" + "very-secret-indeed" * 2


def policy_of(server: LocalServer, **changes: Any) -> PolicySpec:
    given = PolicySpec(NAME, 4, 0, None, server.url, LocalBackend(device="cpu"), ScratchModel(), SETTINGS)
    return replace(given, **changes)


def using(server: LocalServer, work: Callable[[TinkerBackend], Awaitable[Any]], resume: Path | None = None) -> Any:
    """Do some work with a backend of its own."""

    async def whole() -> Any:
        backend = await open_backend(policy_of(server), DATA, resume)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(whole())


def datums() -> list[Datum]:
    rng = np.random.default_rng(3)
    found = []
    for length, prompt in ((9, 3), (14, 6), (6, 2)):
        tokens = rng.integers(1, 12, length)
        mask = np.zeros(length - 1, np.float32)
        mask[prompt:] = 1
        streams = [rng.normal(m, s, length - 1).astype(np.float32) * mask for m, s in ((-2, 0.3), (0, 1), (-2, 0.3))]
        logprobs, advantages, reference = streams
        weights = mask / 10
        found.append(Datum(tokens[:-1], tokens[1:], logprobs, advantages, mask, reference, weights))
    return found


def mine(logprobs: Any, behaviour: Any, advantages: Any, sequences: Any, *, power: float) -> Any:
    return -((logprobs - behaviour).exp() ** power) * advantages


LOSSES = [
    LossSpec("cross_entropy"),
    LossSpec("importance_sampling"),
    LossSpec("ppo", config={"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    LossSpec("cispo", config={"clip_low_threshold": 0.0, "clip_high_threshold": 1.3}),
    LossSpec("gspo", config={"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    LossSpec("ppo", config={"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, kl=KLTerm(0.3, "k3")),
    LossSpec(mine, config={"power": 0.5}),
]


def test_losses_and_log_probabilities_are_the_local_backends(server: LocalServer) -> None:
    local = TorchBackend.create(str(server.model), 4, LocalBackend(device="cpu"), ScratchModel(), None, 0)
    data = datums()

    async def both(backend: TinkerBackend) -> None:
        assert backend.context_length == 64 and backend.vocab_size == local.vocab_size
        for x, y in zip(await backend.logprobs(data), await local.logprobs(data), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)
        for spec in LOSSES:
            found, want = await backend.forward_backward(data, spec), await local.forward_backward(data, spec)
            assert found.metrics["loss:sum"] == pytest.approx(want.metrics["loss:sum"], abs=1e-5), spec.name
            assert found.metrics["kl:sum"] == pytest.approx(want.metrics["kl:sum"], abs=1e-5)
            for x, y in zip(found.logprobs, want.logprobs, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5)
        # All gradients together, as both have them: the adapters are new, so only their norms' scales differ.
        await backend.freeze_reference()
        reference = await backend.logprobs(data, reference=True)
        await backend.optim_step(ADAM)
        moved = await backend.logprobs(data)
        assert max(np.abs(a - b).max() for a, b in zip(moved, reference, strict=True)) > 1e-3
        again = await backend.logprobs(data, reference=True)
        for x, y, z in zip(again, reference, await local.logprobs(data), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)
            np.testing.assert_allclose(x, z, atol=1e-5)

    using(server, both)


def test_samples_follow_the_policy_and_their_seeds(server: LocalServer) -> None:
    params, prompts = SamplingParams(8, stop=(0,)), [(1, 2, 3), (1, 2, 3), (4, 5)]

    async def look(backend: TinkerBackend) -> None:
        first = await backend.sample(prompts, params, [1, 2**63 + 7, 3])
        again = await backend.sample(prompts, params, [1, 2**63 + 7, 3])
        assert [c.tokens for c in again] == [c.tokens for c in first]
        for x, y in zip(again, first, strict=True):  # which requests are computed together decides the last bits
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)
        assert first[0].tokens != first[1].tokens
        for _ in range(3):
            await backend.train_step(datums(), LossSpec("cross_entropy"), ADAM)
        later = await backend.sample(prompts, params, [1, 2**63 + 7, 3])
        assert {c.policy_version for c in first} == {0} and {c.policy_version for c in later} == {3}
        assert any(abs(x.logprobs[0] - y.logprobs[0]) > 1e-3 for x, y in zip(later, first, strict=True))
        with pytest.raises(ModelError, match="has 64 tokens"):
            await backend.sample([(1,) * 64], params, [0])

    using(server, look)


def test_a_group_is_one_request_and_gets_what_each_would_get_alone(server: LocalServer) -> None:
    local = TorchBackend.create(str(server.model), 4, LocalBackend(device="cpu"), ScratchModel(), None, 0)
    params, prompts = SamplingParams(8, stop=(0,)), [(1, 2, 3)] * 7 + [(4, 5)] * 2
    # Two groups of one prompt, one of another, and a rollout whose group began without it.
    seeds = [*(spread(5, n) for n in range(4)), *(spread(6, n) for n in range(3)), spread(7, 0), spread(8, 3)]

    async def look(backend: TinkerBackend) -> None:
        before = server.proxy.log.count("asample")
        found = await backend.sample(prompts, params, seeds)
        assert server.proxy.log.count("asample") == before + 4
        wanted = await local.sample(prompts, params, seeds)
        assert [c.tokens for c in found] == [c.tokens for c in wanted]
        server.proxy.fault = Copies()
        with pytest.raises(ServiceError, match=r"one sample 4 times .* tinker\.group_requests=false"):
            await backend.sample(prompts[:4], params, seeds[:4])
        backend._trained.service.settings = chz.replace(SETTINGS, group_requests=False)
        await backend.sample(prompts[:4], params, seeds[:4])

    using(server, look)


def test_a_gradient_is_discarded_only_where_no_step_is_lost(server: LocalServer, tmp_path: Path) -> None:
    data, loss = datums(), LossSpec("cross_entropy")

    async def work(backend: TinkerBackend) -> None:
        await backend.train_step(data, loss, ADAM)
        await backend.save_state(tmp_path / "saved")
        want = await backend.logprobs(data)
        await backend.forward_backward(data, loss)
        await backend.discard_gradient()
        for x, y in zip(await backend.logprobs(data), want, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)
        await backend.train_step(data, loss, ADAM)
        await backend.discard_gradient()
        with pytest.raises(TrainingError, match=r"an optimizer step old.*resumes from the last checkpoint"):
            await backend.logprobs(data)

    using(server, work)


def rl(server: LocalServer, path: Path, **changes: Any) -> Any:
    """A run of the whole loop on the toy environment."""
    given: dict[str, Any] = {
        "backend": "tinker",
        "base_url": server.url,
        "model_name": NAME,
        "lora_rank": 4,
        "max_batches": 4,
        "tinker": SETTINGS,
        "tensorboard_enabled": False,
        "kl_penalty_coef": 0.05,
        "dataset_builder": ToyBuilder(batch_size=3, group_size=4),
    }
    kept = tiny(path, tensorboard_enabled=False)
    return type(kept)(
        **given
        | {"learning_rate": 2e-2, "max_tokens": 8, "save_every": 2, "eval_every": 0, "log_path": path}
        | {"cache_dir": path.parent / "cache", "sft": kept.sft, "eval": kept.eval}
        | changes
    )


def curve(path: Path) -> list[list[float]]:
    names = ("sft/loss", "reward/mean", "train/loss", "train/kl_div", "train/grad_norm")
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [[row[name] for name in names if name in row] for row in rows if row.get("phase") in ("sft", "rl")]


@pytest.fixture(scope="module")
def undisturbed(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    path = tmp_path_factory.mktemp("plain") / "run"
    train(rl(server, path), quiet=True)
    return curve(path)


def same(found: list[list[float]], want: list[list[float]]) -> None:
    assert len(found) == len(want) == 10
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_run_learns_and_resumes_as_if_it_had_never_stopped(
    server: LocalServer, tmp_path: Path, undisturbed: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    path = tmp_path / "run"
    train(rl(server, path, max_batches=2), quiet=True)
    train(rl(server, path), quiet=True)
    same(curve(path), undisturbed)
    assert undisturbed[5][0] < undisturbed[0][0]
    kept = [file for file in path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert kept == []
    (record,) = list(path.glob("checkpoints/*0004*/policy/tinker.json"))[:1] or list(path.rglob("tinker.json"))[-1:]
    saved = json.loads(record.read_text())
    assert saved["state"].startswith("tinker://") and saved["server"] == server.url and saved["lora_rank"] == 4


def faulty(server: LocalServer, path: Path, fault: Fault, **changes: Any) -> list[list[float]]:
    """The curve of a run behind a fault, which saves after every step."""
    server.proxy.fault = fault
    train(rl(server, path, save_every=1, **changes), quiet=True)
    return curve(path)


@pytest.mark.parametrize(
    "fault",
    [
        *(Lost(kind=kind, times=1) for kind in ("optim_step", "forward_backward", "asample")),
        Storm(),
        Resets(),
    ],
    ids=["optim_step", "forward_backward", "asample", "errors", "resets"],
)
def test_lost_results_and_storms_change_nothing(
    server: LocalServer, tmp_path: Path, undisturbed: list[list[float]], fault: Fault
) -> None:
    same(faulty(server, tmp_path / "run", fault), undisturbed)


def test_samples_that_are_always_lost_stop_a_run(server: LocalServer) -> None:
    async def look(backend: TinkerBackend) -> None:
        async with asyncio.timeout(60):
            [_ async for _ in backend.sample_stream([(1, 2)], SamplingParams(4), [1])]

    server.proxy.fault = Lost(kind="asample")
    with pytest.raises(ServiceError, match="sample"):  # a new sampler before each of them is no success
        using(server, look)


def test_requests_that_arrive_again_train_nothing_twice(
    server: LocalServer, tmp_path: Path, undisturbed: list[list[float]]
) -> None:
    fault = Disorder()
    same(faulty(server, tmp_path / "run", fault), undisturbed)
    assert fault.repeated > 4 * 3 * 4  # of the groups alone there are 12, each sent again beside older requests


def test_a_step_whose_result_comes_too_late_is_not_taken_twice(
    server: LocalServer, tmp_path: Path, undisturbed: list[list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    hasty = TinkerService(probe=False, connect_timeout_s=20, train_timeout_s=4, sample_timeout_s=30)
    same(faulty(server, tmp_path / "run", Late(kind="optim_step", seconds=6), tinker=hasty), undisturbed)
    assert "optim_step: the server gave no result within 4 s" in caplog.text


def test_a_server_that_is_started_again_costs_no_step_or_stops_the_run(
    server: LocalServer, tmp_path: Path, undisturbed: list[list[float]]
) -> None:
    server.proxy.fault = RestartAt(server=server, kind="asample", count=7)
    whole = tmp_path / "whole"
    train(rl(server, whole, save_every=1), quiet=True)
    same(curve(whole), undisturbed)
    # In the middle of the third batch's sampling, with the last state two steps back: an evaluation asks for two
    # groups, a batch for three.
    server.proxy.fault = RestartAt(server=server, kind="asample", count=2 + 2 * 3 + 2)
    path = tmp_path / "run"
    with pytest.raises(TrainingError, match="resumes from the last checkpoint"):
        train(rl(server, path, save_every=3), quiet=True)
    train(rl(server, path, save_every=3), quiet=True)
    same(curve(path), undisturbed)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_missing_key_is_one_line_before_data_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dry: list[str]
) -> None:
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "run"
    assert main(["train", "--config", "rl_kernelbench", "backend=tinker", f"log_path={run}", *dry]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: TINKER_API_KEY is not set") and err.count("\n") == 1
    assert not run.exists()


def test_what_cannot_be_trained_is_refused_before_anything_is_spent(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(server.proxy.log)

    def refused(kind: type[Exception], match: str, **changes: Any) -> None:
        with pytest.raises(kind, match=match):
            asyncio.run(open_backend(policy_of(server, **changes), DATA, None))

    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    refused(ConfigError, "TINKER_API_KEY is not set", base_url="https://example.invalid/tinker")
    refused(ConfigError, "not an http", base_url="ftp://127.0.0.1")
    refused(ServiceError, "Nothing listens at", base_url="http://127.0.0.1:1")
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    refused(ConfigError, "not encrypted", base_url="http://example.invalid")
    assert server.proxy.log == before
    refused(ModelError, f"not a model of .*, which trains {NAME}", model_name="other")
    refused(ModelError, r"lora_rank=4000 is not trained for .* Set lora_rank .* 1 to \d+ are", lora_rank=4000)
    assert "forward_backward" not in server.proxy.log[len(before) :]
    with pytest.raises(CheckpointError, match=r"has no tinker\.json"):
        using(server, lambda backend: backend.load_state(tmp_path))
    monkeypatch.setenv("TINKER_API_KEY", "sk-" + KEY)
    with pytest.raises(ConfigError, match="does not begin with tml-") as caught:
        asyncio.run(open_backend(policy_of(server), DATA, None))
    assert KEY not in str(caught.value)


def test_settings_beyond_the_api_are_refused_with_their_cures(server: LocalServer, tmp_path: Path) -> None:
    hot = rl(server, tmp_path, temperature=0.7, grpo=AlgorithmConfig(entropy_coef=0.1))
    said = "\n".join(beyond(capabilities(), hot))
    for cure in ("Set temperature=1", "Set grpo.entropy_coef=0"):
        assert cure in said
    with pytest.raises(ConfigError, match="Set lora_rank to 1 or more"):
        rl(server, tmp_path, lora_rank=0)
    named = capabilities(losses=frozenset({"cross_entropy", "ppo"}), custom=False)
    said = "\n".join(beyond(named, rl(server, tmp_path, loss_fn="importance_sampling")))
    assert "which backend=tinker does not compute. Set loss_fn to one of ppo" in said
    assert "Set grpo.kl_placement=reward" in said


def test_no_message_and_no_log_line_repeats_the_key(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    server.proxy.fault = Echo(KEY)
    with pytest.raises(ServiceError, match=r"HTTP 403: .*\[API key\]") as caught:
        using(server, lambda backend: backend.sample([(1, 2)], SamplingParams(2), [0]))
    assert KEY not in str(caught.value) and KEY not in caplog.text
