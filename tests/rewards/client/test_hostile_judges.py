"""A judge that means harm: numbers that no float holds, the key in disguise, replies to pay for or without end."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.config.urls import without_secrets
from assay.errors import ConfigError
from assay.rewards import CallFailure, Client, EngineConfig, JudgeConfig, Reply, RewardEngine, Sample, Usage
from assay.rewards.base import MOST_TOKENS
from assay.rewards.client.chat import NAME_CHARS, read
from assay.rewards.client.reply_cache import ReplyCache, StoredReply
from assay.storage.keyed_store import KeyedStore
from assay.transport import http
from assay.transport.http import Response, TransportError
from assay.transport.redaction import MARK, Redaction
from support.cpu_limit import at_most_cpu
from support.scripted_judge import Marks, Said, ask, completion, scripted_judge, settings
from support.scripted_pool import scripted_client
from support.virtual_time import play

HUGE = 10**400
PRICED = JudgeConfig(
    base_url="http://judge.test/v1",
    api_key_env="",
    usd_per_million_prompt_tokens=1e4,
    usd_per_million_completion_tokens=1e5,
)


# Numbers


@pytest.mark.parametrize("count", [HUGE, -HUGE, MOST_TOKENS + 1, 1e308, True, "12", [1]], ids=lambda v: repr(v)[:8])
def test_a_count_of_tokens_that_cannot_be_is_not_believed(count: Any) -> None:
    body = {**completion("1"), "usage": {"prompt_tokens": count, "completion_tokens": count}}

    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: Said(body=body), judge=PRICED, budget_usd=1000.0)
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply)
        assert 0 < reply.usage.usd == client._budget.spent_usd < 10, "what it may have cost at most"
        assert reply.usage.prompt_tokens + reply.usage.completion_tokens < 1000

    play(main())


def test_a_quota_that_cannot_be_is_no_quota() -> None:
    names = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")
    told = {name.replace("requests", what): str(HUGE) for name in names for what in ("requests", "tokens")}

    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: Said(headers=told))
        for text in "abc":
            assert isinstance(await client.call(ask(text)), Reply)

    play(main())


def test_long_headers_are_not_read_as_numbers() -> None:
    long = {"retry-after": "1" * 10**6, "x-ratelimit-limit-requests": "1" * 10**6}
    long |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1" * 10**6}
    with at_most_cpu(5):
        found = read(Response(429, long, b"{}"))
    assert found.wait_s is None  # type: ignore[union-attr]


def test_one_lie_about_tokens_does_not_hold_up_the_rest() -> None:
    """A count that is just believable, under a quota of tokens: later calls wait for a minute, not for weeks."""
    body = {**completion("1"), "usage": {"prompt_tokens": MOST_TOKENS, "completion_tokens": 1}}

    async def main() -> None:
        lies = lambda text, nth: Said(body=body) if text == "lie" else "1"  # noqa: E731
        client, _ = scripted_client(lies, tokens_per_minute=6000)
        await client.call(ask("lie"))
        before = asyncio.get_running_loop().time()
        assert isinstance(await client.call(ask("b", params={"max_tokens": 10})), Reply)
        assert asyncio.get_running_loop().time() - before < 120, "in virtual time"

    play(main())


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-ratelimit-limit-tokens": str(HUGE), "x-ratelimit-remaining-tokens": "1"}],
    ids=["counts", "quotas"],
)
def test_a_batch_survives_numbers_without_bound(headers: dict[str, str]) -> None:
    body = {**completion("1"), "usage": {"prompt_tokens": HUGE, "completion_tokens": HUGE}}
    with (
        scripted_judge(lambda asked: Said(body=body, headers=headers)) as judge,
        RewardEngine(Marks(), judge.config(), settings()) as engine,
    ):
        scores = engine.score_many_sync([Sample(f"{n}") for n in range(4)])
    assert [score.status for score in scores] == ["scored"] * 4


def test_a_request_for_more_tokens_than_can_be_is_priced_at_the_setting() -> None:
    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: "1", judge=PRICED, budget_usd=1000.0)
        assert isinstance(await client.call(ask("a", params={"max_tokens": HUGE})), Reply)

    play(main())


def test_names_from_a_judge_are_short_texts() -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    for name in ("x" * 10**6, nested, HUGE, {"a": 1}):
        body = {"choices": [{"message": {"content": "1"}, "finish_reason": name}], "model": name}
        answer = read(Response(200, {}, json.dumps(body).encode()))
        assert len(answer.model) <= NAME_CHARS and len(answer.finish_reason) <= NAME_CHARS  # type: ignore[union-attr]


# The key

KEY = "sk-proj-A1/b2+C3d4-e5_f6"


def hexes(form: str) -> Callable[[str], str]:
    return lambda key: "".join(form.format(ord(character)) for character in key)


DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json escapes": hexes("\\u{:04x}"),
    "JSON ESCAPES": hexes("\\u{:04X}"),
    "one escape": lambda key: f"\\u{ord(key[0]):04x}{key[1:]}",
    "python escapes": hexes("\\x{:02x}"),
    "octal": hexes("\\{:03o}"),
    "url": lambda key: urllib.parse.quote(key, safe=""),
    "url, all of it": hexes("%{:02X}"),
    "html": hexes("&#{};"),
    "html hex": hexes("&#x{:x};"),
    "slashes": lambda key: key.replace("/", "\\/"),
    "escaped escapes": lambda key: json.dumps(json.dumps(hexes("\\u{:04x}")(key))),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_the_key_is_found_in_any_disguise(disguise: str) -> None:
    said = DISGUISES[disguise](KEY)
    assert MARK in (cleaned := Redaction(KEY).text(f"your key {said} is wrong"))
    assert cleaned.startswith("your key ") and cleaned.endswith(" is wrong") and said[4:] not in cleaned


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_disguise_of_the_key_reaches_the_cache_or_a_message(
    disguise: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disguise stands in the bytes of the reply, and again in the text that they decode to."""
    monkeypatch.setenv("SOME_KEY", KEY)
    said = DISGUISES[disguise](KEY)
    escaped = json.dumps(completion("@") if status == 200 else {"error": {"message": "@"}})
    bodies = [escaped.replace("@", json.dumps(said)[1:-1]).encode()]
    if disguise in ("json escapes", "JSON ESCAPES", "one escape", "slashes"):
        bodies.append(escaped.replace("@", said).encode())

    async def main(body: bytes) -> str:
        judge = JudgeConfig(base_url="http://judge.test/v1", api_key_env="SOME_KEY")
        client, _ = scripted_client(lambda text, nth: Said(status=status, raw=body), tmp_path, judge)
        outcome = await client.call(ask(str(hash(body))))
        await client.close()
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        return repr(outcome) + repr(stored)

    for body in bodies:
        kept = play(main(body))
        assert MARK in kept
        for form in (KEY, said, repr(said)[1:-1]):
            assert form not in kept


def test_taking_the_key_out_is_linear() -> None:
    redaction = Redaction(KEY)
    with at_most_cpu(20):
        for part in (
            "\\",
            "%",
            "&#0",
            "&#00000",
            "s",
            "sk-",
            "\\u0073",
            "\\u{0",
            KEY[:-1],
            DISGUISES["html"](KEY[:-1]),
        ):
            redaction.text("\\" + part * (1_000_000 // len(part)))


# What is paid for


@pytest.mark.parametrize(
    "body", ['"text"', "[]", "<html>", '{"choices": []}', '{"choices": [{"message": {"content": 7}}]}']
)
def test_a_malformed_reply_is_charged_with_what_it_may_have_cost(body: str) -> None:
    async def main() -> None:
        said = Said(raw=body.encode())
        client, pool = scripted_client(lambda text, nth: said, judge=PRICED, budget_usd=1000.0, call_deadline_s=5.0)
        failure = await client.call(ask("a"))
        assert isinstance(failure, CallFailure)
        each = client._budget.spent_usd / len(pool.asked)
        assert each > 0.1
        assert failure.usage.usd == pytest.approx(client._budget.spent_usd), "in the bill, too"
        assert (await client.counters())["usd"] == pytest.approx(client._budget.spent_usd)

    play(main())


def test_a_budget_ends_a_judge_that_only_sends_nonsense() -> None:
    async def main() -> None:
        client, pool = scripted_client(
            lambda text, nth: Said(raw=b"{}") if text != "good" else "1", judge=PRICED, budget_usd=5.0
        )
        await client.call(ask("good"))
        failure = await client.call(ask("a"))
        assert isinstance(failure, CallFailure) and failure.kind == "budget"
        assert len(pool.asked) < 20

    play(main())


def test_half_a_response_may_be_billed_and_none_is_not() -> None:
    def broken(begun: bool) -> TransportError:
        error = TransportError("the connection was closed before the response was complete")
        error.answer_begun = begun
        return error

    async def spent(begun: bool) -> float:
        script = lambda text, nth: broken(begun) if nth == 0 else "1"  # noqa: E731
        client, _ = scripted_client(script, judge=PRICED, budget_usd=1000.0)
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply) and reply.usage.usd == client._budget.spent_usd
        return client._budget.spent_usd

    assert play(spent(False)) == pytest.approx(0.3)
    assert play(spent(True)) > 0.5


def test_a_connection_that_breaks_says_whether_a_response_had_begun() -> None:
    async def main() -> list[bool]:
        begun = []
        for raw in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"):
            with scripted_judge(lambda asked, raw=raw: Said(raw=raw, end="close")) as judge:
                client = Client(judge.config(), settings())
                with pytest.raises(TransportError) as caught:
                    await client._pool.post(b'{"messages": [{"content": "a"}]}')
                begun.append(caught.value.answer_begun)
                await client.close()
        return begun

    assert asyncio.run(main()) == [False, True]


def test_counts_of_nothing_are_not_believed() -> None:
    """A reply that is there was made of tokens; only a part of the count that is missing is estimated."""

    async def usage_of(tokens: tuple[int, int], text: str = "a verdict") -> Usage:
        client, _ = scripted_client(lambda asked, nth: Said(text, tokens=tokens), judge=PRICED)
        return (await client.call(ask("a", params={"max_tokens": 7}))).usage

    assert play(usage_of((10, 2))) == Usage(1, 10, 2, pytest.approx(0.3))
    assert play(usage_of((10, 0))).completion_tokens == 7
    assert play(usage_of((10, 0), "")).completion_tokens == 0
    assert play(usage_of((0, 2))).prompt_tokens > 0


# Memory


def test_responses_in_flight_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three beginnings fit and four do not, whatever order their bytes come in: five of eight are given up."""
    monkeypatch.setattr(http, "MAX_HELD_BYTES", 2**20)
    begin = b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + b"x" * 300_000
    whole = json.dumps(completion("1")).encode()

    async def main() -> None:
        with scripted_judge(lambda asked: Said(raw=begin) if asked.text != "after" else "1") as judge:
            client = Client(judge.config(), settings())
            hanging = {
                asyncio.ensure_future(client._pool.post(json.dumps({"messages": [{"content": "a"}]}).encode()))
                for _ in range(8)
            }
            while len(hanging) > 3:
                done, hanging = await asyncio.wait(hanging, return_when=asyncio.FIRST_COMPLETED)
                for post in done:
                    assert "unfinished responses have more than 1 MB together" in str(post.exception())
            while client._pool._held.size < 3 * len(begin):
                await asyncio.sleep(0.001)
            assert len(hanging) == 3 and client._pool._held.size == 3 * len(begin)
            for post in hanging:
                post.cancel()
            await asyncio.wait(hanging)
            assert client._pool._held.size == 0, "what is over takes no room"
            response = await client._pool.post(b'{"messages": [{"content": "after"}]}')
            assert response.body == whole
            await client.close()

    asyncio.run(main())


def test_a_response_that_is_given_up_makes_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of several responses may come before anybody who waits for one of them runs again."""
    monkeypatch.setattr(http, "MAX_HELD_BYTES", 1000)
    held = http._Held()

    async def main() -> None:
        connections = [http._Connection(set(), held) for _ in range(4)]
        waiters = []
        for connection in connections:
            connection._waiter = asyncio.get_running_loop().create_future()
            connection._parser = http.httptools.HttpResponseParser(connection)
            waiters.append(connection._waiter)
            connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n".ljust(240, b"x"))
        for connection in connections:
            connection.data_received(b"x" * 60)
        assert [waiter.done() for waiter in waiters] == [True, False, False, False]
        assert waiters[0].exception() is not None and held.size == 900

    asyncio.run(main())


def test_a_response_of_many_headers_or_chunks_takes_no_more_than_its_bytes() -> None:
    connection = http._Connection(set(), http._Held())

    async def main() -> None:
        connection._waiter = asyncio.get_running_loop().create_future()
        connection._parser = http.httptools.HttpResponseParser(connection)
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000)
        assert isinstance(connection._body, bytearray) and len(connection._body) == 50_000
        headers = b"".join(b"h%d: x\r\n" % n for n in range(20_000))
        connection._waiter = waiter = asyncio.get_running_loop().create_future()
        connection._parser = http.httptools.HttpResponseParser(connection)
        connection.data_received(b"HTTP/1.1 200 OK\r\n" + headers)
        assert "headers of the response" in str(waiter.exception())
        assert len(connection._headers) < 20_000

    asyncio.run(main())


# The cache


@pytest.mark.parametrize(
    "body",
    [b"[" * 200_000, b"\xff", b"", b"null", b'["a"]', b'["a", "b", "c", 1, 2, 3]', b'["a", "b", "c", true, 1]', b"{}"],
)
def test_a_row_with_a_valid_checksum_and_a_bad_body_is_asked_for_again(body: bytes, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "rewards.sqlite"
        client, pool = scripted_client(lambda text, nth: "1", tmp_path)
        await client.call(ask("a"))
        key = ask("a").key(client._endpoint)
        await client.close()
        cache = ReplyCache(path, 10)
        store: KeyedStore = cache._store
        store.put([(key, body)])
        assert cache.get(key) is None
        cache.close()
        again, pool = scripted_client(lambda text, nth: "2", tmp_path)
        reply = await again.call(ask("a"))
        assert isinstance(reply, Reply) and reply.text == "2" and pool.asked == ["a"]
        await again.close()
        assert StoredReply.decoded(body) is None

    play(main())


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "https://h.test/v1?api-key=SECRET",
        "h.test/v1?api-key=SECRET",
        "https://h.test/v1#SECRET",
        "https://me:SECRET@h.test/v1",
        "ftp://SECRET@h.test",
        "http://[x?api-key=SECRET",
        "http://me:SECRET@[x",
    ],
)
def test_a_key_in_a_base_url_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JudgeConfig(base_url=url)
    shown: list[BaseException | None] = [caught.value]
    while shown[-1] is not None:
        shown.append(shown[-1].__cause__)
    assert "SECRET" not in "".join(map(str, shown))
    assert "SECRET" not in without_secrets(url)


def test_a_base_url_is_one() -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        JudgeConfig(base_url="http://[x")
    assert EngineConfig() and JudgeConfig(base_url="http://h.test/v1/@this").base_url
