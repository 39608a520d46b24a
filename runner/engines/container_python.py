"""Makes an image's interpreter callable like a local one, so that resolve runs through it unchanged.

`wrapper(...)` writes a small executable. Called as `WRAPPER -u script.py` it runs the image's Python with the same words, standard
input and PYTHONPATH, without network and GPUs. What the words and the order on standard input name is mounted read-only in its
own place: the script's folder, overlays, model folders.
"""

import hashlib
import sys
from pathlib import Path

PROGRAM = r"""#!{here} -IS
import json, os, subprocess, sys
RUNTIME, IMAGE, PYTHON = {runtime!r}, {image!r}, {python!r}
words = sys.argv[1:]
reads = not sys.stdin.isatty() and any(word.endswith(".py") for word in words)
order = sys.stdin.buffer.read() if reads else b""
places = [os.path.dirname(os.path.abspath(word)) for word in words if word.endswith(".py") and os.path.isfile(word)]
path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
places += [place for place in path if os.path.isdir(place)]
def named(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from named(each)
    elif isinstance(value, list):
        for name, following in zip(value, value[1:]):
            if name in ("--model-path", "--tokenizer-path", "--speculative-draft-model-path"):
                yield following
        for each in value:
            yield from named(each)
try:
    places += [place for place in named(json.loads(order)) if isinstance(place, str) and os.path.isdir(place)]
except ValueError:
    pass
argv = [RUNTIME, "run", "--init", "--rm", "--interactive", "--network=none"]
for place in dict.fromkeys(places):
    argv += ["--volume", place + ":" + place + ":ro"]
PASSED = ("SGLANG_", "SGL_", "NCCL_", "FLASHINFER_", "PYTORCH_", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
for name, value in os.environ.items():
    if name.startswith(PASSED):
        argv += ["--env", name + "=" + value]
if path:
    argv += ["--env", "PYTHONPATH=" + os.pathsep.join(path)]
done = subprocess.run([*argv, "--entrypoint", PYTHON, IMAGE, *words], input=order)
sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
"""


def wrapper(folder: Path, runtime: str, image: str, python: str) -> Path:
    """Writes the executable for this image below `folder` (one a runtime, image and interpreter) and returns its path."""
    program = PROGRAM
    for slot, value in (
        ("{here}", sys.executable),
        ("{runtime!r}", repr(runtime)),
        ("{image!r}", repr(image)),
        ("{python!r}", repr(python)),
    ):
        program = program.replace(slot, value)
    name = hashlib.sha256(program.encode()).hexdigest()[:12]
    path = folder / f"python-in-container-{name}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_text(program, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.rename(path)
    return path
