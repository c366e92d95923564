"""A worker that does what ``spec.json`` in its job directory says, one order after the other; of
several ranks each has orders of its own there.

Started as ``python -I -S puppet.py JOB_DIR NUMBER``: it imports nothing of ours, and nothing of it
ends with its supervisor by its own doing.
"""

# Hundreds of these are started, and pathlib would double the time each takes.
# ruff: noqa: PTH104, PTH110, PTH115, PTH118, PTH123

import json
import os
import signal
import sys
import time

CHANNEL = int(os.environ["ORCHESTRATOR_CHANNEL"])
RANK = os.environ.get("RANK", "0")


def note(name: str, text: str) -> None:
    """Write a file whole."""
    path = os.path.join(sys.argv[1], name)
    beside = f"{path}.{os.getpid()}.tmp"  # several ranks write here
    with open(beside, "w") as file:
        file.write(text)
    os.rename(beside, path)


def fork_and_sleep(name: str, *, own_session: bool) -> None:
    """A child, or with ``own_session`` a grandchild nobody waits for, that sleeps; its pid is
    noted."""
    if os.fork() == 0:
        if own_session:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        note(name, str(os.getpid()))
        time.sleep(600)
        os._exit(0)
    if own_session:
        os.wait()
    while not os.path.exists(os.path.join(sys.argv[1], name)):
        time.sleep(0.001)


def follow(order: str, value: object) -> None:
    if order == "say":
        os.write(CHANNEL, str(value).encode("latin-1"))
    elif order == "flood":
        os.set_blocking(CHANNEL, True)
        for _ in range(int(str(value))):
            os.write(CHANNEL, b"x" * 65536)
    elif order == "print":
        line = b"x" * 999 + b"\n"
        for _ in range(int(str(value)) // 1000):
            os.write(1, line)
    elif order == "when asked":  # exit with this code; None: note it, and go on
        asked = (
            (lambda *_: os._exit(value))
            if isinstance(value, int)
            else (lambda *_: note(f"asked-{RANK}", ""))
        )
        signal.signal(signal.SIGTERM, asked)
    elif order == "when asked to save":  # note it, and go on
        signal.signal(signal.SIGUSR1, lambda *_: note(f"saved-{RANK}", ""))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    elif order == "fork":
        fork_and_sleep(str(value), own_session=False)
    elif order == "daemon":
        fork_and_sleep(str(value), own_session=True)
    elif order == "close channel":
        os.close(CHANNEL)
    elif order == "allocate":
        globals()["ballast"] = b"x" * (int(str(value)) << 20)
    elif order == "look":
        shown = dict(os.environ)
        shown["sid"], shown["pid"], shown["argv"] = (
            str(os.getsid(0)),
            str(os.getpid()),
            " ".join(sys.argv[1:]),
        )
        shown["nice"] = str(os.getpriority(os.PRIO_PROCESS, 0))
        shown["stdin"] = os.readlink("/proc/self/fd/0")
        shown["fds"] = " ".join(sorted(os.listdir("/proc/self/fd")))
        with open("/proc/self/status") as file:
            shown["cpus"] = next(
                line.split()[1] for line in file if line.startswith("Cpus_allowed_list")
            )
        note("seen.json" if RANK == "0" else f"seen-{RANK}.json", json.dumps(shown))
    elif order == "note":
        note(str(value), "")
    elif order == "await":
        while not os.path.exists(os.path.join(sys.argv[1], str(value))):
            time.sleep(0.001)
    elif order == "exit":
        os._exit(int(str(value)))
    elif order == "die":
        os.kill(os.getpid(), int(str(value)))
    elif order == "sleep":
        time.sleep(600)


if __name__ == "__main__":
    if not os.read(CHANNEL, 1):  # a worker waits until its supervisor has set it up
        os._exit(0)
    with open(os.path.join(sys.argv[1], "spec.json")) as orders:
        todo = json.load(orders)
    for step in todo[RANK] if isinstance(todo, dict) else todo:
        follow(*step)
    note("done", "")
