"""The official SDK against `assay serve`: every verb, and the numbers of the local backend."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install '.[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

import tinker
import torch
from safetensors.torch import load
from tinker import types

from assay.backends.base import AdamParams, LossSpec
from assay.types import Datum, SamplingParams
from support.tinker_server import KEY, NAME, Running, adapter_of, local_backend
from support.tiny_models import prompts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

RANK, SEED = 4, 7
SGD = {"learning_rate": 10.0, "eps": 1e4}
"""An Adam step that is one of plain gradient descent, by `learning_rate / eps` of the gradient, but for 1 in 10^3."""
LOSSES = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 1.5},
}


def new_client(service: Any, seed: int = SEED, **changes: Any) -> Any:
    settings = {"rank": RANK, "seed": seed, "train_unembed": False, **changes}
    return service.create_lora_training_client(NAME, **settings).result()


@pytest.fixture(scope="module")
def client(service: Any) -> Any:
    return new_client(service)


def ours(seed: int, new: int = 6) -> Datum:
    """Training data with a prompt that trains nothing."""
    rng, prompt = np.random.default_rng(seed), prompts(1)[0]
    ids = np.array([*prompt, *rng.integers(1, 90, new)])
    mask = np.concatenate([np.zeros(len(prompt) - 1), np.ones(new)]).astype(np.float32)
    logprobs = (-4.5 + rng.normal(size=len(mask)).astype(np.float32)) * mask
    return Datum(ids[:-1], ids[1:], logprobs, rng.normal(size=len(mask)).astype(np.float32) * mask, mask)


def theirs(datum: Datum, loss: str) -> types.Datum:
    inputs: dict[str, Any] = {"target_tokens": datum.targets}
    if loss == "cross_entropy":
        inputs["weights"] = datum.advantages
    else:
        inputs |= {"logprobs": datum.logprobs, "advantages": datum.advantages}
    return types.Datum(model_input=types.ModelInput.from_ints(datum.tokens.tolist()), loss_fn_inputs=inputs)


def logprobs_of(output: Any) -> list[np.ndarray]:
    return [np.array(o["logprobs"].tolist()) for o in output.loss_fn_outputs]


def text(tokens: Any) -> types.ModelInput:
    return types.ModelInput.from_ints(list(tokens))


def saved_adapter(server: Running, path: str) -> dict[str, torch.Tensor]:
    """The adapter in a checkpoint, downloaded as an archive."""
    with server.client() as http:
        run, kind, name = path.removeprefix("tinker://").split("/")
        answer = http.get(f"training_runs/{run}/checkpoints/{kind}/{name}/archive")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return load(archive.extractfile("adapter_model.safetensors").read())


def test_what_is_served(service: Any, client: Any) -> None:
    served = service.create_rest_client().get_server_capabilities().result().supported_models
    assert [(m.model_name, m.max_context_length, m.trainable) for m in served] == [(NAME, 32768, True)]
    info = client.get_info()
    assert (info.is_lora, info.lora_rank, info.model_data.model_name) == (True, RANK, NAME)
    assert client.get_tokenizer().encode("!a") == [1, 65]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_gradients_and_logprobs_are_the_local_backends(
    loss: str, service: Any, server: Running, tmp_path: Path
) -> None:
    client, local = new_client(service), local_backend("qwen3", RANK, SEED)
    data, spec = [ours(i, 4 + i) for i in range(4)], LossSpec(loss, config=LOSSES[loss])
    params = AdamParams(SGD["learning_rate"], eps=SGD["eps"], grad_clip_norm=0.0)
    for _ in range(2):
        # In two requests, whose gradients add up.
        halves = [
            client.forward_backward([theirs(d, loss) for d in half], loss, LOSSES[loss])
            for half in (data[:1], data[1:])
        ]
        stepped = client.optim_step(types.AdamParams(**SGD))
        want = asyncio.run(local.forward_backward(data, spec))
        norm = asyncio.run(local.optim_step(params))["grad_norm"]
        got = [half.result() for half in halves]
        assert sum(g.metrics["loss:sum"] for g in got) == pytest.approx(want.metrics["loss:sum"], rel=1e-5, abs=1e-5)
        for one, other, datum in zip(want.logprobs, logprobs_of(got[0]) + logprobs_of(got[1]), data, strict=True):
            assert other.shape == one.shape
            np.testing.assert_allclose(one, other * datum.mask, atol=1e-5)
        assert stepped.result().metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    mine = saved_adapter(server, client.save_state("after").result().path)
    want_weights = adapter_of(local)
    assert mine.keys() == want_weights.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, want_weights[name], atol=1e-5, rtol=1e-5)


def test_custom_losses_are_those_of_their_names(service: Any) -> None:
    def weighted(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        parts = zip(data, logprobs, strict=True)
        return -sum((d.loss_fn_inputs["weights"].to_torch() * lp).sum() for d, lp in parts), {"mine:sum": 2.0}

    data = [theirs(ours(i), "cross_entropy") for i in range(3)]
    named, custom = new_client(service), new_client(service)
    one, other = named.forward_backward(data, "cross_entropy"), custom.forward_backward_custom(data, weighted)
    steps = [c.optim_step(types.AdamParams(learning_rate=1e-3)) for c in (named, custom)]
    assert other.result().metrics["loss:sum"] == pytest.approx(one.result().metrics["loss:sum"], rel=1e-5)
    assert other.result().metrics["mine:sum"] == 2.0
    assert steps[0].result().metrics["grad_norm"] == pytest.approx(steps[1].result().metrics["grad_norm"], rel=1e-4)


def test_adam_clips_and_decays_as_asked(service: Any) -> None:
    client, local = new_client(service), local_backend("qwen3", RANK, SEED)
    asked = {
        "learning_rate": 1e-2,
        "beta1": 0.8,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "grad_clip_norm": 0.5,
    }
    data = [ours(i) for i in range(2)]
    for _ in range(3):
        client.forward_backward([theirs(d, "cross_entropy") for d in data], "cross_entropy")
        client.optim_step(types.AdamParams(**asked)).result()
        asyncio.run(local.forward_backward(data, LossSpec("cross_entropy")))
        asyncio.run(local.optim_step(AdamParams(**asked)))
    want = asyncio.run(local.logprobs(data))
    got = logprobs_of(client.forward([theirs(d, "cross_entropy") for d in data], "cross_entropy").result())
    for one, other, datum in zip(want, got, data, strict=True):
        np.testing.assert_allclose(one, other * datum.mask, atol=1e-4)


def test_samples_are_the_local_backends_and_every_policy_has_its_own(service: Any) -> None:
    client, local, asked = new_client(service), local_backend("qwen3", RANK, SEED), prompts(3)
    before = client.save_weights_and_get_sampling_client().result()
    client.forward_backward([theirs(ours(1), "cross_entropy")], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=0.1)).result()
    after = client.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=10, temperature=0.8, stop=[3])

    def sampled(sampler: Any) -> list[tuple[list[int], str]]:
        calls = [sampler.sample(text(p), 1, params.model_copy(update={"seed": i})) for i, p in enumerate(asked)]
        return [(s.tokens, s.stop_reason) for call in calls for s in call.result().sequences]

    def expected() -> list[tuple[list[int], str]]:
        found = asyncio.run(local.sample(asked, SamplingParams(10, temperature=0.8, stop=(3,)), range(3)))
        return [(list(c.tokens), c.stop_reason) for c in found]

    old = expected()
    asyncio.run(local.forward_backward([ours(1)], LossSpec("cross_entropy")))
    asyncio.run(local.optim_step(AdamParams(0.1, eps=1e-12, grad_clip_norm=0.0)))
    new = expected()
    assert old != new and sampled(after) == new and sampled(before) == old and sampled(after) == new


def test_sampler_and_trainer_agree_and_prompts_are_scored(client: Any) -> None:
    sampler = client.save_weights_and_get_sampling_client().result()
    prompt = text(prompts(1)[0])
    answer = sampler.sample(
        prompt, 2, types.SamplingParams(max_tokens=8, seed=5, stop=[]),
        include_prompt_logprobs=True, topk_prompt_logprobs=3, topk_sample_logprobs=2, prompt_alt_tokens_k=2,
        target_prompt_logprobs=types.TensorData(prompt.to_ints()[1:], dtype="int64", shape=[prompt.length - 1, 1]),
    ).result()  # fmt: skip
    assert [len(s.tokens) for s in answer.sequences] == [8, 8]
    assert answer.sequences[0].tokens != answer.sequences[1].tokens
    assert len({s.sequence_id for s in answer.sequences}) == 2
    for sequence in answer.sequences:
        whole = [*prompt.to_ints(), *sequence.tokens]
        scored = sampler.compute_logprobs(text(whole)).result()
        assert len(scored) == len(whole) and scored[0] is None
        np.testing.assert_allclose(scored[1 : prompt.length], answer.prompt_logprobs[1:], atol=1e-5)
        np.testing.assert_allclose(scored[prompt.length :], sequence.logprobs, atol=1e-5)
        zeros = np.zeros(len(whole) - 1, np.float32)
        datum = Datum(np.array(whole[:-1]), np.array(whole[1:]), zeros, zeros, zeros)
        trained = logprobs_of(client.forward([theirs(datum, "cross_entropy")], "cross_entropy").result())[0]
        np.testing.assert_allclose(scored[1:], trained, atol=1e-5)
        assert all(len(row) == 2 and row[0][1] >= row[1][1] for row in sequence.topk_logprobs)
    assert answer.topk_prompt_logprobs[0] is None and len(answer.topk_prompt_logprobs[1]) == 3
    own = np.array(answer.prompt_logprobs[1:])[:, None]
    np.testing.assert_allclose(answer.target_prompt_logprobs.tolist(), own, atol=1e-5)
    assert answer.prompt_alt_tokens.tokens.shape == [prompt.length - 1, 2]
    last = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result()
    assert last[:-2] == [None] * (prompt.length - 2)
    np.testing.assert_allclose(last[-2:], answer.prompt_logprobs[-2:], atol=1e-5)


def test_what_ends_a_sample(service: Any) -> None:
    base = service.create_sampling_client(base_model=NAME).result()
    prompt, many = text(prompts(1)[0]), 12

    def ends(stop: Any, seed: int = 1) -> list[Any]:
        return base.sample(prompt, many, types.SamplingParams(max_tokens=40, seed=seed, stop=stop)).result().sequences

    by_end, never = ends(None), ends([])
    assert all((s.stop_reason == "stop") == (s.tokens[-1] == 0) and 0 not in s.tokens[:-1] for s in by_end)
    assert all(len(s.tokens) == 40 and s.stop_reason == "length" for s in never)
    assert any(s.stop_reason == "stop" for s in by_end) and any(0 in s.tokens for s in never)
    token = never[0].tokens[5]
    two = "".join(chr(32 + t) for t in never[0].tokens[5:7])
    by_token, by_text = ends([token])[0], ends(two)[0]
    assert by_token.tokens == never[0].tokens[: never[0].tokens.index(token) + 1]
    assert by_text.stop_reason == "stop" and by_text.tokens == never[0].tokens[:7]
    assert [s.tokens for s in ends([], 2)] != [s.tokens for s in never] == [s.tokens for s in ends([])]


def test_saved_states_and_what_can_be_done_with_them(service: Any, server: Running) -> None:
    client, data = new_client(service), [theirs(ours(1), "cross_entropy")]
    rest = service.create_rest_client()

    def train(one: Any) -> float:
        one.forward_backward(data, "cross_entropy")
        one.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        return one.forward(data, "cross_entropy").result().metrics["loss:sum"]

    train(client)
    state = client.save_state("state", ttl_seconds=7200, user_metadata={"a": "b"}).result().path
    for_sampler = client.save_weights_for_sampler("state").result().path
    exact = service.create_training_client_from_state_with_optimizer(state).result()
    fresh = service.create_training_client_from_state(state).result()
    losses = [c.forward(data, "cross_entropy").result().metrics["loss:sum"] for c in (client, exact, fresh)]
    assert losses[0] == losses[1] == losses[2]
    after = [train(c) for c in (client, exact, fresh)]
    assert after[0] == after[1] != after[2]
    sampler = service.create_sampling_client(model_path=for_sampler).result()
    scored = sampler.compute_logprobs(text([*ours(1).tokens.tolist(), ours(1).targets[-1]])).result()
    assert np.dot(-np.array(scored[1:]), ours(1).advantages) == pytest.approx(losses[0], abs=1e-4)

    listed = rest.list_checkpoints(client.model_id).result().checkpoints
    assert [(c.tinker_path, c.checkpoint_type) for c in listed] == [(state, "training"), (for_sampler, "sampler")]
    assert listed[0].user_metadata == {"a": "b"} and listed[0].expires_at is not None and listed[0].size_bytes > 1000
    info = rest.get_weights_info_by_tinker_path(state).result()
    assert (info.base_model, info.lora_rank, info.train_mlp, info.train_unembed) == (NAME, RANK, True, False)
    run = rest.get_training_run_by_tinker_path(state).result()
    assert run.training_run_id == client.model_id and run.last_checkpoint.tinker_path == state
    assert client.model_id in [r.training_run_id for r in rest.list_training_runs(limit=100).result().training_runs]
    assert state in [c.tinker_path for c in rest.list_user_checkpoints(limit=100).result().checkpoints]
    session = client.model_id.partition(":")[0]
    assert session in rest.list_sessions().result().sessions
    assert client.model_id in rest.get_session(session).result().training_run_ids
    rest.set_checkpoint_ttl_from_tinker_path(state, None).result()
    assert rest.list_checkpoints(client.model_id).result().checkpoints[0].expires_at is None
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        client.save_state("state").result()
    assert client.save_state("state", overwrite=True).result().path == state
    rest.delete_checkpoint_from_tinker_path(for_sampler).result()
    assert [c.tinker_path for c in rest.list_checkpoints(client.model_id).result().checkpoints] == [state]

    other = tinker.ServiceClient(base_url=server.url, api_key="tml-other")
    with pytest.raises(tinker.NotFoundError, match="that this key may use"):
        other.create_training_client_from_state(state).result()
    rest.publish_checkpoint_from_tinker_path(state).result()
    assert other.create_training_client_from_state(state).result().forward(data, "cross_entropy").result()
    with pytest.raises(tinker.NotFoundError):
        other.create_rest_client().delete_checkpoint_from_tinker_path(state).result()
    other.close("success").result()


def test_parts_of_the_model_are_trained_as_asked(service: Any, server: Running) -> None:
    wanted = {"train_mlp": False, "train_attn": False, "train_unembed": True}
    weights = saved_adapter(server, new_client(service, **wanted).save_state("head").result().path)
    assert {name.rpartition(".lora_")[0] for name in weights} == {"base_model.model.lm_head"}
    with pytest.raises(tinker.BadRequestError, match="rank 1000 is not served; 1 to 128 are"):
        new_client(service, rank=1000)


def test_inflight_samplers_follow_the_adapter(service: Any) -> None:
    client = new_client(service)
    params = types.SamplingParams(max_tokens=10, seed=1, stop=[])
    first = client.save_weights_and_get_sampling_client(kind="inflight").result()
    before = first.sample(text([1, 2, 3]), 1, params).result().sequences[0].tokens
    client.forward_backward([theirs(ours(1), "cross_entropy")], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=0.3)).result()
    second = client.save_weights_and_get_sampling_client(kind="inflight").result()
    after = [s.sample(text([1, 2, 3]), 1, params).result().sequences[0].tokens for s in (first, second)]
    assert after[0] == after[1] != before


def test_clients_side_by_side_keep_their_own_state(service: Any, server: Running) -> None:
    clients = [new_client(service, seed=i) for i in range(4)]
    data = [[theirs(ours(10 + i), "cross_entropy")] for i in range(4)]
    waits = []
    for _ in range(3):
        for client, own in zip(clients, data, strict=True):
            waits.append(client.forward_backward(own, "cross_entropy"))
            waits.append(client.optim_step(types.AdamParams(learning_rate=1e-2)))
    for wait in waits:
        wait.result()
    for i, client in enumerate(clients):
        local = local_backend("qwen3", RANK, i)
        for _ in range(3):
            asyncio.run(local.forward_backward([ours(10 + i)], LossSpec("cross_entropy")))
            asyncio.run(local.optim_step(AdamParams(1e-2, eps=1e-12, grad_clip_norm=0.0)))
        mine, want = saved_adapter(server, client.save_state("end").result().path), adapter_of(local)
        assert max(float((mine[n] - want[n]).abs().max()) for n in mine) < 1e-4


def test_a_closed_session_is_over(server: Running) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    client = new_client(service)
    path = client.save_state("kept").result().path
    service.close("success").result()
    with server.client() as http:
        answer = http.post("get_info", json={"model_id": client.model_id, "type": "get_info"})
        assert answer.status_code == 400 and "ended it as success" in answer.json()["error"]
        assert http.post("weights_info", json={"tinker_path": path}).status_code == 200
