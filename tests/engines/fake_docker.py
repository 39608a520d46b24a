"""A strict stand-in for `docker`, for tests: it knows the words that the runner uses and refuses every other. Not a test file.

As with the real one, a container does not descend from its client but from a daemon (`docker daemon`, which the test starts): it
lives on when the client is killed, gets only the environment that was asked for, and ends by SIGTERM through the client (which passes it on) or by `rm --force ID`.
"""

import sys
from pathlib import Path

PROGRAM = r"""
import json, os, secrets, signal, subprocess, sys, time
home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
containers = os.path.join(home, "containers")
os.makedirs(containers, exist_ok=True)
words = sys.argv[1:]
with open(os.path.join(home, "asked.jsonl"), "a") as file:
    file.write(json.dumps(words) + "\n")
def refuse(text, code=125):
    sys.stderr.write("docker: " + text + "\n")
    sys.exit(code)
def state_of(identity):
    path = os.path.join(containers, identity + ".json")
    if not os.path.exists(path):
        refuse("Error: No such container: " + identity, 1)
    return path, json.load(open(path))
def live(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
if words[:1] == ["image"]:
    assert words[:4] == ["image", "inspect", "--format", "{{.Id}}"] and len(words) == 5, words
    if words[4] != "fake/sglang:1":
        refuse("No such image: " + words[4], 1)
    print("sha256:" + "5" * 64)
elif words[:1] == ["inspect"]:
    assert words[1] == "--format" and len(words) == 4, words
    _, state = state_of(words[3])
    print({"{{.State.Pid}}": state["pid"], "{{.State.Running}}": "true"}[words[2]])
elif words[:1] == ["rm"]:
    assert words[1] == "--force" and len(words) == 3 and len(words[2]) == 64, "by full id only"
    path, state = state_of(words[2])
    try:
        os.killpg(state["pid"], signal.SIGKILL)
    except ProcessLookupError:
        pass
    while live(state["pid"]):
        time.sleep(0.01)
    if os.path.exists(path):
        os.unlink(path)
    print(words[2])
elif words[:1] == ["run"]:
    once = {"--init", "--rm", "--interactive", "--network=host", "--network=none", "--ipc=host"}
    valued = {"--name", "--cidfile", "--shm-size", "--ulimit", "--gpus", "--volume", "--env", "--entrypoint"}
    given, index = {}, 1
    while words[index].startswith("-"):
        word = words[index]
        if word in once:
            given[word] = True
            index += 1
        elif word in valued:
            given.setdefault(word, []).append(words[index + 1])
            index += 2
        else:
            refuse("unknown flag: " + word)
    image, arguments = words[index], words[index + 1 :]
    if image != "fake/sglang:1":
        refuse("Unable to find image")
    assert given.get("--init") and given.get("--rm"), "an init that reaps, and no container left"
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "PYTHONPATH": os.path.join(home, "site")}
    for pair in given.get("--env", []):
        name, _, value = pair.partition("=")
        environment[name] = value if name != "PYTHONPATH" else value + ":" + environment["PYTHONPATH"]
    places = []
    for volume in given.get("--volume", []):
        parts = volume.split(":")
        assert len(parts) == 2 or parts[2:] == ["ro"], volume
        assert os.path.isdir(parts[0]), "docker would make a folder of root's there: " + parts[0]
        places.append((parts[1], parts[0]))
    def outside(text):
        for inside, here in places:
            text = text.replace(inside, here)
        return text
    argv = [outside(word) for word in [given["--entrypoint"][0], *arguments]]
    if argv[0] == "python3":
        argv[0] = sys.executable
    environment = {name: outside(value) for name, value in environment.items()}
    if "--network=none" in given:
        sys.exit(subprocess.run(argv, env=environment).returncode)
    identity = secrets.token_hex(32)
    cidfile, name = given["--cidfile"][0], given["--name"][0]
    if os.path.exists(cidfile):
        refuse("container ID file found")
    if any(json.load(open(os.path.join(containers, each)))["name"] == name for each in os.listdir(containers)):
        refuse("Conflict. The container name is already in use")
    order = os.path.join(home, "orders", identity)
    with open(order + ".new", "w") as file:
        json.dump({"argv": argv, "env": environment, "name": name}, file)
    os.rename(order + ".new", order + ".order")
    path, out, ended = (os.path.join(containers, identity + end) for end in (".json", ".out", ".exit"))
    pid = 0
    def passed_on(number, _):
        try:
            os.kill(pid, number)
        except OSError:
            pass
    while not os.path.exists(path) and not os.path.exists(ended):
        time.sleep(0.005)
    with open(cidfile, "w") as file:
        file.write(identity)
    pid = json.load(open(path))["pid"] if os.path.exists(path) else 0
    signal.signal(signal.SIGTERM, passed_on)
    with open(out, "rb") as file:
        while True:
            over = os.path.exists(ended)
            while piece := file.read(65536):
                os.write(1, piece)
            if over:
                sys.exit(int(open(ended).read()))
            time.sleep(0.01)
elif words == ["daemon"]:
    orders, running = os.path.join(home, "orders"), {}
    os.makedirs(orders, exist_ok=True)
    print("up", flush=True)
    while os.getppid() != 1:
        for each in [each for each in os.listdir(orders) if each.endswith(".order")]:
            order = json.load(open(os.path.join(orders, each)))
            os.unlink(os.path.join(orders, each))
            base = os.path.join(containers, each.removesuffix(".order"))
            with open(base + ".out", "wb") as out:
                started = subprocess.Popen(order["argv"], env=order["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                           start_new_session=True, cwd=home)
            with open(base + ".new", "w") as file:
                json.dump({"pid": started.pid, "name": order["name"]}, file)
            os.rename(base + ".new", base + ".json")
            running[base] = started
        for base, started in list(running.items()):
            if started.poll() is not None:
                del running[base]
                try:
                    os.killpg(started.pid, signal.SIGKILL)  # the rest of its pid namespace
                except ProcessLookupError:
                    pass
                if os.path.exists(base + ".json"):
                    os.unlink(base + ".json")  # --rm
                with open(base + ".new", "w") as file:
                    file.write(str(started.returncode if started.returncode >= 0 else 128 - started.returncode))
                os.rename(base + ".new", base + ".exit")
        time.sleep(0.01)
    for started in running.values():
        started.kill()
else:
    refuse("unknown command: " + " ".join(words[:1]))
"""


def write(folder: Path) -> Path:
    """Makes the command below `folder` and returns its path. Its images' Python path is folder/site, its diary asked.jsonl."""
    path = folder / "bin" / "docker"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!{sys.executable} -IS\n{PROGRAM}")
    path.chmod(0o755)
    return path
