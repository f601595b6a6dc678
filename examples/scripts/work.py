"""Step 2: use the cluster from another process, on any number of occasions. Usage: work.py [NAME]."""

import sys
from pathlib import Path

from ipcluster_core import Client

sys.path.insert(0, str(Path(__file__).parents[1]))  # the engines need not have it: `flights` travels to them
import flights

name = sys.argv[1] if len(sys.argv) > 1 else "flights"
with Client.connect(name) as client:
    print(flights.table(list(client.map(flights.statistics, flights.months()))))
