"""cron itself starts the night: what `action=schedule install=true` puts into the crontab, with cron's clock shortly before 02:00.

In namespaces of its own, with an empty spool: no crontab of this machine is read or changed, and everything ends with the test. It
needs root, cron and faketime (.ci/run installs them), which is why it does not stand among the fast tests. Where the machine grants
no namespaces it cannot run; the printed line itself is run among the fast tests everywhere."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
GRANTED = (
    all(map(shutil.which, ("unshare", "cron", "faketime"))) and not subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode
)
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not GRANTED, reason="needs cron, faketime and namespaces of its own (root)")]
ROOT = Path(__file__).resolve().parents[2]
# The night is one that ends at once and before it can tell anybody: a real engine's experiment on a simulated one.
SCRIPT = """\
set -e
mount -t tmpfs -o mode=1730,gid=$(getent group crontab | cut -d: -f3) none /var/spool/cron/crontabs
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm  # faketime's semaphores are named by pid, which is the same in each of these namespaces
mount -t tmpfs none /etc/cron.d
echo '# no jobs of the system' > "$WORK/empty"
mount --bind "$WORK/empty" /etc/crontab
echo '5 5 * * * true # not ours' | crontab -
for again in 1 2; do
  "$PYTHON" -m runner action=schedule at=02:00 install=true schedule.form=cron +experiment=nightly engine=simulated \
    "tracking.root=$WORK/runs" "schedule.mail_command=cp /dev/null $WORK/alert"
done
crontab -l > "$WORK/crontab"
exec faketime -f '@2026-11-29 01:59:58' cron -f
"""


def test_cron_starts_the_installed_night_and_tells_of_one_that_could_not(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "WORK": str(tmp_path), "PYTHON": sys.executable, "HOME": str(tmp_path)}
    command = [*NAMESPACES, "/bin/sh", "-c", SCRIPT]
    with open(tmp_path / "out", "wb") as out:
        cron = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "alert").exists() and cron.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        said = (tmp_path / "out").read_text()
        assert (tmp_path / "alert").exists(), f"cron {cron.poll()}: {said}"
    finally:
        cron.kill()
        cron.wait()
    lines = (tmp_path / "crontab").read_text().splitlines()
    assert [line for line in lines if "not ours" in line] and len([line for line in lines if "engine-flag-nightly" in line]) == 1, lines
    log = (tmp_path / "runs" / "nightly.log").read_text()
    assert "dry_run=true" in log, "the night's own words are in its log"
