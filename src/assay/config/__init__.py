"""Settings: config classes with what their fields say about themselves, and how layers of text become a config.

A config class is a `chz` class over `Settings`. `load` reads presets, files and `key=value` into any root class.
"""

from assay.config.checks import Settings, SettingsError, refuse
from assay.config.fields import (
    DATA,
    MAY_CHANGE,
    MAY_CHANGE_ROUNDING,
    NOT_NULL,
    Above,
    AtLeast,
    AtMost,
    Below,
    Code,
    Like,
    Not,
    UsedWhen,
    fact,
)
from assay.config.loader import build, load
from assay.config.record import diff, from_resolved, resolved
from assay.config.sources import Layer

__all__ = [
    "DATA",
    "MAY_CHANGE",
    "MAY_CHANGE_ROUNDING",
    "NOT_NULL",
    "Above",
    "AtLeast",
    "AtMost",
    "Below",
    "Code",
    "Layer",
    "Like",
    "Not",
    "Settings",
    "SettingsError",
    "UsedWhen",
    "build",
    "diff",
    "fact",
    "from_resolved",
    "load",
    "refuse",
    "resolved",
]
