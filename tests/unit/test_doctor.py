"""What the doctor finds, in sound and in broken surroundings."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from ipcluster_core import doctor
from ipcluster_core.doctor import Finding, Level, examine, file_system_of
from ipcluster_core.store import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a store that holds a secret and the record of an ended cluster."""
    opened = open_store(f"file:{tmp_path}/mine")
    opened.create("secret", "a.1", {"key": "k"})
    return tmp_path / "mine"


def of(check: str, findings: list[Finding]) -> list[Finding]:
    """Return the findings of one check."""
    return [finding for finding in findings if finding.check == check]


def look(check: str, store: Path | str = "") -> Finding:
    """Examine a store and the host, and return the one finding of a check."""
    (finding,) = of(check, examine(f"file:{store}" if store else None))
    return finding


def test_sound_surroundings_have_no_failure_and_each_check_is_told(store: Path) -> None:
    """Nothing is left in the store."""
    findings = examine(f"file:{store}")

    assert [finding for finding in findings if finding.level is Level.FAILED] == []
    checks = ["store", "privacy", "file system", "sockets", "clusters"]
    checks += ["shared memory", "descriptors", "host name", "versions", "plug-ins"]
    assert list(dict.fromkeys(finding.check for finding in findings)) == checks
    assert list(open_store(f"file:{store}").keys("secret")) == ["a.1"]
    assert all(finding.cure for finding in findings if finding.level is not Level.OK)


def test_a_store_that_is_to_be_made_yet_is_well_and_not_made(tmp_path: Path) -> None:
    """The first cluster makes it."""
    finding = look("store", tmp_path / "to" / "come")

    assert (finding.level, finding.text.endswith("is not there yet; the first cluster makes it")) == (Level.OK, True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    """A file is in its way."""
    (tmp_path / "file").touch()

    assert look("store", tmp_path / "file" / "store").level is Level.FAILED
    assert "cannot be made in" in look("store", tmp_path / "file" / "store").text
    assert "Not a directory" in look("store", tmp_path / "file").text


def test_a_store_of_no_known_kind_is_a_failure_and_the_host_is_examined_all_the_same() -> None:
    """What would do is in the message."""
    findings = examine("redis://host")

    (finding,) = of("store", findings)
    assert finding.level is Level.FAILED
    assert "use file:/some/folder" in finding.text
    assert of("versions", findings) != []


def test_a_store_that_others_can_look_into_is_a_warning(store: Path) -> None:
    """With the command that closes it."""
    store.chmod(0o755)
    finding = look("privacy", store)

    assert finding == Finding("privacy", Level.WARNING, f"open to others: {store}", f"chmod -R go= {store}")


def test_a_secret_that_others_can_read_is_a_failure(store: Path) -> None:
    """Whatever its folder allows."""
    (path,) = (path for path in (store / "secrets").rglob("*") if path.is_file())
    path.chmod(0o640)
    finding = look("privacy", store)

    assert (finding.level, finding.text) == (Level.FAILED, f"open to others: {path}")


def test_a_store_of_another_user_is_a_failure(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of its paths are named."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    finding = look("privacy", store)

    assert finding.level is Level.FAILED
    assert finding.text.startswith(f"of another user: {store}, ")
    assert finding.text.endswith(" more")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
proc /proc proc rw 0 0
nas:/home /home nfs4 rw 0 0
tmpfs /home/me/quick tmpfs rw 0 0
nas:/x /with\\040space lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib", ("/", "ext4")),
        ("/home", ("/home", "nfs4")),
        ("/home/me/quickly", ("/home", "nfs4")),
        ("/home/me/quick/x", ("/home/me/quick", "tmpfs")),
        ("/homely", ("/", "ext4")),
        ("/with space/x", ("/with space", "lustre")),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, found: tuple[str, str]) -> None:
    """Whole names of folders count."""
    assert file_system_of(path, MOUNTS) == found


def test_a_network_file_system_is_a_warning(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sockets are of one host."""
    monkeypatch.setattr(doctor, "file_system_of", lambda path, mounts: ("/home", "nfs4"))
    finding = look("file system", store)

    assert finding.level is Level.WARNING
    assert "/home is a network file system (nfs4)" in finding.text


def test_a_long_path_of_sockets_is_reached_in_another_way(tmp_path: Path) -> None:
    """And told."""
    finding = look("sockets", tmp_path / ("x" * 100))

    assert finding.level is Level.OK
    assert finding.text.endswith("reached through /proc/self/fd")


def test_broken_clusters_come_with_the_command_that_cures(store: Path) -> None:
    """One line each."""
    open_store(f"file:{store}").create("record", "half", {"schema": 1})
    finding = look("clusters", store)

    assert finding.level is Level.WARNING
    assert finding.text.startswith("half is broken: the record of cluster '?' is damaged")
    assert finding.cure == "ipclusterctl teardown half"


@pytest.mark.parametrize(
    ("soft", "level"), [(256, Level.WARNING), (1024, Level.OK), (resource.RLIM_INFINITY, Level.OK)]
)
def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch, soft: int, level: Level) -> None:
    """With the command that raises the limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, 4096))
    finding = look("descriptors")

    assert finding.level is level
    assert finding.cure == ("raise it for clusters of many engines: ulimit -n 1024" if level is Level.WARNING else "")


def test_a_host_name_that_does_not_resolve_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters do not need it."""

    def fail(*args: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    finding = look("host name")

    assert finding.level is Level.WARNING
    assert "does not resolve: [Errno -2] Name or service not known" in finding.text


@pytest.mark.parametrize(
    ("folder", "text"), [("/nonexistent", "No such file or directory"), ("/proc", "/proc has 0 MB free")]
)
def test_little_or_no_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch, folder: str, text: str) -> None:
    """Arrays travel in messages then."""
    monkeypatch.setattr(doctor, "_SHARED", folder)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    finding = look("shared memory")

    assert finding.level is Level.WARNING
    assert text in finding.text


def test_a_package_that_cannot_be_imported_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cause."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    failed = [finding for finding in of("versions", examine()) if finding.level is Level.FAILED]

    assert [finding.cure for finding in failed] == ["pip install cloudpickle"]


def test_a_package_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own may run from its sources."""

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    levels = [finding.level for finding in of("versions", examine())]

    assert levels == [Level.OK, Level.WARNING, Level.FAILED, Level.FAILED]


@pytest.fixture
def broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a launcher whose module raises."""
    about = tmp_path / "moon-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ipcluster_core.launchers]\nmoon = moon_launcher:Moon\n")
    (tmp_path / "moon_launcher.py").write_text("raise RuntimeError('no rocket')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("moon_launcher", None)


def test_a_plugin_that_cannot_be_loaded_is_named_with_its_cause(broken_plugin: None) -> None:
    """The others are looked at all the same."""
    failed = [finding for finding in of("plug-ins", examine()) if finding.level is Level.FAILED]

    assert failed == [
        Finding(
            "plug-ins",
            Level.FAILED,
            "launcher 'moon' (moon_launcher:Moon) cannot be loaded: RuntimeError: no rocket",
            "install what it needs, or uninstall moon",
        )
    ]


def test_a_check_that_fails_itself_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a traceback."""

    def fail(which: int) -> object:
        raise OSError("not today")

    monkeypatch.setattr(resource, "getrlimit", fail)

    assert look("descriptors").text == "cannot be checked: not today"
    assert look("descriptors").level is Level.FAILED
