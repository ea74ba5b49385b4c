"""Redelivery: commands whose workers died, tried again one by one."""
