"""What each metric means: the table from which `docs/metrics.md` is made, and which tests compare with real runs.

A word in angle brackets is a placeholder: `<metric>` and `<part>` are named by the environment, `<tag>`
by its tasks, `<source>` by a reward's samples; `<rollout metric>` is any name of `ROLLOUTS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that are measured together."""

    title: str
    note: str
    """What applies to all of them."""
    metrics: Mapping[str, str]
    """Name -> what it is, with its unit."""


ROLLOUTS: Mapping[str, str] = {
    "reward/mean": "Mean reward of a rollout (the sum over its turns).",
    "reward/std": "Standard deviation of the rewards.",
    "reward/min": "Lowest reward.",
    "reward/max": "Highest reward.",
    "reward_25pct": "First quartile of the rewards.",
    "reward_75pct": "Third quartile of the rewards.",
    "part/<part>": "Mean of a named part of the reward, before weighting, as of each rollout's last turn that has it.",
    "env/<metric>": "Mean of a value that the environment reports (`legal` in chess), taken in the same way.",
    "tag/<tag>/reward": "Mean reward of the rollouts whose task has the tag.",
    "tag/<tag>/reward_25pct": "First quartile of their rewards.",
    "tag/<tag>/reward_75pct": "Third quartile of their rewards.",
    "tag/<tag>/count": "Number of these rollouts.",
    "tag/<tag>/<metric>": "Mean of a value that the environment reports of them.",
    "rollout/count": "Rollouts sampled.",
    "rollout/groups": "Groups sampled, including those that `dynamic_sampling_rounds` added.",
    "rollout/constant_group_fraction": "Share of the groups whose rewards are all equal: they carry no gradient.",
    "rollout/constant_group_reward": "Mean reward in these groups: high where tasks are solved, low where all fail.",
    "rollout/scored": "Rollouts that were judged.",
    "rollout/scored_fraction": "Their share.",
    "rollout/invalid": "Rollouts whose last answer is unreadable or breaks the rules: the policy's fault.",
    "rollout/invalid_fraction": "Their share.",
    "rollout/errored": "Rollouts that could not be judged and so have no reward: not the policy's fault.",
    "rollout/errored_fraction": "Their share; above `max_errored_fraction` the run stops.",
    "rollout/end/done_fraction": "Share of the rollouts that the environment ended.",
    "rollout/end/max_turns_fraction": "Share that ended at the limit on turns.",
    "rollout/end/length_fraction": "Share that ended because the model's context was full.",
    "rollout/end/errored_fraction": "Share that ended by a failure that is not the policy's.",
    "rollout/turns": "Mean number of turns of a rollout.",
    "rollout/lone_turn_fraction": "Multi-turn: share of the turns that no other scored rollout of their group reached; "
    "`baseline=turn` gives them no advantage.",
    "rollout/prompt_tokens_mean": "Mean length of a turn's prompt, in tokens.",
    "rollout/completion_tokens_mean": "Mean length of a completion, in tokens.",
    "rollout/completion_tokens_max": "Length of the longest completion, in tokens.",
    "rollout/completion_tokens_sum": "Tokens sampled.",
    "rollout/truncated_fraction": "Share of the completions that were cut off at `max_tokens`.",
}
"""Of a batch of groups (`assay.grpo.rollout_metrics`)."""

_TRAINING = {
    "loss": "The loss with all its terms: mean over the optimizer steps. Its scale depends on the aggregation.",
    "kl_loss": "The KL term within it, coefficient included; only with `kl_placement=loss`.",
    "kl_div": "KL of the policy from the reference (estimator k3), in nats per token; only with a KL penalty.",
    "kl_div_5pct": "5th percentile of the same over tokens.",
    "kl_div_95pct": "95th percentile of the same over tokens: rises early when the policy runs away.",
    "sampled_kl": "KL of the policy that sampled from the reference (k3), in nats per token, over everything sampled: "
    "in groups that train nothing (equal rewards, say), one rollout per group represents all its tokens.",
    "sampled_kl_95pct": "95th percentile of the same over tokens.",
    "sampled_entropy": "Mean negative log-probability of the same tokens, in nats; there also without a KL penalty.",
    "kl_coef": "Weight of the KL penalty in this step.",
    "kl_behaviour": "KL divergence of the sampling policy from the trained one (k3), in nats per token.",
    "logprob_ratio_min": "Smallest ratio of a token's probability now to that when it was sampled.",
    "logprob_ratio_max": "Largest such ratio.",
    "fraction_clipped": "Share of the tokens that the loss clips, where it has thresholds: the ratio is beyond the one "
    "that the advantage's sign pushes it to (`cispo`: beyond either), so the token gives no gradient (`cispo`: a "
    "bounded one).",
    "ratio_error": "Largest |ratio - 1| on tokens that the present weights sampled: rounding error (below 1e-5 in "
    "float32), or else sampler and trainer disagree.",
    "mismatch_kl": "KL of the sampler from the trainer on the same tokens (k3), in nats per token.",
    "tis_weight": "Mean weight of a token by truncated importance sampling; only with `tis_cap`.",
    "entropy": "Exact entropy of the policy, in nats per token.",
    "approx_entropy": "Mean negative log-probability of the sampled tokens, in nats.",
    "fraction_positive_advantages": "Share of the tokens with an advantage above 0.",
    "grad_norm": "Norm of the gradient before clipping: mean over the optimizer steps.",
    "nan_skip": "Share of the optimizer steps that were skipped because the gradient was not finite.",
    "optimizer_steps": "Optimizer steps taken.",
    "groups": "Groups sampled for this step that can be learned from.",
    "tokens": "Tokens trained on, counted in each pass.",
    "learning_rate": "Learning rate.",
}
_BUFFER = {
    "rollout_buffer_size": "Groups in the buffer, all with passes left.",
    "rollouts_fresh_fraction": "Their share of the groups held since rollouts were last added.",
    "rollouts_reused": "Uses of a group beyond its first, since the run began.",
    "rollouts_stale": "Groups dropped from the buffer because they were too old, since the run began.",
    "rollouts_evicted": "Groups dropped from it because it was full, since the run began.",
}

_PARITY = {
    "parity/kl": "KL of the sampler from the trainer (k3), in nats per token, the worst token left out.",
    "parity/tail": "99th percentile of |log-ratio| of trainer to sampler, in nats.",
    "parity/ratio_error": "|ratio - 1| of the worst token.",
    "parity/tokens": "Tokens compared.",
}

_KERNELS = {
    "mode": "0 for rollouts of one turn, 1 for several.",
    "batch/num_groups": "Groups of the batch.",
    "batch/num_trajectories": "Their rollouts.",
    "batch/total_steps": "Their turns.",
    "optim/lr": "Learning rate.",
    "kernel/format_rate": "Share of the answers with a kernel in the right form.",
    "kernel/compile_rate": "Share whose kernels ran, none refused by a compiler.",
    "kernel/correct_rate": "Share whose kernel is right.",
    "kernel/cheat_rate": "Share whose kernel did not do the work itself.",
    "kernel/format_ok": "Answers with a kernel in the right form.",
    "kernel/compiled": "Answers whose kernels ran, none refused by a compiler.",
    "kernel/correct": "Answers whose kernel is right.",
    "kernel/mean_speedup": "Mean speedup that may be rewarded (a lower bound), over right kernels that were timed.",
    "multiturn/format_rate": "Several turns: share of the turns with a kernel in the right form.",
    "multiturn/compile_rate": "Share of the turns whose kernels ran, none refused by a compiler.",
    "multiturn/correct_rate": "Share of the turns whose kernel is right.",
    "multiturn/step_score_mean": "Mean reward of a turn.",
    "multiturn/step_score_std": "Standard deviation of the same.",
    "multiturn/max_correct_per_trajectory": "Share of the rollouts with a right kernel in any turn.",
    "multiturn/success_rate": "Share with one that is as fast as `speedup_threshold` asks, too.",
    "multiturn/avg_turns": "Mean number of turns of a rollout.",
    "multiturn/best_speedup_mean": "Mean over rollouts of the best speedup of their turns.",
    "multiturn/best_speedup_max": "The best of all.",
    "multiturn/turn_<place>/compile_rate": "Of the turns at this place (from 0), the share whose kernels compile.",
    "multiturn/turn_<place>/correct_rate": "Of these turns, the share that is right.",
    "multiturn/turn_<place>/score_mean": "Mean reward of these turns.",
    "multiturn/turn_<place>/count": "Rollouts that had such a turn.",
}

SECTIONS: Sequence[Section] = (
    Section(
        "Rollouts",
        "Of the rollouts of a step, before any training. An errored rollout is counted and excluded from everything "
        "else. A `GRPOTrainer` that is used by itself returns the same names.",
        ROLLOUTS,
    ),
    Section(
        "Training",
        "Of the optimizer steps of a step, over all their tokens together; those of the policy are absent where no "
        "step was taken. A `GRPOTrainer` that is used by itself returns these names without `train/`.",
        {f"train/{name}": text for name, text in _TRAINING.items()},
    ),
    Section(
        "Advantages",
        "Of the turns that were trained on, each turn's the mean over its tokens, before the optimizer step's "
        "normaliser; absent where nothing was trained on.",
        {
            "advantage/mean": "Their mean.",
            "advantage/std": "Their standard deviation.",
            "advantage/min": "The lowest.",
            "advantage/max": "The highest.",
        },
    ),
    Section(
        "Progress",
        "Of every RL step.",
        {
            "progress/batch": "RL batches before this one.",
            "progress/done_frac": "Share of the run's RL batches that are done with this one.",
        },
    ),
    Section(
        "Kernels",
        "Of the environment `kernelbench`, over the turns that were judged; in evaluations behind `eval/`. TensorBoard "
        "shows them under further tags too, such as `Kernel/CorrectRate` and `PerLevel/Level1/RewardMean`.",
        _KERNELS,
    ),
    Section(
        "Parity",
        "Of the check that the sampler is the policy that is trained, before the step, on tokens that the present "
        "weights sampled. Past a limit (`grpo.parity`) the run stops. Absent where nothing was compared. The same "
        "names from a `GRPOTrainer` that is used by itself.",
        _PARITY,
    ),
    Section(
        "Rollout buffer",
        "Where rollouts are trained on more than once (`rollout_epochs`); without `train/` again from a `GRPOTrainer`.",
        {f"train/{name}": text for name, text in _BUFFER.items()},
    ),
    Section(
        "Warm-up",
        "Of supervised steps.",
        {
            "sft/loss": "Cross-entropy, in nats per token.",
            "sft/learning_rate": "Learning rate.",
            "sft/grad_norm": "Norm of the gradient before clipping.",
        },
    ),
    Section(
        "Evaluation",
        "On the held-out tasks, after the steps that end with an evaluation.",
        {
            "eval/<rollout metric>": "Any of the metrics of rollouts, over the held-out tasks (`eval/reward/mean`).",
            "eval/mode": "Kernels: as `mode`, and so on below.",
            "eval/batch/<count>": "As `batch/...`, of the evaluation.",
            "eval/kernel/<metric>": "As `kernel/...`, over the held-out problems. Shares are means over problems, as "
            "in `assay eval`.",
            "eval/kernel/pass@<k>": "The probability that one of k samples of a problem has a right kernel (unbiased).",
            "eval/kernel/fast_<p>": "Share of samples with a right kernel that is more than p times as fast as eager "
            "PyTorch (behind `_compile` or `_graph`: as these baselines). `fast_0` is the share with a right one.",
            "eval/kernel/speedup_<mean>": "`mean` and `geometric_mean` over problems of the speedups of right kernels, "
            "as measured. These figures stand at `eval/tag/level<n>/...` too, for each level.",
            "eval/multiturn/<metric>": "As `multiturn/...`, over the held-out problems.",
            "eval/ci95/reward": "Half-width of the 95 % interval of the mean reward, over tasks.",
            "eval/ci95/<metric>": "The same for what the environment reports.",
            **{f"eval/{name}": f"{text} Of a probe of the answers." for name, text in _PARITY.items()},
        },
    ),
    Section(
        "Time and machine",
        "These depend on the machine and on what is cached, so they may differ in a resumed run; all other metrics "
        "are the same.",
        {
            "time/total": "Kernels: the same as `perf/wall_s`, as are `time/rollout` (`perf/rollout_s`) and "
            "`time/train` (`perf/update_s`).",
            "time/rollout": "See `time/total`.",
            "time/train": "See `time/total`; it includes `time/discount_returns` and `time/assemble_data`.",
            "time/save_checkpoint": "Kernels: the same as `perf/checkpoint_s`.",
            "time/discount_returns": "Kernels: the same as `perf/returns_s`.",
            "time/assemble_data": "Kernels: the same as `perf/assemble_s`.",
            "time/eval_mean": "Kernels: mean seconds from a kernel to its verdict, waits for a worker included, of the "
            "verdicts since the step before.",
            "time/eval_max": "Kernels: the longest of these.",
            "time/step_mean": "Kernels: mean seconds from a reply to what comes of it, its grade included.",
            "time/step_max": "Kernels: the longest of these.",
            "time/ref_load_<of>": "Kernels: mean and longest time until a problem's reference had run and the problem "
            "could be graded, waits included; almost none where it was ready.",
            "time/modal_eval_<of>": "Kernels at Modal: `time/eval_...` without the verdicts from the cache.",
            "perf/wall_s": "Wall-clock seconds of the step.",
            "perf/cpu_s": "CPU seconds of the step, over all threads of this process but without verifier processes.",
            "perf/env_wait_s": "Seconds spent waiting for the batch's environments, which are prepared ahead.",
            "perf/rollout_s": "Seconds of sampling and scoring.",
            "perf/sampled_tokens_per_s": "Tokens sampled per second of that time.",
            "perf/update_s": "Seconds of training.",
            "perf/returns_s": "Of these, for the discounted returns of turns, their baselines and advantages.",
            "perf/assemble_s": "Of these, for making training sequences of rollouts.",
            "perf/checkpoint_s": "Seconds of the checkpoint that was last written, where the step before wrote it.",
            "perf/eval_s": "Seconds of the evaluation.",
            "perf/eval_cpu_s": "CPU seconds of the evaluation.",
            "perf/score_cached_fraction": "Share of the turns whose verdict came from a cache.",
            "perf/eval/score_cached_fraction": "The same for the evaluation.",
        },
    ),
    Section(
        "Reward engine",
        "Calls to an environment's judge in the step, and their cost; absent where there were none. These depend on "
        "what is cached, too.",
        {
            "reward_engine/samples": "Answers to score.",
            "reward_engine/scored": "Of these, judged.",
            "reward_engine/invalid": "Of these, unreadable: the policy's fault.",
            "reward_engine/errored": "Of these, those without a score.",
            "reward_engine/reread": "Replies without a readable verdict, for which the judge was asked again.",
            "reward_engine/calls": "Questions that were neither in the cache nor already in flight.",
            "reward_engine/cache_hits": "Questions whose reply was in the cache.",
            "reward_engine/shared": "Questions that waited for an equal one in flight.",
            "reward_engine/attempts": "Requests sent, including retries and hedges.",
            "reward_engine/answered": "Calls that were answered.",
            "reward_engine/failures": "Calls that failed for good.",
            "reward_engine/refusals": "Requests refused for load (rate limits).",
            "reward_engine/hedges": "Second requests sent for slow calls.",
            "reward_engine/hedges_won": "Of these, those that answered first.",
            "reward_engine/prompt_tokens": "Tokens of the prompts, as billed.",
            "reward_engine/completion_tokens": "Tokens of the replies, as billed.",
            "reward_engine/usd": "Cost in US dollars, where the judge's prices are set.",
            "reward_engine/<source>/calls": "Calls for one data source.",
            "reward_engine/<source>/tokens": "Tokens for one data source.",
            "reward_engine/<source>/usd": "Cost of one data source, in US dollars.",
            "reward_engine/grader/<count>": "Kernels: grades by kind of verdict, and how many were `graded`, taken "
            "from the cache (`cached`), or waited for an equal one (`shared`).",
            "reward_engine/grader/grade_<time>": "Kernels: see `time/eval_mean` and `time/eval_max`.",
            "reward_engine/grader/turn_<time>": "Kernels: see `time/step_mean` and `time/step_max`.",
            "reward_engine/grader/reference_<time>": "Kernels: see `time/ref_load_<of>`.",
            "reward_engine/grader/modal_<time>": "Kernels: see `time/modal_eval_<of>`.",
            "reward_engine/in_flight": "Calls in flight at the end of the step.",
            "reward_engine/waiting": "Calls waiting to be sent then.",
            "reward_engine/limit": "Limit on calls in flight then, as tuned so far.",
            "reward_engine/limit_cuts": "Times that the limit was lowered.",
            "reward_engine/cache_write_failures": "Writes to the cache that did not reach the disk at once.",
        },
    ),
)
"""Every metric of a run, in the order of the page."""

METRICS: Mapping[str, str] = {name: text for section in SECTIONS for name, text in section.metrics.items()}
"""Every metric of a run -> what it is."""


def is_possible(name: str) -> bool:
    """Whether a run can measure a metric of this name: one of the table, its placeholders filled in."""
    return _pattern().fullmatch(name) is not None


@cache
def _pattern() -> re.Pattern[str]:
    of_rollouts = "|".join(map(_filled, ROLLOUTS))
    return re.compile("|".join(_filled(known).replace("\x00", f"(?:{of_rollouts})") for known in METRICS))


def _filled(known: str) -> str:
    """A name of the table as a pattern; `\\x00` stands for the name of a metric of rollouts."""
    parts = re.split(r"(<[^>]+>)", known)
    return "".join(
        re.escape(part) if not part.startswith("<") else "\x00" if part == "<rollout metric>" else ".+"
        for part in parts
    )
