"""Which runner made a record: its git revision."""

import subprocess
from pathlib import Path

from runner.config import config_folder


def code_revision() -> str:
    """The runner's git revision, with `+` when the tree is changed; of an archive the revision written into it; '' elsewhere."""
    return revision_of(config_folder().parent)


def revision_of(folder: Path) -> str:
    """Of a checkout at `folder`, or of what `git archive` made of one (git fills `.git_archival.txt` in)."""
    try:
        if (folder / ".git").exists():
            head = _git(folder, "rev-parse", "--short=12", "HEAD")
            return head + ("+" if head and _git(folder, "status", "--porcelain", "-uno") else "")
        node = (folder / ".git_archival.txt").read_text().partition("node:")[2].strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if node.startswith("$") else node[:12]


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
