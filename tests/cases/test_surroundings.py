"""C34, R2, R3 and the creator's heritage: what the place is like in which a cluster is made."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import harm
import steps
from ipcluster_core import Client, ClusterManager

#: Nothing is writable but one folder for the store; shared memory is as it is in each variant.
BARE = """
mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp
mount --bind /var/tmp /var/tmp && mount -o remount,ro,bind /var/tmp
mount --bind "$HOME" "$HOME" && mount -o remount,ro,bind "$HOME"
mount -t tmpfs none /mnt
export IPCLUSTER_STORE=file:/mnt/store
"""

#: Shared memory that holds next to nothing, and none at all.
SHARED_MEMORY = {
    "tiny": "mount -t tmpfs -o size=64k none /dev/shm",
    "absent": "mount -t tmpfs -o mode=755 none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9",
}


def test_nobody_else_reaps_as_pid_1_of_a_container() -> None:
    """C34: engines restarted twenty times, two killed, teardown inside: not one zombie is left, also of the nanny."""
    done = harm.as_first_process("""
        from ipcluster_core import Cluster
        cluster = Cluster.create_sync("c34", n=4)
        for _ in range(20):
            cluster.restart_sync()
        for engine in cluster.status_sync().engines[:2]:
            os.kill(engine.pid, signal.SIGKILL)
        until(lambda: cluster.status_sync().up == 4 and not defunct())
        start = time.monotonic()
        report = cluster.teardown_sync()
        assert (report.outcome, report.leftovers) == ("ended", ()), report
        assert time.monotonic() - start < 15
        until(lambda: not others())

        # The nanny's sudden end hands its children to this process.
        cluster = Cluster.create_sync("c34", n=2)
        nanny = min(others())
        os.kill(nanny, signal.SIGKILL)
        until(lambda: not others())
        assert "its nanny died" in ctl("status", "c34").stdout

        # A zombie counts as ended, whoever should have reaped it.
        ctl("create", "c34", "-n", "1")
        ctl("teardown", "c34", "--yes")
        assert len(defunct()) == len(others()) == 1
        assert ctl("list").stdout.splitlines()[1:] == []
    """)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("handler", ["", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"])
def test_sigterm_to_pid_1_of_a_container_ends_all(tmp_path: Path, handler: str) -> None:
    """C34: while tasks run; also where the script does not handle it, which the kernel would drop for PID 1."""
    ready = tmp_path / "ready"
    code = f"""
        import os, signal, sys, time
        from pathlib import Path
        {handler}
        from ipcluster_core import Cluster
        with Cluster("c34", n=2) as cluster, cluster.client() as client:
            futures = [client.submit(time.sleep, 300) for _ in range(4)]
            while cluster.status_sync().tasks["running"] < 2:
                pass
            Path({str(ready)!r}).touch()
            futures[0].result()
    """
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as outside:
        try:
            steps.wait_until(ready.exists, 30)
            (first,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            said = outside.communicate(timeout=15)[1]

            assert outside.returncode == 143, said
            assert not steps.living("c34")
            assert steps.ctl("list").stdout.splitlines()[1:] == []
            assert steps.record_of("c34").state == "ended"
        finally:
            outside.kill()


@pytest.mark.parametrize("shared_memory", SHARED_MEMORY)
def test_a_container_without_room_but_for_the_store_is_enough(shared_memory: str) -> None:
    """C34: no writable temporary folder, a read-only home, no shared memory to speak of; large arguments travel."""
    done = harm.as_first_process(
        """
        ctl("create", "c34", "-n", "2")
        from ipcluster_core import Client
        with Client.connect("c34") as client:
            big = bytes(3_000_000)
            assert client.submit(len, big).result(20) == len(big)
            assert client.submit(bytes, 3_000_000).result(20) == big
            ref = client.put(bytearray(3_000_000))
            assert [client.submit(len, ref).result(20) for _ in range(4)] == [3_000_000] * 4
            assert set(client.run(os.getpid)) == {0, 1}
        assert "WARN" not in ctl("logs", "c34").stdout, ctl("logs", "c34").stdout
        ctl("teardown", "c34", "--yes")
        root = Path("/mnt/store")
        assert {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()} == {"records"}
        """,
        before=BARE + SHARED_MEMORY[shared_memory],
    )

    assert done.returncode == 0, done.stderr


def test_a_low_limit_of_descriptors_is_enough_for_sixty_engines() -> None:
    """R2: `ulimit -n 256`, hard: sixty engines work, and each limit is as it was for the user's code."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        from ipcluster_core import Cluster
        with Cluster("r2", n=60) as cluster, cluster.client() as client:
            limits = client.run(resource.getrlimit, resource.RLIMIT_NOFILE)
        print(len(limits), set(limits.values()))
    """
    assert steps.run_step(code) == "60 {(256, 256)}"


def test_too_few_descriptors_for_the_engines_are_refused_early_with_the_number_needed() -> None:
    """R2: where the hard limit cannot be enough, before anything is started."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from ipcluster_core import Cluster, errors
        try:
            Cluster.create_sync("r2", n=60)
        except errors.LaunchError as error:
            print(error)
    """
    said = steps.run_step(code)
    assert "cluster 'r2' #1" in said
    assert "60 engines" in said
    assert "descriptors" in said
    assert "ulimit -n" in said


def test_scaling_beyond_the_limit_of_descriptors_harms_no_engine_that_is_there() -> None:
    """R2: those that cannot be started are said to be missing, with the reason; the others work on."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from ipcluster_core import Cluster, errors
        with Cluster("r2", n=2) as cluster, cluster.client() as client:
            pid = client.options(engines=[0]).submit(abs, -1).result(10)
            cluster.scale_sync(60)
            try:
                cluster.wait_sync(60, timeout=30)
            except errors.LaunchError as error:
                print(str(error).splitlines()[0])
            status = cluster.status_sync()
            print(status.state, status.up > 10, status.reasons[0])
            cluster.scale_sync(2)
            print(client.submit(abs, -1).result(10), cluster.wait_sync(2))
    """
    said = steps.run_step(code).splitlines()
    assert "it cannot be started: [Errno 24] Too many open files" in said[1]
    assert said[1].startswith("running True engine ")
    assert said[2] == "1 2"


@pytest.mark.parametrize("options", [["--uts"], ["--uts", "--net"]], ids=" ".join)
def test_a_host_whose_name_does_not_resolve_is_enough(options: list[str]) -> None:
    """R3: neither the name nor 127.0.0.1 is needed: also where no network interface is up."""
    code = """
        from ipcluster_core import Cluster
        with Cluster("r3", n=2) as cluster, cluster.client() as client:
            print(client.submit(pow, 2, 10).result(10), cluster.status_sync().up)
    """
    script = f'hostname no-such-host.invalid && exec "{sys.executable}" -c "$0"'
    done = subprocess.run(
        ["unshare", *options, "sh", "-c", script, textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.stdout == "1024 2\n", done.stderr


HEIR = """
    import os, resource, signal, sys, tempfile
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signum not in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
            try:
                signal.signal(signum, signal.SIG_IGN)
            except OSError:
                pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody could run a program
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.umask(0)
    os.nice(3)
    held = [os.open(sys.argv[1], os.O_RDWR | os.O_CREAT) for _ in range(40)]
    for fd in held:
        os.set_inheritable(fd, True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.chdir(sys.argv[2])
    os.rmdir(sys.argv[2])
    from ipcluster_core import Cluster
    Cluster.create_sync("heir", n=2)
    print("created", flush=True)
    signal.pause()
"""


def test_a_cluster_has_nothing_of_its_creator(tmp_path: Path) -> None:
    """Detached: blocked and ignored signals, descriptors, a deleted folder, a terminal: all is gone with the creator.

    The terminal is closed and the creator's whole process group killed.
    """
    held, folder = tmp_path / "held", tmp_path / "folder"
    folder.mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", textwrap.dedent(HEIR), str(held), str(folder)])
    said = b""
    while b"created" not in said:
        said += os.read(terminal, 4096)
    creators_group = os.getpgid(pid)
    os.close(terminal)
    os.killpg(creators_group, signal.SIGKILL)
    os.waitpid(pid, 0)
    pids = steps.living("heir")

    assert len(pids) == 5
    nanny = steps.part("heir", "nanny")
    for one in pids:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines() if ":\t" in line
        )
        stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        assert int(status["SigBlk"], 16) == 0
        ignored = {number for number in signal.valid_signals() if int(status["SigIgn"], 16) >> (number - 1) & 1}
        assert ignored <= {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT}
        assert int(status["Umask"], 8) == 0o077
        assert stat[4] == "0"  # no controlling terminal
        assert os.getsid(one) == nanny
        assert Path(f"/proc/{one}/cwd").readlink() == Path.home()
        targets = [str(link.readlink()) for link in Path(f"/proc/{one}/fd").iterdir()]
        assert not [target for target in targets if str(held) in target or "/dev/pt" in target or "tty" in target]
    with Client.connect("heir") as client:
        engines = client.run(_ignored_signals)
        assert list(engines.values()) == [[signal.SIGPIPE]] * 2 or all(
            set(one) <= {signal.SIGPIPE, signal.SIGXFSZ} for one in engines.values()
        )
    assert ClusterManager().teardown_sync("heir").outcome == "ended"


def _ignored_signals() -> list[int]:
    return [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]


def test_a_creator_that_ignores_the_end_of_children_can_create() -> None:
    """SIGCHLD ignored: its children vanish without a status; the cluster does not depend on that."""
    code = """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        from ipcluster_core import Cluster
        with Cluster("heir", n=1) as cluster, cluster.client() as client:
            print(client.submit(abs, -1).result(10))
    """
    assert steps.run_step(code) == "1"
