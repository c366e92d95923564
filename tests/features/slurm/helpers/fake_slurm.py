"""sbatch, squeue, scancel and sacct of a Slurm that starts every task at once as a process of this
machine.

``python -I -S fake_slurm.py sbatch|squeue|scancel|sacct …`` with its state in the folder
``$FAKE_SLURM``: a folder for each task, ``calls.log``, and files that a test puts there: ``hold``
(a reason: tasks wait in the queue while it exists), ``down`` (the controller does not answer),
``refuse`` (why sbatch refuses), ``hide`` (squeue shows nothing), ``linger`` (so often squeue is
asked before the controller learns that processes have ended) and ``accounts`` (what sacct answers;
without it there is no accounting).
"""

# ruff: noqa: SIM115, PTH102, PTH104, PTH108, PTH110, PTH112, PTH118, PTH123

import os
import pwd
import signal
import subprocess
import sys
import time

ROOT = os.environ["FAKE_SLURM"]
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def read(*names: str) -> str:
    try:
        with open(os.path.join(ROOT, *names)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def write(text: str, *names: str) -> None:
    path = os.path.join(ROOT, *names)
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.write(text)
    os.rename(f"{path}.{os.getpid()}", path)


def tasks() -> list[str]:
    return sorted(name for name in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, name)))


def sbatch(arguments: list[str]) -> None:
    if read("refuse"):
        sys.exit(f"sbatch: error: {read('refuse')}")
    path = arguments[-1]
    with open(path) as file:
        lines = file.read().splitlines()
    options = dict(
        line[len("#SBATCH --") :].split("=", 1) for line in lines if line.startswith("#SBATCH --")
    )
    options = {name: value.strip('"') for name, value in options.items()}
    job = 100 + len({task.split("_")[0] for task in tasks()})
    last = options["array"].split("-")[-1]
    for index in range(int(last) + 1):
        task = f"{job}_{index}"
        os.mkdir(os.path.join(ROOT, task))
        write(options["job-name"], task, "name")
        write("PENDING", task, "state")
        if os.fork() == 0:
            os.setsid()
            run(path, task, options)
            os._exit(0)
    print(job)


def run(path: str, task: str, options: dict[str, str]) -> None:
    """What a node does with a task, in a process of its own."""
    while os.path.exists(os.path.join(ROOT, "hold")):
        if read(task, "state") != "PENDING":
            return
        time.sleep(0.02)
    job, index = task.split("_")
    variables = {
        **os.environ,
        "SLURM_ARRAY_JOB_ID": job,
        "SLURM_ARRAY_TASK_ID": index,
        "SLURM_CPUS_ON_NODE": options.get("cpus-per-task", "1"),
        "SLURMD_NODENAME": f"node-{index}",
    }
    if gpus := int(options.get("gres", "gpu:0").split(":")[-1]):
        given = ",".join(str(int(index) * gpus + number) for number in range(gpus))
        variables |= {"SLURM_JOB_GPUS": given, "CUDA_VISIBLE_DEVICES": given}
    log = open(options["output"].replace("%A", job).replace("%a", index), "ab")
    nothing = open(os.devnull, "r+b")
    for number in (0, 1, 2):
        os.dup2(nothing.fileno(), number)
    child = subprocess.Popen(["bash", path], stdin=nothing, stdout=log, stderr=log, env=variables)
    write(str(child.pid), task, "pid")
    write("RUNNING", task, "state")
    code = child.wait()
    while os.path.exists(os.path.join(ROOT, "linger")):
        time.sleep(0.02)
    if read(task, "state") not in FINAL:
        write("COMPLETED" if code == 0 else "FAILED", task, "state")


def squeue(arguments: list[str]) -> None:
    options = dict(value[2:].split("=", 1) for value in arguments if "=" in value)
    for task in tasks():
        is_asked_for = belongs_to(task, options["user"]) and read(task, "name") in options[
            "name"
        ].split(",")
        if is_asked_for and not os.path.exists(os.path.join(ROOT, "hide")):
            state = read(task, "state")
            reason = read("hold") or "None" if state == "PENDING" else "None"
            columns = {
                "%i": task,
                "%T": state,
                "%r": reason,
                "%U": str(owner(task)),
                "%j": read(task, "name"),
            }
            print("|".join(columns[column] for column in options["format"].split("|")))
    if left := int(read("linger") or 0):
        write(str(left - 1), "linger")
        if left == 1:
            os.unlink(os.path.join(ROOT, "linger"))


def owner(task: str) -> int:
    return int(read(task, "uid") or os.geteuid())


def belongs_to(task: str, users: str) -> bool:
    uids = [
        int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid for user in users.split(",")
    ]
    return owner(task) in uids


def scancel(arguments: list[str]) -> None:
    users = [value.split("=", 1)[1] for value in arguments if value.startswith("--user=")]
    named = [value.split("=", 1)[1] for value in arguments if value.startswith("--name=")]
    for task in tasks():
        chosen = read(task, "name") in named or task in arguments or task.split("_")[0] in arguments
        states = [value.split("=", 1)[1] for value in arguments if value.startswith("--state=")]
        if (
            chosen
            and all(belongs_to(task, user) for user in users)
            and read(task, "state") not in (*FINAL, "COMPLETING")
            and (not states or read(task, "state") in states)
        ):
            write("CANCELLED", task, "state")
            if pid := read(task, "pid"):
                try:
                    os.kill(int(pid), signal.SIGTERM)
                except ProcessLookupError:
                    continue


def sacct(arguments: list[str]) -> None:
    if not read("accounts"):
        sys.exit("Slurm accounting storage is disabled")
    print(read("accounts"))


if __name__ == "__main__":
    with open(os.path.join(ROOT, "calls.log"), "a") as calls:
        calls.write(f"{time.time():.3f} {' '.join(sys.argv[1:])}\n")
    if os.path.exists(os.path.join(ROOT, "down")):
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "sacct": sacct}[sys.argv[1]](
        sys.argv[2:]
    )
