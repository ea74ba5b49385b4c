"""Contracts: the form of every message that leaves a process of ours, or that another program sends to one."""
