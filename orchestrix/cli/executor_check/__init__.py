"""Executor check: plays a node against an executor in any language, and reports each rule of the protocol.

It calls the executor as the owner of an attempt does, and answers its reports; `docs/executors.md` has the protocol.
"""
