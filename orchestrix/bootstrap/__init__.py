"""Which concrete parts is each role made of?  The only place that names adapters."""

from orchestrix.bootstrap.factories import load_catalog, open_broker, open_database
from orchestrix.bootstrap.worker import run_worker

__all__ = ["load_catalog", "open_broker", "open_database", "run_worker"]
