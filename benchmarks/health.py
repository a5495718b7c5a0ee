"""Whether the health rules catch runs that go wrong, how early, and how often they cry wolf.

    python benchmarks/health.py [--seeds N] [--sources SOURCE ...] [--out FOLDER] [--quick]

Sources (made_up, toy, chess, healthy, rescue, rescue_chess), on seeds that no threshold was chosen on: made-up series
with realistic noise (`tests/support/health_series.py`); real training runs, tiny ones that collapse or are sabotaged,
and chess with a learning rate 20 times too high (`benchmarks/common/health_runs.py`); tiny runs that learn under varied
settings (`health_healthy.py`); and collapses, tiny and of chess, that are run again with the monitor acting
(`health_rescue.py`). Every step of a series goes through a `HealthMonitor` with default settings. With `--out`, each
real run of `healthy`, `rescue` and `rescue_chess` is kept in a file, and not run again; with `TMPDIR=/dev/shm` the runs
do not wait for a disk. The last line is one JSON object:

- `kinds`: the ways to go wrong. `caught`: by kind and source, series in which a rule of that kind spoke after the
  onset; an alarm of another kind's rule does not count. `kinds_caught`: kinds all of whose series were caught, of
  the `kinds_judged` that there were series of.
- `lead_steps`: by kind and source, the median number of steps from that alarm to the point of no return (negative is
  late), over the series that reach one. `least_lead_steps`: the smallest. `in_time`: series with a lead of 0 or more.
- `false_alarms_per_1000_steps`: alarms of any rule in healthy runs and before the known onset of a fault; `real` is
  all real runs together.
- `not_healthy`: runs of `healthy` that did not learn or lost it again, judged by reward alone (`health_healthy.py`);
  they count neither for nor against.
- `collapses`: runs of `rescue` that, with the monitor only warning, ended with less than 80 % of what the undisturbed
  run gained on held-out tasks, after they had more, or with nothing left to learn from. `rescued`: those that, with the
  monitor acting, came to their end with at least 80 % of that gain; `stopped`: those that it paused or stopped with an
  error, of which `stopped_after_the_last_batch` had no batch left, and `stopped_with_the_gain` had at least 80 % of the
  gain at that moment; `neither`: the rest, by name; `rescued_by_half`: at least 80 % of the undisturbed run's gain
  after half of the batches; `by_kind` has the final rewards too: undisturbed, watched, acting. Of the runs that were
  `no_collapse`, `harmed` ended below 80 % of the undisturbed gain, or were stopped, with the monitor acting.
  `median_reward_lost`: held-out reward of the undisturbed run at its end less that of the run with the monitor acting,
  where it was stopped or at its end, over all collapses; `..._where_done`: over those that came to their end alone;
  `..._watched`: with the monitor only warning.

The point of no return is, by kind:

- kl_runaway: the mean reward of 5 steps is half of its best or less, or 10 steps begin in which 9 of 10 groups have
  constant rewards, so that nothing is left that could lead back.
- entropy_collapse: the entropy is below 0.01 nats/token, or 10 such steps begin.
- reward_hacking: the mean of the intended part over 5 steps is half of its best or less.
- truncation: 90 % of the completions of 5 steps are cut off.
- non_finite: the first step with such a number. (In tiny runs a gradient is made NaN; the loop then ends the run with
  an error, and the step's observation is put together from that.)
- constant_rewards, mismatch, gradient_explosion, clipping, which do not grow: 20 steps after the onset, when the
  default settings have written two checkpoints of it.

The exit status is 1 when a kind was missed, a collapse was neither rescued nor stopped, or false alarms are above 1 in
1000 steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.grpo.health.config import HealthConfig
from assay.grpo.health.finding import Finding
from assay.grpo.health.monitor import HealthMonitor
from common import machine
from common.health_healthy import SETTINGS, healthy_series, learned, store, stored
from common.health_rescue import (
    ARMS,
    CHESS_COLLAPSES,
    COLLAPSES,
    Arm,
    Outcome,
    as_json,
    chess_outcome,
    collapsed,
    from_json,
    keeps,
    rescued,
)
from common.health_rescue import outcome as tiny_outcome
from common.health_runs import FAULTS, chess_run, failing_run, healthy_run
from support import health_series

FIRST_SEED = 5000
"""Thresholds were chosen on lower ones."""
FRESH = 9100
"""First seed of `healthy` and `rescue`; rules and settings were tried on lower ones."""
ALLOWED = 1.0
"""False alarms per 1000 steps."""
ONCE = {"constant_rewards", "mismatch", "gradient_explosion", "clipping"}
"""Kinds that begin at their full size."""
MADE_UP = "made_up"
SOURCES = (MADE_UP, "toy", "chess", "healthy", "rescue", "rescue_chess")
TOO_HOT = ("learning_rate=1e-2", "kl_penalty_coef=1e-3")
"""The chess preset learns at 5e-4."""
Series = Sequence[health_series.Step]


@dataclass
class Tally:
    """What was found in the series of one source."""

    caught: dict[str, list[bool]] = field(default_factory=dict)
    leads: dict[str, list[int]] = field(default_factory=dict)
    healthy_steps: int = 0
    false_alarms: Counter[str] = field(default_factory=Counter)
    not_healthy: list[str] = field(default_factory=list)
    """Runs that were meant to be healthy, and did not learn or lost it again."""

    def failing(self, kind: str, series: Series, onset: int | None) -> None:
        """Judge a run that goes wrong, from `onset` on where that is known."""
        said = alarms(series)
        if onset is not None:
            self.healthy_steps += onset
            self.false_alarms.update(f.rule for step, f in said if step < onset)
        first = next((i for i, f in said if i >= (onset or 0) and f.rule in health_series.RULES_OF[kind]), None)
        end = point_of_no_return(kind, series, onset or 0)
        self.caught.setdefault(kind, []).append(first is not None)
        if first is not None and end is not None:
            self.leads.setdefault(kind, []).append(end - first)
        print(f"  {kind}: onset {onset}, alarm {first}, point of no return {end}", file=sys.stderr)

    def healthy(self, name: str, series: Series) -> None:
        """Judge a run that goes well."""
        said = alarms(series)
        self.healthy_steps += len(series)
        self.false_alarms.update(f.rule for _, f in said)
        print(f"  {name}: {len(series)} steps, {[(i, f.rule) for i, f in said] or 'no alarm'}", file=sys.stderr)


def alarms(series: Series) -> list[tuple[int, Finding]]:
    """Every finding that a monitor with default settings speaks of, with its step."""
    monitor = HealthMonitor(HealthConfig())
    return [(i, finding) for i, step in enumerate(series) for finding in monitor.observe(step)]


def point_of_no_return(kind: str, series: Series, onset: int) -> int | None:
    """See the module; None when the run ends before it."""
    if kind in ONCE:
        return onset + 20
    reached: dict[str, Callable[[], Iterator[int]]] = {
        "kl_runaway": lambda: (*halved(series, "reward/mean", onset), *nothing_left(series, onset)),
        "entropy_collapse": lambda: (*below(series, "entropy", 0.01, onset), *nothing_left(series, onset)),
        "reward_hacking": lambda: halved(series, "part/right", onset),
        "truncation": lambda: (
            i for i, mean in averages(series, "rollout/truncated_fraction") if i >= onset and mean >= 0.9
        ),
        "non_finite": lambda: (i for i, step in enumerate(series) if step.get("nan_skip")),
    }
    return min(reached[kind](), default=None)


def averages(series: Series, metric: str) -> Iterator[tuple[int, float]]:
    """Mean of a metric over five steps, with the last of them."""
    known = [(i, step[metric]) for i, step in enumerate(series) if metric in step]
    for at in range(4, len(known)):
        yield known[at][0], statistics.fmean(value for _, value in known[at - 4 : at + 1])


def halved(series: Series, metric: str, onset: int) -> Iterator[int]:
    """Steps at which a metric's five-step mean is half of its best so far, or less."""
    best = 0.0
    for i, mean in averages(series, metric):
        best = max(best, mean)
        if i >= onset and mean <= best / 2:
            yield i


def below(series: Series, metric: str, limit: float, onset: int) -> Iterator[int]:
    """Steps at which a metric is below a limit."""
    return (i for i, step in enumerate(series) if i >= onset and step.get(metric, limit) < limit)


def nothing_left(series: Series, onset: int) -> Iterator[int]:
    """First steps of ten that have 90 % constant groups each."""
    constant = [step.get("rollout/constant_group_fraction", 0.0) >= 0.9 for step in series]
    return (i for i in range(onset, len(series) - 9) if all(constant[i : i + 10]))


def made_up(seeds: int, steps: int) -> Tally:
    """Judge made-up series: `seeds` of each kind, and twice as many healthy ones."""
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + 2 * seeds):
        tally.healthy(f"healthy {seed}", health_series.healthy(seed, steps))
    for kind in health_series.FAILURES:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            tally.failing(kind, *health_series.failing(kind, seed, 400))
    return tally


def toy(kinds: Sequence[str], seeds: int, steps: int, folder: Path) -> Tally:
    """Judge tiny real runs: `seeds` of each kind, and twice as many healthy ones."""
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + 2 * seeds):
        tally.healthy(f"toy {seed}", healthy_run(seed, folder / f"healthy{seed}", steps))
    for kind in kinds:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            tally.failing(kind, *failing_run(kind, seed, folder / f"{kind}{seed}"))
    return tally


def chess(batches: int, folder: Path) -> Tally:
    """Judge the chess preset, as it is and far too hot."""
    tally = Tally()
    tally.healthy("chess", chess_run(FIRST_SEED, folder / "chess", batches))
    tally.failing("kl_runaway", chess_run(FIRST_SEED, folder / "chess_hot", min(batches, 40), *TOO_HOT), None)
    return tally


def varied(seeds: int, steps: int, folder: Path, kept: Path) -> Tally:
    """Judge tiny real runs that learn, `seeds` of each setting."""
    tally = Tally()
    for seed in range(FRESH, FRESH + seeds):
        for name in SETTINGS:
            file = kept / f"healthy_{name.replace(' ', '_')}_{seed}.json"
            if not file.exists():
                store(file, healthy_series(name, seed, folder / file.stem, steps))
            series = stored(file)
            if learned(series):
                tally.healthy(f"{name} {seed}", series)
            else:
                tally.not_healthy.append(f"{name} {seed}")
                print(f"  {name} {seed}: not healthy, {[f.rule for _, f in alarms(series)]}", file=sys.stderr)
    return tally


def rescue(kinds: Sequence[str], seeds: int, folder: Path, kept: Path) -> dict[str, object]:
    """Judge what the monitor does about real collapses: `seeds` of each kind, one of a kind of chess."""

    def arm(name: str, which: Arm, seed: int) -> Outcome:
        outcome = chess_outcome if name in CHESS_COLLAPSES else tiny_outcome
        of_chess = "chess_" if name in CHESS_COLLAPSES else ""
        words = f"{of_chess}undisturbed" if which == "undisturbed" else f"{name}_{which}"
        file = kept / f"rescue_{words.replace(' ', '_').replace(',', '')}_{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(as_json(outcome(name, which, seed, folder / file.stem))))
        return from_json(json.loads(file.read_text()))

    found: list[tuple[str, Outcome, Outcome, Outcome]] = []
    unharmed: list[tuple[str, Outcome, Outcome]] = []
    for seed in range(FRESH, FRESH + seeds):
        for name in [kind for kind in kinds if kind in COLLAPSES or seed == FRESH]:
            undisturbed, watched, acting = (arm(name, which, seed) for which in ARMS)
            real = collapsed(watched, undisturbed)
            ends = f"{undisturbed.final:.2f} undisturbed, {watched.final:.2f} watched, {acting.final:.2f} acting"
            print(f"  {name} {seed}: {'collapse' if real else 'none'}; {ends} ({acting.ended})", file=sys.stderr)
            if real:
                found.append((f"{name} {seed}", undisturbed, watched, acting))
            else:
                unharmed.append((f"{name} {seed}", undisturbed, acting))
    cut = [(name, undisturbed, acting) for name, undisturbed, _, acting in found if acting.ended == "stopped"]
    saved = [name for name, undisturbed, _, acting in found if rescued(acting, undisturbed)]
    stopped = [name for name, *_ in cut]
    lost = [undisturbed.final - acting.final for _, undisturbed, _, acting in found]
    done = [undisturbed.final - acting.final for _, undisturbed, _, acting in found if acting.ended == "done"]
    unwatched = [undisturbed.final - watched.final for _, undisturbed, watched, _ in found]
    known = {name for name, kind in COLLAPSES.items() if kind.known} | CHESS_COLLAPSES.keys()
    new = [name for name, *_ in found if name.rpartition(" ")[0] not in known]
    return {
        "collapses": len(found),
        "of_kinds_unknown_to_the_rules": len(new),
        "by_kind": {kind: _count(kind, found, saved, stopped) for kind in kinds},
        "rescued": len(saved),
        "stopped": len(stopped),
        "stopped_after_the_last_batch": sum(len(a.series) == len(u.series) for _, u, a in cut),
        "stopped_with_the_gain": sum(keeps(acting, undisturbed) for _, undisturbed, acting in cut),
        "rescued_by_half": sum(keeps(a, u, len(u.series) // 2) for _, u, _, a in found),
        "neither": [name for name, *_ in found if name not in saved and name not in stopped],
        "no_collapse": [name for name, *_ in unharmed],
        "harmed": [name for name, undisturbed, acting in unharmed if not rescued(acting, undisturbed)],
        "median_reward_lost": statistics.median(lost) if lost else None,
        "median_reward_lost_where_done": statistics.median(done) if done else None,
        "median_reward_lost_watched": statistics.median(unwatched) if unwatched else None,
    }


def _count(kind: str, found: Sequence[tuple[str, Outcome, Outcome, Outcome]], *of: Sequence[str]) -> dict[str, object]:
    """Collapses of a kind, those rescued and those stopped; and the final rewards: undisturbed, watched, acting."""
    runs = [run for run in found if run[0].rpartition(" ")[0] == kind]
    rescued_and_stopped = [sum(run[0] in names for run in runs) for names in of]
    finals = [[round(outcome.final, 2) for outcome in outcomes] for _, *outcomes in runs]
    return {
        "collapses": len(runs),
        **dict(zip(("rescued", "stopped"), rescued_and_stopped, strict=True)),
        "rewards": finals,
    }


def summary(sources: dict[str, Tally]) -> dict[str, object]:
    """All sources, apart and together."""
    kinds = list(health_series.FAILURES)
    rates = {name: 1000 * tally.false_alarms.total() / tally.healthy_steps for name, tally in sources.items()}
    steps = {name: tally.healthy_steps for name, tally in sources.items()}
    wrong = sum((tally.false_alarms for tally in sources.values()), Counter[str]())
    for name, members in {"real": sources.keys() - {MADE_UP}, "all": sources.keys()}.items():
        if over := sum(steps[m] for m in members):
            rates[name] = 1000 * sum(sources[m].false_alarms.total() for m in members) / over

    def by_kind(of: Callable[[Tally, str], object]) -> dict[str, dict[str, object]]:
        return {kind: {name: of(t, kind) for name, t in sources.items() if kind in t.caught} for kind in kinds}

    def of_leads(tally: Tally, kind: str, how: Callable[[Sequence[int]], float]) -> float | None:
        return how(tally.leads[kind]) if kind in tally.leads else None

    return {
        "kinds": kinds,
        "kinds_caught": sum(all(found) for kind in kinds if (found := judged(sources, kind))),
        "kinds_judged": sum(bool(judged(sources, kind)) for kind in kinds),
        "caught": by_kind(lambda t, kind: share(t.caught[kind])),
        "lead_steps": by_kind(lambda t, kind: of_leads(t, kind, statistics.median)),
        "least_lead_steps": by_kind(lambda t, kind: of_leads(t, kind, min)),
        "in_time": by_kind(
            lambda t, kind: f"{sum(x >= 0 for x in t.leads.get(kind, []))}/{len(t.leads.get(kind, []))}"
        ),
        "false_alarms_per_1000_steps": rates,
        "healthy_steps": steps,
        "false_alarms": dict(wrong),
        "not_healthy": [name for tally in sources.values() for name in tally.not_healthy],
    }


def judged(sources: dict[str, Tally], kind: str) -> list[bool]:
    """Of every series of a kind, whether it was caught."""
    return [found for tally in sources.values() for found in tally.caught.get(kind, [])]


def share(of: Sequence[bool]) -> str:
    """How many of how many."""
    return f"{sum(of)}/{len(of)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="made-up series of each kind; tiny runs are a fifth")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="where series come from")
    parser.add_argument("--chess-batches", type=int, default=150, help="RL batches of the chess run")
    parser.add_argument("--out", type=Path, help="folder in which real runs are kept")
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that everything works")
    args = parser.parse_args()
    began, cpu = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(prefix="health_") as scratch:
        folder, seeds = Path(scratch), 1 if args.quick else args.seeds
        tallies: dict[str, Callable[[], Tally]] = {
            MADE_UP: lambda: made_up(seeds, 200 if args.quick else 500),
            "toy": lambda: toy(
                ["mismatch"] if args.quick else list(FAULTS), max(1, seeds // 5), 40 if args.quick else 300, folder
            ),
            "chess": lambda: chess(args.chess_batches, folder),
            "healthy": lambda: varied(max(1, seeds * 3 // 10), 40 if args.quick else 500, folder, kept),
        }
        kept = args.out or folder / "kept"
        kept.mkdir(parents=True, exist_ok=True)
        wanted = [MADE_UP, "toy", "rescue"] if args.quick else args.sources
        sources = {name: tallies[name]() for name in wanted if name in tallies}
        kinds = ["rate x50", "reward flipped"] if args.quick else list(COLLAPSES) if "rescue" in wanted else []
        kinds += CHESS_COLLAPSES if "rescue_chess" in wanted else []
        rescues = rescue(kinds, max(1, seeds // 5), folder, kept) if kinds else {}
    found = summary(sources) | rescues
    cost = {"cpu_s": round(time.process_time() - cpu, 1), "wall_s": round(time.monotonic() - began, 1)}
    print(json.dumps(found | cost | {"quick": args.quick, "machine": machine()}))
    rate = found["false_alarms_per_1000_steps"]
    assert isinstance(rate, dict)
    caught = found["kinds_caught"] == found["kinds_judged"] and not rescues.get("neither")
    return 0 if caught and rate.get("all", 0.0) <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
