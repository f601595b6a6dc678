"""Where a cluster's processes run."""

from .base import Launcher, get_launcher

__all__ = ["Launcher", "get_launcher"]
