"""One step of a pipeline: connect to a peer that runs, have one result, end. ``python step.py PEER ADDRESS``."""

from __future__ import annotations

import posixpath
import sys

from bench.peers import load

if __name__ == "__main__":
    # A function that every engine can import, so that no peer has to ship it.
    if load(sys.argv[1]).connected(sys.argv[2], posixpath.basename, "a/b") != "b":
        sys.exit("a wrong result came")
