"""Asks one judge: the cache first, then an equal call in flight, then the judge itself, until it answers.

    call -> cached reply? -> same call under way? -> [budget -> wait for a turn -> send -> read] until answered

The retry loop is here and not in the transport, so that the limit sees every refusal. A reply is returned after it is
on disk, so a reply that was paid for is never lost. Cancelling one waiter does not cancel a call that others wait for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.rewards.base import MOST_TOKENS, CallFailure, FailureKind, Outcome, Reply, Request, Usage, token_count
from assay.rewards.client.chat import PATH, Answer, Refusal, read
from assay.rewards.client.gate import Gate
from assay.rewards.client.hedging import HedgeWatch
from assay.rewards.client.limits import Budget, HedgePolicy, InFlightLimit, is_out_of_reach
from assay.rewards.client.reply_cache import StoredReply
from assay.rewards.client.resources import api_key, check_prices, connection_limit, endpoint_of, open_cache
from assay.rewards.client.single_flight import Call
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.transport.http import HttpPool, ResponseError, TransportError
from assay.transport.keys import json_headers
from assay.transport.redaction import Redaction
from assay.transport.route import route_to
from assay.transport.waits import backoff_s

logger = logging.getLogger(__name__)

TRANSIENT: frozenset[FailureKind] = frozenset({"rate_limited", "timeout", "connection", "server", "malformed"})
"""Failures after which the same call is worth another attempt."""
DOUBTS = 3
"""Attempts after which a key or model that worked before counts as refused for good."""
QUIET_S = 10.0
"""If a judge does not answer for this long while calls are retried, a warning is logged, and repeated at this
interval."""
TOKENS_PER_BYTE = 1 / 3
"""A cautious guess, until replies show the real value."""
MOST_TOKENS_PER_BYTE = 4.0
"""No tokenizer makes more than one token of a byte; the rest is for what an endpoint adds to short prompts."""
NEVER_VALID = 20
"""If this many replies are not chat completions and none is, the endpoint counts as not a judge."""
COUNTED = ("calls", "attempts", "answered", "cache_hits", "shared", "refusals", "hedges", "hedges_won", "failures")


class Client:
    """A `Caller` for one OpenAI-compatible endpoint. Belongs to the event loop of its first call.

    Raises:
        ConfigError: the API key's variable is not set, the URL is not valid, or a budget in money has no prices.
        CacheError: the cache cannot be opened.
    """

    def __init__(self, judge: JudgeConfig, config: EngineConfig, cache_dir: Path | None = None) -> None:
        self._config = config
        self._prices = (
            judge.usd_per_million_prompt_tokens / 1e6,
            judge.usd_per_million_completion_tokens / 1e6,
        )
        self._max_tokens = judge.max_tokens
        key = api_key(judge)
        check_prices(judge, config)
        self._redaction = Redaction(key)
        self._endpoint = endpoint_of(judge)
        self._pool = HttpPool(route_to(self._endpoint + PATH, json_headers(key)))
        self._cache = open_cache(config, cache_dir)
        limit = InFlightLimit(config.start_in_flight, connection_limit(config), config.adaptive)
        self._gate = Gate(limit, config.requests_per_minute, config.tokens_per_minute)
        self._watch = HedgeWatch(HedgePolicy(config.hedge_fraction), self._hedge)
        self._budget = Budget(config.budget_usd, config.budget_tokens)
        self._budget_spent = False
        self._freed = asyncio.Event()
        self._calls: dict[str, Call] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answered_at = self._warned_at = -math.inf
        self._reached = False
        """Whether anything has come back from the endpoint."""
        self._random = random.Random()
        self._tokens_per_byte = TOKENS_PER_BYTE
        self._counts: Counter[str] = Counter()
        self._usage = Usage()

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """See `Caller.call`."""
        try:
            body = request.body()
        except (TypeError, ValueError) as error:
            return CallFailure("bad_request", f"the request cannot be written as JSON: {error}")
        key = request.key(self._endpoint, body)
        stored = self._cache.get(key) if self._cache is not None else None
        if stored is not None:
            self._counts["cache_hits"] += 1
            return stored.reply()
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            return CallFailure("deadline", "the batch ran out of time before the judge was asked")
        call = self._calls.get(key)
        if call is not None:
            self._counts["shared"] += 1
            return await self._wait(call, deadline)
        call = self._calls[key] = self._new_call(request, body, key)
        call.task = loop.create_task(self._fetch(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(lambda task: self._hand_out(call, task))
        return await self._wait(call, deadline)

    def add_spent(self, usage: Usage) -> None:
        """Count towards the budget what was spent elsewhere, for example by an earlier client."""
        self._budget.spend(usage.usd, usage.prompt_tokens + usage.completion_tokens)

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        if self._cache is not None:
            self._cache.drop(request.key(self._endpoint))

    async def close(self) -> None:
        """See `Caller.close`."""
        while self._tasks:  # the tasks of calls, and then the hedges that they leave behind
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._watch.close()
        self._pool.close()
        if self._cache is not None:
            self._cache.close()

    async def counters(self) -> dict[str, float]:
        """See `Caller.counters`."""
        return {
            **{name: float(self._counts[name]) for name in COUNTED},
            "prompt_tokens": float(self._usage.prompt_tokens),
            "completion_tokens": float(self._usage.completion_tokens),
            "usd": self._usage.usd,
            "in_flight": float(self._gate.in_flight),
            "waiting": float(self._gate.waiting),
            "limit": self._gate.limit.limit,
            "limit_cuts": float(self._gate.limit.cuts),
            "cache_write_failures": float(self._cache.write_failures if self._cache is not None else 0),
        }

    def _new_call(self, request: Request, body: bytes, key: str) -> Call:
        """A call with the most tokens that it may use: its prompt's, estimated from earlier replies, and the longest
        reply."""
        self._counts["calls"] += 1
        longest = request.params.get("max_tokens", request.params.get("max_completion_tokens"))
        prompt = min(int(len(body) * self._tokens_per_byte), MOST_TOKENS)
        estimate = self._usage_of(0, prompt, token_count(longest) or self._max_tokens)
        return Call(body, key, estimate, asyncio.get_running_loop().time())

    def _usage_of(self, calls: int, prompt_tokens: int, completion_tokens: int) -> Usage:
        usd = prompt_tokens * self._prices[0] + completion_tokens * self._prices[1]
        return Usage(calls, prompt_tokens, completion_tokens, usd)

    def _bill(self, call: Call, usage: Usage) -> None:
        """Count what an attempt cost, or may have cost: what was possibly billed must not be spent again."""
        self._budget.spend(usage.usd, usage.prompt_tokens + usage.completion_tokens)
        call.usage += usage
        self._usage += usage

    async def _wait(self, call: Call, deadline: float | None) -> Outcome:
        """Wait for a call; the last one to stop waiting cancels it."""
        try:
            return await call.wait(deadline)
        finally:
            if not call.waiters and call.task is not None and not call.task.done():
                call.task.cancel()
                self._calls.pop(call.key, None)

    def _hand_out(self, call: Call, task: asyncio.Task[Outcome]) -> None:
        self._tasks.discard(task)
        if self._calls.get(call.key) is call:
            del self._calls[call.key]
        call.hand_out(task)

    async def _fetch(self, call: Call) -> Outcome:
        """Ask until there is an answer, a permanent failure, or no time left."""
        loop = asyncio.get_running_loop()
        while True:
            if not await self._reserve(call):
                return self._failure("budget", f"the budget is spent: {self._budget}", call)
            try:
                result = await self._attempt(call)
            finally:
                self._release(call)
            if isinstance(result, Reply):
                return result
            if not self._worth_another(result, call):
                return self._failure(self._kind_of(result, call), result.message, call)
            wait_s = backoff_s(call.attempts, self._random.random(), result.wait_s)
            # A call that has only waited for its turn is kept, unless no call was answered meanwhile.
            since = max(call.since, min(call.began, self._answered_at))
            if loop.time() + wait_s > since + self._config.call_deadline_s:
                gave_up = f"no answer within call_deadline_s={self._config.call_deadline_s:g} s"
                return self._failure(result.kind, f"{gave_up}; last: {result.message}", call)
            self._warn_of_silence(call, result.message)
            await asyncio.sleep(wait_s)

    def _warn_of_silence(self, call: Call, why: str) -> None:
        """Log why calls are retried: otherwise an outage would look like a hang."""
        now = asyncio.get_running_loop().time()
        if now - max(call.began, self._answered_at, self._warned_at) < QUIET_S:
            return
        self._warned_at = now
        logger.warning(
            "%s has not answered for %.0f s; each call is tried again for up to call_deadline_s=%g. Last: %s",
            self._endpoint,
            now - max(call.began, self._answered_at),
            self._config.call_deadline_s,
            self._redaction.message(why),
        )

    async def _reserve(self, call: Call) -> bool:
        """Reserve what the next attempt may cost; wait for calls in flight if only they can free it.

        A budget that is too small for one call counts as spent for all: the batch ends, and calls sent now would be
        lost.
        """
        while not self._budget_spent and not self._budget.reserve(call.estimate.usd, call.tokens):
            if self._budget.idle:
                self._budget_spent = True
                self._freed.set()
                break
            self._freed.clear()
            await self._freed.wait()
        return not self._budget_spent

    def _release(self, call: Call) -> None:
        self._budget.release(call.estimate.usd, call.tokens)
        self._freed.set()

    def _worth_another(self, refusal: Refusal, call: Call) -> bool:
        """A key that has worked counts as refused only after several refusals: gateways fail now and then."""
        if (refusal.kind == "malformed" and self._is_no_judge()) or self._is_out_of_reach(refusal, call):
            return False
        in_doubt = refusal.kind in ("auth", "unknown_model", "not_a_judge") and self._counts["answered"] > 0
        return refusal.kind in TRANSIENT or (in_doubt and call.attempts < DOUBTS)

    def _is_no_judge(self) -> bool:
        """Whether no reply of the endpoint was a chat completion: most likely the path is wrong."""
        return self._counts["answered"] == 0 and self._counts["malformed"] >= NEVER_VALID

    def _is_out_of_reach(self, refusal: Refusal, call: Call) -> bool:
        tried_s = asyncio.get_running_loop().time() - call.began
        return refusal.unreachable and is_out_of_reach(self._reached, tried_s)

    def _kind_of(self, refusal: Refusal, call: Call) -> FailureKind:
        """A call that is refused while others are answered is refused for its content, for example by a gateway's
        filter."""
        if refusal.kind == "malformed" and self._is_no_judge():
            return "not_a_judge"
        if self._is_out_of_reach(refusal, call):
            return "unreachable"
        others_answered = self._counts["answered"] > call.answered_before
        shared = refusal.kind in ("auth", "unknown_model", "not_a_judge")
        return "bad_request" if shared and others_answered else refusal.kind

    async def _attempt(self, call: Call) -> Reply | Refusal:
        """One attempt; a hedge may be started beside it while it runs, and its answer is as good."""
        await self._gate.enter(call.tokens, retry=call.attempts > 0)
        ticket = self._watch.start(call)
        try:
            result = await self._send(call)
            if isinstance(result, Refusal) and call.hedge is not None:
                await call.hedge
                return call.rescued or result
            return result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.rescued is None or task is None or task.uncancel() > 0:
                raise
            return call.rescued
        finally:
            self._watch.stop(ticket)
            if call.hedge is not None:
                call.hedge.cancel()
                call.hedge = None

    def _hedge(self, call: Call) -> bool:
        """A call takes far longer than usual: send it a second time, unless the judge is refusing calls."""
        loop = asyncio.get_running_loop()
        if not self._gate.limit.calm(loop.time()) or not self._watch.policy.allows():
            return False
        call.hedge = loop.create_task(self._run_hedge(call))
        self._tasks.add(call.hedge)
        call.hedge.add_done_callback(self._tasks.discard)
        return True

    async def _run_hedge(self, call: Call) -> None:
        """Ask beside an attempt that hangs until there is an answer; it then ends that attempt."""
        tries = 0
        while tries == 0 or self._watch.policy.allows():
            if not self._budget.reserve(call.estimate.usd, call.tokens):
                return
            try:
                await self._gate.enter(call.tokens, retry=True)
                self._counts["hedges"] += 1
                result = await self._send(call)
            finally:
                self._release(call)
            if isinstance(result, Reply):
                self._counts["hedges_won"] += 1
                call.rescued, call.hedge = result, None
                assert call.task is not None
                call.task.cancel()
                return
            if result.kind not in TRANSIENT:
                return
            tries += 1
            await asyncio.sleep(backoff_s(tries, self._random.random(), result.wait_s))

    async def _send(self, call: Call) -> Reply | Refusal:
        """One request within a place that `Gate` gave, which is given back here."""
        loop = asyncio.get_running_loop()
        call.attempts += 1
        self._counts["attempts"] += 1
        self._watch.policy.on_call()
        started, sent = loop.time(), self._gate.sent
        if call.attempts == 1:
            call.began, call.answered_before = started, self._counts["answered"]
        try:
            result, headers = await self._exchange(call.body)
            if isinstance(result, Refusal):
                self._counts["refusals"] += result.overload
                self._counts["malformed"] += result.kind == "malformed"
                if result.may_be_billed:
                    self._bill(call, call.estimate)
                self._gate.on_refusal(result, started, sent, headers, self._random.random())
                return result
            self._answered_at = loop.time()
            self._watch.policy.on_latency(self._answered_at - started)
            used = result.prompt_tokens + result.completion_tokens
            self._gate.on_answer(started, sent, headers, used - call.tokens if used else 0)
        except asyncio.CancelledError:  # sent, but nobody got the answer: its possible cost must not be spent again
            self._budget.spend(call.estimate.usd, call.tokens)
            raise
        finally:
            self._gate.leave()
        return await self._keep(call, result)

    async def _exchange(self, body: bytes) -> tuple[Answer | Refusal, Mapping[str, str]]:
        """Send a body and read what comes back; a connection that had gone stale is replaced once, at once."""
        timeout_s = self._config.attempt_timeout_s
        for last in (False, True):
            try:
                async with asyncio.timeout(timeout_s):
                    response = await self._pool.post(body)
            except TimeoutError:
                said = f"no answer within attempt_timeout_s={timeout_s:g} s"
                return Refusal("timeout", said, may_be_billed=True), {}
            except ResponseError as error:
                return Refusal("malformed", str(error), may_be_billed=True), {}
            except TransportError as error:
                if error.stale and not last:
                    continue
                refusal = Refusal(
                    "connection", str(error), unreachable=error.unreachable, may_be_billed=error.answer_begun
                )
                return refusal, {}
            self._reached = True
            return read(response, self._redaction.text), response.headers
        raise AssertionError("unreachable")

    async def _keep(self, call: Call, answer: Answer) -> Reply:
        """Bill an answer, store it, and make it a reply."""
        tokens = answer.prompt_tokens, answer.completion_tokens
        # A count that is missing is not 0: no prompt is empty, and a text is not made of nothing.
        prompt = tokens[0] or call.estimate.prompt_tokens
        completion = tokens[1] or (call.estimate.completion_tokens if answer.text or not tokens[0] else 0)
        self._bill(call, self._usage_of(1, prompt, completion))
        self._counts["answered"] += 1
        if tokens[0]:
            seen = min(tokens[0] / len(call.body), MOST_TOKENS_PER_BYTE)
            self._tokens_per_byte = max(0.9 * self._tokens_per_byte, seen)
        if self._cache is not None:
            await self._cache.keep(call.key, StoredReply(answer.text, answer.finish_reason, answer.model, *tokens))
        latency_s = asyncio.get_running_loop().time() - call.began
        return Reply(
            answer.text, answer.finish_reason, answer.model, call.usage, attempts=call.attempts, latency_s=latency_s
        )

    def _failure(self, kind: FailureKind, message: str, call: Call) -> CallFailure:
        self._counts["failures"] += 1
        message = self._redaction.message(f"{self._endpoint}: {message}")
        return CallFailure(kind, message, call.attempts, call.usage)
