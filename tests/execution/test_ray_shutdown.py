"""Ending a local Ray: what is asked to end behind its mask is ended at once, and nothing is collected while Ray's worker goes."""

import gc
import signal
import subprocess
import sys
import threading
import time

from runner.execution.ray_shutdown import asked_to_end, shield, shut_down


class FakeRay:
    """`shutdown` asks its process to end, as Ray does, and waits for it."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self.child, self.connected, self.collecting = child, True, []

    def is_initialized(self) -> bool:
        return self.connected

    def shutdown(self) -> None:
        self.collecting.append(gc.isenabled())
        self.connected = False
        self.child.terminate()
        self.child.wait(timeout=20)
        self.collecting.append(gc.isenabled())


def test_a_shielded_process_is_ended_when_ray_asks_for_it_and_nothing_is_collected_meanwhile() -> None:
    made: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        shield()
        made.append(subprocess.Popen([sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"], stdout=subprocess.PIPE))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = made
    try:
        judge(child)
    finally:
        child.kill()


def judge(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdout is not None and child.stdout.readline()
    child.terminate()
    time.sleep(0.3)
    assert child.poll() is None and asked_to_end(child.pid), "a signal to the whole group does not reach it"
    ray = FakeRay(child)
    began = time.monotonic()
    shut_down(ray)
    assert child.returncode == -signal.SIGKILL and time.monotonic() - began < 10
    assert ray.collecting == [False, False] and gc.isenabled()
    child.stdout.close()
