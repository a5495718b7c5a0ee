"""`python -m assay.integrations.verl check <overrides>`: what verl would silently ignore or misread in these overrides.

`check` composes verl's own config with them and prints what it finds; status 2 when anything would be ignored or would
turn failures into zeros. `path` prints the file that verl versions without `pkg://` are given.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from assay.errors import AssayError
from assay.integrations.verl.check import check_config, compose, our_file


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser("python -m assay.integrations.verl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="compose verl's config and say what verl would ignore in it")
    check.add_argument("--config-name", default="ppo_trainer", help="verl's config file (default: ppo_trainer)")
    check.add_argument("overrides", nargs="*", help="overrides as given to verl: key=value, +key=value")
    commands.add_parser("path", help="print the file to give as custom_reward_function.path")
    given = parser.parse_args(arguments)
    if given.command == "path":
        print(our_file())
        return 0
    try:
        findings = check_config(compose(given.overrides, given.config_name))
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for finding in findings:
        print(finding)
    wrong = any(finding.level == "error" for finding in findings)
    if not findings:
        print("verl will do as configured.")
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
