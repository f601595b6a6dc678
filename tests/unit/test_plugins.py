"""Plug-ins are found by name."""

from __future__ import annotations

import pytest

from ipcluster_core import errors, plugins
from ipcluster_core.backends import get_backend
from ipcluster_core.backends.native import NativeBackend
from ipcluster_core.launchers import get_launcher
from ipcluster_core.launchers.local import LocalLauncher


def test_ours_are_found_by_their_names() -> None:
    """Without a look at what is installed."""
    assert isinstance(get_backend("native"), NativeBackend)
    assert isinstance(get_launcher("local"), LocalLauncher)


def test_an_unknown_name_is_told_together_with_the_known_ones() -> None:
    """So a typing error is seen at once."""
    with pytest.raises(errors.ClusterError, match=r"there is no launcher 'lokal'; there are: .*local"):
        get_launcher("lokal")
    with pytest.raises(errors.ClusterError, match=r"there is no backend 'ray'; there are: .*native"):
        get_backend("ray")


def test_one_that_cannot_be_imported_is_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package's entry point leads nowhere."""
    from importlib import metadata

    broken = metadata.EntryPoint("broken", "no_such_package:Launcher", "ipcluster_core.launchers")
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints([broken]))

    with pytest.raises(
        errors.ClusterError, match=r"launcher 'broken' \(no_such_package:Launcher\) cannot be loaded: .*No module"
    ):
        plugins.load("launcher", "broken", {})
