"""Step 1: create a cluster that outlives this process. Usage: create.py [NAME]."""

import sys

from ipcluster_core import Cluster

name = sys.argv[1] if len(sys.argv) > 1 else "flights"
cluster = Cluster.create_sync(name, n=2, if_exists="attach")
print(cluster.handle.model_dump_json(), flush=True)
