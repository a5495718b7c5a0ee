"""From the sources of a `load_inline` call to what a compiler is given: texts, headers, flags.

    headers | cuda_sources | declarations of cpp_sources | bindings of functions    -> nvcc
    headers | cpp_sources with bodies | bindings                                    -> g++

PyTorch puts its headers in front of the sources and bindings behind them; so is done here, with light headers that cost
a hundredth. Standard headers that PyTorch's would bring in are included where the text names something of theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.kernels.text.examined import Extension
from assay.types import Json

CUDA_NAME, CPP_NAME, BINDING_NAME = "cuda_sources", "cpp_sources", "functions"
"""How messages name the parts of a candidate."""

_STANDARD = {
    "algorithm": r"sort|min_element|max_element|min|max|clamp|fill|copy|transform|find|swap",
    "array": r"array",
    "chrono": r"chrono",
    "functional": r"function|hash|bind|plus|multiplies|less|greater",
    "iostream": r"cout|cerr|endl",
    "map": r"map|multimap",
    "memory": r"unique_ptr|shared_ptr|make_unique|make_shared",
    "mutex": r"mutex|lock_guard|unique_lock|call_once|once_flag",
    "numeric": r"accumulate|iota|inner_product|gcd",
    "set": r"set|multiset",
    "sstream": r"stringstream|ostringstream|istringstream",
    "stdexcept": r"runtime_error|invalid_argument|logic_error|out_of_range|exception",
    "string": r"string|to_string|stoi|stof",
    "unordered_map": r"unordered_map",
    "unordered_set": r"unordered_set",
}
_STANDARD_NAMES = {header: re.compile(rf"\bstd::(?:{names})\b") for header, names in _STANDARD.items()}
_HALF = re.compile(r"\b(?:__half\w*|half2?|__\w+2half\w*|cuda_fp16)\b")
_BFLOAT16 = re.compile(r"\b(?:__nv_bfloat\w*|nv_bfloat\w*|__\w+2bfloat\w*|cuda_bf16)\b")
_DRIVER = re.compile(r"\bCU[a-z]\w+|\bCUDA_VERSION\b|\bcu[A-Z]\w+\(")
_CPP20 = re.compile(
    r"\bconcept\b|\brequires\b|\bconsteval\b|\bconstinit\b|\bstd::(?:span|bit_cast|ranges)\b|\]\s*<\s*typename|\btemplate\s*<[^>]{0,200}\bauto\.\.\."
)
_FLAG = re.compile(
    r"-O[0-3]|--?use_fast_math|-[DU]\w+(?:=\w+)?|--?std=c\+\+\d\d|--(?:expt-)?extended-lambda|-maxrregcount=\d+"
    r"|--fmad=(?:true|false)|-ftz=(?:true|false)"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")

_NVCC = (
    *("-cubin", "-w", "-Xptxas", "-v", "--expt-relaxed-constexpr", "-DTORCH_API_INCLUDE_EXTENSION_H"),
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__"),
    "-D__CUDA_NO_HALF2_OPERATORS__",
)
"""The definitions are those under which PyTorch compiles extensions."""
_HEADERS = ("-I{forwarding}", "-I{headers}")
"""PyTorch's names for headers, and the light ones that they lead to; the harness knows where both are."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Which compilers, and for what."""

    nvcc: str
    host: str
    include: str
    arch: str


def steps(extension: Extension, tools: Tools, fold: bool = True) -> list[dict[str, Json]]:
    """What the harness is to do for one extension: files and commands, the cheapest that check all of it.

    `fold` puts declarations into the CUDA file, which spares a second compiler and shows where they disagree with
    definitions. What may stand in one of two files only (default arguments) needs the files apart.
    """
    cpp, cuda = extension.cpp, extension.cuda
    folded = fold and bool(cuda) and "{" not in _COMMENT.sub("", cpp)
    binding = _bindings(extension.functions)
    standard = _standard_version(extension)
    found: list[dict[str, Json]] = []
    if cuda:
        tail = _part(CPP_NAME, cpp) + _part(BINDING_NAME, binding) if folded else ""
        pybind = '#include "light_pybind.h"\n' if folded else ""
        head = "#include <torch/types.h>\n#include <cuda_runtime.h>\n" + pybind
        command = [tools.nvcc, *_NVCC, f"-arch={tools.arch}", standard, *_HEADERS, *_own_flags(extension)]
        text = _defines(cuda + cpp) + _includes(cuda + cpp) + head + _part(CUDA_NAME, cuda) + tail
        command += ["-DTORCH_EXTENSION_NAME=extension", "{file}", "-o", "{folder}/out.cubin"]
        found.append({"file": "cuda.cu", "text": text, "command": command})
    if not folded and (cpp or not cuda):
        command = [tools.host, "-fsyntax-only", "-w", standard, *_HEADERS, f"-I{tools.include}"]
        command += ["-DTORCH_EXTENSION_NAME=extension", "-x", "c++", "{file}"]
        text = _includes(cpp) + "#include <torch/extension.h>\n" + _part(CPP_NAME, cpp) + _part(BINDING_NAME, binding)
        found.append({"file": "main.cpp", "text": text, "command": command})
    return found


def _part(name: str, text: str) -> str:
    return f'#line 1 "{name}"\n{text}\n' if text else ""


def _bindings(functions: tuple[str, ...]) -> str:
    """The bindings that `load_inline` writes."""
    lines = [f'  m.def("{name}", torch::wrap_pybind_function({name}), "{name}");' for name in functions]
    good = all(_IDENTIFIER.match(name.rpartition("::")[2]) for name in functions)
    return "\n".join(["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"]) if lines and good else ""


def _includes(text: str) -> str:
    headers = [header for header, names in _STANDARD_NAMES.items() if names.search(text)]
    headers += ["cuda.h"] if _DRIVER.search(text) else []
    return "".join(f"#include <{header}>\n" for header in headers)


def _defines(text: str) -> str:
    """Native types of the toolkit cost time, so their conversions are there only where they are used."""
    half = "#define LIGHT_HALF\n" if _HALF.search(text) else ""
    return half + ("#define LIGHT_BFLOAT16\n" if _BFLOAT16.search(text) else "")


def _own_flags(extension: Extension) -> list[str]:
    """The flags of the candidate that change what is legal; the rest is left out."""
    return [flag for flag in extension.flags if _FLAG.fullmatch(flag) and "std=" not in flag]


def _standard_version(extension: Extension) -> str:
    """C++17, which is quickest to read, unless the candidate needs a newer one."""
    asked = [flag for flag in extension.flags if re.fullmatch(r"--?std=c\+\+\d\d", flag)]
    if asked:
        return f"-std={asked[-1].partition('=')[2]}"
    return "-std=c++20" if _CPP20.search(extension.cuda + extension.cpp) else "-std=c++17"
