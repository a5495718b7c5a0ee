"""A folder on the Hugging Face hub. The token comes from the environment and is used only in requests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from assay.errors import ConfigError, ModelError

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Environment variables that may hold the token."""
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Base of the errors of whatever HTTP library the hub's client uses; they pass through it."""


def check(repo: str, environ: Mapping[str, str]) -> str:
    """The token to push to `repo` with, before any work is done.

    Raises:
        ConfigError: there is no token, or the name is not that of a repository.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {repo}: {error} A repository is named user/model.") from error
    token = next((environ[name] for name in TOKENS if environ.get(name)), None)
    if token is None:
        raise ConfigError(
            f"--push {repo} needs a token with write access in the environment: export {TOKENS[0]}=... (from "
            "https://huggingface.co/settings/tokens)."
        )
    return token


def push(folder: Path, repo: str, token: str, *, public: bool, message: str, leave_out: Sequence[str] = ()) -> str:
    """Upload a folder as one commit, into a repository that is created (private, unless `public`) if needed.

    Returns:
        The address of the repository.

    Raises:
        ModelError: the hub cannot be reached or refuses; the message has no token in it, and the folder is intact.
    """
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    try:
        made = api.create_repo(repo, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message=message, ignore_patterns=list(leave_out)
        )
    except (_HTTP_ERROR, OSError, ValueError, RuntimeError) as error:
        raise ModelError(_failure(folder, repo, token, error)) from None
    return str(made)


def _failure(folder: Path, repo: str, token: str, error: Exception) -> str:
    said = str(error).strip().split("\n")[0].replace(token, "[token]") or type(error).__name__
    return (
        f"Pushing to {repo} failed: {said.rstrip('.')}. The folder {folder} is complete: give the same command again, "
        "or upload it with `hf upload`."
    )
