"""What the compiler says of generated text, in the words and with the lines of the submission it was generated from."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass

from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError

from assay.kernels.language import CompilerText
from assay.kernels.language.writing import VARIABLE

NO_ALLOCATOR = (
    "no allocator was set, and Triton asks one for {} bytes a program, in which lie descriptors that a kernel makes. "
    "So the launch raises. Call triton.set_allocator(f) before it, where f(size, alignment, stream) returns "
    'torch.empty(size, device="cuda", dtype=torch.int8)'
)
UNLIKE = {
    "product": (
        "Triton's compiler makes a product of matrices (tl.dot, which rounds operands of float32 to TF32) of the sum "
        "of products in this line, and the grader does not compute it that way. Write tl.dot yourself, with the "
        "input_precision that you want, or swap the operands of the product (b[None, :, :] * a[:, :, None]), of which "
        "the compiler makes none"
    ),
    "made once": (
        "as Triton compiles it, this line computes one value for several elements of a block: it takes them for equal "
        "by what it concludes of tl.where, of shifts, branches and loops, and of loads, and nothing shows that they "
        "are. Compute what is compared or divided here of sums and products of tl.arange"
    ),
    "reordered": (
        "Triton's compiler puts elements that tl.reshape or tl.ravel gives to a reduction or a histogram in any order, "
        "and here other operands (places, as of tl.argmax, or a mask) stay in theirs: they no longer belong together. "
        "Reduce axis by axis without a reshape, or load the block in one dimension"
    ),
    "loaded again": (
        "Triton's compiler moves a load to this choice between what was loaded and something else, since the load's "
        "mask is the condition of the choice: it comes after whatever is stored in between. Say `other=` in the load "
        "instead of choosing, or choose by tl.where with another mask"
    ),
    "reduced late": (
        "Triton's compiler takes this reduction of a loaded block out of its loop: each thread joins its own elements "
        "through all turns, and they are reduced after the loop. That is right for sums that are added up, and for "
        "extremes of which the same is taken, and for nothing else (a maximum of sums, a sum of maxima, a product). "
        "Join whole blocks elementwise in the loop and reduce them once after it, or call tl.debug_barrier() in it and "
        "keep what was reduced in a variable of its own"
    ),
    "not used": (
        "Triton's compiler finds that the result of this atomic operation is of no use (it is multiplied by zero, "
        "say): no thread waits for it, and a sum with zero is dropped as a whole. Use the result, or drop what is made "
        "of it; tl.debug_barrier() makes threads wait"
    ),
    "filled": (
        "Triton's compiler fills whole words with the number that this load has for what its mask leaves out, and with "
        "its sign, since it knows the number: neighbouring elements become -1. Choose the number by tl.where after the "
        "load"
    ),
    "warps apart": (
        "Triton's compiler gives parts of a loop with warp_specialize=True to warps of their own, and takes what "
        "stands around it (stores, atomic operations, barriers) for theirs as well, which the grader does not follow. "
        "Leave warp_specialize out"
    ),
}
"""What a kernel is compiled to that its text does not say, in words for its author."""
PASSED_OVER = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""What an autotuner of Triton's forgives a configuration; whatever else one raises, the launch raises."""
FILE = "<kernels>"
"""What the compiler takes the generated text's file for."""
_PLACE = re.compile(re.escape(FILE) + r"\"?:(\d+)(?::\d+)?")
_VARIABLE = re.compile(rf"\b{VARIABLE}(?=\w)")
_ERROR = re.compile(r"\berror: |\bAssertion .* failed|^LLVM ERROR")
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Words:
    """line: of the submission; 0 where the compiler names none."""

    line: int
    text: str


def _errors(diagnostics: str) -> str:
    """What the native compiler found wrong, without the text of its own stages that it shows with that."""
    lines = [line for line in diagnostics.splitlines() if _ERROR.search(line)]
    return "\n".join(lines or [diagnostics]).strip()


class Translation:
    """Knows where in the generated text each function begins.

    Args:
        text: The generated text.
        begins: The text of each function as Triton reads it, from `def` on -> the line of the module it begins in.
    """

    def __init__(self, text: CompilerText, begins: dict[str, int]) -> None:
        self._text, self._begins = text, begins
        self._names = {name: re.sub(r"^k\d+_", "", name) for name in text.names.values()}

    def words(self, error: BaseException, diagnostics: str = "") -> Words:
        """An error of the compiler: the innermost line of the submission, and the innermost reason."""
        line, reason, kind = 0, "", type(error).__name__
        found: BaseException | None = error
        for _ in range(_DEEPEST):
            if found is None:
                break
            if isinstance(found, CompilationError):
                line = self._line(found) or line
                reason, kind = found.error_message or reason, type(found).__name__
            else:
                reason = reason if reason and not str(found) else f"{type(found).__name__}: {found}"
            found = found.__cause__
        diagnostics = _errors(diagnostics)
        if not line and (place := _PLACE.search(diagnostics)) is not None:
            line = self.origin(int(place[1]))
        told = "\n".join(part for part in (reason.strip(), diagnostics) if part)
        # Without a message of its own an error of Triton's shows generated text, which nobody wrote.
        return Words(line, self.translated(told or (kind if line else f"{kind}: {error}")))

    def translated(self, said: str) -> str:
        """Names and lines of the generated text as the submission's."""
        said = said.replace(tempfile.gettempdir() + os.sep, "")
        said = _PLACE.sub(lambda place: f"line {self.origin(int(place[1]))}", said)
        for name, own in self._names.items():
            said = said.replace(name, own)
        return _VARIABLE.sub("", said)

    def _line(self, error: CompilationError) -> int:
        begin = self._begins.get(error.src or "")
        place = getattr(error.node, "lineno", None)
        return self.origin(begin + place - 1) if begin is not None and place is not None else 0

    def origin(self, line: int) -> int:
        """The submission's line of a line of the generated text; 0 for none."""
        return self._text.origins[line - 1] if 1 <= line <= len(self._text.origins) else 0
