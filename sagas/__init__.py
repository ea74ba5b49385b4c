"""Which sagas does the service have?  See `app_provisioning.py`."""
