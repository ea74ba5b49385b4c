"""Traces: the spans of requests, what leads to a trace, and the traces that this machine keeps."""
