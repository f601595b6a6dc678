"""Tasks that create, resize, use and end a cluster."""

from __future__ import annotations

from .create import CreateClusterOperator
from .reap import ReapClustersOperator
from .restart import RestartEnginesOperator
from .run import RunOnClusterOperator
from .scale import ScaleClusterOperator
from .teardown import TeardownClusterOperator
from .wait import WaitForClusterOperator

__all__ = [
    "CreateClusterOperator",
    "ReapClustersOperator",
    "RestartEnginesOperator",
    "RunOnClusterOperator",
    "ScaleClusterOperator",
    "TeardownClusterOperator",
    "WaitForClusterOperator",
]
