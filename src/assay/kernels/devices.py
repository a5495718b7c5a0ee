"""The NVIDIA GPUs of this machine, as its files tell of them. Nothing of CUDA is loaded for it."""

from __future__ import annotations

import glob
import os
import re
import stat
from pathlib import Path

_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)


def nvidia_devices(folder: str = "/dev") -> tuple[str, ...]:
    """Device files that CUDA needs, for `LocalConfig.devices`; empty where there is no GPU."""
    gpus = [path for path in sorted(glob.glob(f"{folder}/nvidia[0-9]*")) if _is_device(path)]
    control = [path for name in _CONTROL if _is_device(path := f"{folder}/{name}")]
    return (*gpus, *control) if gpus else ()


def _is_device(path: str) -> bool:
    return os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode)


def gpu_models(folder: str = "/proc/driver/nvidia/gpus") -> tuple[str, ...]:
    """Models of the GPUs as the driver names them, sorted; empty where it says nothing."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in Path(folder).glob("*/information")]
    return tuple(sorted(found[1].strip() for text in texts if (found := _MODEL.search(text))))
