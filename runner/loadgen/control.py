"""The quiet side of the server: flush and wait for idle, outside every measured window. Never /health (it generates tokens)."""

import time
from typing import Any

import requests


def session() -> requests.Session:
    """A session that ignores proxies and credentials of the environment."""
    made = requests.Session()
    made.trust_env = False
    return made


def flush(url: str, wait_s: float = 30.0, http: requests.Session | None = None) -> str:
    """Flushes the prefix cache, waiting until the server is idle. Returns '' when it was done, else why not.

    SGLang answers 200 when the cache was emptied and 400 while requests run; some versions say it in the body only."""
    http = http or session()
    deadline = time.monotonic() + wait_s
    pause, why = 0.02, ""
    while True:
        try:
            answer = http.post(f"{url}/flush_cache", timeout=10)
        except requests.RequestException as error:
            return f"flush failed: {type(error).__name__}"
        if answer.status_code == 404:
            return "the server has no /flush_cache"
        if answer.status_code == 200 and "fail" not in answer.text[:40].lower():
            return ""
        why = f"flush refused: HTTP {answer.status_code} {answer.text[:80].strip()}"
        if time.monotonic() + pause > deadline:
            return why
        time.sleep(pause)
        pause = min(0.5, pause * 1.6)


def get_json(url: str, http: requests.Session | None = None, timeout: float = 10.0) -> Any:
    """GET and decode. Raises requests.RequestException or ValueError."""
    answer = (http or session()).get(url, timeout=timeout)
    answer.raise_for_status()
    return answer.json()
