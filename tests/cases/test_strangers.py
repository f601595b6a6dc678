"""C02: what the record says of processes may be out of date; a stranger is never taken for one of ours."""

from __future__ import annotations

import sys

import pytest

import harm
import steps
from ipcluster_core import Cluster

#: Strangers of two kinds.
PROGRAMS = {"sleep": ("sleep", "1000"), "python": (sys.executable, "-c", "import time; time.sleep(1000)")}


def see_and_end(name: str, because: str) -> None:
    """Look at a cluster and end it, as a user does; it is broken, and the reason is told at each step."""
    for verb in (["list"], ["status", name]):
        seen = steps.ctl(*verb)
        assert seen.returncode == 0
        assert "broken" in seen.stdout
        assert "running:" not in seen.stdout
        assert because in seen.stdout
    ended = steps.ctl("teardown", name, "--yes")
    assert ended.returncode == 0
    assert because in ended.stdout
    assert f"{name}: ended" in ended.stdout
    again = steps.ctl("teardown", name, "--yes", "--force")
    assert again.returncode == 0
    assert "already gone" in again.stdout
    assert steps.ctl("list").stdout.count(name) == 0


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_stranger_under_the_recorded_pid_survives_status_and_teardown(program: tuple[str, ...]) -> None:
    """C02: all was killed, and the nanny's pid is another program's now: it lives on, and the user is told."""
    Cluster.create_sync("c02", n=2)
    harm.kill_everything("c02")
    with harm.stranger(*program) as stranger:
        harm.rewrite_nanny("c02", pid=stranger.pid)

        see_and_end("c02", f"pid {stranger.pid} belongs to another process now")


def test_a_stranger_survives_that_came_under_the_pid_after_a_reboot() -> None:
    """C02: the record is of an earlier start of this machine, on which the pid says nothing."""
    Cluster.create_sync("c02", n=2)
    harm.kill_everything("c02")
    with harm.stranger() as stranger:
        harm.rewrite_nanny("c02", pid=stranger.pid, boot="00000000-0000-0000-0000-000000000000")

        see_and_end("c02", "has been started anew since")


def test_a_record_of_another_host_is_not_ended_by_pid_and_forgotten_only_by_force() -> None:
    """C02: whether it lives cannot be known here: it is not called running, refused, and forgotten when forced."""
    Cluster.create_sync("c02", n=2)
    harm.kill_everything("c02")
    with harm.stranger() as stranger:
        boot = "00000000-0000-0000-0000-000000000000"
        harm.rewrite_nanny("c02", pid=stranger.pid, boot=boot, host="elsewhere")
        listed, status = steps.ctl("list"), steps.ctl("status", "c02")
        refused = steps.ctl("teardown", "c02", "--yes")
        forced = steps.ctl("teardown", "c02", "--yes", "--force")

        for seen in (listed.stdout, status.stdout):
            assert "unknown" in seen
            assert "elsewhere" in seen
        assert refused.returncode == 1
        assert "elsewhere" in refused.stderr
        assert "--force" in refused.stderr
        assert forced.returncode == 0
        assert "it is forgotten here, and not ended" in forced.stdout
        assert steps.ctl("teardown", "c02", "--yes").stdout.startswith("c02: already gone")


def test_a_stranger_under_a_pid_that_the_kernel_gave_out_again_survives() -> None:
    """C02: in a PID namespace whose next pid is set, so that it is the nanny's, the controller's and the broker's."""
    done = harm.as_first_process("""
        ctl("create", "c02", "-n", "1")
        from ipcluster_core import open_store
        nanny = open_store().read("record", "c02").value["jobs"][0]["nanny"]["pid"]
        pids = sorted(pid for pid in others() if stat(pid)[1] == str(nanny)) + [nanny]
        for pid in pids[:-1] + [nanny]:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        def gone():
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return not set(pids) & set(others())

        subprocess.Popen(["sleep", "1000"])  # a child, so that there is always one to wait for
        until(gone)
        strangers = []
        for pid in pids:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            strangers.append(subprocess.Popen(["sleep", "1000"]))
        assert [one.pid for one in strangers] == pids
        because = f"pid {nanny} belongs to another process now"
        listed, ended = ctl("list").stdout, ctl("teardown", "c02", "--yes").stdout
        assert "broken" in listed and because in listed, listed
        assert because in ended, ended
        assert [one.poll() for one in strangers] == [None] * len(pids)
    """)

    assert done.returncode == 0, done.stderr


def test_a_cluster_is_ended_from_a_container_that_cannot_see_its_processes() -> None:
    """C02: who cannot watch them asks the controller, and learns from the record that it has ended."""
    Cluster.create_sync("c02", n=1)
    done = harm.as_first_process("""
        assert "unknown" in ctl("list").stdout
        assert "running" in ctl("status", "c02").stdout
        print(ctl("teardown", "c02", "--yes").stdout)
    """)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "c02: ended"
    steps.wait_until(lambda: not steps.living("c02"))
