"""Secrets, detachment, limits, and what the fast path imports."""

from __future__ import annotations

import logging
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterState, errors, open_store


def test_the_store_is_private_under_any_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders 0700, files and sockets 0600 or 0700, also where the store had not been there."""
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{tmp_path}/deep/store")
    before = os.umask(0)
    try:
        with Cluster("private", n=1):
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "deep").rglob("*")}
            files = {path for path in modes if path.is_file()}
    finally:
        os.umask(before)

    assert {mode for path, mode in modes.items() if path.suffix == "" and mode & 0o077} == set()
    assert all(mode & 0o077 == 0 for mode in modes.values())
    assert {mode for path, mode in modes.items() if "secrets" in path.parts and path in files} == {0o600}
    assert len(modes) > 8


def environment() -> dict[str, str]:
    """Return the environment that user code sees."""
    return dict(os.environ)


def test_the_secret_is_nowhere_but_in_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """Not in handle, repr, logs at DEBUG, arguments of processes, engines' environment, or exceptions."""
    caplog.set_level(logging.DEBUG)
    with Cluster("discreet", n=1) as cluster, cluster.client() as client:
        secret = steps.secret_of("discreet")
        seen = [cluster.handle.model_dump_json(), repr(cluster), repr(cluster.handle), repr(client)]
        seen += [str(client.submit(environment).result(10)), str(cluster.status_sync()), str(cluster.logs_sync())]
        for pid in steps.living("discreet"):
            seen += [Path(f"/proc/{pid}/cmdline").read_text(), Path(f"/proc/{pid}/environ").read_text()]
        seen.append(str(client.submit(lambda: 1 / 0).exception(10)))
        document = open_store().read("record", "discreet")
        assert document is not None
        seen.append(str(document.value))
    seen.append(caplog.text)

    assert len(secret) == 64
    assert not any(secret in text for text in seen)
    assert not any(
        secret in (Path(open_store().url.partition(":")[2]) / path).read_text() for path in steps.files_of_store()
    )


def test_a_wrong_secret_is_refused_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """By broker and controller."""
    with Cluster("guarded", n=1) as cluster:
        record = steps.record_of("guarded")
        document = open_store().read("secret", record.secret)
        assert document is not None
        wrong = open_store().swap("secret", record.secret, {"key": "0" * 64}, document.version)
        with pytest.raises(errors.NotAuthorized, match="wrong secret for cluster 'guarded' #1"):
            Client.connect("guarded")
        with pytest.raises(errors.NotAuthorized, match="wrong secret for cluster 'guarded' #1"):
            cluster.scale_sync(3)

        open_store().swap("secret", record.secret, document.value, wrong.version)
        assert len(cluster.status_sync().engines) == 1


def test_the_workflow_engines_variables_do_not_reach_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are asked for; others do."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "very secret")
    monkeypatch.setenv("PREFECT_API_KEY", "very secret")
    monkeypatch.setenv("MY_SETTING", "seen")
    with Cluster("clean", n=1, env={"PREFECT_PROFILE": "asked for"}) as cluster, cluster.client() as client:
        seen = client.submit(environment).result(10)

    assert "AIRFLOW__CORE__FERNET_KEY" not in seen
    assert "PREFECT_API_KEY" not in seen
    assert seen["MY_SETTING"] == "seen"
    assert seen["PREFECT_PROFILE"] == "asked for"


def test_the_cluster_holds_nothing_of_its_creator() -> None:
    """Own session, no inherited descriptors, default signals, standard streams of its own."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = """
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
        from ipcluster_core import Cluster
        Cluster.create_sync("free", n=1)
    """
    subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())], pass_fds=(write,), check=True
    )
    os.close(write)
    pids = steps.living("free")
    nanny = steps.part("free", "nanny")
    pipes = {
        link.name for fd in Path(f"/proc/{nanny}/fd").iterdir() if (link := fd.readlink()).name.startswith("pipe:")
    }

    assert os.read(read, 1) == b""  # nobody holds the other end
    os.close(read)
    for pid in pids:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        assert int(status["SigBlk"], 16) == 0
        assert os.getsid(pid) == nanny
        streams = {Path(f"/proc/{pid}/fd/{fd}").readlink().name for fd in (1, 2)}
        assert len(streams) == 1
        assert streams <= {"nanny.log", "controller.log", "broker.log", *pipes}
        assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    assert steps.ctl("run", "free", "os:getcwd").stdout.strip() == str(Path.cwd())
    assert steps.ctl("teardown", "free").returncode == 0


def test_an_idle_cluster_ends_and_says_so() -> None:
    """The limit is armed once it is ready; who comes later is told which limit and when."""
    cluster = Cluster.create_sync("idle", n=1, idle_timeout=0.5)
    with cluster.client() as client:
        client.submit(time.sleep, 1.0).result(10)  # busy for longer than the limit
        assert cluster.status_sync().state is ClusterState.RUNNING
    steps.wait_until(lambda: not steps.living("idle"))

    with pytest.raises(errors.ClusterEnded, match=r"idle limit of 0.5 s reached \(by idle_timeout\)"):
        Cluster.connect_sync("idle")


def test_lifetime_and_no_client_end_a_cluster() -> None:
    """Whatever it does."""
    Cluster.create_sync("mayfly", n=1, lifetime=0.5, idle_timeout=None)
    lonely = Cluster.create_sync("lonely", n=1, no_client_timeout=0.5, idle_timeout=None)
    with lonely.client() as client:
        client.submit(time.sleep, 1.0)
        client.shutdown(wait=False)
    steps.wait_until(lambda: not steps.living("mayfly") and not steps.living("lonely"))

    with pytest.raises(errors.ClusterEnded, match=r"lifetime of 0.5 s is over"):
        Client.connect("mayfly")
    with pytest.raises(errors.ClusterEnded, match=r"no client was connected for 0.5 s"):
        Client.connect("lonely")


HEAVY = {"pydantic", "asyncio", "prefect", "airflow", "numpy", "cloudpickle", "zmq"}


def _imported(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "ipcluster_core" in names
    return names


def test_the_package_imports_nothing() -> None:
    """`import ipcluster_core` loads none of its own modules and nothing heavy."""
    names = _imported("import ipcluster_core")

    assert not names & HEAVY
    assert not any(name.startswith("ipcluster_core.") for name in names)


def test_the_path_of_a_step_to_its_first_result_is_lean() -> None:
    """Connect by name, submit an importable function, take the result: no asyncio, no pydantic."""
    with Cluster("lean", n=1):
        names = _imported(
            "from ipcluster_core import Client; assert Client.connect('lean').submit(abs, -1).result(10) == 1"
        )

    assert "ipcluster_core.channel" in names
    assert not {name.partition(".")[0] for name in names} & (HEAVY | {"multiprocessing"})


def test_a_deep_store_folder_needs_no_short_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a socket address may be."""
    deep = tmp_path / ("x" * 120) / "store"
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{deep}")
    with Cluster("deep", n=1) as cluster, cluster.client() as client:
        assert client.submit(abs, -1).result(10) == 1


def test_a_creator_with_few_descriptors_left_can_still_create() -> None:
    """A soft limit of 64."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with Cluster("narrow", n=2) as cluster:
            assert cluster.wait_sync(2) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_twins_work_inside_a_running_loop() -> None:
    """As in a notebook."""
    import asyncio

    async def inside() -> int:
        with Cluster("looped", n=1) as cluster:
            await cluster.scale(2)
            return cluster.wait_sync(2)

    assert asyncio.run(inside()) == 2
