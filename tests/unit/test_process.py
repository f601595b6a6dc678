"""Processes as the kernel sees them: who one is, whether it lives, and how it is ended for sure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

import steps
from ipcluster_core.process import (
    OUTPOST_VARIABLE,
    STORE_VARIABLE,
    TAG_VARIABLE,
    Identity,
    children,
    descendants,
    describe_exit,
    end_all,
    identify,
    is_here,
    liveness,
    send_signal,
    tagged,
    tagged_processes,
    wait_gone,
    whereabouts,
)
from ipcluster_core.record import Liveness

#: It ignores SIGTERM, and says when.
STUBBORN = 'trap "" TERM; echo ready; read line'

#: It ignores SIGTERM, and so do the children that it keeps starting.
BREEDER = 'trap "" TERM; echo ready; while :; do sleep 60 & sleep 0.005; done'

#: Each is a child of the one before, which has ended.
CHAIN = "hop() { sleep 0.05; hop & exit; }; echo ready; hop"


@contextmanager
def started(*command: str, tag: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a command, with a cluster's tag if one is given; it is killed, if need be, and reaped at the end."""
    variables = {**os.environ, TAG_VARIABLE: tag} if tag else None
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[str]]:
    """A process that repeats what it is told, until its input is closed."""
    with started("cat") as process:
        yield process


@pytest.fixture
def tag() -> str:
    """The tag of a cluster that nobody else has."""
    return f"unit/1/{uuid4().hex}"


def lives(cat: subprocess.Popen[str]) -> bool:
    """Tell whether a cat answers: a signal that it was sent before would have ended it."""
    assert cat.stdin is not None
    assert cat.stdout is not None
    cat.stdin.write("miaow\n")
    cat.stdin.flush()
    return cat.stdout.readline() == "miaow\n"


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait for the first line that a process writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Have a cat end; it stays a zombie."""
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert wait_gone([identify(process.pid)], 10) == []


# who one is


def test_an_identity_is_the_same_at_each_look(cat: subprocess.Popen[str]) -> None:
    """And another one for another process."""
    assert identify(cat.pid) == identify(cat.pid)
    assert identify() == identify(os.getpid())
    assert identify(cat.pid) != identify()


def test_an_identity_comes_back_from_json(cat: subprocess.Popen[str]) -> None:
    """It lives in the record."""
    who = identify(cat.pid)

    assert Identity.from_dict(json.loads(json.dumps(who.to_dict()))) == who
    assert str(who) == f"pid {cat.pid} on {who.host}"


@pytest.mark.parametrize(
    ("damage", "error"), [({"pid": "x"}, ValueError), ({"start": None}, TypeError), ({"host": ...}, KeyError)]
)
def test_a_damaged_identity_is_refused(damage: dict[str, object], error: type[Exception]) -> None:
    """It is taken for nobody."""
    data = {key: value for key, value in {**identify().to_dict(), **damage}.items() if value is not ...}

    with pytest.raises(error):
        Identity.from_dict(data)


def test_a_process_that_is_not_there_has_no_identity(cat: subprocess.Popen[str]) -> None:
    """The error names the pid."""
    cat.kill()
    cat.wait()

    with pytest.raises(ProcessLookupError, match=f"no process with pid {cat.pid}"):
        identify(cat.pid)


def test_is_here_holds_for_this_machine_since_its_start_only() -> None:
    """Whatever the names of hosts and namespaces."""
    who = identify()

    assert is_here(who)
    assert is_here(who._replace(host="other", namespace="other", pid=1, start=1))
    assert not is_here(who._replace(boot="other"))


# whether it lives


def test_a_process_is_alive_until_it_has_ended(cat: subprocess.Popen[str]) -> None:
    """A zombie is gone already, though its pid is taken; and so is one that was reaped."""
    who = identify(cat.pid)
    assert liveness(who) is Liveness.ALIVE
    end(cat)

    assert identify(cat.pid) == who
    assert liveness(who) is Liveness.GONE
    cat.wait()
    assert liveness(who) is Liveness.GONE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"start": 1}, Liveness.GONE),  # the pid has gone to another
        ({"boot": "other"}, Liveness.GONE),  # this host was started anew
        ({"boot": "other", "host": "other"}, Liveness.UNKNOWN),
        ({"namespace": "pid:[1]"}, Liveness.UNKNOWN),
        ({"host": "renamed"}, Liveness.ALIVE),
    ],
)
def test_liveness_is_said_only_of_what_can_be_seen_from_here(change: dict[str, object], expected: Liveness) -> None:
    """A process of another machine or container is neither alive nor gone."""
    assert liveness(identify()._replace(**change)) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"start": 1}, f"pid {os.getpid()} belongs to another process now"),
        ({"pid": 1 << 23}, f"pid {1 << 23} on {os.uname().nodename} is gone"),
        ({"boot": "other"}, f"host {os.uname().nodename!r} has been started anew since"),
        ({"boot": "other", "host": "other"}, f"pid {os.getpid()} on other cannot be seen from here"),
        ({"namespace": "pid:[1]"}, "is in another PID namespace (a container), and cannot be seen from here"),
    ],
)
def test_what_became_of_a_process_is_told(change: dict[str, object], text: str) -> None:
    """As far as it can be known here."""
    assert whereabouts(identify()._replace(**change)).endswith(text)  # type: ignore[arg-type]


# signals


def test_a_signal_reaches_the_process(cat: subprocess.Popen[str]) -> None:
    """Its exit tells which."""
    assert send_signal(identify(cat.pid), signal.SIGUSR1)
    assert cat.wait(10) == -signal.SIGUSR1


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "other"}, {"namespace": "other"}])
def test_a_signal_for_another_life_of_a_pid_reaches_nobody(
    cat: subprocess.Popen[str], change: dict[str, object]
) -> None:
    """Nor does one for a process that cannot be checked from here."""
    who = identify(cat.pid)._replace(**change)  # type: ignore[arg-type]

    assert not send_signal(who, signal.SIGKILL)
    assert lives(cat)


def test_a_signal_to_what_has_ended_says_so(cat: subprocess.Popen[str]) -> None:
    """As a zombie, when it was reaped, and for a pid that cannot be."""
    who = identify(cat.pid)
    end(cat)
    assert not send_signal(who, signal.SIGTERM)
    cat.wait()

    assert not send_signal(who, signal.SIGTERM)
    assert not send_signal(who._replace(pid=0), signal.SIGTERM)


# waiting


def test_wait_gone_returns_what_is_left_when_the_time_is_over(cat: subprocess.Popen[str]) -> None:
    """And not before."""
    who, start = identify(cat.pid), time.monotonic()

    assert wait_gone([who], 0.05) == [who]
    assert time.monotonic() - start >= 0.05


def test_wait_gone_returns_as_soon_as_all_are_gone() -> None:
    """Zombies count as gone."""
    with started("cat") as one, started("cat") as two:
        both = [identify(one.pid), identify(two.pid)]
        end(one)
        assert wait_gone(both, 0) == both[1:]
        assert send_signal(both[1], signal.SIGTERM)
        start = time.monotonic()

        assert wait_gone(both, 60) == []
        assert time.monotonic() - start < 30


def test_wait_gone_does_not_wait_for_another_life_of_a_pid(cat: subprocess.Popen[str]) -> None:
    """The one that was meant is gone."""
    start = time.monotonic()

    assert wait_gone([identify(cat.pid)._replace(start=1)], 60) == []
    assert time.monotonic() - start < 30


# finding


def test_tagged_finds_a_cluster_s_processes_and_their_forks(tag: str) -> None:
    """A child that was forked carries its parent's tag; a tag that only begins alike is another one."""
    with started("sh", "-c", "(sleep 60; true) & echo ready; wait", tag=tag) as shell, started("cat", tag=f"{tag}0"):
        first_line(shell)
        (child,) = children(shell.pid)

        assert {shell.pid, child} <= set(tagged(tag)) <= {shell.pid, *descendants(shell.pid)}
        assert end_all(lambda: tagged(tag), grace=5, timeout=5) == []


def test_ranks_whose_head_is_another_host_are_none_of_this_one_s_clusters(
    tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may have the same name here, and no record of them; their outpost ends them."""
    monkeypatch.setenv(STORE_VARIABLE, "file:/nowhere")
    with started("cat", tag=tag) as near:
        monkeypatch.setenv(OUTPOST_VARIABLE, "/dev/shm/ipcluster-outpost-x")
        with started("cat", tag=tag) as far:
            found = {process.pid for process in tagged_processes()}

            assert near.pid in found
            assert far.pid not in found
            assert far.pid in tagged(tag)


def test_a_zombie_is_not_found_by_its_tag(tag: str) -> None:
    """It has no environment any more."""
    with started("cat", tag=tag) as cat:
        steps.wait_until(lambda: tagged(tag))  # the tag is there once cat is executed
        end(cat)

        assert tagged(tag) == []


def test_descendants_are_found_through_any_number_of_generations(tag: str) -> None:
    """Children before grandchildren; this process's other children are not among them."""
    with started("sh", "-c", "sh -c 'sleep 60 & echo ready; wait' & wait", tag=tag) as shell, started("cat"):
        first_line(shell)
        found = descendants(shell.pid)
        (child,) = children(shell.pid)
        (grandchild,) = children(child)

        assert found == [child, grandchild]
        assert set(found) < set(descendants(os.getpid()))
        assert end_all(lambda: tagged(tag), grace=5, timeout=5) == []


# ending


def test_end_all_asks_first(cat: subprocess.Popen[str]) -> None:
    """What follows the signal is never killed, and nobody waits for the grace to pass."""
    start = time.monotonic()

    assert end_all(lambda: [cat.pid], grace=60, timeout=80) == []
    assert cat.wait() == -signal.SIGTERM
    assert time.monotonic() - start < 30


def test_end_all_kills_what_ignores_the_signal_after_the_grace() -> None:
    """Not before."""
    with started("sh", "-c", STUBBORN) as stubborn:
        first_line(stubborn)
        start = time.monotonic()

        assert end_all(lambda: [stubborn.pid], grace=0.05, timeout=10) == []
        assert time.monotonic() - start >= 0.05
        assert stubborn.wait() == -signal.SIGKILL


def test_end_all_asks_with_the_signal_given(cat: subprocess.Popen[str]) -> None:
    """SIGINT for one."""
    assert end_all(lambda: [cat.pid], grace=10, timeout=20, signum=signal.SIGINT) == []
    assert cat.wait() == -signal.SIGINT


@pytest.mark.parametrize("code", [BREEDER, CHAIN], ids=["breeder", "chain"])
def test_end_all_ends_what_keeps_forking(tag: str, code: str) -> None:
    """What was started while the others were ended is found at the next look."""
    with started("sh", "-c", code, tag=tag) as shell:
        first_line(shell)
        steps.wait_until(lambda: descendants(shell.pid) or tagged(tag) != [shell.pid])

        assert end_all(lambda: tagged(tag), grace=0.03, timeout=10) == []
        assert tagged(tag) == []


def test_end_all_returns_what_it_could_not_end() -> None:
    """Here, because it was given no time to kill."""
    with started("sh", "-c", STUBBORN) as stubborn:
        first_line(stubborn)

        assert end_all(lambda: [stubborn.pid], grace=10, timeout=0.03) == [identify(stubborn.pid)]
        assert stubborn.poll() is None


@pytest.mark.parametrize("find", [list, lambda: [os.getpid()]], ids=["nobody", "itself"])
def test_end_all_with_nothing_to_end_is_done_at_once(find: Callable[[], list[int]]) -> None:
    """It never ends its own process, and may be repeated."""
    assert end_all(find, grace=0, timeout=1) == []


# what a process does with itself


def test_a_process_dies_with_its_parent() -> None:
    """However that one ends."""
    code = """
        import os, signal
        from ipcluster_core.process import die_with_parent, identify

        parent, (read, write) = os.getpid(), os.pipe()
        child = os.fork()
        if not child:
            die_with_parent(parent)
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1)
        print(identify(child).start, child, flush=True)
        os.kill(parent, signal.SIGKILL)
    """
    with steps.started_step(code) as process:
        output, _ = process.communicate(timeout=10)
    start, pid = map(int, output.split())

    assert wait_gone([identify()._replace(pid=pid, start=start)], 5) == []


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    """It was adopted by another before it asked."""
    with steps.started_step("import ipcluster_core.process as p; p.die_with_parent(0); print('lives')") as process:
        output, _ = process.communicate(timeout=10)

    assert output == ""
    assert process.returncode == 1


def test_close_all_but_keeps_what_is_kept_and_the_standard_ones() -> None:
    """And nothing else."""
    code = """
        import os
        from ipcluster_core.process import close_all_but

        kept, other = os.pipe()
        high = os.dup2(other, 200)
        close_all_but({kept})
        with os.scandir("/proc/self/fd") as entries:
            left = {int(entry.name) for entry in entries if os.path.exists(entry.path)}
        print(len(left), {0, 1, 2, kept} <= left)
    """

    assert steps.run_step(code) == "5 True"  # one is the scan's own


def test_a_subreaper_gets_the_orphans() -> None:
    """So that it can find and reap them."""
    code = """
        import os
        from ipcluster_core.process import children, own_subreaper

        own_subreaper()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            if not os.fork():
                os.close(write)
                os.read(read, 1)
            os._exit(0)
        os.waitpid(child, 0)
        (orphan,) = children(os.getpid())
        os.close(write)
        print(orphan != child, os.waitpid(orphan, 0)[1])
    """

    assert steps.run_step(code) == "True 0"


def test_reset_signals_undoes_what_the_creator_has_set() -> None:
    """Handlers, ignored signals and the mask; but writing to a closed pipe stays an error and no death."""
    code = """
        import os, signal
        from ipcluster_core.process import reset_signals

        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
        reset_signals()
        actions = {signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
        read, write = os.pipe()
        os.close(read)
        try:
            os.write(write, b"x")
        except BrokenPipeError:
            print(actions == {signal.SIG_DFL}, signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """

    assert steps.run_step(code) == "True set()"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exit code 0"),
        (3 << 8, "exit code 3"),
        (signal.SIGKILL, "signal SIGKILL"),
        (signal.SIGSEGV | 0x80, "signal SIGSEGV"),  # with a core dump
        (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_an_exit_is_described_in_words(status: int, text: str) -> None:
    """As the wait status has it, see wait(2)."""
    assert describe_exit(status) == text
