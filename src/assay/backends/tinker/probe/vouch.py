"""Whether a run may train on a server: the official one is trusted, others are probed, and what passed is kept."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.backends.config import PolicySpec
from assay.backends.tinker.probe.finding import Finding, wrong_for_all
from assay.backends.tinker.probe.run import probe
from assay.backends.tinker.probe.saving import WEIGHTS_ONLY
from assay.backends.tinker.service import Service, is_official
from assay.backends.tinker.trained import BY_NAME
from assay.config.urls import without_secrets
from assay.errors import ModelError
from assay.storage.files import read_object, replace_file

logger = logging.getLogger(__name__)

WEEK_S = 7 * 24 * 3600
FOLDER = "tinker_probes"
VERSION = 3
"""Of the probe: what an older one found is not trusted."""


async def vouched(service: Service, policy: PolicySpec) -> dict[str, Any]:
    """What a server may be used for, as arguments of `limits.capabilities`.

    Raises:
        ModelError: every run would train wrongly there.
        ServiceError: the probe could not be made.
    """
    if is_official(service.url) or not policy.tinker.probe:
        return {}
    await service.check_model(policy.model_name)
    identity = {
        **await service.identity(),
        "model": policy.model_name,
        "rank": policy.lora_rank,
        "probe": VERSION,
    }
    kept = _kept(policy.cache_dir, identity)
    findings = None if kept is None else _read(kept)
    if findings is None:
        logger.info("Trying out the server at %s, once in a week.", without_secrets(service.url))
        other = await Service.connect(policy.base_url, policy.tinker)
        try:
            findings = await probe(other, policy.model_name, policy.lora_rank, policy.seed % 2**31)
        finally:
            await other.close()
        refuse(findings, service.url)
        if kept is not None:
            _keep(kept, findings)
    if policy.start is not None:
        refuse([replace(f, feature="") for f in findings if f.feature == WEIGHTS_ONLY], service.url)
    return usable(findings)


def refuse(findings: Sequence[Finding], url: str) -> None:
    """Refuse a server on which every run would train wrongly.

    Raises:
        ModelError: with a line for each reason.
    """
    if wrong := wrong_for_all(findings):
        lines = [f"  {f.point} {f.name}: {f.found}. To cure it, {f.cure}." for f in wrong]
        raise ModelError(
            "\n".join(
                [
                    f"A run on the server at {without_secrets(url)} would train wrongly. Nothing was trained. `assay "
                    "doctor --tinker URL` shows the whole probe; tinker.probe=false trains without it.",
                    *lines,
                ]
            )
        )


def usable(findings: Sequence[Finding]) -> dict[str, Any]:
    """The losses that a server computes rightly, and whether custom ones work."""
    wrong = {finding.feature for finding in findings if finding.verdict == "wrong" and finding.feature}
    return {"losses": BY_NAME - wrong, "custom": "custom" not in wrong}


def _kept(cache_dir: Path | None, identity: dict[str, Any]) -> Path | None:
    if cache_dir is None:
        return None
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return cache_dir / FOLDER / f"{name}.json"


def _read(path: Path) -> list[Finding] | None:
    """What an earlier probe found; None where there is none, or it is old or damaged."""
    found = read_object(path) if path.exists() else None
    try:
        if found is None or not 0 <= time.time() - float(found["at"]) < WEEK_S:
            return None
        findings = [Finding(**row) for row in found["findings"]]
    except (KeyError, TypeError, ValueError):
        return None
    return None if wrong_for_all(findings) else findings


def _keep(path: Path, findings: Sequence[Finding]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"at": time.time(), "findings": [finding.record() for finding in findings]}
    replace_file(path, json.dumps(content).encode(), durable=False)
