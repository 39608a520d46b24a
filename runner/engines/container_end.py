"""`python -I -S container_end.py RUNTIME CIDFILE`: ends one container by its id, if it was made. Run by the guard.

Exit code 0 when the container is gone, 1 when it could not be ended. Standard library only.
"""

import subprocess
import sys


def main(runtime: str, cidfile: str) -> int:
    try:
        with open(cidfile, encoding="utf-8") as file:
            identity = file.read().strip()
    except OSError:
        return 0
    if not identity:
        return 0
    ended = subprocess.run([runtime, "rm", "--force", identity], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode == 0 or "no such container" in ended.stderr.lower():
        return 0
    sys.stderr.write(ended.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
