"""The service: apps, over the library `orchestrix`."""
