"""A record says which runner made it: from a checkout, a changed one, an archive of it; nothing where nobody knows."""

import subprocess
from pathlib import Path

from runner.config import config_folder
from runner.execution.revision import revision_of

ROOT = config_folder().parent


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    return subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True).stdout.strip()


def test_revision_of_checkout_changed_checkout_archive_and_nothing(tmp_path: Path) -> None:
    checkout, archive = tmp_path / "checkout", tmp_path / "archive"
    checkout.mkdir()
    archive.mkdir()
    for name in (".git_archival.txt", ".gitattributes"):
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    assert revision_of(checkout) == ""  # the line of git's that nobody filled in
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "one")
    head = git(checkout, "rev-parse", "HEAD")[:12]
    assert revision_of(checkout) == head
    packed = subprocess.run(["git", "-C", str(checkout), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", str(archive)], input=packed, check=True)
    assert revision_of(archive) == head
    (checkout / ".gitattributes").write_text("# changed\n")
    assert revision_of(checkout) == head + "+"
    assert revision_of(tmp_path) == ""
