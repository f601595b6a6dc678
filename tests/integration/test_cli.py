"""The command line, as a person and as a script see it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import steps
from ipcluster_core import Client, ClusterHandle, open_store


def test_the_whole_life_of_a_cluster() -> None:
    """Create, list, status, wait, scale, run, logs, handle, teardown; each exit code is 0."""
    made = steps.ctl("create", "life", "-n", "2", "--label", "team=ml")
    assert made.returncode == 0
    assert made.stdout == "life #1 is running with 2 engines, ends by itself: idle 1800 s\n"

    (listed,) = json.loads(steps.ctl("list", "--json", "--label", "team=ml").stdout)
    assert (listed["name"], listed["state"], listed["engines"]) == ("life", "running", 2)
    assert json.loads(steps.ctl("list", "--json", "--label", "team=other").stdout) == []
    lines = steps.ctl("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "ENGINES", "CREATED", "STATUS", "ENDS"]
    assert lines[1].split()[:3] == ["life", "native/local", "2"]

    assert steps.ctl("wait", "life", "-n", "2").stdout == "2 engines are up\n"
    assert steps.ctl("scale", "life", "3", "--wait").returncode == 0
    status = json.loads(steps.ctl("status", "life", "--json").stdout)
    assert [engine["state"] for engine in status["engines"]] == ["up"] * 3
    assert "life #1: running" in steps.ctl("status", "life").stdout

    assert steps.ctl("run", "life", "platform:system").stdout == "Linux\n"
    assert steps.ctl("run", "life", "platform:system", "--each").stdout == "[0] Linux\n[1] Linux\n[2] Linux\n"
    ran = steps.ctl("run", "life", "--engine", "1", "--", "sh", "-c", "echo $IPCLUSTER_ENGINE; exit 7")
    assert (ran.stdout, ran.returncode) == ("1\n", 7)
    steps.ctl("run", "life", "--engine", "1", "--", "sh", "-c", "echo to the log >/proc/$PPID/fd/1")
    assert "[engine-1] to the log" in steps.ctl("logs", "life", "--engine", "1").stdout

    handle = ClusterHandle.model_validate_json(steps.ctl("handle", "life").stdout)
    assert (handle.name, handle.incarnation, handle.store) == ("life", 1, open_store().url)
    ended = steps.ctl("teardown", "life")
    assert (ended.stdout, ended.returncode) == ("life: ended\n", 0)
    assert steps.ctl("list").stdout.splitlines()[1:] == []
    assert "ended: torn down" in steps.ctl("list", "--all").stdout


def test_a_set_is_sized_by_its_load_and_its_life_can_be_read() -> None:
    """The list shows the bounds; the events say what was asked for and what came of it."""
    made = steps.ctl("create", "elastic", "--adapt", "0", "3", "--max-tasks", "100", "--max-restarts", "2")
    assert made.stdout == "elastic #1 is running with 0..3 engines, ends by itself: idle 1800 s\n"
    adapted = steps.ctl("adapt", "elastic", "1", "2")
    assert adapted.stdout == "elastic: set default has between 1 and 2 engines, by its load\n"
    assert steps.ctl("run", "elastic", "platform:system").stdout == "Linux\n"
    assert steps.ctl("list").stdout.splitlines()[1].split()[2] == "1..2"

    events = json.loads(steps.ctl("events", "elastic", "--json").stdout)
    kinds = [event["kind"] for event in events]
    assert kinds[:2] == ["created", "running"]
    assert {"adapted", "engine started", "engine up"} <= set(kinds)
    lines = steps.ctl("events", "elastic", "--tail", "3").stdout.splitlines()
    assert lines[0].split() == ["AT", "EVENT", "ENGINE", "WHAT"]
    assert len(lines) == 4
    refused = steps.ctl("adapt", "elastic", "3", "1")
    assert (refused.returncode, refused.stdout) == (2, "")
    steps.ctl("teardown", "elastic", "-y")


def test_tasks_are_cancelled_by_id() -> None:
    """Exit code 1 when one is not: it is over, or unknown."""
    steps.ctl("create", "tasks", "-n", "1")
    with Client.connect("tasks") as client:
        endless = client.submit(time.sleep, 100)
        done = steps.ctl("cancel", "tasks", endless.task_id)
        assert (done.stdout, done.returncode) == (f"{endless.task_id}: cancelled\n", 0)
        again = steps.ctl("cancel", "tasks", endless.task_id, "nobody-1")

    assert again.returncode == 1
    assert again.stdout.count("not cancelled: it is over, unknown, or cannot be interrupted") == 2
    steps.ctl("teardown", "tasks", "-y")


def test_teardown_twice_is_success_and_of_a_name_never_made_has_its_own_exit_code() -> None:
    """0, 0 and 3."""
    steps.ctl("create", "twice", "-n", "1")

    assert steps.ctl("teardown", "twice").returncode == 0
    again = steps.ctl("delete", "twice")
    assert again.returncode == 0
    assert again.stdout.startswith("twice: already gone (cluster 'twice' #1 ended ")
    never = steps.ctl("teardown", "never")
    assert never.returncode == 3
    assert never.stderr.startswith("ipclusterctl: there is no cluster 'never' in file:")


@pytest.mark.parametrize("verb", [["status"], ["wait"], ["scale"], ["run"], ["logs"], ["handle"]])
def test_an_unknown_name_is_exit_code_3(verb: list[str]) -> None:
    """For each verb, with the name and the store in the message."""
    more = {"scale": ["1"], "run": ["platform:node"]}.get(verb[0], [])
    done = steps.ctl(*verb, "unknown", *more)

    assert done.returncode == 3
    assert "'unknown'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "Upper"], "cannot name a cluster"),
        (["create", "x", "-n", "-1"], "greater than or equal to 0"),
        (["create", "x", "--label", "nothing"], "is not KEY=VALUE"),
        (["create", "x", "--idle-timeout", "0"], "greater than 0"),
        (["run", "x"], "give MODULE:FUNCTION, or a command after --"),
        (["nonsense"], "invalid choice"),
        ([], "required"),
    ],
)
def test_bad_usage_is_exit_code_2_and_says_what_is_wrong(arguments: list[str], text: str) -> None:
    """Before anything is started."""
    done = steps.ctl(*arguments)

    assert done.returncode == 2
    assert text in done.stderr


def test_a_cluster_in_use_is_refused_with_its_own_exit_code() -> None:
    """4, and force ends it."""
    steps.ctl("create", "used", "-n", "1", "--claim", "run-1")
    refused = steps.ctl("teardown", "used")

    assert refused.returncode == 4
    assert "in use by: run-1" in refused.stderr
    assert steps.ctl("teardown", "used", "--force").returncode == 0


def test_a_failed_create_shows_why_and_leaves_nothing() -> None:
    """The last output of what failed is in the message."""
    done = steps.ctl("create", "bad", "--preload", "no_such_module")

    assert done.returncode == 1
    assert "'no_such_module' cannot be preloaded: ModuleNotFoundError: No module named" in done.stderr
    assert steps.living("bad") == []


def test_create_without_any_bound_warns() -> None:
    """One line."""
    done = steps.ctl("create", "endless", "-n", "1", "--idle-timeout", "none")

    assert done.stderr == "ipclusterctl: warning: nothing ends cluster 'endless' by itself; tear it down yourself\n"
    steps.ctl("teardown", "endless")


def test_ctrl_c_in_create_is_exit_code_130_and_leaves_nothing() -> None:
    """Interrupted while it waits for engines that do not come."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ipcluster_core.cli", "create", "stop", "-n", "1", "--preload", "antigravity_wait"],
        env={**os.environ, "PYTHONPATH": _folder_with_slow_module()},
        stderr=subprocess.PIPE,
        text=True,
    )
    steps.wait_until(lambda: steps.living("stop"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in said
    steps.wait_until(lambda: not steps.living("stop"))
    assert steps.left_in_store() == ["records/stop"]


def _folder_with_slow_module() -> str:
    folder = steps.store_folder().with_name("modules")
    folder.mkdir()
    (folder / "antigravity_wait.py").write_text("import time\ntime.sleep(60)\n")
    return str(folder)


def test_on_a_terminal_teardown_asks_first() -> None:
    """Anything but yes leaves the cluster alone."""
    steps.ctl("create", "asked", "-n", "1")
    command = [sys.executable, "-m", "ipcluster_core.cli", "teardown", "asked"]
    codes = []
    for answer in (b"n\n", b"y\n"):
        terminal, end = pty.openpty()
        process = subprocess.Popen(command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.write(terminal, answer)
        out, _ = process.communicate(timeout=30)
        os.close(terminal)
        os.close(end)
        assert b"End asked? [y/N]" in out
        codes.append(process.returncode)

    assert codes == [1, 0]


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    """`ipclusterctl list | head` in short."""
    steps.ctl("create", "pipe", "-n", "1")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "ipcluster_core.cli", "list"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)

    assert "Traceback" not in done.stderr
    steps.ctl("teardown", "pipe")


def test_doctor_succeeds_where_clusters_can_work_and_warns_of_a_broken_one() -> None:
    """0, with the command that cures in the text; as JSON too."""
    steps.ctl("create", "ill", "-n", "1")
    open_store().discard("record", "ill")
    done = steps.ctl("doctor")

    assert done.returncode == 0, done.stdout
    assert "warning  clusters: ill is broken: processes without a record: pids " in done.stdout
    assert "\n         -> ipclusterctl teardown ill\n" in done.stdout
    assert steps.ctl("status", "ill").stdout.startswith("ill #1: broken\nprocesses without a record: pids ")
    found = json.loads(steps.ctl("doctor", "--json").stdout)
    assert {"check", "level", "text", "cure"} == set(found[0])
    assert steps.ctl("teardown", "ill").returncode == 0
    assert "ok       clusters: none is broken" in steps.ctl("doctor").stdout


def test_doctor_fails_where_clusters_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, and says what is wrong; few descriptors are a warning beside it."""
    folder = steps.store_folder()
    folder.parent.mkdir(exist_ok=True)
    folder.touch()
    code = (
        "import resource, sys; hard = resource.getrlimit(7)[1]; resource.setrlimit(7, (200, hard));"
        "from ipcluster_core.cli import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (1, "")
    assert f"failed   store: store file:{folder}: Not a directory" in done.stdout
    assert "warning  descriptors: a process may open 200 files" in done.stdout


def test_status_of_a_cluster_whose_record_cannot_be_read_is_broken() -> None:
    """With the reason and what to do."""
    open_store().create("record", "half", {"schema": 1, "name": "half"})
    done = steps.ctl("status", "half")

    assert done.returncode == 0
    assert done.stdout.startswith("half #0: broken\nthe record of cluster 'half' is damaged ")
    assert "tear it down to clean up" in done.stdout
    assert steps.ctl("teardown", "half").stdout.startswith(
        "half: ended (the record of cluster 'half' could not be read; "
    )


def test_the_command_works_where_the_standard_streams_are_closed() -> None:
    """As some cron jobs and services have it; nothing else gets their numbers."""
    closed = 'exec "$@" 0<&- 1>&- 2>&-'
    command = ["sh", "-c", closed, "sh", sys.executable, "-m", "ipcluster_core.cli"]
    created = subprocess.run([*command, "create", "closed", "-n", "1"], check=False, timeout=60)
    streams = steps.ctl("run", "closed", "--", "sh", "-c", "ls -l /proc/self/fd | grep -c ' [012] -> '").stdout
    failed = subprocess.run([*command, "status", "nobody"], check=False, timeout=60)
    ended = subprocess.run([*command, "teardown", "closed", "--yes"], check=False, timeout=60)

    assert (created.returncode, failed.returncode, ended.returncode) == (0, 3, 0)
    assert streams.strip() == "3"
    assert not steps.living("closed")
