"""SGLang's log lines, straight to standard output."""

import os
import time


class Log:
    """`tp`: ranks are named in the prefix from two ranks on, as the real one does."""

    def __init__(self, tp: int = 1, debug: bool = False) -> None:
        self._tp = tp
        self.debug = debug
        self._second = -1
        self._stamp = ""

    def line(self, text: str, rank: int | None = None) -> None:
        """One line, dated; `rank` None: the parent."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        who = "" if rank is None or self._tp < 2 else f" TP{rank}"
        self.raw(f"[{self._stamp}{who}] {text}\n")

    def every_rank(self, text: str) -> None:
        for rank in range(self._tp):
            self.line(text, rank)

    def access(self, peer: str, method: str, target: str, status: int, reason: str) -> None:
        """uvicorn's access line."""
        self.line(f'INFO:     {peer} - "{method} {target} HTTP/1.1" {status} {reason}')

    def raw(self, text: str) -> None:
        """Text as it is."""
        data = text.encode()
        while data:
            data = data[os.write(1, data) :]
