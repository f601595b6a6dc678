"""C18: the key of a cluster is in the store, and nowhere else; another user of the machine can do nothing to it."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, errors, open_store

#: The steps of a pipeline, each a process; they print whatever they hold.
STEPS = {
    "create": """
        cluster = Cluster.create_sync("c18", n=2, labels={"team": "night"}, claim="run-1")
        print(cluster, repr(cluster), cluster.handle, repr(cluster.handle), cluster.handle.model_dump_json())
    """,
    "work": """
        import os
        with Client.connect("c18") as client:
            print(client, repr(client), client.submit(lambda: dict(os.environ)).result(20))
            future = client.submit(lambda: 1 / 0)
            print(repr(future.exception(20)), future.exception().__cause__, future, client.put([1]))
            print(client.submit(lambda: open(f"/proc/{os.getppid()}/cmdline").read()).result())
    """,
    "scale": """
        cluster = Cluster.connect_sync("c18")
        cluster.scale_sync(3)
        print(cluster.wait_sync(3), cluster.status_sync(), cluster.logs_sync(), cluster.events_sync())
        print(ClusterManager().list_sync(), ClusterManager().get_sync("c18"))
    """,
    "fail": """
        for attempt in (
            lambda: Client.connect("nobody"),
            lambda: Cluster.connect_sync("c18").scale_sync(1, engines="x"),
            lambda: Cluster.create_sync("c18"),
        ):
            try:
                attempt()
            except errors.ClusterError as error:
                import traceback
                traceback.print_exception(error)
    """,
}

PREAMBLE = """
    import logging, os, sys
    os.umask(0)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    from ipcluster_core import Client, Cluster, ClusterManager, errors
"""


def test_the_key_is_nowhere_but_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: umask 000, DEBUG, a new store: not in output, logs, arguments, environments, other files or errors."""
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{tmp_path}/not/there/before")
    seen: dict[str, str] = {}
    for step in ("create", "work", "scale", "fail"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PREAMBLE) + textwrap.dedent(STEPS[step])],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen[step] = done.stdout + done.stderr
    key = steps.secret_of("c18")
    for pid in steps.living("c18"):
        seen[f"arguments of {pid}"] = Path(f"/proc/{pid}/cmdline").read_text()
        seen[f"environment of {pid}"] = Path(f"/proc/{pid}/environ").read_text()
    for verb in (
        ["status", "c18"],
        ["status", "c18", "--json"],
        ["list", "--json"],
        ["handle", "c18"],
        ["logs", "c18"],
    ):
        seen[" ".join(verb)] = steps.ctl(*verb).stdout
    root = tmp_path / "not"
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (root, *root.rglob("*"))}
    files = [path for path in modes if path.is_file()]
    with_key = {path for path in files if key in path.read_text(errors="replace")}

    assert len(key) == 64
    assert [what for what, text in seen.items() if key in text] == []
    assert with_key
    assert {path.relative_to(root / "there" / "before").parts[0] for path in with_key} == {"secrets"}
    assert {modes[path] for path in with_key} == {0o600}
    assert [path for path, mode in modes.items() if mode & 0o077] == []
    assert "run-1" in steps.ctl("teardown", "c18").stderr  # a claim is in the way
    ended = steps.ctl("teardown", "c18", "--force")
    assert key not in ended.stdout + ended.stderr
    assert [path for path in root.rglob("*") if path.is_file() and key in path.read_text(errors="replace")] == []
    assert steps.left_in_store() == ["records/c18"]
    monkeypatch.undo()


def test_who_cannot_read_the_key_is_told_so() -> None:
    """C18: a handle is found, and its secret is not where this step looks: which one, where, and no traceback."""
    with Cluster("c18", n=1) as cluster:
        record = steps.record_of("c18")
        document = open_store().read("secret", record.secret)
        assert document is not None
        open_store().delete("secret", record.secret, document.version)
        with pytest.raises(errors.NotAuthorized, match=r"the secret of cluster 'c18' #1 is not in file:"):
            Client.connect("c18")
        said = steps.ctl("scale", "c18", "2")
        open_store().create("secret", record.secret, document.value)

        assert said.returncode == 1
        assert "the secret of cluster 'c18' #1 is not in file:" in said.stderr
        assert cluster.status_sync().up == 1


#: It is told a store, a folder of shared memory, an incarnation's folder and pids, and tries all that it may.
INTRUDER = """
    import os, signal, socket, sys
    from ipcluster_core import Client, Cluster, ClusterManager, errors
    store, shared, folder, pids = sys.argv[1], sys.argv[2], sys.argv[3], [int(pid) for pid in sys.argv[4].split()]
    assert [one.name for one in ClusterManager(store).list_sync()] == ["c18"]
    with Client.connect("c18", store=store) as client:  # whoever may, can: what follows fails for the right reason
        client.submit(abs, -1).result(20)
    from ipcluster_core import _sync
    _sync.stop()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

    def tried(what):
        try:
            found = what()
        except (OSError, errors.ClusterError) as error:
            return True
        return found

    def connected(name):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(os.path.join(folder, name))

    attempts = {
        "list": lambda: ClusterManager(store).list_sync(all=True),
        "connect": lambda: Client.connect("c18", store=store, timeout=5),
        "teardown": lambda: ClusterManager(store).teardown_sync("c18", force=True, timeout=5),
        "read": lambda: os.listdir(store.partition(":")[2]),
        "write": lambda: os.mkdir(os.path.join(store.partition(":")[2], "records", "mine")),
        "folder": lambda: os.listdir(folder),
        "shared memory": lambda: os.listdir(shared),
        "task socket": lambda: connected("task"),
        "control socket": lambda: connected("control"),
        "output socket": lambda: connected("output"),
        **{f"signal {pid}": lambda pid=pid: os.kill(pid, signal.SIGTERM) for pid in pids},
        **{f"environment {pid}": lambda pid=pid: open(f"/proc/{pid}/environ").read() for pid in pids},
        **{f"memory {pid}": lambda pid=pid: open(f"/proc/{pid}/mem").read() for pid in pids},
    }
    for what, attempt in attempts.items():
        if tried(attempt) is not True:
            print("could", what)
    for error in ("list", "connect"):
        try:
            attempts[error]()
        except errors.ClusterError as why:
            print(type(why).__name__, why)
    os._exit(0)
"""


@pytest.fixture
def common_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store in a folder that everybody can enter, as the temporary one of pytest is not."""
    folder = tempfile.mkdtemp(prefix="cases-")
    Path(folder).chmod(0o755)
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{folder}/store")
    yield f"file:{folder}/store"
    monkeypatch.undo()
    shutil.rmtree(folder)


def network_sockets(pid: int) -> list[str]:
    """Return what a process has open of TCP and UDP, as the kernel lists it."""
    mine = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # what lists the folder is in it itself
            mine.add(link.readlink().name.removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/{pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6", "udp", "udp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [row[1] for row in rows if row[9] in mine]


def test_no_part_of_a_cluster_can_be_reached_over_a_network() -> None:
    """C18: there is no TCP or UDP socket to encrypt; a task that opens one shows that one would be seen."""
    with Cluster("c18", n=2) as cluster, Client.connect("c18") as client:
        client.run(abs, -1)
        cluster.scale_sync(3)
        cluster.wait_sync(3)
        pids = [os.getpid(), *steps.living("c18")]
        assert len(pids) == 7
        assert [network_sockets(pid) for pid in pids] == [[]] * 7
        client.options(engines=[0]).submit(listen).result(10)
        assert sum(len(network_sockets(pid)) for pid in pids) == 1


def listen() -> None:
    """Open a socket that lives as long as the engine."""
    sys.modules["listener"] = socket.create_server(("127.0.0.1", 0))  # type: ignore[assignment]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_read_nor_list_nor_disturb(common_store: str) -> None:
    """C18: store, record, secret, sockets, shared memory, processes; what it is told names what it may not read."""
    before = os.umask(0)
    try:
        cluster = Cluster.create_sync("c18", n=2)
    finally:
        os.umask(before)
    record = steps.record_of("c18")
    pids = steps.living("c18")
    said = steps.run_step(
        INTRUDER, common_store, f"/dev/shm/ipcluster-{record.uid}", record.folder, " ".join(map(str, pids))
    ).splitlines()

    assert [line for line in said if line.startswith("could")] == []
    assert len(said) == 2
    for line in said:
        assert common_store.partition(":")[2] in line
        assert "Permission denied" in line
    assert sorted(steps.living("c18")) == sorted(pids)
    assert cluster.status_sync().up == 2
    assert ClusterManager().teardown_sync("c18").outcome == "ended"
