"""C04, C13, C16: one name is one cluster, whoever creates it, is killed, tries again, reads, or ends it twice."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, errors

#: Creates that are killed and tried again.
KILLED_CREATES = 10

#: Rounds of the race, and those in which a creator is killed.
ROUNDS = 20
DEADLY_ROUNDS = range(5, 10)

#: Seconds for a creator's answer.
HEAR_SECONDS = 60.0

RETRIED = ("create", "c04", "-n", "3", "--if-exists", "attach", "--claim", "run-7")


def parts_of(name: str) -> Counter[str]:
    """Count the nanny, the controller, the broker and the engines of a name, by who writes their log."""
    nanny = steps.record_of(name).jobs[0].nanny
    assert nanny is not None
    kinds = (steps.part(name, which) for which in ("nanny", "controller", "broker"))
    found = Counter(dict.fromkeys(("nanny", "controller", "broker"), 1))
    found["engine"] = len(set(steps.living(name)) - set(kinds))
    return found


def test_a_create_that_was_killed_and_is_tried_again_makes_one_cluster() -> None:
    """C04: ten creates are killed at random moments; each retry adopts or removes what is there, and says which."""
    start = time.monotonic()
    assert steps.ctl(*RETRIED).returncode == 0
    normal = time.monotonic() - start
    steps.ctl("teardown", "c04", "--force")
    moments = random.Random(4)
    said, last = Counter[str](), 1
    for _ in range(KILLED_CREATES):
        first = subprocess.Popen(
            [sys.executable, "-m", "ipcluster_core.cli", *RETRIED], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # The moment of the kill is what is tried here; there is no condition to wait for.
        time.sleep(moments.uniform(0.0, normal))
        first.kill()
        first.wait()
        start = time.monotonic()
        retry = steps.ctl(*RETRIED)
        passed = time.monotonic() - start

        assert retry.returncode == 0, retry.stderr
        assert passed < 2 * normal + 10
        incarnation = steps.record_of("c04").incarnation
        if "attached to" in retry.stderr:
            said["adopted"] += 1
        elif "is cleaned up" in retry.stderr:
            said["removed"] += 1
        else:
            said["nothing was there"] += 1
            assert incarnation == last + 1
        last = incarnation
        assert "c04 #" in retry.stdout
        with Client.connect("c04") as client:
            assert len(client.run(os.getpid)) == 3
        assert parts_of("c04") == {"nanny": 1, "controller": 1, "broker": 1, "engine": 3}
        assert list(steps.record_of("c04").claims) == ["run-7"]
        assert steps.ctl("teardown", "c04", "--claim", "run-7").returncode == 0
        assert not steps.living("c04")
    assert said["adopted"] + said["removed"] > 0


#: A module that says that it is being imported, and then takes for ever.
ENDLESS = "import pathlib, time\npathlib.Path({!r}).touch()\ntime.sleep(3600)\n"


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_create_that_was_killed_and_is_not_tried_again_leaves_no_cluster_for_ever(
    tmp_path: Path, start_method: str
) -> None:
    """C04: its engines never come up; 10 s after the limit of the create it ends by itself, and the record says why."""
    begun = tmp_path / "begun"
    (tmp_path / "endless.py").write_text(ENDLESS.format(str(begun)))
    code = f"""
        from ipcluster_core import Cluster
        fields = {{"cwd": {str(tmp_path)!r}, "preload": ["endless"], "start_method": {start_method!r}}}
        Cluster.create_sync("c04", n=1, timeout=3, **fields)
    """
    with steps.started_step(code):
        steps.wait_until(begun.exists)
    assert steps.living("c04")
    steps.wait_until(lambda: not steps.living("c04"), 60)

    ended = steps.record_of("c04").ended
    assert ended is not None
    assert ended.by == "start limit"
    assert steps.left_in_store() == ["records/c04"]


CREATOR = """
    import sys
    from ipcluster_core import Cluster, errors, handle, spec
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            made = Cluster.create_sync("race", n=1, if_exists=sys.argv[1])
            print(made.handle.uid, flush=True)
        except errors.ClusterExists as error:
            print(error, flush=True)
"""

#: It counts what it meets until its input ends; the little rest lets creators have the machine, too.
READER = """
    import json, select, sys
    from ipcluster_core import Cluster, ClusterManager, errors
    print("ready", flush=True)
    seen = {}
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        try:
            what = str(ClusterManager().get_sync("race").state)
        except errors.ClusterNotFound:
            what = "absent"
        except Exception as error:
            what = repr(error)
        seen[what] = seen.get(what, 0) + 1
    print(json.dumps(seen))
"""


class Step:
    """A process that does its part again and again."""

    def __init__(self, code: str, *args: str) -> None:
        self._command = [sys.executable, "-c", textwrap.dedent(code), *args]
        self.start()

    def start(self) -> None:
        """Start, or start anew."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear() == "ready"

    def say(self, line: str) -> None:
        """Have it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Return what it says next."""
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], HEAR_SECONDS)[0]
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL it, and reap it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def racers() -> Iterator[tuple[list[Step], list[Step]]]:
    """Eight creators, half of which attach, and two readers."""
    with ExitStack() as stack:
        found: list[Step] = []
        for code, args in [*[(CREATOR, [mode]) for mode in ("attach", "fail") * 4], (READER, []), (READER, [])]:
            found.append(Step(code, *args))
            stack.callback(found[-1].kill)
        yield found[:8], found[8:]


def test_eight_creators_and_two_readers_see_one_cluster_in_every_round(racers: tuple[list[Step], list[Step]]) -> None:
    """C16: twenty rounds: one controller in each, no torn record, no lock left; in five a creator is killed."""
    creators, readers = racers
    moments = random.Random(16)
    for number in range(ROUNDS):
        for creator in creators:
            creator.say("go")
        victim = moments.choice(creators) if number in DEADLY_ROUNDS else None
        if victim is not None:
            time.sleep(moments.uniform(0.0, 0.3))  # the moment is what is tried
            victim.kill()
        answers = {creator: creator.hear() for creator in creators if creator is not victim}
        uid = steps.record_of("race").uid

        for creator, answer in answers.items():
            refused = "exists (" in answer and "by pid " in answer
            # A killed winner's cluster may be cleaned up after it was refused to others.
            assert answer == uid or (refused and creators.index(creator) % 2 == 1), answer
        assert parts_of("race") == {"nanny": 1, "controller": 1, "broker": 1, "engine": 1}
        assert {path.partition("/")[0] for path in steps.left_in_store()} == {"records", "secrets", "run"}
        assert ClusterManager().teardown_sync("race").outcome == "ended"
        if victim is not None:
            victim.start()
    seen: Counter[str] = Counter()
    for reader in readers:
        reader.say("stop")
        seen.update(json.loads(reader.hear()))
    assert set(seen) <= {"absent", "creating", "running", "ending", "ended", "broken"}
    assert seen["running"] > 0


def test_tearing_down_what_is_gone_is_success_and_what_never_was_has_its_own_code() -> None:
    """C13: twice in turn, after the idle limit, after a failed create, by four at once; then a name never made."""
    Cluster.create_sync("twice", n=1)
    assert [steps.ctl("teardown", "twice").returncode for _ in range(2)] == [0, 0]
    assert "already gone" in steps.ctl("teardown", "twice").stdout
    Cluster.create_sync("idle", n=1, idle_timeout=0.3)
    steps.wait_until(lambda: not steps.living("idle"))
    assert "already gone (cluster 'idle' #1 ended" in steps.ctl("teardown", "idle").stdout
    with pytest.raises(errors.LaunchError):
        Cluster.create_sync("failed", n=1, preload=["no_such_module"])
    assert "already gone (cluster 'failed' #1 ended" in steps.ctl("teardown", "failed").stdout
    Cluster.create_sync("four", n=1)
    command = [sys.executable, "-m", "ipcluster_core.cli", "teardown", "four"]
    four = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [one.communicate(timeout=60) for one in four]

    assert [one.returncode for one in four] == [0] * 4
    assert [err for _, err in said] == [""] * 4
    assert sum(out == "four: ended\n" for out, _ in said) == 1
    assert sum(out.startswith("four: already gone") for out, _ in said) == 3
    never = steps.ctl("teardown", "never")
    assert never.returncode == 3
    assert "there is no cluster 'never'" in never.stderr
