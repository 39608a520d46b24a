"""Which runner made a record: its git revision."""

import subprocess

from runner.config import config_folder


def code_revision() -> str:
    """The runner's git revision, with `+` when the tree is changed; '' outside a checkout."""
    folder = config_folder().parent
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
        changed = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "") if head.returncode == 0 else ""
