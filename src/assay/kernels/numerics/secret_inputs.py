"""Secret draws of a problem: inputs and weights that no candidate has seen, with what the reference makes of them.

    bank = InputBank(scaled, process, precision="float32")
    draw = await bank.take()

Making a draw costs as much as grading a kernel, so a bank keeps a few and hands each out a number of times before a new
one, made meanwhile, takes its place. Candidates neither see a draw before they compute on it nor keep anything of it,
so sharing one gives nothing away. Seeds come from the operating system, unless one is given to repeat a grade.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from assay.errors import ReferenceModelError
from assay.kernels.arrays import HostTensor, Value
from assay.kernels.base import MANNERS, Manner, Precision
from assay.kernels.numerics.families import FAMILIES, Family
from assay.kernels.numerics.held_inputs import Form, forms_of
from assay.kernels.numerics.rearranged import moved_outputs, only_moves
from assay.kernels.numerics.reference import Perturbation, ReferenceProcess, ReferenceResult, screening_of
from assay.kernels.numerics.screening import Case, Screening
from assay.kernels.operators import Draw
from assay.kernels.problems.scaling import ScaledProblem
from assay.types import Json

_SEED_BITS = 48
ATTEMPTS = 4
"""Draws made before a problem is given up in which no inputs can tell right from wrong."""


@dataclass(frozen=True, slots=True)
class InputSet:
    """One construction of the model, and its outputs on inputs of several families."""

    input_seed: int
    weight_seed: int
    init_inputs: tuple[Value, ...]
    cases: tuple[Case, ...]
    """Those that can decide: finite, and not mostly rounding error. `given` first."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of each parameter of the reference."""
    work: Mapping[str, tuple[int, int]]
    """What PyTorch does for the reference: operator -> calls and work."""
    moved: Case | None = None
    """A case under other values of those parameters whose start gives something away; None where there are none."""
    moved_weights: Mapping[str, HostTensor] = field(default_factory=dict)
    updated: Case | None = None
    """A case under other values of all parameters, as after a step of training; None where none was asked for."""
    updated_weights: Mapping[str, HostTensor] = field(default_factory=dict)
    far: tuple[Case, ...] = ()
    """Cases of several families under values of all parameters that are far from those at the start."""
    far_weights: Mapping[str, HostTensor] = field(default_factory=dict)
    nudged: Case | None = None
    """A case in which one parameter alone has other values; None where none was asked for or there is no other."""
    nudged_weights: Mapping[str, HostTensor] = field(default_factory=dict)
    initial: tuple[str, ...] = ()
    """A digest of each parameter at the start, in the order of `weights`."""
    after: tuple[Form, ...] = ()
    """The inputs that the reference changes in some case."""
    structure: Json = None
    """How the tensors lie in the reference's output (`inside.tensors.structure_of`)."""
    init_work: int = 0
    """Arithmetic that the reference's constructor does on what it draws."""
    draws: tuple[Draw, ...] = ()
    """The distributions that the reference's constructor draws from."""
    meeting: frozenset[tuple[int, int]] = frozenset()
    """The pairs of tensors in the reference's output that lie in the same memory (`arrays.meetings`)."""
    fixed: tuple[str, ...] = ()
    """Names of what no optimizer changes of the reference."""
    rearranged: bool = False
    """Whether its outputs are elements of the inputs at fixed places, and constants (`rearranged.only_moves`)."""
    moved_outputs: tuple[int, ...] = ()
    """Those that alone are so, and are no input as it is."""

    def trials(self, asked: int) -> int:
        """How many calls there are where so many are asked for: one at least on each family of inputs."""
        return max(asked, len(self.cases))


class InputBank:
    """The draws of one problem at one size and precision. Not for use from several event loops at a time."""

    def __init__(
        self,
        scaled: ScaledProblem,
        process: ReferenceProcess,
        precision: Precision = "float32",
        *,
        draws: int = 4,
        uses: int = 32,
        seed: int | None = None,
        screening: Screening | None = None,
        updates: bool = False,
        others: int | None = None,
    ) -> None:
        """Nothing is drawn before the first `take`.

        Args:
            scaled: The problem.
            process: Runs the reference.
            precision: Working precision.
            draws: How many to keep.
            uses: How often each is handed out.
            seed: Makes the bank deterministic. Never for training: who knows it knows the inputs.
            screening: What is known of the problem already; None to screen it with the first draw.
            updates: Whether each draw has a case in which all weights have other values than at the start.
            others: How many families each draw has beside the given one, at random from those of which screening found
                that they can decide; None for all families.
        """
        self.scaled, self.precision = scaled, precision
        self.screening, self._updates, self._others = screening, updates, others
        self._process, self._draws, self._uses = process, draws, uses
        self._random: random.Random = random.Random(seed) if seed is not None else secrets.SystemRandom()
        self._kept: list[tuple[InputSet, int]] = []
        self._making = asyncio.Lock()

    async def ready(self) -> None:
        """See to it that the reference runs, by screening the problem where that has not been done.

        Raises:
            ReferenceModelError: it does not.
        """
        async with self._making:
            if self.screening is None:
                await self._screen()

    async def take(self, but: Collection[InputSet] = ()) -> InputSet | None:
        """A draw, or None where screening found that the problem is not worth a reward (see `screening`).

        Args:
            but: Draws that this one must not be.

        Raises:
            ReferenceModelError: the reference does not run.
        """
        await self.ready()
        async with self._making:
            assert self.screening is not None, "the problem was just screened"
            if not self.screening.rewarded:
                return None
            places = [place for place, (draw, _) in enumerate(self._kept) if all(draw is not one for one in but)]
            if len(self._kept) < self._draws or not places:
                self._kept.append((await self._process.waited(self._make), 0))
                place = len(self._kept) - 1
            else:
                place = self._random.choice(places)
            draw, used = self._kept[place]
            if used + 1 < self._uses:
                self._kept[place] = (draw, used + 1)
            else:
                del self._kept[place]
            return draw

    async def _screen(self) -> None:
        # In the thread that waits for the reference: large outputs take half a second to screen.
        self.screening = await self._process.waited(lambda: screening_of(self._evaluate(for_screening=True)))

    def _evaluate(self, *, for_screening: bool) -> ReferenceResult:
        return self._process.evaluate(
            self.scaled.code,
            input_seed=self._random.getrandbits(_SEED_BITS),
            weight_seed=self._random.getrandbits(31),
            precision=self.precision,
            for_screening=for_screening,
            owner=self.scaled.problem.hash,
        )

    def _make(self) -> InputSet:
        for _ in range(ATTEMPTS):
            draw = self._attempt()
            if draw.cases and (draw.updated is not None or not draw.weights or not self._updates):
                return draw
        if draw.cases:
            raise ReferenceModelError("weights", _UNMOVED)
        raise ReferenceModelError(
            "noise", f"in {ATTEMPTS} draws the reference gave nothing but rounding error or values that are not finite."
        )

    def _attempt(self) -> InputSet:
        input_seed, weight_seed = self._random.getrandbits(_SEED_BITS), self._random.getrandbits(31)
        run, owner = self._process.evaluate, self.scaled.problem.hash
        code, precision = self.scaled.code, self.precision
        result = run(
            code,
            input_seed=input_seed,
            weight_seed=weight_seed,
            precision=precision,
            families=self._families(),
            owner=owner,
        )
        init = result.init_inputs if isinstance(result.init_inputs, tuple) else (result.init_inputs,)
        names = tuple(name for name, _ in result.weights)
        moved, moved_weights = self._perturbed(input_seed, weight_seed, "all", result.needed, result.needed)
        updated, updated_weights = self._perturbed(input_seed, weight_seed, "all", names if self._updates else ())
        far, far_weights = self._far(input_seed, weight_seed, names if self._updates else (), result.outputs)
        one = (self._random.choice(names),) if self._updates and len(names) > 1 else ()
        nudged, nudged_weights = self._perturbed(input_seed, weight_seed, "all", one, one)
        cases = tuple(case for case in result.cases if usable(case) and _has_form(case, result.outputs))
        others = (*cases, *moved, *updated, *far, *nudged)
        return InputSet(
            input_seed,
            weight_seed,
            init,
            cases,
            result.outputs,
            result.weights,
            result.work,
            next(iter(moved), None),
            moved_weights,
            next(iter(updated), None),
            updated_weights,
            tuple(case for case in far if case.family != "given" or not updated),
            far_weights,
            next(iter(nudged), None),
            nudged_weights,
            result.initial,
            forms_of([case.after for case in others]),
            result.structure,
            result.init_work,
            result.draws,
            result.meeting,
            result.fixed,
            only_moves(cases),
            moved_outputs(cases),
        )

    def _families(self) -> tuple[Family, ...]:
        if self._others is None or self.screening is None:
            return FAMILIES
        deciding = [family for family in FAMILIES[1:] if family not in self.screening.dropped_families]
        chosen = self._random.sample(deciding, min(self._others, len(deciding)))
        return tuple(family for family in FAMILIES if family == FAMILIES[0] or family in chosen)

    def _far(
        self, input_seed: int, weight_seed: int, names: Sequence[str], form: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> tuple[tuple[Case, ...], dict[str, HostTensor]]:
        """Cases of all families under weights that are moved far; none where the reference takes no such weights."""
        try:
            return self._perturbed(input_seed, weight_seed, "far", names, families=FAMILIES, form=form)
        except ReferenceModelError as error:
            if error.kind == "crash":
                raise
            return (), {}

    def _perturbed(
        self,
        input_seed: int,
        weight_seed: int,
        which: Perturbation,
        names: Sequence[str],
        only: Sequence[str] = (),
        families: Sequence[Family] = ("given",),
        form: tuple[tuple[str, tuple[int, ...]], ...] | None = None,
    ) -> tuple[tuple[Case, ...], dict[str, HostTensor]]:
        """Cases under other values of the named weights, and those values; none where there are no such weights, or
        where they could not tell right from wrong, or have another form than `form`.

        Weights that the reference takes no such values of (a logarithm wants positive ones) are moved in the first of
        `MANNERS` in which it takes them.
        """

        def attempt(only: Sequence[str], manners: Manners) -> tuple[tuple[Case, ...], dict[str, HostTensor]]:
            other = self._process.evaluate(
                self.scaled.code,
                input_seed=input_seed + len(FAMILIES),
                weight_seed=weight_seed,
                precision=self.precision,
                families=families,
                number_seed=input_seed,
                perturb_weights=which,
                only=only,
                manners=manners,
                with_state=True,
                owner=self.scaled.problem.hash,
            )
            cases = tuple(case for case in other.cases if usable(case) and (form is None or _has_form(case, form)))
            return cases, {name: other.state[name] for name in names} if cases else {}

        def refused(among: Sequence[str], manners: Manners) -> list[str]:
            """Those that the reference does not take, each moved by itself."""
            if len(names) > _MOST_BOUNDED or attempt(among, manners)[0]:
                return []
            half = len(among) // 2
            return [*refused(among[:half], manners), *refused(among[half:], manners)] if half else list(among)

        if not names:
            return (), {}
        found, left, manners = attempt(only, {}), list(names), dict[str, Manner]()
        for manner in MANNERS:
            if found[0] or not (left := refused(left, manners)):
                break
            manners |= dict.fromkeys(left, manner)
            found = attempt(only, manners)
        for manner in MANNERS:  # where they break it together, or there are many of them
            found = found if found[0] else attempt(only, dict.fromkeys(names, manner))
        return found


Manners = Mapping[str, Manner]
"""Name of a weight -> how it is moved."""
_MOST_BOUNDED = 64
"""Of more weights than these those are not looked for that have a domain: all are moved in one manner."""
_UNMOVED = (
    "the reference gives nothing but rounding error or values that are not finite once its weights have other values, "
    "so that a kernel that keeps those of the start would pass. Let it take weights as training changes them, or "
    "register what no training changes as buffers."
)


def usable(case: Case) -> bool:
    """Whether a case can tell right from wrong."""
    return case.finite and not case.noisy


def _has_form(case: Case, outputs: tuple[tuple[str, tuple[int, ...]], ...]) -> bool:
    """Whether the outputs of a case have the shapes of the first one's; where data decide them, others may not."""
    return [output.shape for output in case.exact] == [shape for _, shape in outputs]
