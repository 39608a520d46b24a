"""Writes a package named `sglang` that answers like the real one, for tests of the life cycle. Not a test file.

It is found by `engine.extra_python_path`. FAKE_MODE says what goes wrong; a child process plays the scheduler.
"""

from pathlib import Path

VERSION = "0.5.15.post1"

SERVER = r"""
import http.server, json, os, signal, subprocess, sys, threading, time
mode = os.environ.get("FAKE_MODE", "")
words = sys.argv[1:]
options = {}
for index, word in enumerate(words):
    if word.startswith("--"):
        following = words[index + 1] if index + 1 < len(words) else "--"
        options[word[2:]] = True if following.startswith("--") else following
def say(text):
    sys.stderr.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n")
    sys.stderr.flush()
if mode == "unknown option":
    sys.stderr.write("usage: " + "x" * 2000 + "\nlaunch_server.py: error: unrecognized arguments: --no-such-option\n")
    sys.exit(2)
say("server_args=" + json.dumps(options))
if mode == "hang":
    time.sleep(600)
if "enable-two-batch-overlap" in options:
    say("Traceback (most recent call last):")
    sys.stderr.write("ValueError: When enabling two batch overlap, moe_a2a_backend cannot be 'none'.\n")
    sys.exit(1)
say("Load weight begin. avail mem=1.00 GB")
if mode == "compile":
    hidden = os.path.join(os.environ["TRITON_CACHE_DIR"], "kernel-%d")
    for number in range(7):
        open(hidden % number, "w").close()
        time.sleep(0.5)
if mode == "crash":
    say("Scheduler hit an exception: Traceback (most recent call last):")
    say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    os.kill(os.getpid(), signal.SIGKILL)
state = {"healthy": False, "running": 0, "flushed": 0, "healthy_asked": 0}
scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "sglang::scheduler"])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments): pass
    def answer(self, status, body=b"", kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/health":
            state["healthy_asked"] += 1
            self.answer(200 if state["healthy"] else 503)
        elif self.path == "/server_info":
            body = {**{name.replace("-", "_"): value for name, value in options.items()}, "version": "0.5.15.post1",
                    "api_key": "sk-planted-secret-0123456789", "environment": {n: os.environ.get(n) for n in os.environ},
                    "asked_health": state["healthy_asked"], "internal_states": [{"max_total_num_tokens": 4096}]}
            self.answer(200, json.dumps(body).encode(), "application/json")
        elif self.path == "/model_info":
            self.answer(200, b'{"model_path": "m"}', "application/json")
        elif self.path == "/metrics" and "enable-metrics" in options:
            self.answer(200, b"sglang:num_running_reqs 0\nsglang:num_requests_total 0\n")
        else:
            self.answer(404)
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/flush_cache":
            if mode == "busy" or state["running"]:
                self.answer(400)
            else:
                say("Cache not flushed because there are pending requests." if mode == "lies" else "Cache flushed successfully!")
                self.answer(200, b"Cache flushed.")
        elif self.path == "/generate":
            state["running"] += 1
            try:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for number in range(100000):
                    self.wfile.write(b'data: {"output_ids": [%d], "meta_info": {"completion_tokens": %d}}\n\n' % (number, number + 1))
                    self.wfile.flush()
                    time.sleep(0.01)
            except OSError:
                pass
            state["running"] -= 1
            self.close_connection = True
        elif self.path == "/abort_request":
            say("abort " + json.dumps(json.loads(body)["abort_all"]))
            self.answer(200)
        else:
            self.answer(404)
def ended(*_):
    if mode == "drains":
        say("Gracefully exiting... Remaining number of requests 4. Remaining requests ids.")
        return
    if mode == "deaf":
        return
    scheduler.kill()
    scheduler.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, ended)
port = int(options["port"])
server = None
if mode == "port race":
    # Somebody else took the port after it was chosen: the log of a real loser still says that it is ready.
    say("INFO:     Uvicorn running on http://127.0.0.1:%d" % port)
    say("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', %d): address already in use" % port)
    say("The server is fired up and ready to roll!")
    time.sleep(0.3)
    sys.exit(1)
if mode == "elsewhere":
    say("The server is fired up and ready to roll!")
    time.sleep(600)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
say("INFO:     Uvicorn running on http://127.0.0.1:%d (Press CTRL+C to quit)" % port)
time.sleep(0.15)
state["healthy"] = True
open("became-ready", "w").write(repr(time.monotonic()))
say("The server is fired up and ready to roll!")
if mode == "scheduler dies":
    time.sleep(0.5)
    scheduler.kill()
    scheduler.wait()
while True:
    time.sleep(60)
"""


def write(folder: Path) -> Path:
    """Makes the package below `folder` and returns `folder`, for PYTHONPATH."""
    package = folder / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{VERSION}"\nraise ImportError("the runner must not import the engine")\n')
    (package / "version.py").write_text(f'__version__ = "{VERSION}"\n')
    # `python -m sglang.launch_server` imports the package first.
    (package / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    (package / "launch_server.py").write_text(SERVER)
    return folder
