"""The names under which candidates include PyTorch's headers, and which light header stands for each.

The headers of those names hold one line. They are written where the compiler runs, into the scratch folder of its own
process, so there is nothing to install, to share between processes or to keep in step with this table.
"""

from __future__ import annotations

import os
from pathlib import Path

HEADERS = str(Path(__file__).parent)
"""Folder of the light headers."""

_TORCH = """
    torch/all.h torch/torch.h torch/types.h torch/csrc/autograd/variable.h
    ATen/ATen.h ATen/AccumulateType.h ATen/Dispatch.h ATen/Functions.h ATen/OpMathType.h ATen/Tensor.h
    ATen/TensorAccessor.h ATen/TensorUtils.h ATen/ceil_div.h
    ATen/core/ATen_fwd.h ATen/core/Tensor.h ATen/core/TensorAccessor.h
    ATen/ops/empty.h ATen/ops/empty_like.h ATen/ops/full.h ATen/ops/ones.h ATen/ops/zeros.h ATen/ops/zeros_like.h
    c10/core/Device.h c10/core/Scalar.h c10/core/ScalarType.h c10/core/TensorOptions.h
    c10/macros/Export.h c10/macros/Macros.h
    c10/util/ArrayRef.h c10/util/BFloat16.h c10/util/Exception.h c10/util/Half.h c10/util/Optional.h c10/util/complex.h
"""
_CUDA = """
    ATen/cuda/Atomic.cuh ATen/cuda/CUDAContext.h ATen/cuda/CUDAContextLight.h ATen/cuda/CUDAUtils.h
    ATen/cuda/DeviceUtils.cuh ATen/cuda/Exceptions.h ATen/cuda/NumericLimits.cuh ATen/cuda/detail/KernelUtils.h
    ATen/native/cuda/KernelUtils.cuh
    c10/cuda/CUDAException.h c10/cuda/CUDAFunctions.h c10/cuda/CUDAGuard.h c10/cuda/CUDAMacros.h
    c10/cuda/CUDAMathCompat.h c10/cuda/CUDAStream.h
"""
_PYBIND = """
    torch/extension.h torch/library.h torch/python.h torch/script.h torch/csrc/utils/pybind.h
    pybind11/pybind11.h pybind11/stl.h
"""
FORWARDED = {
    name: header
    for header, names in (("light_torch.h", _TORCH), ("light_cuda.h", _CUDA), ("light_pybind.h", _PYBIND))
    for name in names.split()
}
"""Header of PyTorch -> the light header that is included instead."""


def write_forwarding_headers(folder: str) -> None:
    """Write the headers of `FORWARDED` below `folder`, for a compiler that also looks in `HEADERS`."""
    for name, header in FORWARDED.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#pragma once\n#include "{header}"\n')
