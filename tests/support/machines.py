"""Several machines on one, made of Linux namespaces: hosts with names, addresses and sshd, and cables to be pulled.

::

    head (this machine's name, file system and processes) -- bridge --+-- cable -- node1
                                                                      +-- cable -- node2

Nothing of it reaches, or is reached from, any real network. A node has processes, a name, ``/run``, ``/dev/shm`` and a
temporary folder of its own, and does not see the test's folder: what passes between it and the head goes through the
cable. Needs root, iproute2 and OpenSSH's server; see `why_not`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import steps

#: Addresses that are nobody's: those for testing network gear (RFC 2544).
NETWORK = "198.18.99"
HEAD = f"{NETWORK}.1"

SSHD_CONFIG = """
Port 22
HostKey /run/lab/host_key
PidFile none
AuthorizedKeysFile /run/lab/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv TMPDIR=/run/tmp
MaxStartups 100:30:200
"""

SSH_CONFIG = """
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR
"""

#: Makes a node of the namespaces that it runs in; its arguments: name, folder of the hosts, what it must not see.
INIT = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/shadow" /etc/shadow
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
mkdir -m 700 /run/lab /run/tmp
cp "$2"/*_key "$2"/*.pub "$2/sshd_config" /run/lab
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$3"
exec /usr/sbin/sshd -D -e -f /run/lab/sshd_config
"""


def _all_of_tmp(hidden: Path) -> Path:
    """Return the folder for temporary files that nodes are to have of their own, unless what they run is in it."""
    tmp = Path(tempfile.gettempdir()).resolve()
    needed = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__))
    return hidden if any(path.resolve().is_relative_to(tmp) for path in needed) else tmp


def why_not() -> str:
    """Say why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [
        tool for tool in ("ip", "nsenter", "unshare", "setpriv", "ssh", "ssh-keygen") if shutil.which(tool) is None
    ]
    missing += [] if Path("/usr/sbin/sshd").exists() else ["sshd"]
    if missing:
        return f"{', '.join(missing)} not installed (iproute2, util-linux, openssh-client, openssh-server)"
    made = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return made.stderr.strip()


class Machines:
    """The hosts.

    Parameters
    ----------
    folder
        For keys and logs.
    hidden
        Folder of the head that nodes do not see; `folder` is in it.
    names
        Of the nodes.
    """

    def __init__(self, folder: Path, hidden: Path, names: list[str]) -> None:
        self.folder = folder
        self._hidden = _all_of_tmp(hidden)
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 11)}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._write_files()
        bind = f'mount --bind "{folder}/hosts" /etc/hosts && exec sleep infinity'
        self._head = self._start("head", ["unshare", "--net", "--mount", "sh", "-c", bind])
        # Not before: its namespaces would still be this machine's, as would what is done in them.
        steps.wait_until(lambda: Path(f"/proc/{self._head.pid}/cmdline").read_bytes() == b"sleep\0infinity\0")
        self._in_head("ip", "link", "set", "lo", "up")
        self._in_head("ip", "link", "add", "br0", "type", "bridge")
        self._in_head("ip", "addr", "add", f"{HEAD}/24", "dev", "br0")
        self._in_head("ip", "link", "set", "br0", "up")

    @property
    def ssh(self) -> list[str]:
        """The command that runs another one on a node, on the head."""
        return ["ssh", "-F", str(self.folder / "ssh_config")]

    @property
    def at_head(self) -> list[str]:
        """What has to stand before a command that is to run on the head."""
        return ["nsenter", "-t", str(self._head.pid), "--net", "--mount", f"--wd={Path.cwd()}"]

    def _write_files(self) -> None:
        self.folder.mkdir()
        for name in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name))
        key = (self.folder / "host_key.pub").read_text()
        lines = [f"{address} {name}" for name, address in self._addresses.items()]
        (self.folder / "hosts").write_text(
            "\n".join(["127.0.0.1 localhost", f"{HEAD} {os.uname().nodename}", *lines, ""])
        )
        (self.folder / "known_hosts").write_text("".join(f"{name} {key}" for name in self._addresses))
        (self.folder / "shadow").write_text("root:*:20000:0:99999:7:::\nsshd:!:20000::::::\n")
        (self.folder / "sshd_config").write_text(SSHD_CONFIG)
        (self.folder / "ssh_config").write_text(SSH_CONFIG.format(folder=self.folder))

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            # Not even a run of tests that is killed leaves any of it.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _in_head(self, *command: str) -> None:
        run(*self.at_head, *command)

    # a node's life

    def boot(self, name: str) -> None:
        """Start a node, and wait until one can log in."""
        spaces = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        node = self._nodes[name] = self._start(
            name, [*spaces, "sh", "-c", INIT, "sh", name, str(self.folder), str(self._hidden)]
        )
        own = Path("/proc/self/ns/net").readlink()
        steps.wait_until(lambda: Path(f"/proc/{node.pid}/ns/net").readlink() != own)
        port = f"p-{name}"
        # A machine keeps its card: the head would look for another one in vain, as long as it remembers this.
        number = self._addresses[name].rpartition(".")[2]
        card = ["name", "eth0", "address", f"02:00:00:00:00:{int(number):02x}", "netns", str(node.pid)]
        self._in_head("ip", "link", "add", port, "type", "veth", "peer", *card)
        self._in_head("ip", "link", "set", port, "master", "br0", "up")
        for command in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{self._addresses[name]}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            run("nsenter", "-t", str(node.pid), "--net", "ip", *command)
        steps.wait_until(lambda: self.can_log_in(name), timeout=30)

    def can_log_in(self, name: str) -> bool:
        """Tell whether ssh from the head comes in."""
        command = [*self.at_head, *self.ssh, name, "true"]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0

    def cut(self, name: str) -> None:
        """Pull a node's cable."""
        self._in_head("ip", "link", "set", f"p-{name}", "down")

    def mend(self, name: str) -> None:
        """Put a node's cable back."""
        self._in_head("ip", "link", "set", f"p-{name}", "up")

    def power_off(self, name: str) -> None:
        """End a node in silence: nobody is told that its processes are gone."""
        self.cut(name)
        node = self._nodes.pop(name)
        node.kill()
        node.wait()
        self._in_head("ip", "link", "delete", f"p-{name}")

    def processes(self, name: str) -> dict[int, str]:
        """Return what runs on a node but its sshd, by pid as this machine numbers it."""
        space = Path(f"/proc/{self._first(name)}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if (folder / "ns" / "pid").readlink() == space and command and "sshd" not in command:
                    found[int(folder.name)] = command
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or none of ours
                continue
        return found

    def files(self, name: str) -> list[str]:
        """Return what stands in a node's temporary folder, and of ours in its shared memory."""
        root = Path(f"/proc/{self._first(name)}/root")
        return sorted(path.name for path in (*(root / "run/tmp").iterdir(), *(root / "dev/shm").glob("ipcluster*")))

    def wait_until_empty(self, timeout: float) -> None:
        """Wait until nothing but sshd is on any node that is up, neither processes nor files; else fail and name it."""

        def left() -> list[str]:
            return [
                f"{name}: {one}" for name in self._nodes for one in (*self.processes(name).values(), *self.files(name))
            ]

        try:
            steps.wait_until(lambda: not left(), timeout)
        except AssertionError:
            raise AssertionError(f"left on nodes after {timeout:g} s: {left()}") from None

    def _first(self, name: str) -> str:
        """Return a node's first process."""
        unshare = self._nodes[name].pid
        (first,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        return first

    def close(self) -> None:
        """End all of it."""
        for node in self._nodes.values():
            node.kill()
            node.wait()
        self._head.kill()
        self._head.wait()


def run(*command: str) -> None:
    """Run a command that must not fail."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def machines(hidden: Path, names: list[str]) -> Iterator[Machines]:
    """Make hosts, which end with the block; `hidden` is the folder of the head in which tests have their files."""
    made = Machines(hidden / "machines", hidden, names)
    try:
        for name in names:
            made.boot(name)
        yield made
    finally:
        made.close()
