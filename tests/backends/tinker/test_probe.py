"""The probe of a server: all is well on a right one, and each planted fault is found where it belongs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

from assay.backends.config import LocalBackend, PolicySpec, ScratchModel, TinkerService
from assay.backends.tinker.calls import failure
from assay.backends.tinker.probe.finding import Finding, wrong_for_all
from assay.backends.tinker.probe.run import probe
from assay.backends.tinker.probe.vouch import refuse, usable, vouched
from assay.backends.tinker.service import Service
from assay.cli.doctor import server_table
from assay.errors import ModelError
from support.tinker_behind_faults import NAME, LocalServer
from support.tinker_faults import (
    Copies,
    ForgottenOptimizer,
    KeptOptimizer,
    Lost,
    MeanOverBatch,
    MeanOverLength,
    MeanOverWeights,
    NoBase,
    NoFinish,
    NoLossSum,
    NoLowThreshold,
    NoThresholds,
    OldProtocol,
    OtherLoss,
    Overwritten,
    Sampling,
    ShortLogprobs,
    StaleSampler,
)
from support.tinker_proxy import Fault

PROMPT = TinkerService(connect_timeout_s=20, train_timeout_s=30, sample_timeout_s=30)


def probed(server: LocalServer, fault: Fault, points: str = "abcdefghij") -> list[Finding]:
    async def look() -> list[Finding]:
        service = await Service.connect(server.url, PROMPT)
        return await probe(service, NAME, 4, points=points)

    server.proxy.fault = fault
    try:
        return asyncio.run(look())
    finally:
        server.proxy.fault = Fault()


def test_a_right_server_passes_and_is_not_tried_again(server: LocalServer, tmp_path: Path) -> None:
    policy = PolicySpec(NAME, 4, 0, None, server.url, LocalBackend(), ScratchModel(), PROMPT, tmp_path)

    async def vouch() -> dict[str, Any]:
        service = await Service.connect(server.url, PROMPT)
        try:
            return await vouched(service, policy)
        finally:
            await service.close()

    want = {"losses": frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"}), "custom": True}
    assert asyncio.run(vouch()) == want
    before = len(server.proxy.log)
    assert asyncio.run(vouch()) == want
    assert "create_model" not in server.proxy.log[before:]
    (kept,) = (tmp_path / "tinker_probes").iterdir()
    assert '"verdict": "ok"' in kept.read_text() and "tml-" not in kept.read_text()


FAULTS: list[tuple[Fault, str, set[str]]] = [
    (Sampling(seed=lambda salt: salt % 2**31), "b", {"a seed repeats its sample"}),
    (Sampling(seed=7), "b", {"seeds differ"}),
    (Copies(), "b", {"the samples of a request differ"}),
    (Sampling(stop=[]), "b", {"a stop token ends a sample and is its last token"}),
    (Sampling(temperature=0.3), "d", {"samples have the trainer's log-probabilities"}),
    (ShortLogprobs(), "c", {"compute_logprobs has a value for each token but the first"}),
    (MeanOverWeights(), "e", {"weights x2", "batch x2"}),
    (MeanOverBatch(), "e", {"batch x2"}),
    (MeanOverLength(), "e", {"tokens of weight 0 change nothing"}),
    (Overwritten(), "e", {"two forward_backward add up"}),
    (NoThresholds(), "f", {"ppo reports loss:sum", "ppo has its gradient", "cispo reports loss:sum"}),
    (OtherLoss(), "f", {"ppo reports loss:sum", "ppo has its gradient"}),
    (NoLowThreshold(), "f", {f"ppo with negative advantages {s}" for s in ("reports loss:sum", "has its gradient")}),
    (NoLossSum(), "fg", {"importance_sampling reports loss:sum", "forward_backward_custom"}),
    (ForgottenOptimizer(), "h", {"a restored optimizer takes the same next step"}),
    (KeptOptimizer(), "h", {"a model from a state without its optimizer has a new one"}),
    (NoBase(), "i", {"a sampler of the base model has its weights"}),
    (StaleSampler(), "i", {"a sampler made at once has the new weights"}),
    (Lost(kind="save_weights"), "h", {"save and restore"}),
    (NoFinish(), "j", {"a session is ended"}),
]


@pytest.mark.parametrize(("fault", "points", "want"), FAULTS, ids=[type(f).__name__ + p for f, p, _ in FAULTS])
def test_a_planted_fault_is_found(server: LocalServer, fault: Fault, points: str, want: set[str]) -> None:
    findings = probed(server, fault, points)
    bad = {finding.name for finding in findings if finding.verdict != "ok"}
    assert want <= bad, server_table(findings)
    assert all(finding.cure for finding in findings if finding.verdict != "ok")


def test_what_is_wrong_decides_what_may_be_trained() -> None:
    custom = Finding("g", "forward_backward_custom", "wrong", "no", None, "do without", "custom")
    ppo = Finding("f", "ppo has its gradient", "wrong", "no", None, "do without", "ppo")
    seeds = Finding("b", "a seed repeats its sample", "lacks", "no", None, "mind it")
    stale = Finding("i", "a sampler has the new weights", "wrong", "0.3 nats", 0.3, "do not train here")
    assert usable([custom, ppo, seeds]) == {
        "losses": frozenset({"cross_entropy", "importance_sampling", "cispo"}),
        "custom": False,
    }
    refuse([custom, ppo, seeds], "http://127.0.0.1:1")
    with pytest.raises(ModelError, match=r"(?s)would train wrongly.*i a sampler has the new weights: 0.3 nats"):
        refuse([custom, stale], "http://127.0.0.1:1")


@pytest.mark.parametrize("status", [500, 422])
def test_a_server_that_does_not_read_training_requests_is_told_at_once(
    server: LocalServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.backends.tinker.probe.dialect.PAUSE_S", 0.0)
    before = len(server.proxy.log)
    found = probed(server, OldProtocol(status=status))
    wrong = [finding for finding in found if finding.verdict == "wrong"]
    assert [(one.point, one.name) for one in wrong] == [("a", "training requests are understood")]
    assert f"HTTP {status}" in wrong[0].found and "not tried" in wrong[0].cure and wrong_for_all(found) == wrong
    assert {one.point for one in found} == {"a", "b", "j"}
    # No point behind it asks again: the SDK would repeat each of its requests for minutes.
    assert server.proxy.log[before:].count("forward_backward") == (3 if status == 500 else 1)


def test_a_result_in_an_older_form_is_not_called_lost() -> None:
    error = failure("sample", ValueError("Server returned a JSON payload for SampleResponse"))
    assert "answered in JSON" in str(error) and not error.lost
